"""What the pages show, for tests that run it: blocks of commands and programs, and the output below them.

    for block in blocks("docs/first-fabric.md"):
        for command in block.commands():
            typed(*command.words)

A test takes commands and figures from the page, so the page and the test cannot differ.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_NUMBER: Final = re.compile(r"(?<![\w:])\d[\w.,:+-]*")
_BAR: Final = re.compile("█+")
_PART: Final = re.compile(r"^```(\w*)\n(.*?)^```|^#+ ([^\n]*)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One line of a block: the words after `./inv`, and the remark after #."""

    words: tuple[str, ...]
    remark: str


@dataclass(frozen=True)
class Block:
    """One block of a page. heading: the nearest one above it; language: sh, text, python, yaml."""

    page: str
    heading: str
    language: str
    text: str

    def commands(self) -> list[Command]:
        """The lines of this block that start with ./inv, without the file that `>` writes."""
        lines = [line for line in self.text.replace("\\\n", " ").splitlines() if line.startswith("./inv ")]
        typed = [(line.partition(" > ")[0], line.partition(" #")[2].strip()) for line in lines]
        return [Command(tuple(shlex.split(line, comments=True)[1:]), remark) for line, remark in typed]


def text_of(page: str) -> str:
    """The text of a page of the checkout."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str, text: str | None = None) -> list[Block]:
    """The blocks of a page, in its order. languages: all without one; text: instead of the page's own."""
    return [each for each in _blocks(page, text_of(page) if text is None else text) if each.language in languages]


def _blocks(page: str, text: str) -> Iterator[Block]:
    heading = ""
    for found in _PART.finditer(text):
        language, inside, title = found.groups()
        if title is None:
            yield Block(page, heading, language, inside)
        else:
            heading = title


def unlike(shown: str, printed: str) -> list[str]:
    """The lines of a block that a program did not print, in this order. Numbers and widths are not compared.

    A line `...` stands for lines that the page leaves out.
    """
    rows = iter(map(masked, printed.splitlines()))
    return [line for line in shown.splitlines() if line not in ("", "...") and masked(line) not in rows]


def masked(line: str) -> str:
    """The line without what differs between two runs: numbers, widths of columns, lengths of bars."""
    return " ".join(_BAR.sub("█", _NUMBER.sub("N", line)).split())
