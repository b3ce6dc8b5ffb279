"""Text for people on stdout: aligned columns, values in words, and an error if it cannot be written."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.base.problems import MachineError, Problem, shown


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. caption: what it shows. columns: names, with `>` in front where values stand at the right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def heads(self) -> list[tuple[str, str]]:
        """Name and class of each column."""
        return [(name.removeprefix(">"), "number" if name.startswith(">") else "") for name in self.columns]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Aligned columns; on a narrow terminal the last column wraps.

    width: columns of the terminal; None: the terminal's width, or no limit if stdout is not a terminal.
    """
    width = width or _columns()
    cells = [list(header), *[[str(c) for c in row] for row in rows]]
    sizes = [max(len(row[i]) for row in cells) for i in range(len(header))]
    left = sum(sizes[:-1]) + 2 * (len(sizes) - 1)
    room = max(20, width - left)
    lines = []
    for row in cells:
        head = "  ".join(c.ljust(s) for c, s in zip(row[:-1], sizes[:-1], strict=True))
        parts = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append((f"{head}  {parts[0]}" if head else parts[0]).rstrip())
        lines += [" " * left + part for part in parts[1:]]
    return "\n".join(lines)


def filled(text: str) -> str:
    """The paragraphs of a text, filled to the width of a terminal that is too narrow for its lines."""
    width = _columns()
    if max(map(len, text.splitlines()), default=0) <= width:
        return text
    fill = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(fill.fill(paragraph) for paragraph in text.split("\n\n"))


def _columns() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16


def written(text: str = "", *, verbatim: bool = False) -> None:
    """Write the result of a verb to stdout; MachineError when it cannot be written completely (a full disk).

    verbatim: the text is JSON, which has escapes of its own, and is not only Heddle's, so `./inv` in it stays.
    """
    try:
        sys.stdout.write(text if verbatim else shown(text))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at exit, and would fail again
        hint = "free some space for the output"
        raise MachineError(Problem("", "stdout", f"cannot be written: {error.strerror}", hint)) from None


def flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested plain data -> `queues.ecn.kmin`, 40000. An empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{before}{key}.") if nested else {f"{before}{key}": value}
    return found


def value_text(value: Any) -> str:
    """`yes`, `40,000`, `a, b`, `none`; `default` for None."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {value_text(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) if isinstance(each, int) else value_text(each) for each in value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def some_of(texts: Sequence[str], most: int = 4, joint: str = ", ") -> str:
    """The first of several texts: `a, b, c, d and 3 more`; joined by `; `, `a; b; c; d; and 3 more`."""
    more = f"{joint.rstrip(' ,')} and {len(texts) - most} more" if len(texts) > most else ""
    return joint.join(texts[:most]) + more


def many(count: int, word: str) -> str:
    """`1 queue`, `1,200 switches`."""
    return f"{count:,} {word}{'es' if word.endswith(('s', 'ch')) else 's'}" if count != 1 else f"1 {word}"
