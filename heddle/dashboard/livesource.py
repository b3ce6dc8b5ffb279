"""Read a running lab again and again for the live page: queues at every reading, carrier and BGP of switches in turns.

In:  a running Lab.
Out: LiveReading. The maps of the queues are memory and stay mapped, so that a reading of them costs a copy. Carrier and
sessions need system calls and an answer of bgpd for each switch: a reading asks a few switches, first those whose
links have just changed or whose sessions are not established.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from heddle.base.arrays import I64, Bools
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.lab.thresholds import wanted_policies
from heddle.switch.queues.cells import LINK_DOWN, LabQueues
from heddle.switch.queues.portids import numbered_ports
from heddle.switch.queues.queuestate import QueueState

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

SLOW_PARTS: Final = LabPart.CARRIER | LabPart.SESSIONS
_AT_ONCE: Final = 6  # switches of a reading, at least; a small fabric is read completely about once a second
_ROUND: Final = 10  # readings in which every switch has its turn, at most


@dataclass(frozen=True, eq=False)
class LiveReading:
    """A lab at one moment. when: UNIX time, s. cut: by port id, links that the queue programs treat as down.

    slow: carrier and BGP sessions of all switches, each as it was read last.
    """

    when: float
    queues: QueueState
    cut: Bools
    slow: Snapshot

    @cached_property
    def columns(self) -> Mapping[str, I64]:
        """Counters and levels of all queues, a row for each port id and class (portids.row).

        paused: 1 while the gate is closed; paused_ns: how long it was closed, until now where it is. dropped: packets,
        of all causes.
        """
        cells, ingress, gates, agent = self.queues.cells, self.queues.ingress, self.queues.gates, self.queues.agent
        closed = agent["closed_since_ns"].astype(np.int64)
        waiting = np.where(closed > 0, np.maximum(0, self.queues.taken_ns - closed), 0)
        found = {name: cells[name] for name in ("depth", "high_water", "marks")}
        found |= {"packets": cells["out_packets"], "bytes": cells["out_bytes"], "held": ingress["occupancy"]}
        found |= {"pfc_sent": agent["pfc_sent"], "pfc_received": gates["pfc_received"], "storms": agent["storms"]}
        found |= {"dropped": cells["drops"].sum(axis=1) + gates["lost"], "paused": closed > 0}
        plain = {name: values.astype(np.int64) for name, values in found.items()}
        return {**plain, "paused_ns": agent["paused_ns"].astype(np.int64) + waiting}


class LiveSource:
    """One lab, with its maps open. The caller closes it. MachineError when the lab has no queues."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ports = tuple(port for _, port in numbered_ports(lab.fabric))  # port id N is at N - 1
        self.policies = wanted_policies(lab)
        self.readings = 0
        self._queues = LabQueues.pinned(lab.fabric)
        self._switches = [node.name for node in lab.fabric.switches]
        self._known: dict[str, NodeSnapshot] = {}
        self._turn = 0
        self._cut: Bools | None = None

    def close(self) -> None:
        """Close the maps."""
        self._queues.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, *, every: bool = False) -> LiveReading:
        """One reading. every: ask all switches now. HeddleError when the lab is going away."""
        when, queues = time.time(), QueueState.of(self._queues)
        cut = (self._queues.links["flags"] & LINK_DOWN) != 0
        asked = self._switches if every or not self._known else self._next(cut)
        self._known |= self.lab.snapshot(SLOW_PARTS, asked).nodes
        self._cut = cut
        self.readings += 1
        nodes = {name: self._known[name] for name in self._switches}
        return LiveReading(when, queues, cut, Snapshot(self.lab.name, SLOW_PARTS, nodes))

    def _next(self, cut: Bools) -> Collection[str]:
        """The switches to ask now: those where something has changed or is missing, then the next in turn."""
        count = max(_AT_ONCE, -(-len(self._switches) // _ROUND))
        changed = np.flatnonzero(cut != self._cut) if self._cut is not None else ()
        first = dict.fromkeys(self.ports[number - 1].node for number in changed if number)
        unsettled = [name for name in self._switches if self._unsettled(name)]
        start = self._turn % max(1, len(self._switches))
        self._turn = start + count
        turns = (self._switches + self._switches)[start : start + count]
        chosen = dict.fromkeys((*first, *unsettled[:count], *turns))
        return [name for name in chosen if name in self.lab.fabric.by_name and name in self._known]

    def _unsettled(self, name: str) -> bool:
        """Whether a switch has ports that are down or sessions that are not established."""
        seen = self._known[name]
        return bool(seen.down) or seen.sessions is None or any(s != ESTABLISHED for s in seen.sessions.values())
