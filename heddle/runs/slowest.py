"""The bottleneck of a run, from evidence: where messages were outstanding for most of an iteration, and at which port
their packets waited.

In:  the Timeline of a run, the proven paths of its QPs, its queues over time.
Out: the stations that are the slowest, or equal within noise; PortWait.
A station is a QP (messages between post and arrival) or a rank (messages between arrival and use). Its share is the
part of an iteration in which it had at least one: the station with the largest one holds the others back, as the
utilisation law of queueing networks states. The wait at a port is Little's law: bytes that waited, times the time they
did, over the bytes that left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Final

import numpy as np

from heddle.base.arrays import F64
from heddle.runs.parts.part import PortWait, Station
from heddle.runs.series import Series
from heddle.runs.timeline import Timeline

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
