"""The glossary: entries that are whole, links that lead somewhere, commands that the parser takes, words that find."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.cli.argv import parse
from heddle.cli.explain_verb import Term, entry_text, find_term, glossary, parse_glossary
from heddle.cli.program import main
from tests.unit.test_help_examples import verbs

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENTRIES = glossary()
# What the people who use such a fabric will certainly look up.
ASKED = """MMR, E-ECMP, CTS, headroom, Xoff, Xon, PSN, go-back-N, busbw, algbw, k, polarisation, rail, plane, incast,
flowlet, spraying, ECN, Kmin, Kmax, Pmax, watchdog, DCQCN, NACK, NAK, BTH, ICRC, CNP, PFC, QP, QPN, rank, collective,
ring, MTU"""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those written by hand."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*plain, *re.findall(r'<a id="([^"]+)">', text)}


def test_the_glossary_has_every_term_once_and_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(ENTRIES) >= 60
    names = [name.lower() for entry in ENTRIES for name in entry.names]
    assert sorted(names) == sorted(set(names))
    assert all(find_term([term.strip()]) for term in ASKED.split(","))
    # Prose of an entry fits a narrow terminal.
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for entry in ENTRIES:
        assert max(map(len, entry_text(entry).splitlines())) <= 80, entry.name


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.word)
def test_an_entry_is_one_sentence_a_reason_a_command_and_a_page(entry: Term) -> None:
    assert entry.says.endswith(".") and not re.search(r"\.\s+[A-Z]", entry.says), "one sentence"
    assert entry.why.endswith(".")
    command = re.match(r"`(\./inv [^`]+)`", entry.see)
    assert command is not None, "`see` begins with a command between backquotes"
    for line in re.findall(r"`(\./inv [^`]+)`", entry.see):
        _, name, *words = shlex.split(line)
        parse(verbs()[name], words)
    page, _, anchor = entry.more.partition("#")
    assert (DOCS / page).is_file(), entry.more
    assert not anchor or anchor in anchors(DOCS / page), entry.more


@pytest.mark.parametrize(
    ("typed", "term"),
    [
        ("mmr", "MMR"), ("queue pair", "QP"), ("Queue-Pairs", "QP"), ("eecmp", "E-ECMP"), ("ecmp", "ECMP"),
        ("xoff", "Xoff and Xon"), ("kmin and kmax", "Kmin and Kmax"), ("go back n", "go-back-N"), ("#wrong", "#wrong"),
        ("hash-seeds", "hash seed"), ("NAK", "NACK"), ("rtsw", "RTSW"),
    ],
)  # fmt: skip
def test_a_term_is_found_by_its_names(typed: str, term: str) -> None:
    assert find_term(typed.split()).name == term
    assert find_term([typed]).name == term


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("polarization", "did you mean polarisation?"),
        ("hash", "terms with this word: hash seed, "),
        ("inkast", "did you mean incast?"),
        ("queue piar", "did you mean queue pair (QP)?"),
        ("xyzzy", "run ./inv explain to list all terms"),
        ("", "run ./inv explain to list all terms"),
    ],
)
def test_a_word_that_is_no_term_gets_a_hint(typed: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        find_term([typed])
    assert caught.value.problems[0].hint.startswith(hint)


@pytest.mark.parametrize(
    "wrong",
    [
        "## T\n### a\n\nSays.\n\n- why: w\n- see: `s`\n",
        "## T\n### a\n\n- why: w\n- see: `s`\n- more: [m](m.md)\n",
        "## T\n### a\n\nSays.\n\n- see: `s`\n- why: w\n- more: [m](m.md)\n",
        "## T\n### a\n\nSays.\n\n- why: w\n- see: `s`\n- more: m.md\n",
    ],
)
def test_an_entry_that_is_not_whole_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match="a: needs a sentence"):
        parse_glossary(f"# Glossary\n\n{wrong}")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the verb prints."""
    import tasks

    assert main(vars(tasks), ["./inv", "explain", *words]) == 0
    return capsys.readouterr().out


def test_explain_prints_an_entry_and_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "Kmin")
    assert text == entry_text(find_term(["Kmin"])) + "\n"
    assert "see   ./inv queues set ecn.kmin" in text and "more  docs/queues.md#ecn" in text
    (found,) = json.loads(said(capsys, "--format", "json", "Kmin"))["terms"]
    assert set(found) == {"term", "also", "topic", "text", "why", "see", "more"}
    assert len(json.loads(said(capsys, "--format", "json"))["terms"]) == len(ENTRIES)
    listed = said(capsys)
    assert all(f"  {entry.name} " in listed for entry in ENTRIES)
