"""What held a run back: the slowest QP or rank, and the port where its packets waited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import CLASSES
from heddle.base.tables import some_of
from heddle.base.units import format_bytes
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.part import Card, RunPart
from heddle.runs.stations import SPLIT, PortWait, Station

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun
    from heddle.runs.series import Series
    from heddle.runs.timeline import Timeline
    from heddle.traffic.flow import Flow, FlowKey

Flows = dict[tuple[int, int], list[tuple["Flow", ...]]]  # (rank, rank) -> the flows of each of its QPs
_KEPT: Final = 64  # QPs that are equal: the record has no more
_NAMED: Final = 2  # the line has no more


@dataclass(frozen=True, slots=True)
class SlowQp:
    """A QP, or with SPLIT the QPs of a connection. qpns: of the receiver. nic, to_nic: of the two ranks.

    share: of an iteration of the largest size, in which messages were outstanding.
    """

    rank: int
    nic: str
    to_rank: int
    to_nic: str
    qpns: tuple[int, ...]
    share: float


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that used messages late. share: of an iteration, in which a message that had arrived waited for it."""

    rank: int
    nic: str
    share: float


@dataclass(frozen=True, slots=True)
class Slowest(RunPart):
    """What held a run back. ranks: those that used messages late; else qps: the slowest ones; several are equal within
    noise.

    equal: their number, of `stations` QPs; of connections where each message is split. median: the share of the others.
    waits: the ports on the paths of these QPs, where packets waited longest. limited: the host CPU was or may
    have been the bottleneck.
    """

    ranks: tuple[SlowRank, ...]
    qps: tuple[SlowQp, ...]
    equal: int
    stations: int
    split: bool
    median: float
    waits: tuple[PortWait, ...]
    limited: bool

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Slowest | None:
        """From the end of a run; None when no messages were kept, as of iterations with very many."""
        from heddle.offline.columns import cutting_of
        from heddle.switch.queues.classes import numbered_ports

        plan, series, fabric = measured.plan, measured.queues.series, measured.fabric
        flows: Flows = {}
        for qp in plan.qps:
            flows.setdefault((qp.flow.src_rank, qp.flow.dst_rank), []).append(qp.flows)
        proof = measured.proof
        paths = {} if proof is None else {each.flow.key: each.measured or each.expected for each in proof.flows}
        number = fabric.policy.queues.class_of_dscp[plan.options.dscp]
        names = {at: port.ref for at, port in numbered_ports(fabric)}
        rows = {names[at // CLASSES]: row for row, at in enumerate(series.rows.tolist()) if at % CLASSES == number}
        cut = cutting_of(plan)
        frame = cut.ib_mtu + cut.overhead
        limited = MachineUse.of_run(measured).limited
        nics = [end.nic for end in plan.endpoints]
        return cls.of_evidence(measured.timeline, nics, (flows, paths), (rows, series, frame), limited=limited)

    @classmethod
    def courses(cls, measured: MeasuredRun) -> tuple[str, Timeline]:
        return "ranks", measured.timeline

    @classmethod
    def of_evidence(
        cls,
        timeline: Timeline,
        nics: Sequence[str],
        sent: tuple[Flows, Mapping[FlowKey, Sequence[str]]],
        queues: tuple[Mapping[str, int], Series, int],
        *,
        limited: bool,
    ) -> Slowest | None:
        """nics: by rank. sent: the flows of each QP of a connection, and the steps of the path of each flow.

        queues: port -> its row of data in the series, the series, and the bytes of a full frame.
        """
        from heddle.predict.walk import ports_of
        from heddle.runs.timeline import longest, port_waits, slowest, stations

        found = stations(timeline)
        if not found:
            return None
        (flows, paths), (rows, series, frame), its = sent, queues, timeline.iterations
        large = its.size == its.size.max()
        within = float(its.begin_s[large].min()), float(its.end_s[large].max())

        def passed(qps: Iterable[Sequence[Flow]]) -> Iterator[str]:
            return (port for qp in qps for flow in qp for step in paths.get(flow.key, ()) for port in ports_of(step))

        def qps_of(each: Station) -> list[tuple[Flow, ...]]:
            every = flows.get((each.src, each.dst), [])
            return every if each.qp is None or each.qp == SPLIT else every[each.qp : each.qp + 1]

        top = slowest(found)
        links = [each for each in found if each.qp is not None]
        ranks = tuple(SlowRank(each.dst, nics[each.dst], round(each.share, 4)) for each in top if each.qp is None)
        slow = {rank.rank for rank in ranks}  # for these the busiest QP to each of them
        busiest = {each.dst: each for each in reversed(links) if each.dst in slow}
        late = list(busiest.values()) if ranks else list(top)
        waits = port_waits(passed(qp for each in late for qp in qps_of(each)), rows, series, within, frame)
        ports = {each.port for each in longest(waits)}
        qps = []
        for each in late[:_KEPT]:
            every = qps_of(each)
            crossing = [qp for qp in every if ports.intersection(passed([qp]))] or every
            numbers = tuple(qp[0].qpn for qp in crossing)
            ends = (each.src, nics[each.src], each.dst, nics[each.dst])
            qps.append(SlowQp(*ends, numbers, round(each.share, 4)))
        others = [each.share for each in links if each not in late]
        middle = round(median(others), 4) if others else 0.0
        return cls(
            ranks,
            tuple(qps),
            len(top),
            len(links),
            any(each.qp == SPLIT for each in links),
            middle,
            longest(waits),
            limited,
        )

    def lines(self) -> list[str]:
        if self.limited:
            return ["#slowest  : not named: the host CPU was or may have been the bottleneck"]
        return [f"#slowest  : {each}" for each in (self._who(), self._where())]

    def cards(self) -> tuple[Card, ...]:
        """The same at a glance; none when the host CPU was the bottleneck."""
        if self.limited:
            return ()
        one = self.qps[0]
        what = f"{self.equal} are equal" if self.equal > 1 else f"rank {one.rank} to rank {one.to_rank}"
        what = f"rank {self.ranks[0].rank}" if self.ranks else what
        return (("slowest", what, self._where()),)

    def _who(self) -> str:
        one = self.qps[0]
        if self.ranks:
            late = some_of([f"rank {each.rank} ({each.nic})" for each in self.ranks])
            share, by = f"{self.ranks[0].share:.0%}", f"as of {_qp(one)} from rank {one.rank}"
            return f"{late}: messages that had arrived waited for it {share} of the time, {by}"
        if self.equal == 1:
            ends = f"rank {one.rank} ({one.nic}), {_qp(one)} to rank {one.to_rank} ({one.to_nic})"
            others = f", median of the others {self.median:.0%}" if self.stations > 1 else ""
            return f"{ends}: busy {one.share:.0%} of the time{others}"
        to, out = {each.to_nic for each in self.qps}, {each.nic for each in self.qps}
        where = f", all to rank {one.to_rank} ({one.to_nic})" if len(to) == 1 else ""
        where = f", all of rank {one.rank} ({one.nic})" if len(out) == 1 and not where else where
        if self.equal <= _NAMED and not where:
            where = ": " + some_of([f"{_qp(each)} (rank {each.rank} to {each.to_rank})" for each in self.qps])
        share = f"busy {one.share:.0%} of the time"
        what = "connections" if self.split else "QPs"
        return f"{self.equal} of {self.stations} {what} are equal within noise, {share}{where}"

    def _where(self) -> str:
        whose = "its" if self.equal == 1 else "their"
        if not self.waits:
            return f"{whose} packets waited at no port of a switch"
        one = self.waits[0]
        paused = f", paused {one.paused_s * 1e3:.3g} ms" if one.paused_s else ""
        figures = f"{_time(one.wait_s)} on average, high-water {format_bytes(one.high_water)}{paused}"
        same = f"; equal within noise: {some_of([each.port for each in self.waits[1:]])}" if self.waits[1:] else ""
        return f"{whose} packets waited longest at {one.port} ({figures}){same}"


def _qp(qp: SlowQp) -> str:
    """`QP 0x000123`; `4 QPs` where each message was split over several."""
    return f"QP {qp.qpns[0]:#08x}" if len(qp.qpns) == 1 else f"{len(qp.qpns)} QPs"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
