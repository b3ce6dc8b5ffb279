"""The queues of a run: marks, drops, pauses and the deepest queue, over all ports and classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from heddle.base.ethernet import CLASSES
from heddle.base.units import format_bytes
from heddle.runs.parts.part import Card, RunPart

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.runs.measured import MeasuredRun
    from heddle.runs.series import QueueRecord


@dataclass(frozen=True, slots=True)
class ClassUse:
    """One class at all ports of switches: marks, drops of all causes, maximum bytes of an egress queue."""

    number: int
    marks: int
    drops: int
    deepest: int


@dataclass(frozen=True, slots=True)
class QueueUse(RunPart):
    """Totals of one run over all ports and classes.

    drops: cause -> packets. pauses: pause frames sent by switches, including those that end a pause. paused_ports:
    ports whose gate was closed at some time; paused_hosts: those of hosts among them; paused_ms: the sum of their
    pauses. deepest: maximum bytes of any egress queue of a switch; deepest_at: its port and class. Queues of hosts do
    not count: they hold what sockets send, which is no congestion. bucket_ms: of the series that is kept.
    classes: those that carried data, of all jobs; own: that of this job's data. trims: packets that switches trimmed;
    those that the trim queue then dropped are drops of cause `trim`. Older runs have none of these.
    """

    marks: int
    drops: Mapping[str, int]
    pauses: int
    paused_ports: int
    paused_hosts: int
    paused_ms: float
    storms: int
    deepest: int
    deepest_at: str
    bucket_ms: float
    classes: tuple[ClassUse, ...] = ()
    own: int | None = None
    trims: int = 0

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self:
        queues = measured.fabric.policy.queues
        return cls.of(measured.fabric, measured.queues, queues.class_of_dscp[measured.plan.options.dscp])

    @classmethod
    def of(cls, fabric: Fabric, seen: QueueRecord, own: int | None = None) -> Self:
        """The change of the counters, and the deepest queue of the series."""
        import numpy as np

        from heddle.fabric.model import Role
        from heddle.runs.series import COLUMNS
        from heddle.switch.queues.cells import CAUSES, LOST
        from heddle.switch.queues.classes import numbered_ports

        series = seen.series
        change = np.maximum(0, seen.after.counts - seen.before.counts)
        column = {name: change[:, index] for index, name in enumerate(COLUMNS)}
        lost = np.maximum(0, seen.after.drops - seen.before.drops)
        drops = lost.sum(axis=0)
        paused = column["paused_ns"].reshape(-1, CLASSES).sum(axis=1)
        ports = dict(numbered_ports(fabric))
        hosts = {number for number, port in ports.items() if fabric.by_name[port.node].role is Role.HOST}
        stopped = {int(number) for number in np.flatnonzero(paused)}
        peaks = series.columns["peak"].max(axis=1, initial=0)
        peaks[np.isin(series.rows // CLASSES, list(hosts))] = 0
        at = int(peaks.argmax()) if peaks.any() else -1
        deepest_at = "" if at < 0 else f"{ports[int(series.rows[at]) // CLASSES].ref} class {series.rows[at] % CLASSES}"
        data = [
            number
            for number in fabric.policy.queues.numbers
            if fabric.policy.queues.kind(number) != "control" and column["out_bytes"][number::CLASSES].any()
        ]
        highest = {number: int(peaks[series.rows % CLASSES == number].max(initial=0)) for number in data}
        return cls(
            classes=tuple(
                ClassUse(n, int(column["marks"][n::CLASSES].sum()), int(lost[n::CLASSES].sum()), highest[n])
                for n in data
            ),
            own=own,
            marks=int(column["marks"].sum()),
            drops={cause: int(count) for cause, count in zip((*CAUSES, LOST), drops, strict=True) if count},
            pauses=int(column["pfc_sent"].sum()),
            paused_ports=len(stopped),
            paused_hosts=len(stopped & hosts),
            paused_ms=round(float(paused.sum()) / 1e6, 3),
            storms=max(0, seen.after.storms - seen.before.storms),
            deepest=int(peaks[at]) if at >= 0 else 0,
            deepest_at=deepest_at,
            bucket_ms=round(series.bucket_s * 1e3, 3),
            trims=int(column["trims"].sum()),
        )

    @property
    def dropped(self) -> int:
        """Packets, of all causes."""
        return sum(self.drops.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "marks": self.marks, "drops": self.dropped, "drops_by_cause": dict(self.drops),
            "pfc_sent": self.pauses, "paused_ports": self.paused_ports, "paused_hosts": self.paused_hosts,
            "paused_ms": self.paused_ms, "storms": self.storms,
            "deepest": self.deepest, "deepest_at": self.deepest_at, "bucket_ms": self.bucket_ms,
            "class": self.own, "classes": [asdict(each) for each in self.classes],
            **({"trims": self.trims, "trim_drops": self.drops.get("trim", 0)} if self.trims else {}),
        }  # fmt: skip

    def lines(self) -> list[str]:
        deepest = (
            f"deepest {format_bytes(self.deepest)} at {self.deepest_at}" if self.deepest else "no packet ever waited"
        )
        causes = ", ".join(self.drops)
        counts = [
            f"{self.marks:,} marked" if self.marks else "",
            f"{self.trims:,} trimmed" if self.trims else "",
            f"{self.dropped:,} dropped ({causes})" if causes else "",
        ]
        lines = ["; ".join([deepest, ", ".join(each for each in counts if each) or "nothing marked or dropped"])]
        if self.pauses or self.paused_ports:
            ports = f"{self.paused_ports} port{'' if self.paused_ports == 1 else 's'}"
            hosts = f", {self.paused_hosts} of them of hosts" if self.paused_hosts else ""
            storms = f"; {self.storms} storm{'' if self.storms == 1 else 's'}" if self.storms else ""
            lines.append(
                f"{self.pauses:,} pause frames; {ports} paused{hosts}, {self.paused_ms:,.0f} ms in all{storms}"
            )
        for each in self.classes if len(self.classes) > 1 else ():
            own = " (this job's data)" if each.number == self.own else ""
            counts = [f"{each.marks:,} marked, {each.drops:,} dropped", f"deepest {format_bytes(each.deepest)}"]
            lines.append(f"class {each.number}{own}: {', '.join(counts)}")
        return [f"#queues   : {line}" for line in lines]

    def lost(self) -> Mapping[str, int]:
        return self.drops

    def cards(self) -> tuple[Card, ...]:
        """The deepest queue; marks with drops and pauses."""
        at = f"at {self.deepest_at}" if self.deepest_at else "no packet ever waited"
        counts = f"{self.dropped:,} dropped, {self.pauses:,} pause frames"
        return ("deepest queue", format_bytes(self.deepest), at), ("marked", f"{self.marks:,}", counts)
