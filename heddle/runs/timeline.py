"""Iterations and messages of a run over time: `timeline.npz` in its directory.

In:  the journals of the ranks (endpoints/reports.py), the plan.
Out: Timeline, for the slowest rank, `export` and `plot`; UnreadableError with the reason where there is none.
A message is in it if both of its ends kept it: those of the first timed iterations of each size.

It shows the bottleneck: the stations where messages were outstanding for most of an iteration, and with queues over
time the ports where their packets waited. A station is a QP (messages between post and arrival) or a rank (messages
between arrival and use). Its share is the part of an iteration in which it had at least one: the station with the
largest one holds the others back, as the utilisation law of queueing networks states. The wait at a port is Little's
law: bytes that waited, times the time they did, over the bytes that left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.runs.files import Layout, UnreadableError, read_arrays, undamaged, write_arrays
from heddle.runs.series import Series
from heddle.runs.stations import SPLIT, PortWait, Station

if TYPE_CHECKING:
    from heddle.endpoints.reports import WorkerReport
    from heddle.traffic.plan import Plan

TIMELINE: Final = "timeline.npz"
_VERSION_OF_TIMELINE: Final = 1


@dataclass(frozen=True)
class Iterations:
    """The timed iterations, a row for each rank and iteration. size: bytes. Times: seconds since the run began."""

    rank: I64
    size: I64
    epoch: I64  # the number of the iteration in the whole run
    begin_s: F64
    end_s: F64


@dataclass(frozen=True)
class Messages:
    """Messages, a row each. qp: the index in their connection, or SPLIT. Times: seconds since the run began.

    posted_s: the sender gave it to its QPs. arrived_s: its last byte arrived. used_s: the receiver had used it.
    """

    src: I64
    dst: I64
    qp: I64
    epoch: I64
    bytes: I64
    posted_s: F64
    arrived_s: F64
    used_s: F64


@dataclass(frozen=True)
class Timeline:
    """What a run has of both. Ranks are those of its job."""

    iterations: Iterations
    messages: Messages

    @classmethod
    def of_reports(cls, plan: Plan, reports: Sequence[WorkerReport], began: int) -> Timeline:
        """From the reports of the workers. began: of the run (CLOCK_MONOTONIC, ns)."""
        journals = dict(sorted((rank, each) for report in reports for rank, each in report.journals.items()))
        spans = [
            (rank, size, epoch + number, begin, end)
            for rank, journal in journals.items()
            for epoch, size, times in journal.spans
            for number, (begin, end) in enumerate(pairwise(times))
        ]
        split, qps = plan.options.qp_mode == "split" and plan.options.qps > 1, plan.options.qps
        members = {rank: each for each in plan.communicators for rank in each}
        posts = {
            (members[rank][peer], epoch, step, index): (rank, SPLIT if split else turn % qps, at)
            for rank, journal in journals.items()
            for epoch, step, index, peer, turn, at in journal.posts
        }
        rows = [
            (src, rank, qp, epoch, size, posted, complete, used)
            for rank, journal in journals.items()
            for epoch, step, index, size, complete, used in journal.uses
            for src, qp, posted in [posts.get((rank, epoch, step, index), (None, 0, 0))]
            if src is not None
        ]
        return cls(Iterations(*_columns(spans, 3, 5, began)), Messages(*_columns(rows, 5, 8, began)))

    def to_json(self) -> list[dict[str, Any]]:
        """The mean time of an iteration, for each rank and size: `slowest.ranks` of the run's document."""
        found = []
        its = self.iterations
        for rank, size in sorted({*zip(its.rank.tolist(), its.size.tolist(), strict=True)}):
            rows = (its.rank == rank) & (its.size == size)
            mean = float((its.end_s - its.begin_s)[rows].mean())
            found.append({"rank": rank, "size": size, "iteration_us": round(mean * 1e6, 3)})
        return found

    def write(self, directory: Path) -> None:
        """Write timeline.npz atomically."""
        arrays = {name: getattr(table, name.partition("_")[2]) for name, table in self._named()}
        write_arrays(directory / TIMELINE, {"format": _VERSION_OF_TIMELINE}, arrays)

    def _named(self) -> Iterator[tuple[str, Iterations | Messages]]:
        for word, table in (("iterations", self.iterations), ("messages", self.messages)):
            yield from ((f"{word}_{each.name}", table) for each in fields(table))


def _columns(rows: list[Any], whole: int, width: int, began_ns: int) -> list[Any]:
    """Columns of rows: the first `whole` are numbers, the others times in ns, which become seconds."""
    table = np.array(rows, np.int64).reshape(-1, width)
    times = np.maximum(0.0, (table[:, whole:] - began_ns) / 1e9)
    return [*table[:, :whole].T, *times.T]


_ARRAYS: Final[Layout] = {
    f"{word}_{each.name}": ("f" if each.name.endswith("_s") else "i", 1)
    for word, kind in (("iterations", Iterations), ("messages", Messages))
    for each in fields(kind)
}


def read_timeline(directory: Path, ranks: int) -> Timeline:
    """Read timeline.npz of a run with so many ranks. UnreadableError with the reason when that is not possible."""
    path = directory / TIMELINE
    if not path.exists():
        raise UnreadableError(f"{TIMELINE} is missing: the run did not finish, or is of an older Heddle")
    with undamaged(TIMELINE):
        _, arrays = read_arrays(path, _VERSION_OF_TIMELINE, _ARRAYS)
        parts = []
        for word, kind in (("iterations", Iterations), ("messages", Messages)):
            columns = [arrays[f"{word}_{each.name}"] for each in fields(kind)]
            if len({len(each) for each in columns}) > 1:
                raise ValueError(f"its {word} do not fit together")
            parts.append(kind(*columns))
        iterations, messages = parts
        its, sent = Iterations(**vars(iterations)), Messages(**vars(messages))
        numbers = np.concatenate([its.rank, sent.src, sent.dst])
        if ((numbers < 0) | (numbers >= ranks)).any() or (sent.bytes < 0).any() or (its.size < 1).any():
            raise ValueError("it has a rank or a size that the run does not have")
        if (its.begin_s > its.end_s).any() or (sent.posted_s > sent.arrived_s).any():
            raise ValueError("a time ends before it begins")
        return Timeline(its, sent)


STEADY: Final = 0.1  # shares and waits that differ by less are equal
_HELD: Final = -2  # in place of a QP: the messages that its rank held
_FEW_FRAMES: Final = 3  # a queue that never held more was not waited in


def stations(found: Timeline) -> tuple[Station, ...]:
    """All stations of the iterations of the largest size that have messages, the slowest first."""
    its, sent = found.iterations, found.messages
    if not len(its.size):
        return ()
    largest = its.size == its.size.max()
    shares: dict[tuple[int, int, int], list[float]] = {}
    epochs = np.intersect1d(its.epoch[largest], sent.epoch)
    for number, epoch in enumerate(epochs.tolist()):
        now = largest & (its.epoch == epoch)
        begins = dict(zip(its.rank[now].tolist(), its.begin_s[now].tolist(), strict=True))
        begin_s, end_s = min(begins.values()), float(its.end_s[now].max())
        rows = np.flatnonzero(sent.epoch == epoch)
        started = np.array([begins.get(rank, begin_s) for rank in sent.dst[rows].tolist()])
        arrived = np.maximum(sent.arrived_s[rows], started)
        key = np.stack([sent.src[rows], sent.dst[rows], sent.qp[rows]], axis=1)
        held = np.stack([sent.dst[rows], sent.dst[rows], np.full(len(rows), _HELD)], axis=1)
        for names, since, until in ((key, sent.posted_s[rows], arrived), (held, arrived, sent.used_s[rows])):
            each, which = np.unique(names, axis=0, return_inverse=True)
            for place, name in enumerate(map(tuple, each.tolist())):
                own = which.reshape(-1) == place
                share = covered(since[own], until[own]) / max(end_s - begin_s, 1e-9)
                shares.setdefault(name, [0.0] * len(epochs))[number] = min(1.0, share)
    rows_of = [
        Station(
            src, dst, None if qp == _HELD else qp, fmean(each),
            2 * stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0,
        )
        for (src, dst, qp), each in shares.items()
    ]  # fmt: skip
    return tuple(sorted(rows_of, key=lambda each: (-each.share, each.src, each.dst)))


def covered(since: F64, until: F64) -> float:
    """The length of the union of some intervals."""
    order = np.argsort(since, kind="stable")
    begin, end = since[order], np.maximum.accumulate(until[order])
    before = np.concatenate([begin[:1], end[:-1]])
    return float(np.maximum(0.0, end - np.maximum(begin, before)).sum())


def slowest(found: Sequence[Station]) -> tuple[Station, ...]:
    """Those that are equal to the first one within noise. Ranks that hold messages come alone, as QPs only follow."""
    if not found:
        return ()
    top = found[0]
    equal = [
        each for each in found if top.share - each.share <= max(STEADY * top.share, math.hypot(top.spread, each.spread))
    ]
    ranks = tuple(each for each in equal if each.qp is None)
    return ranks or tuple(equal)


def port_waits(
    ports: Iterable[str], rows: Mapping[str, int], series: Series, within: tuple[float, float], frame: int
) -> tuple[PortWait, ...]:
    """The ports where packets waited, longest first. rows: port -> row of its data class in the series.

    within: the times to look at, in seconds since the run began. frame: bytes of a full frame.
    """
    lengths = series.ends_s - series.starts_s
    used = (series.ends_s > within[0]) & (series.starts_s < within[1])
    found = []
    for port in dict.fromkeys(ports):
        if (row := rows.get(port)) is None:
            continue
        column = {name: values[row][used] for name, values in series.columns.items()}
        out, peak = int(column["out_bytes"].sum()), int(column["peak"].max(initial=0))
        if out and peak > _FEW_FRAMES * frame:
            wait = float((column["depth"] * lengths[used]).sum()) / out
            paused = float(column["paused_ns"].sum()) / 1e9
            found.append(PortWait(port, wait, peak, paused, int(column["marks"].sum())))
    return tuple(sorted(found, key=lambda each: (-each.wait_s, -each.high_water, each.port)))


def longest(waits: Sequence[PortWait]) -> tuple[PortWait, ...]:
    """Those that are equal to the first one within noise."""
    return tuple(each for each in waits if each.wait_s >= (1 - STEADY) * waits[0].wait_s)
