"""Flags of nccl-tests after `run`: those that `run` takes, with their meaning, and a hint for each other one.

In:  the words after `run`; the values of -b, -e, -f and -i.
Out: words that the parser takes; the sizes as `--size` has them; problems with the words to write.
Source: `all_reduce_perf --help` (nccl-tests 2.19).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from heddle.base.problems import InputError, Problem

# Long forms that `run` does not have itself.
_LONG: Final[Mapping[str, str]] = {
    "--nthreads": "t", "--ngpus": "g", "--warmup_iters": "w", "--agg_iters": "m",
    "--parallel_init": "p", "--blocking": "z", "--average": "a", "--cudagraph": "G",
}  # fmt: skip
_RANKS: Final = "gt"  # ranks of one process, on hosts that each have several
# Flags without a counterpart, and why none is needed.
_WITHOUT: Final[Mapping[str, str]] = {
    "a": "times are means over ranks",
    **dict.fromkeys(_RANKS, "every NIC is a rank, and --ranks N takes fewer"),
    **dict.fromkeys("mpzyTCGRDSJN", ""),
}
_SHORT: Final = re.compile(r"-([A-Za-z])=?([0-9].*)?")
_USUAL_BYTES: Final = "32M"  # -b and -e of nccl-tests
_USUAL_STEP: Final = "1M"  # -i, when -f is 1


@dataclass(frozen=True, slots=True)
class NcclSizes:
    """The values of -b, -e, -f and -i, as typed."""

    low: str | None = None
    high: str | None = None
    factor: int | None = None
    step: str | None = None

    @property
    def text(self) -> str:
        """`-b 8 -e 128M`; empty when none was typed."""
        values = (("-b", self.low), ("-e", self.high), ("-f", self.factor), ("-i", self.step))
        return " ".join(f"{flag} {value}" for flag, value in values if value is not None)

    @property
    def size(self) -> str | None:
        """The value of `--size` with this meaning; None when none of these was typed."""
        if not self.text:
            return None
        low, high = self.low or _USUAL_BYTES, self.high or _USUAL_BYTES
        if low == high:
            return low
        # nccl-tests multiplies if the factor is above 1, and adds otherwise.
        step = (self.step or _USUAL_STEP) if self.factor in (None, 1) else f"x{self.factor}"
        return f"{low}:{high}:{step}"

    @contextmanager
    def named_in_problems(self) -> Iterator[None]:
        """Errors of the block name the flags that were typed, in place of --size."""
        try:
            yield
        except InputError as error:
            if not self.text:
                raise
            raise InputError(
                *(replace(p, what=self.text) if p.what.startswith("--size ") else p for p in error.problems)
            ) from None


@dataclass(slots=True)
class NcclFlags:
    """Flags of nccl-tests that `run` does not take: letter -> value, '' when it is missing. rest: all other words."""

    values: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], own: Iterable[str]) -> NcclFlags:
        """Separate them. own: the flags of `run`. `-b8` becomes two words, and --warmup_iters -w, in the rest."""
        found, known, waiting = cls(), set(own), list(words)
        while waiting:
            word = waiting.pop(0)
            letter, value = _letter(word, known)
            if word == "--":
                found.rest += [word, *waiting]
                break
            if not letter or word.partition("=")[0] in known:
                found.rest.append(word)
                if word in known and waiting:  # its value is not a flag
                    found.rest.append(waiting.pop(0))
                continue
            if f"-{letter}" in known:
                found.rest += [f"-{letter}", *([value] if value else [])]
                continue
            if not value and waiting and not waiting[0].startswith("-"):
                value = waiting.pop(0)
            found.values[letter] = value
        return found

    def problems(self) -> list[Problem]:
        """One problem for each flag."""
        problems = []
        ranks = _ranks(self.values)
        if ranks:
            typed = " ".join(f"-{letter} {self.values[letter]}" for letter in self.values if letter in _RANKS)
            problems.append(Problem("", typed, "is the syntax of nccl-tests", f"write --ranks {ranks}"))
        for letter, value in self.values.items():
            if ranks and letter in _RANKS:
                continue
            reason = _WITHOUT.get(letter, "")
            why, hint = "is a flag of nccl-tests that has no counterpart here", "leave it out"
            if letter in _RANKS and not value:
                why, hint = "is a flag of nccl-tests without its value", "./inv run --help lists our flags"
            problems.append(Problem("", f"-{letter} {value}".strip(), why, f"{hint}: {reason}" if reason else hint))
        return problems


def _letter(word: str, known: set[str]) -> tuple[str, str]:
    """The letter of a flag of nccl-tests and the value in the same word; empty for other words."""
    name, _, value = word.partition("=")
    if name in _LONG:
        return _LONG[name], value
    match = _SHORT.fullmatch(word)
    if match is None or (match[1] not in _WITHOUT and f"-{match[1]}" not in known):
        return "", ""
    return match[1], match[2] or ""


def _ranks(v: Mapping[str, str]) -> int:
    """-t threads x -g GPUs each, all in one process; 0 for a single rank and for values that are no numbers."""
    if not v.keys() & set(_RANKS):
        return 0
    each = [v.get(letter, "1") for letter in _RANKS]
    count = int(each[0]) * int(each[1]) if all(word.isdecimal() for word in each) else 0
    return count if count > 1 else 0
