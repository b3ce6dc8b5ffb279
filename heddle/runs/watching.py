"""Watch the queues of a lab during a run, where they are: here, or in each shard.

In:  a lab whose lock is held. Out: the counters before and after, and their course (series.py).
`begin` and `end` are around the run; `taken` gives the record, and `close` forgets it. A lab has one watch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.lab.agents import restart_here
from heddle.lab.spread import nothing, spread
from heddle.runs.rowreader import COLUMNS, LEVELS, PEAKS
from heddle.runs.series import QueueTotals, Sampler, Series
from heddle.runtimes.shardcalls import Moment
from heddle.switch.queues.cells import LabQueues

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@dataclass(frozen=True)
class Watched:
    """What was seen. remarks: warnings for the run's result."""

    before: QueueTotals
    after: QueueTotals
    series: Series
    remarks: tuple[str, ...]


class _Watch:
    """One watch in progress."""

    def __init__(self, lab: Lab, bucket_ns: int) -> None:
        self.stack = ExitStack()
        self._lab = lab
        self.live = self.stack.enter_context(LabQueues.pinned(lab.fabric))
        self.before = QueueTotals.of(self.live)
        self.sampler = Sampler(self.live, bucket_ns / 1e9, self._restart_agent)
        self.remarks: list[str] = []

    def _restart_agent(self) -> None:
        """Restart the PFC agent if it and its keeper were killed: no other process would open its gates."""
        try:
            if not self.remarks and restart_here(self._lab):
                self.remarks.append("the PFC agent and its keeper ended or stopped during the run, and were restarted")
        except HeddleError as error:
            self.remarks.append(f"the PFC agent and its keeper ended during the run: {error.problems[0]}")


_WATCHES: Final[dict[str, _Watch]] = {}  # by lab


@spread(nothing)
def prepare(lab: Lab, bucket_ns: int) -> None:
    """Read the counters before a run. MachineError when the lab has no queues."""
    close_here(lab.name)
    _WATCHES[lab.name] = _Watch(lab, bucket_ns)


@spread(nothing)
def begin(lab: Lab) -> None:
    """Begin to sample."""
    _of(lab).sampler.__enter__()


@spread(nothing)
def end(lab: Lab) -> None:
    """End sampling. Nothing where the watch is lost: that has an error of its own, which ended the run."""
    if (watch := _WATCHES.get(lab.name)) is not None:
        watch.sampler.__exit__(None, None, None)


def _of(lab: Lab) -> _Watch:
    if (watch := _WATCHES.get(lab.name)) is None:  # the agent of a shard was started again in the middle of a run
        what = "the record of the queues"
        raise MachineError(Problem("", what, "is lost: the process that kept it has ended", "run it again"))
    return watch


def joined(found: Sequence[Watched]) -> Watched:
    """The record of all shards in one, at the times of the first. A port has its rows in its own shard."""
    first, *others = found
    if not others:
        return first
    totals = [
        QueueTotals(
            sum((part.counts for part in parts), np.zeros_like(parts[0].counts)),
            sum((part.drops for part in parts), np.zeros_like(parts[0].drops)),
            sum(part.storms for part in parts),
        )
        for parts in ([each.before for each in found], [each.after for each in found])
    ]
    series = [each.series for each in found]
    ends = series[0].ends_s
    rows = np.concatenate([each.rows for each in series])
    order = np.argsort(rows, kind="stable")
    columns = {name: np.concatenate([_at(ends, each, name) for each in series])[order] for name in COLUMNS}
    remarks = dict.fromkeys(text for each in found for text in each.remarks)
    whole = replace(
        series[0], rows=rows[order].astype(np.int32), columns=columns,
        readings=sum(each.readings for each in series), cost_s=sum(each.cost_s for each in series),
    )  # fmt: skip
    return Watched(totals[0], totals[1], whole, tuple(remarks))


def _at(ends: F64, series: Series, name: str) -> I64:
    """A column of a series by other buckets: each of its buckets counts for the one in which it ends."""
    values = series.columns[name]
    found = np.zeros((len(values), len(ends)), np.int64)
    if not len(ends):
        return found
    places = np.minimum(np.searchsorted(ends, series.ends_s), len(ends) - 1)
    for at, place in enumerate(places.tolist()):
        if name in LEVELS:
            found[:, place] = values[:, at]
        elif name in PEAKS:
            found[:, place] = np.maximum(found[:, place], values[:, at])
        else:
            found[:, place] += values[:, at]
    return found


@spread(joined)
def taken(lab: Lab, start: Moment) -> Watched:
    """The record, after `end`. start: earlier samples are left out."""
    watch = _of(lab)
    after = QueueTotals.of(watch.live)
    return Watched(watch.before, after, watch.sampler.series(start.ns), tuple(watch.remarks))


@spread(nothing)
def close(lab: Lab) -> None:
    """Forget the watch."""
    close_here(lab.name)


def close_here(lab: str) -> None:
    """Forget the watch of a lab, if there is one."""
    if (watch := _WATCHES.pop(lab, None)) is not None:
        watch.stack.close()
