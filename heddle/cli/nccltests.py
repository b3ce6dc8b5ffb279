"""Flags of nccl-tests after `run` and `perf`: those that these verbs take, and what each other one means here.

In:  the words after the verb; the values of -b, -e, -f and -i.
Out: words that the parser takes; the sizes as `--size` has them; notes about flags that have no effect here.
Source: `all_reduce_perf --help` (nccl-tests 2.19).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from heddle.base.problems import InputError, Problem

VERBS: Final = ("run", "perf")  # that take these flags
EXPLAINING: Final = "perf"  # the one whose help explains the flags below this heading
GROUP: Final = "Flags of nccl-tests"
# Long forms that `run` does not have itself.
_LONG: Final[Mapping[str, str]] = {
    "--nthreads": "t", "--ngpus": "g", "--warmup_iters": "w", "--agg_iters": "m", "--run_cycles": "N",
    "--parallel_init": "p", "--blocking": "z", "--stream_null": "y", "--cudagraph": "G", "--report_cputime": "C",
    "--report_timestamps": "S", "--output_file": "J", "--average": "a", "--local_register": "R", "--cta_policy": "x",
    "--device_implementation": "D", "--device_cta_count": "V", "--memory": "M", "--unalign": "u",
    "--per_iter_timing": "I", "--per_iter_skip": "K",
}  # fmt: skip
_RANKS: Final = "gt"  # ranks of one process, on hosts that each have several
# Flags that change nothing here: the values that mean what a run does anyway, and what it does in place of others.
_WITHOUT: Final[Mapping[str, tuple[str, str]]] = {
    "m": ("1", "each iteration is one operation"),
    "p": ("01", "all ranks start together"),
    "z": ("02", "-N 8 -n 1 -w 0 has a barrier before each iteration"),
    "y": ("0", "there is no CUDA stream"),
    "T": ("0", "a run that makes no progress ends by itself"),
    "G": ("0", "there is no CUDA graph"),
    "C": ("0", "times are wall times"),
    "S": ("0", "rows have no time stamps"),
    "R": ("0", "there is no memory of a GPU to register"),
    "x": ("", "there are no CTAs of a GPU"),
    "V": ("", "there are no CTAs of a GPU"),
    "D": ("0", "there is no device API"),
    "M": ("0", "there is no memory of a GPU"),
    "u": ("0", "no GPU reads the arrays"),
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
    """Flags of nccl-tests that a verb does not take itself, in what was typed.

    rest: the words for the verb; -t and -g become --ranks. notes: what is different here, a line each. problems: wrong
    values.
    """

    rest: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], own: Iterable[str]) -> NcclFlags:
        """Separate them. own: the flags of the verb. `-b8` becomes two words, and --warmup_iters -w, in the rest."""
        found, values, known, waiting = cls(), dict[str, str](), set(own), list(words)
        after: list[str] = []
        while waiting:
            word = waiting.pop(0)
            letter, value = _letter(word, known)
            if word == "--":
                after = [word, *waiting]
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
            values[letter] = value
        found._judge(values)
        found.rest += after
        return found

    def _judge(self, values: Mapping[str, str]) -> None:
        for letter, value in values.items():
            typed = f"-{letter} {value}".strip()
            if not value.isdecimal():
                why = "is not a whole number" if value else "is a flag of nccl-tests without its value"
                self.problems.append(Problem("", typed, why, "./inv run --help all lists our flags"))
            elif letter not in _RANKS and value not in _WITHOUT[letter][0]:
                self.notes.append(f"note: {typed} has no effect here: {_WITHOUT[letter][1]}")
        if (ranks := _ranks(values)) > 1:
            typed = " ".join(f"-{letter} {values[letter]}" for letter in values if letter in _RANKS)
            self.notes.append(f"note: {typed} is --ranks {ranks} here, each on a NIC")
            self.rest += ["--ranks", str(ranks)]


def _letter(word: str, known: set[str]) -> tuple[str, str]:
    """The letter of a flag of nccl-tests and the value in the same word; empty for other words."""
    name, _, value = word.partition("=")
    if name in _LONG:
        return _LONG[name], value
    match = _SHORT.fullmatch(word)
    if match is None or (match[1] not in (*_WITHOUT, *_RANKS) and f"-{match[1]}" not in known):
        return "", ""
    return match[1], match[2] or ""


def _ranks(values: Mapping[str, str]) -> int:
    """-t threads x -g GPUs each, all in one process; 0 for values that are no numbers."""
    each = [values.get(letter, "1") for letter in _RANKS]
    return int(each[0]) * int(each[1]) if all(word.isdecimal() for word in each) else 0
