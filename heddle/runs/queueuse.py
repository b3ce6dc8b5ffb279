"""Use of a lab's queues during one run: the differences of their counters, and the longest queue.

In:  the mapped queues before and after, and the run's Series.
Out: QueueUse, for the table's footer and the run's JSON; RowLabels for the picture.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.base.units import format_bytes
from heddle.fabric.model import Fabric, Port, Role

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from heddle.runs.series import RowLabel, Series
    from heddle.switch.queues.cells import LabQueues
    from heddle.switch.queues.classes import Policies


@dataclass(frozen=True, slots=True)
class QueueUse:
    """Totals of one run over all ports and classes.

    drops: cause -> packets. pauses: pause frames sent by switches, including those that end a pause. paused_ports:
    ports whose gate was closed at some time; paused_hosts: those of hosts among them; paused_ms: the sum of their
    pauses. deepest: maximum bytes of any egress queue of a switch; deepest_at: its port and class. Queues of hosts do
    not count: they hold what sockets send, which is no congestion. bucket_ms: of the series that is kept.
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

    @property
    def dropped(self) -> int:
        """Packets, of all causes."""
        return sum(self.drops.values())

    def to_json(self) -> dict[str, Any]:
        """`queues` of the run's document."""
        return {
            "marks": self.marks, "drops": self.dropped, "drops_by_cause": dict(self.drops),
            "pfc_sent": self.pauses, "paused_ports": self.paused_ports, "paused_hosts": self.paused_hosts,
            "paused_ms": self.paused_ms, "storms": self.storms,
            "deepest": self.deepest, "deepest_at": self.deepest_at, "bucket_ms": self.bucket_ms,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """One line of the table's footer, or two."""
        deepest = (
            f"deepest {format_bytes(self.deepest)} at {self.deepest_at}" if self.deepest else "no packet ever waited"
        )
        causes = ", ".join(self.drops)
        counts = [
            f"{self.marks:,} marked" if self.marks else "",
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
        return [f"#queues   : {line}" for line in lines]


@dataclass(frozen=True)
class QueueTotals:
    """Counters at one moment; rows are those of the maps."""

    counts: npt.NDArray[np.int64]  # output of series.counted
    drops: npt.NDArray[np.int64]  # rows, causes
    storms: int

    @classmethod
    def of(cls, live: LabQueues) -> QueueTotals:
        """Read the counters now."""
        import numpy as np

        from heddle.runs.series import counted

        drops = np.column_stack((live.cells["drops"], live.gates["lost"])).astype(np.int64)
        return cls(counted(live, time.monotonic_ns()), drops, int(live.agent["storms"].sum()))


def use_of(fabric: Fabric, before: QueueTotals, after: QueueTotals, series: Series) -> QueueUse:
    """The QueueUse between two readings."""
    import numpy as np

    from heddle.base.ethernet import CLASSES
    from heddle.runs.rowreader import COLUMNS
    from heddle.switch.queues.cells import CAUSES, LOST

    change = np.maximum(0, after.counts - before.counts)
    column = {name: change[:, index] for index, name in enumerate(COLUMNS)}
    drops = np.maximum(0, after.drops - before.drops).sum(axis=0)
    paused = column["paused_ns"].reshape(-1, CLASSES).sum(axis=1)
    ports = _ports(fabric)
    hosts = {number for number, port in ports.items() if fabric.by_name[port.node].role is Role.HOST}
    stopped = {int(number) for number in np.flatnonzero(paused)}
    peaks = series.columns["peak"].max(axis=1, initial=0)
    peaks[np.isin(series.rows // CLASSES, list(hosts))] = 0
    at = int(peaks.argmax()) if peaks.any() else -1
    deepest_at = "" if at < 0 else f"{ports[int(series.rows[at]) // CLASSES].ref} class {series.rows[at] % CLASSES}"
    return QueueUse(
        marks=int(column["marks"].sum()),
        drops={cause: int(count) for cause, count in zip((*CAUSES, LOST), drops, strict=True) if count},
        pauses=int(column["pfc_sent"].sum()),
        paused_ports=len(stopped),
        paused_hosts=len(stopped & hosts),
        paused_ms=round(float(paused.sum()) / 1e6, 3),
        storms=max(0, after.storms - before.storms),
        deepest=int(peaks[at]) if at >= 0 else 0,
        deepest_at=deepest_at,
        bucket_ms=round(series.bucket_s * 1e3, 3),
    )


def labels_of(fabric: Fabric, policies: Policies, rows: Sequence[int]) -> list[RowLabel]:
    """The label of each row of a series, with the thresholds in force when the run ended."""
    from heddle.base.ethernet import CLASSES
    from heddle.runs.series import RowLabel

    ports = _ports(fabric)
    found = []
    for row in rows:
        port, number = ports[row // CLASSES], row % CLASSES
        policy = policies[port.node, port.name][number]
        ecn = {"kmin": policy.kmin, "kmax": policy.kmax} if policy.ecn else {}
        pfc = {"xoff": policy.xoff, "xon": policy.xon} if policy.pfc else {}
        host = fabric.by_name[port.node].role is Role.HOST
        found.append(RowLabel(port.ref, number, policy.kind, port.rate_bps, **ecn, **pfc, host=host))
    return found


def _ports(fabric: Fabric) -> dict[int, Port]:
    from heddle.switch.queues.portids import numbered_ports

    return dict(numbered_ports(fabric))
