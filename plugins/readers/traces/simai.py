"""SimAI's workload texts, as AICB writes them: layers with computations and collectives, the same for all ranks.

In:  one file; columns are separated by spaces or tabs. Out: Trace of one iteration: forward through all layers, then
backward. Times are nanoseconds; sizes are those of the whole array.
Source: Workload::initialize_workload and iterate_hybrid_parallel_Transformer_fwd_in_bckwd of aliyun/SimAI. Ranks wait
for collectives of the forward pass and of input gradients; those of weight gradients run beside what follows.

Groups, in Megatron's order: rank = (pipeline stage x DP + data) x TP + tensor. EP: neighbours in `data`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives import find_pattern
from heddle.traffic.sequence import Part
from heddle.traffic.traces import MOST_RANKS, Reading, Trace
from heddle_plugins.readers.traces.graph import (
    MOST_PARTS,
    NUMBER,
    TraceNode,
    read_lines,
    seconds_of,
    size_of,
    transfer,
)

POLICIES: Final = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
_COLLECTIVES: Final = {
    "ALLREDUCE": "all-reduce", "ALLGATHER": "all-gather", "REDUCESCATTER": "reduce-scatter", "ALLTOALL": "all-to-all",
}  # fmt: skip
_MOST_WORDS: Final = 10_000  # of a line
_COLUMNS: Final = 12  # name, dependency, three of (time, collective, bytes), update time
_KEYS: Final = {"model_parallel_NPU_group": "tp", "ep": "ep", "pp": "pp", "all_gpus": "ranks"}
Groups = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Phase:
    """A computation and the collective behind it, of one layer. own: the group of a collective without a suffix."""

    seconds: float
    collective: str
    size: int
    own: str


def is_workload(word: str) -> bool:
    """Whether a file that begins with this word is one of SimAI, of any strategy."""
    return re.fullmatch(r"[A-Z]{4,}(?:_[A-Z]+)*", word) is not None


def read(files: Sequence[str], reading: Reading) -> Trace:
    """The trace of a file. InputError."""
    lines = [
        (number, line.split(maxsplit=_MOST_WORDS))
        for number, line in enumerate(read_lines(files[0]), start=1)
        if line.strip()
    ]
    file = files[0]
    if len(lines) < 3 or lines[0][1][0] not in POLICIES:
        hint = f"it begins with {POLICIES[1]} and its groups; others of SimAI's strategies are not supported"
        raise InputError(Problem(f"{file}:1", "the workload", "is not one of a transformer", hint))
    header = _header(file, lines[0][1])
    layers = []
    (at, count), *more = lines[1:]
    if len(count) != 1 or not re.fullmatch(NUMBER, count[0]) or int(count[0]) != len(more):
        why = f"is not the number of layers, which is {len(more)}"
        raise InputError(Problem(f"{file}:{at}", " ".join(count)[:60], why, "check that the file is complete"))
    for number, words in more:
        layers.append(_layer(f"{file}:{number}", words))
    return _Builder(file, header, reading).trace(layers)


def _header(file: str, words: Sequence[str]) -> dict[str, int]:
    found = {"tp": 0, "ep": 1, "pp": 1, "ranks": 0, "pp_comm": 0}
    for word, value in pairwise(words[1:]):
        key = _KEYS.get(word.rstrip(":"), word.rstrip(":"))
        if key in found and re.fullmatch(NUMBER, value):
            found[key] = int(value)
    return found


def _layer(where: str, words: Sequence[str]) -> list[_Phase]:
    """Forward, input gradient, weight gradient; and the update."""
    if len(words) != _COLUMNS:
        raise InputError(Problem(where, words[0][:40], f"has {len(words)} columns, not {_COLUMNS}"))
    found = []
    for at, own in ((2, "TP"), (5, "TP"), (8, "DP")):
        seconds, collective, size = words[at : at + 3]
        if not (re.fullmatch(NUMBER, seconds) and re.fullmatch(NUMBER, size)):
            raise InputError(
                Problem(where, words[0][:40], f"has {seconds[:20]} ns and {size[:20]} bytes in columns {at + 1} on")
            )
        found.append(_Phase(int(seconds) * 1e-9, collective, int(size), own))
    if not re.fullmatch(NUMBER, words[11]):
        raise InputError(Problem(where, words[0][:40], f"has {words[11][:20]} ns for its update"))
    return [*found, _Phase(int(words[11]) * 1e-9, "NONE", 0, "")]


class _Builder:
    """Makes the parts. The last parts of all ranks are those that the next ones wait for."""

    def __init__(self, file: str, header: dict[str, int], reading: Reading) -> None:
        self._file, self._reading = file, reading
        self._ranks = reading.ranks or header["ranks"]
        self._stages, self._stage_bytes = header["pp"], header["pp_comm"]
        tp, ep, pp = header["tp"] or self._ranks, header["ep"], header["pp"]
        if not 2 <= self._ranks <= MOST_RANKS or not (tp and ep and pp) or self._ranks % (tp * ep * pp):
            why = f"has {self._ranks} ranks in groups of TP {tp}, EP {ep} and PP {pp}"
            hint = f"set ranks to a multiple of {tp * ep * pp or 1}, 2 to {MOST_RANKS}"
            raise InputError(Problem(f"{file}:1", "the workload", why, hint))
        self._least = tp * ep * pp
        self._layers: Sequence[Sequence[_Phase]] = ()
        data = self._ranks // (tp * pp)
        blocks = [range(stage * data * tp, (stage + 1) * data * tp) for stage in range(pp)]
        self._groups: dict[str, Groups] = {
            "TP": [tuple(range(first, first + tp)) for first in range(0, self._ranks, tp)],
            "DP": [tuple(block[lane::tp]) for block in blocks for lane in range(tp)],
            "EP": [
                tuple(block[lane::tp])[first : first + ep]
                for block in blocks for lane in range(tp) for first in range(0, data, ep)
            ],
            "DP_EP": [
                tuple(block[lane::tp])[first::ep] for block in blocks for lane in range(tp) for first in range(ep)
            ],
        }  # fmt: skip
        self._next = [
            tuple(pair) for stage in range(pp - 1) for pair in zip(blocks[stage], blocks[stage + 1], strict=True)
        ]
        self._parts: list[Part] = []
        self._last: tuple[int, ...] = ()
        self._beside: list[int] = []  # collectives of weight gradients

    def trace(self, layers: Sequence[Sequence[_Phase]]) -> Trace:
        self._layers = layers
        for number, (forward, *_) in enumerate(layers, start=1):
            self._phase(f"layer {number} forward", forward)
        self._pipeline("forward", self._next)
        for number, (_, inputs, weights, _) in reversed([*enumerate(layers, start=1)]):
            self._phase(f"layer {number} input gradient", inputs)
            self._phase(f"layer {number} weight gradient", weights, beside=True)
        self._pipeline("backward", [pair[::-1] for pair in self._next])
        self._last = (*self._last, *self._beside)
        self._compute("update", sum(update.seconds for *_, update in layers))
        return Trace(self._ranks, tuple(self._parts))

    def _phase(self, name: str, phase: _Phase, *, beside: bool = False) -> None:
        self._compute(name, phase.seconds)
        kind, _, suffix = phase.collective.partition("_")
        if kind == "NONE":
            return
        groups = self._groups.get(suffix or phase.own)
        if kind not in _COLLECTIVES or groups is None:
            self._reading.notes[f"{phase.collective[:40]} is unknown, and left out"] += 1
            return
        pattern, size = find_pattern(_COLLECTIVES[kind]), 0
        if len(groups[0]) < 2:
            self._reading.notes["collectives of one rank send nothing"] += 1
        else:
            size = size_of(self._reading, TraceNode(0, self._file, name, size=phase.size), pattern, len(groups[0]))
        if size:
            found = [self._add(Part(name, ranks, pattern, size, after=self._last)) for ranks in groups]
            if beside:
                self._beside += found
            else:
                self._last = tuple(found)

    def _compute(self, name: str, seconds: float) -> None:
        """A computation of all ranks; after collectives, also one without time, so that few parts wait for many."""
        seconds = seconds_of(self._reading, TraceNode(0, self._file, name, seconds=seconds))
        if seconds or len(self._last) > 1:
            self._last = (self._add(Part(name, tuple(range(self._ranks)), seconds=seconds, after=self._last)),)

    def _pipeline(self, name: str, pairs: Sequence[tuple[int, ...]]) -> None:
        """One transfer of pp_comm bytes between the stages."""
        if not pairs or not self._stage_bytes:
            return
        self._compute(name, 0.0)
        node = TraceNode(0, self._file, name, size=self._stage_bytes)
        size = size_of(self._reading, node, transfer(), 2)
        sent = [self._add(Part(f"pipeline {name}", pair, transfer(), size, after=self._last)) for pair in pairs]
        self._last = (*self._last, *sent)
        self._reading.notes["pipeline transfer of each direction stands for all of an iteration"] = 1

    def _add(self, part: Part) -> int:
        if len(self._parts) == MOST_PARTS:
            raise InputError(self._too_many())
        self._parts.append(part)
        return len(self._parts) - 1

    def _too_many(self) -> Problem:
        """A collective is one operation for each group, so their number grows with layers and ranks."""
        words = [(*each.collective.partition("_"), each.own) for layer in self._layers for each in layer]
        parts = sum(len(self._groups.get(group or own, ())) for kind, _, group, own in words if kind in _COLLECTIVES)
        why = (
            f"has {len(self._layers):,} layers, whose collectives are {parts:,} operations among {self._ranks:,} ranks"
        )
        each, sent, count = parts / self._ranks, 2 * len(self._next) / self._ranks, len(self._layers)  # of a rank
        fits = int((MOST_PARTS - 4 * count) / (each + sent)) // self._least * self._least  # a layer has 4 computations
        left = int((MOST_PARTS - sent * self._least) / (each * self._least / count + 4))
        shorter = f"shorten the file to {left:,} layers, with ranks: {self._least}, the fewest for its groups"
        hint = f"set ranks to {fits:,} or less" if fits > 0 else shorter
        return Problem(self._file, "the workload", f"{why}; the most is {MOST_PARTS:,}", hint)
