"""Sentences of the manual, the workshop and every help text have at most 25 words, and no chain of `that of`.

A sentence is prose or the cell of a table; code, links' targets and headings do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 25
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "labs").rglob("*.md")])
_CHAIN = re.compile(r"\b(?:that|those) of\b", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`(\[*])|(?<=[.!?])\s+")


def sentences(text: str) -> Iterator[str]:
    """Each sentence of the prose and of the cells of tables."""
    text = re.sub(r"^(```|~~~).*?^\1\s*$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = re.sub(r"`code`(?:, `code`)+", "`code`", text)  # a list of names
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)", text):
        line = block.strip()
        if line.startswith("#"):
            continue
        parts = line.strip("|").split("|") if line.startswith("|") else [line]
        for part in parts:
            yield from (found for each in _END.split(" ".join(part.split())) if (found := each.strip()))


def faults(text: str) -> list[str]:
    """What is wrong, with the sentence."""
    long = [f"{len(each.split())} words: {each}" for each in sentences(text) if len(each.split()) > MOST]
    return [*long, *(f"chain: {each}" for each in sentences(text) if _CHAIN.search(each))]


def test_long_sentences_and_chains_are_found() -> None:
    long = " ".join(["word"] * (MOST + 1)) + "."
    assert len(faults(f"{long} Short one.\n\n| a cell | {long} |\n\n```\n{long}\n```\n# {long}\n")) == 2
    assert faults("A rate is that of a port.") == ["chain: A rate is that of a port."]
    assert faults("See [a page](docs/very/long-path.md) and `some code with many words`. Two. Three (e.g. four).") == []


def test_pages_have_short_sentences() -> None:
    found = [f"{page.relative_to(ROOT)}: {each}" for page in PAGES for each in faults(page.read_text(encoding="utf-8"))]
    assert len(PAGES) > 50 and not found, "\n".join(found)
