"""The text of a failed assertion: what was expected, what was observed, where, and which command shows more.

In:  these four. Out: AssertionError; pytest shows its lines, and the line of the test that called the assertion.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from heddle.base.problems import Problem

if TYPE_CHECKING:
    from heddle.runs.results import RunResult

_WIDTH: Final = 96
_INDENT: Final = " " * 10
ROWS: Final = 6  # of a table in a message


def failed(claim: str, *, expected: str, observed: str, where: Sequence[str] = (), more: str = "") -> NoReturn:
    """Raise AssertionError. claim: what is wrong, in one line. where: lines that are kept as they are."""
    __tracebackhide__ = True
    lines = [claim, *_field("expected", expected), *_field("observed", observed)]
    for number, line in enumerate(where):
        lines.append(f"{'where' if not number else '':<10}{line}".rstrip())
    if more:
        # A problem's text names the program as the user started it.
        lines += _field("more", str(Problem("", more, "")))
    raise AssertionError("\n".join(lines))


def _field(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, _WIDTH - len(_INDENT), break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{name if not number else '':<10}{line}" for number, line in enumerate(wrapped)]


def rest(count: int, word: str) -> list[str]:
    """`and 3 more queues`, when a table shows only some."""
    return [f"and {many(count, f'more {word}')}"] if count > 0 else []


def many(count: int, word: str) -> str:
    """`1 queue`, `1,200 switches`."""
    return f"{count:,} {word}{'es' if word.endswith(('s', 'ch')) else 's'}" if count != 1 else f"1 {word}"


def run_text(result: RunResult) -> str:
    """`run 0002 of lab t1: all-reduce, 4 ranks, 16 QPs`."""
    o = result.options
    what = f"{o.collective}, {len(result.endpoints)} ranks, {many(o.qps, 'QP')}"
    return f"run {result.run_id or '-'} of lab {result.lab}: {what}"


def host_cpu(result: RunResult) -> str:
    """A sentence for observations that the host CPU may explain; empty when it was not the bottleneck."""
    return "; the host CPU was the bottleneck, so do not trust this figure" if result.machine.limited else ""
