"""The queues of a lab at one moment: copies of the shared maps, which do not change while they are evaluated.

In:  LabQueues, mapped. Out: QueueState, with a row per port and class (portids.row); lost packets, by port.
Packets pass while the maps are copied, so numbers of one row may differ by a packet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from heddle.switch.queues.portids import row

if TYPE_CHECKING:
    import numpy.typing as npt

    from heddle.fabric.model import Port
    from heddle.switch.queues.cells import LabQueues


@dataclass(frozen=True, eq=False)
class QueueState:
    """Copies of the maps, read-only; see LabQueues. taken_ns: CLOCK_MONOTONIC, the clock of all times in them."""

    taken_ns: int
    cells: npt.NDArray[Any]
    ingress: npt.NDArray[Any]
    gates: npt.NDArray[Any]
    agent: npt.NDArray[Any]
    switches: npt.NDArray[Any]

    @classmethod
    def of(cls, live: LabQueues) -> Self:
        """Copy the maps now."""
        copies = [each.copy() for each in (live.cells, live.ingress, live.gates, live.agent, live.switches)]
        for each in copies:
            each.flags.writeable = False
        return cls(time.monotonic_ns(), *copies)


def missed(live: LabQueues, ports: Iterable[Port]) -> dict[str, dict[int, int]]:
    """`rtsw1:eth2` -> class -> packets that the programs dropped there, of any cause, or that were lost behind it.

    Counts for these ports since the lab came up; only classes that lost packets. Drops by a qdisc itself are not
    included (portqueues.refused_by_qdiscs).
    """
    found: dict[str, dict[int, int]] = {}
    for port in ports:
        first = live.ids[port.node, port.name]
        rows = slice(row(first, 0), row(first + 1, 0))
        counts = live.cells["drops"][rows].sum(axis=1) + live.gates["lost"][rows]
        found[port.ref] = {number: int(count) for number, count in enumerate(counts) if count}
    return found
