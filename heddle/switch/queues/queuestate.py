"""The queues of a lab at one moment: copies of the shared maps, which do not change while they are evaluated.

In:  LabQueues, mapped. Out: QueueState, with a row per port and class (portids.row); lost packets and tallies, by port.
Packets pass while the maps are copied, so numbers of one row may differ by a packet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from heddle.base.ethernet import CLASSES
from heddle.switch.queues.portids import numbered_ports, row

if TYPE_CHECKING:
    import numpy.typing as npt

    from heddle.fabric.wiring import Port
    from heddle.switch.queues.cells import LabQueues

# Moments on CLOCK_MONOTONIC; 0 is none. The other columns in ns are lengths.
_TIMES: Final = frozenset({"last_out_ns", "since_ns", "last_ns", "closed_since_ns", "until_ns", "storm_since_ns"})


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

    def joined(self, others: Sequence[Self]) -> Self:
        """One state of those of all shards: a row is 0 in all of them but that of its port.

        All shards were read at the same moment, so times are translated to the clock of the first by taken_ns; they are
        as exact as that moment is the same, which is some milliseconds.
        """
        found = {}
        for name in ("cells", "ingress", "gates", "agent", "switches"):
            sums = getattr(self, name).copy()
            for each in others:
                part = getattr(each, name)
                for column in sums.dtype.names:
                    counts = part[column]
                    if column in _TIMES:
                        counts = np.where(counts > 0, counts.astype(np.int64) + self.taken_ns - each.taken_ns, 0)
                    sums[column] += counts.astype(sums[column].dtype)
            sums.flags.writeable = False
            found[name] = sums
        return replace(self, **found)


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


@dataclass(frozen=True, slots=True)
class Tally:
    """One class of a port: packets, since the lab came up or over a run.

    offered: that came to its queue. lost: dropped there, for any cause, or on the link. copies: that the link delivered
    twice, for a fault. refused, refused_bytes: of `lost`, what never reached the link.
    """

    offered: int = 0
    lost: int = 0
    copies: int = 0
    refused: int = 0
    refused_bytes: int = 0

    @property
    def mixed(self) -> bool:
        """Whether packets were lost and others copied."""
        return self.lost > 0 and self.copies > 0

    def since(self, before: Tally) -> Tally:
        """The difference of two readings."""
        return Tally(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


Tallies = Mapping[str, Mapping[int, Tally]]  # `rtsw1:eth2` -> class; only classes that had packets


def tallies(live: LabQueues) -> Tallies:
    """The tallies of all ports of switches and hosts."""
    import numpy as np

    from heddle.switch.queues.cells import CAUSES

    cells, ports = live.cells, dict(numbered_ports(live.fabric))
    lost, faults = cells["drops"].sum(axis=1), cells["drops"][:, CAUSES.index("fault")]
    refused = lost - faults
    columns = (
        cells["in_packets"] + refused, lost + live.gates["lost"], cells["copies"], refused,
        cells["drop_bytes"] - cells["fault_bytes"],
    )  # fmt: skip
    found: dict[str, dict[int, Tally]] = {}
    for at in np.flatnonzero(columns[0]).tolist():
        number, traffic_class = divmod(at, CLASSES)
        if number in ports:
            found.setdefault(ports[number].ref, {})[traffic_class] = Tally(*(int(each[at]) for each in columns))
    return found


def tallies_since(now: Tallies, before: Tallies) -> Tallies:
    """The difference of two readings, without classes that had no packet."""
    found = {
        port: {number: each.since(before.get(port, {}).get(number, Tally())) for number, each in classes.items()}
        for port, classes in now.items()
    }
    return {
        port: moved
        for port, classes in found.items()
        if (moved := {number: each for number, each in classes.items() if each != Tally()})
    }
