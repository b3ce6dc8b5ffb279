"""Readings of a running lab for the live page and for Prometheus, and what they show.

In:  a running Lab.
Out: LiveReading; of two of them PortFigures, by port id, and LiveTotals; LiveHistory, the last minutes.

The maps of the queues are memory and stay mapped, so that a reading of them costs a copy; those of a lab in shards come
by a call. Carrier and sessions need system calls and an answer of bgpd for each switch: a reading asks a few switches,
first those whose links have just changed or whose sessions are not established.
The use of a link is bytes * 8 / (rate * seconds between the two readings): 1 is line rate. A port sends in bursts, and
a burst may be counted in the next interval, so values slightly above 1 are possible.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import F64, I64, Bools
from heddle.base.ethernet import CLASSES
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.lab.spread import spread
from heddle.lab.thresholds import wanted_policies
from heddle.switch.queues.cells import CAUSES, LINK_DOWN, LabQueues, QueueState
from heddle.switch.queues.classes import numbered_ports

if TYPE_CHECKING:
    from heddle.fabric.wiring import Port
    from heddle.lab.lab import Lab

SLOW_PARTS: Final = LabPart.CARRIER | LabPart.SESSIONS
_AT_ONCE: Final = 6  # switches of a reading, at least; a small fabric is read completely about once a second
_COUNTED: Final = ("bytes", "marks", "dropped", "pfc_received")  # columns of which an interval is shown
_ROUND: Final = 10  # readings in which every switch has its turn, at most
KEPT: Final = 240  # readings in a history: two minutes at two a second


@dataclass(frozen=True, eq=False)
class LiveReading:
    """A lab at one moment. when: UNIX time, s. cut: by port id, links that the queue programs treat as down.

    slow: carrier and BGP sessions of all switches, each as it was read last.
    """

    when: float
    queues: QueueState
    cut: Bools
    slow: Snapshot

    def seconds_since(self, before: LiveReading | None) -> float:
        """The time between two readings; 0 without one before."""
        return (self.queues.taken_ns - before.queues.taken_ns) / 1e9 if before else 0.0

    @cached_property
    def columns(self) -> Mapping[str, I64]:
        """Counters and levels of all queues, a row for each port id and class (classes.row).

        paused: 1 while the gate is closed; paused_ns: how long it was closed, until now where it is. dropped: packets,
        of all causes.
        """
        cells, ingress, gates, agent = self.queues.cells, self.queues.ingress, self.queues.gates, self.queues.agent
        closed = agent["closed_since_ns"].astype(np.int64)
        waiting = np.where(closed > 0, np.maximum(0, self.queues.taken_ns - closed), 0)
        found = {name: cells[name] for name in ("depth", "high_water", "marks", "trims", "trim_sent")}
        found["trim_drops"] = cells["drops"][..., CAUSES.index("trim")]
        found |= {"packets": cells["out_packets"], "bytes": cells["out_bytes"], "held": ingress["occupancy"]}
        found |= {"pfc_sent": agent["pfc_sent"], "pfc_received": gates["pfc_received"], "storms": agent["storms"]}
        found |= {"dropped": cells["drops"].sum(axis=1) + gates["lost"], "paused": closed > 0}
        plain = {name: values.astype(np.int64) for name, values in found.items()}
        return {**plain, "paused_ns": agent["paused_ns"].astype(np.int64) + waiting}


class LiveSource:
    """One lab, with its maps open. The caller closes it. MachineError when the lab has no queues."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ports = tuple(port for _, port in numbered_ports(lab.fabric))  # in the order of their ids
        self._ids = np.array([0, *(number for number, _ in numbered_ports(lab.fabric))])
        self.policies = wanted_policies(lab)
        self._queues = LabQueues.pinned(lab.fabric) if lab.runtime.here else None
        self._switches = [node.name for node in lab.fabric.switches]
        self._known: dict[str, NodeSnapshot] = {}
        self._turn = 0
        self._cut: Bools | None = None

    def close(self) -> None:
        """Close the maps."""
        if self._queues is not None:
            self._queues.close()

    def read(self, *, every: bool = False) -> LiveReading:
        """One reading. every: ask all switches now. HeddleError when the lab is going away."""
        when, (whole, cuts) = time.time(), _copied(self._queues) if self._queues is not None else look(self.lab)
        queues, cut = whole.of_ports(self._ids), cuts[self._ids]  # without the gaps between ids
        asked = self._switches if every or not self._known else self._next(cut)
        self._known |= self.lab.snapshot(SLOW_PARTS, asked).nodes
        self._cut = cut
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
        seen = self._known[name]
        return bool(seen.down) or seen.sessions is None or any(s != ESTABLISHED for s in seen.sessions.values())


def _copied(live: LabQueues) -> tuple[QueueState, Bools]:
    return QueueState.of(live), (live.links["flags"][: len(live.cells) // CLASSES] & LINK_DOWN) != 0


def _joined(results: Sequence[tuple[QueueState, Bools]]) -> tuple[QueueState, Bools]:
    states = [each for each, _ in results]
    cuts = (each.shard.whole(np.repeat(cut, CLASSES))[::CLASSES] for each, cut in results if each.shard is not None)
    return states[0].joined(states[1:]), np.logical_or.reduce([*cuts])


@spread(_joined)
def look(lab: Lab) -> tuple[QueueState, Bools]:
    """The queues now, and by port id the links that their programs treat as down."""
    with LabQueues.pinned(lab.fabric) as live:
        return _copied(live)


class PortFlag(IntFlag):
    """Signs of a port beside its numbers, as the page knows them. All but PAUSED and DOWN are of an interval."""

    PAUSED = 1  # a gate of the port is closed
    DOWN = 2
    MARKED = 4
    DROPPED = 8
    PAUSES = 16  # pause frames arrived


def added(before: I64, after: I64) -> I64:
    """What was counted between two readings. A counter that went back was reset: all it has now is new."""
    return np.where(after < before, after, after - before)


@dataclass(frozen=True, eq=False)
class PortFigures:
    """One value a port id, 0 unused. use: 0 to about 1. depth, high_water: bytes of all classes. flags: of PortFlag.

    marks, drops, pauses: packets and pause frames received in this interval.
    """

    use: F64
    depth: I64
    high_water: I64
    marks: I64
    drops: I64
    pauses: I64
    flags: I64

    @classmethod
    def of(cls, ports: Sequence[Port], before: LiveReading | None, after: LiveReading) -> PortFigures:
        """The figures at `after`. Without a reading before, nothing was sent yet."""
        now = after.columns
        by_port = {name: values.reshape(-1, CLASSES) for name, values in now.items()}
        counts = dict.fromkeys(_COUNTED, np.zeros(len(ports) + 1, np.int64))
        if before is not None:
            was = before.columns
            counts = {name: added(was[name], now[name]).reshape(-1, CLASSES).sum(axis=1) for name in _COUNTED}
        seconds = after.seconds_since(before)
        rates = np.array([1, *(max(1, port.rate_bps) for port in ports)], np.float64)
        use = counts["bytes"] * 8 / rates / seconds if seconds > 0 else np.zeros(len(rates))
        dead = after.slow.down  # at whichever end a link was taken down
        down = np.array([0, *(int(port.ref in dead or port.peer_ref in dead) for port in ports)], np.int64)
        flags = (
            (by_port["paused"] > 0).any(axis=1) * PortFlag.PAUSED | down * PortFlag.DOWN
            | (counts["marks"] > 0) * PortFlag.MARKED | (counts["dropped"] > 0) * PortFlag.DROPPED
            | (counts["pfc_received"] > 0) * PortFlag.PAUSES
        )  # fmt: skip
        levels = by_port["depth"].sum(axis=1), by_port["high_water"].max(axis=1)
        return cls(use, *levels, counts["marks"], counts["dropped"], counts["pfc_received"], flags.astype(np.int64))

    def rows(self) -> list[list[int]]:
        """For each port id [use in thousandths, depth, high water, flags]; what the page keeps."""
        table = np.stack([np.rint(self.use * 1000).astype(np.int64), self.depth, self.high_water, self.flags], axis=1)
        rows: list[list[int]] = table.tolist()
        return rows


@dataclass(frozen=True, slots=True)
class LiveTotals:
    """The whole fabric: bits of all links and events a second since the reading before; what is down or paused now.

    established, expected: BGP sessions, as `./inv status` counts them.
    """

    bits_s: float
    marks_s: float
    drops_s: float
    pauses_s: float
    paused_ports: int
    links_down: int
    established: int
    expected: int

    @classmethod
    def of(cls, lab: Lab, before: LiveReading | None, after: LiveReading, figures: PortFigures) -> LiveTotals:
        """The totals at `after`."""
        rates = np.array([0, *(port.rate_bps for _, port in numbered_ports(lab.fabric))])
        seconds = after.seconds_since(before)
        per_s = 1 / seconds if seconds > 0 else 0.0
        marks, drops, pauses = (int(each.sum()) * per_s for each in (figures.marks, figures.drops, figures.pauses))
        paused = int(np.count_nonzero(figures.flags & PortFlag.PAUSED))
        down = int(np.count_nonzero(figures.flags & PortFlag.DOWN)) // 2
        sent = float(figures.use @ rates)
        return cls(sent, marks, drops, pauses, paused, down, *lab.blueprint.sessions(after.slow))

    def to_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 1) for name in self.__slots__}


class LiveHistory:
    """A ring of readings: use, depth and flags of every port, 13 bytes a port and reading."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = deque(maxlen=KEPT)

    def add(self, reading: LiveReading, figures: PortFigures) -> None:
        """One reading."""
        use, flags = figures.use.astype(np.float32), figures.flags.astype(np.uint8)
        self._taken.append((reading.when, use, figures.depth.copy(), flags))

    def of(self, port_id: int) -> dict[str, list[float]]:
        """`when` in UNIX seconds, `use` in thousandths, `depth` in bytes, `flags`: oldest reading first."""
        taken = tuple(self._taken)
        return {
            "when": [round(when, 3) for when, _, _, _ in taken],
            "use": [round(float(use[port_id]) * 1000) for _, use, _, _ in taken],
            "depth": [int(depth[port_id]) for _, _, depth, _ in taken],
            "flags": [int(flags[port_id]) for _, _, _, flags in taken],
        }
