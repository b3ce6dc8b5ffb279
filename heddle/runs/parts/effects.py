"""What faults with times did to a run: lost packets, routes, bandwidth before, during and after, and QPs that moved.

In:  the times of the faults, the record of the queues, notifications of routes, iterations, the proof of paths.
Out: FaultEffects. A value is None where nothing was recorded that shows it. Several faults at the same time share what
is counted in that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from heddle.base.tables import Table, many
from heddle.runs.parts.part import RunPart

if TYPE_CHECKING:
    from heddle.base.arrays import Bools
    from heddle.fabric.model import Fabric
    from heddle.lab.runfaults import RunFaultSpan
    from heddle.proof.verdict import PathsResult
    from heddle.runs.measured import MeasuredRun
    from heddle.runs.series import Series
    from heddle.runs.timeline import Iterations

Rates = tuple[float | None, float | None, float | None]
_NANO: Final = 10**9
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """A fault from begin_s on. until_s: when the next one began, or the run ended. Wall time since the first barrier.

    lost: packets that queues and links dropped, of all causes, in samples that began before it ended. last_loss_s:
    seconds from the beginning to the last of them, at most. lost_after: those dropped later. settled_s: seconds from
    the beginning to the last change of a route in a kernel of a switch, before the fault ended; back_s: the same from
    its end on. busbw: GB/s of the iterations that ended before it, that were in progress during it, and that began
    after its end.
    """

    what: str
    begin_s: float
    until_s: float
    lost: int
    last_loss_s: float | None
    settled_s: float | None
    back_s: float | None
    busbw: Rates
    lost_after: int = 0

    def text(self) -> str:
        """`rtsw1:eth1 down at 2.0 s: 12 packets lost, the last after 0.41 s; ...`."""
        lost = f"{many(self.lost, 'packet')} lost" if self.lost else "no packet lost"
        parts = [lost + (f", the last after {self.last_loss_s:.2f} s" if self.last_loss_s is not None else "")]
        if self.lost_after:
            parts.append(f"{self.lost_after} more after its end")
        if self.settled_s is not None:
            parts.append(f"last route change after {self.settled_s:.2f} s")
        if self.back_s is not None:
            parts.append(f"last route change {self.back_s:.2f} s after its end")
        shown = ["-" if each is None else f"{each:.4g}" for each in self.busbw]
        return f"{self.what} at {self.begin_s:.2f} s: {'; '.join(parts)}; busbw {', '.join(shown)} GB/s"


@dataclass(frozen=True, slots=True)
class FaultEffects(RunPart):
    """Effects of the faults of a run that have times. expected, moved: QPs, of `qps`; None where no proof was possible.

    expected: those whose predicted path uses a link of a fault that changes routes. moved: those with packets at ports
    that are not on their path. shared: a fault began while another was set, so what was lost may be due to both.
    """

    faults: tuple[FaultEffect, ...]
    qps: int
    expected: int | None
    moved: int | None
    shared: bool = False

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self | None:
        """None for a run without faults that have times, and ended by themselves."""
        clock = measured.faults
        timed = [span for span in clock.spans if span.planned.times and span.planned.times.begin_ns is not None]
        spans = [span for span in timed if not span.taken]
        if not spans:
            return None
        began, ended = measured.began_ns, measured.ended_ns
        begins = sorted({span.begin_ns for span in spans})
        ends = {begin: min([each for each in begins if each > begin] or [ended]) for begin in begins}
        factor, k = measured.plan.pattern.busbw_factor(measured.plan.size), measured.plan.k
        its = measured.timeline.iterations
        effects = []
        for span in spans:
            until, begin_s = ends[span.begin_ns], (span.begin_ns - began) / _NANO
            end = min(until, span.end_ns or ended)
            end_s, until_s, series = (end - began) / _NANO, (until - began) / _NANO, measured.queues.series
            lost, last = _losses(series, begin_s, end_s)
            after = _losses(series, begin_s, until_s)[0] - lost
            settled = _last(clock.route_changes, span.begin_ns, end)
            back = _last(clock.route_changes, end, until)
            busbw = _busbw(its, begin_s, ((span.end_ns or ended) - began) / _NANO, factor)
            what = span.planned.what(k)
            effects.append(FaultEffect(what, begin_s, until_s, lost, last, settled, back, busbw, after))
        expected, moved = _moves(measured.fabric, measured.proof, spans)
        shared = any((span.end_ns or ended) > ends[span.begin_ns] for span in spans)
        return cls(tuple(effects), len(measured.flows), expected, moved, shared)

    def lines(self) -> Sequence[str]:
        return [f"#effect   : {each}" for each in self._texts()]

    def _texts(self) -> Iterator[str]:
        shown = [each.text() for each in self.faults]
        yield from shown[:_SHOWN]
        if len(shown) > _SHOWN:
            yield f"and {len(shown) - _SHOWN} more; the report has all"
        if self.shared:
            yield "some were set at the same time: a line counts all losses from its fault on until the next began"
        if self.expected is not None:
            yield f"{self.expected} of {many(self.qps, 'QP')} had a path over these links; {self.moved} left their path"

    def table(self) -> Table:
        def cell(value: float | None) -> str:
            return "" if value is None else f"{value:.4g}"

        def cells(each: FaultEffect) -> tuple[str, ...]:
            after = (each.last_loss_s, each.settled_s, each.back_s, *each.busbw)
            return each.what, cell(each.begin_s), str(each.lost), str(each.lost_after), *map(cell, after)

        heads = (
            "fault",
            ">at",
            ">lost",
            ">lost after",
            ">last loss",
            ">routes",
            ">back",
            ">before",
            ">during",
            ">after",
        )
        note = "times in seconds; after it: packets lost after its end; back: routes, after its end; then busbw in GB/s"
        return Table("Effects of faults", heads, tuple(map(cells, self.faults)), note)


def _last(changes: Sequence[int], begin: int, end: int) -> float | None:
    """Seconds from `begin` to the last of these times before `end`."""
    found = [each for each in changes if begin <= each < end]
    return (found[-1] - begin) / _NANO if found else None


def _losses(series: Series, begin_s: float, until_s: float) -> tuple[int, float | None]:
    """Packets dropped in buckets that began in that time, and seconds from its beginning to the last of them.

    A bucket may be long where the sampler had to wait for a CPU: no loss is later than its end, nor than that time.
    """
    import numpy as np

    inside = (series.ends_s > begin_s) & (series.starts_s < until_s)
    drops = series.columns["drops"].sum(axis=0) * inside
    with_some = np.flatnonzero(drops)
    last = None if not len(with_some) else max(0.0, min(until_s, float(series.ends_s[with_some[-1]])) - begin_s)
    return int(drops.sum()), last


def _busbw(its: Iterations, begin_s: float, end_s: float, factor: float) -> Rates:
    """Bandwidth of the iterations before, during and after a time."""

    def of(rows: Bools) -> float | None:
        time_s = float((its.end_s - its.begin_s)[rows].sum())
        return factor * float(its.size[rows].sum()) / time_s / 1e9 if time_s else None

    before, after = its.end_s <= begin_s, its.begin_s >= end_s
    return of(before), of(~before & ~after), of(after)


def _moves(fabric: Fabric, proof: PathsResult | None, spans: Sequence[RunFaultSpan]) -> tuple[int | None, int | None]:
    """QPs with a predicted path over links of faults that change routes, and QPs with packets at other ports."""
    rerouting = [span.planned.port for span in spans if span.planned.reroutes]
    if proof is None or not rerouting:
        return None, None
    ports = {port.ref: port.peer_ref for node in fabric.nodes for port in node.ports}
    near = {ref for ref in ports for where in rerouting if ref == where or ref.partition(":")[0] == where}
    links = near | {ports[ref] for ref in near}
    expected = sum(bool(links & {*(each.predicted or ())}) for each in proof.flows)
    return expected, sum(bool(each.seen.stray) for each in proof.flows)
