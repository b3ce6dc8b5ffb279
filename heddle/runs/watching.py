"""Record the queues of a lab during a run, where they are: here, or in each shard.

In:  a lab whose lock is held. Out: the counters before and after, and their course; saved for `plot` (series.py).
`begin` and `end` are around the run; `taken` gives the record, and `close` forgets it. A lab has one watch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.ethernet import CLASSES
from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.fabric.model import Fabric, Role
from heddle.lab.agents import restart_here
from heddle.lab.spread import nothing, spread
from heddle.lab.thresholds import wanted_policies
from heddle.runs.series import (
    COLUMNS,
    LEVELS,
    PEAKS,
    QueueRecord,
    QueueTotals,
    Recorded,
    RowLabel,
    Sampler,
    Series,
    write_series,
)
from heddle.runtimes.shardcalls import Moment
from heddle.switch.queues.cells import LabQueues, ShardRows
from heddle.switch.queues.classes import Policies, numbered_ports

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


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


def joined(found: Sequence[QueueRecord]) -> QueueRecord:
    """The record of all shards in one, at the times of the first. A port has its rows in its own shard."""
    shards = [each.shard for each in found if each.shard is not None]

    def whole(tables: Sequence[I64]) -> I64:
        """One table of those of all shards."""
        rows = shards[0].whole(tables[0])
        for shard, table in zip(shards[1:], tables[1:], strict=True):
            shard.whole(table, rows)
        return rows

    totals = [
        QueueTotals(whole([t.counts for t in some]), whole([t.drops for t in some]), sum(t.storms for t in some))
        for some in ([each.before for each in found], [each.after for each in found])
    ]
    series = [each.series for each in found]
    ends = series[0].ends_s
    rows = np.concatenate([shard.ports[each.rows] for shard, each in zip(shards, series, strict=True)])
    order = np.argsort(rows, kind="stable")
    columns = {name: np.concatenate([_at(ends, each, name) for each in series])[order] for name in COLUMNS}
    remarks = dict.fromkeys(text for each in found for text in each.remarks)
    joint = replace(
        series[0], rows=rows[order].astype(np.int32), columns=columns,
        readings=sum(each.readings for each in series), cost_s=sum(each.cost_s for each in series),
    )  # fmt: skip
    return QueueRecord(totals[0], totals[1], joint, tuple(remarks))


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
def taken(lab: Lab, start: Moment) -> QueueRecord:
    """The record, after `end`. start: earlier samples are left out."""
    watch = _of(lab)
    after = QueueTotals.of(watch.live)
    series, shard = watch.sampler.series(start.ns), ShardRows.of(lab.fabric)
    return QueueRecord(watch.before, after, series, tuple(watch.remarks), shard)


@spread(nothing)
def close(lab: Lab) -> None:
    """Forget the watch."""
    close_here(lab.name)


def close_here(lab: str) -> None:
    """Forget the watch of a lab, if there is one."""
    if (watch := _WATCHES.pop(lab, None)) is not None:
        watch.stack.close()


def labels_of(fabric: Fabric, policies: Policies, rows: Sequence[int]) -> list[RowLabel]:
    """The label of each row of a series, with the thresholds that were set when the run ended."""
    ports = dict(numbered_ports(fabric))
    found = []
    for row in rows:
        port, number = ports[row // CLASSES], row % CLASSES
        policy = policies[port.node, port.name][number]
        ecn = {"kmin": policy.kmin, "kmax": policy.kmax} if policy.ecn else {}
        pause = {"xoff": policy.xoff, "xon": policy.xon} if policy.pfc else {}
        host = fabric.by_name[port.node].role is Role.HOST
        found.append(RowLabel(port.ref, number, policy.kind, port.rate_bps, **ecn, **pause, host=host))
    return found


class Recording:
    """The recording of one run. Use `during` around the run, and call `finish` when no packet of it is in flight."""

    def __init__(self, lab: Lab, bucket_ns: int, what: str, directories: Sequence[Path]) -> None:
        self._lab, self._what, self._directories = lab, what, directories
        prepare(lab, bucket_ns)

    @contextmanager
    def during(self, began_ns: Callable[[], int]) -> Iterator[None]:
        """Sample during a with block. The queues are saved also when the run fails or is interrupted.

        began_ns: returns when its first packet could be sent (CLOCK_MONOTONIC), 0 before that.
        """
        try:
            begin(self._lab)
            try:
                yield
            finally:
                end(self._lab)
        except (HeddleError, KeyboardInterrupt, SystemExit) as stop:
            how = "which failed" if isinstance(stop, HeddleError) else "which was interrupted"
            with suppress(HeddleError):  # report the error that ended the run instead
                self._save(f"{self._what} ({how})", began_ns())
            raise

    def finish(self, start_ns: int) -> QueueRecord:
        """Save the samples from `start_ns` (CLOCK_MONOTONIC) on; with the totals before and after."""
        return self._save(self._what, start_ns)

    def _save(self, what: str, start_ns: int) -> QueueRecord:
        found = taken(self._lab, Moment(start_ns))
        labels = labels_of(self._lab.fabric, wanted_policies(self._lab), found.series.rows.tolist())
        series = Recorded(self._lab.name, what, self._lab.fabric.policy.k, tuple(labels), found.series)
        for directory in self._directories:
            write_series(directory, series)
        return found


@contextmanager
def recording(lab: Lab, bucket_ns: int, what: str, directories: Sequence[Path]) -> Iterator[Recording]:
    """A recording for a with block, written to that of each job. MachineError when the lab has no queues."""
    found = Recording(lab, bucket_ns, what, directories)
    try:
        yield found
    finally:
        close(lab)
