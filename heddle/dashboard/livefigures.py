"""What the page shows of two readings: use of every link, depth of every queue, what was marked, dropped and paused.

In:  LiveReadings of one lab. Out: PortFigures, by port id; LiveTotals, of the whole fabric.
The use of a link is bytes * 8 / (rate * seconds between the two readings): 1 is line rate. A port sends in bursts, and
a burst may be counted in the next interval, so values slightly above 1 are possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.ethernet import CLASSES
from heddle.dashboard.livesource import LiveReading
from heddle.switch.queues.portids import numbered_ports

if TYPE_CHECKING:
    from heddle.fabric.model import Port
    from heddle.lab.lab import Lab

COUNTED: Final = ("bytes", "packets", "marks", "dropped", "pfc_sent", "pfc_received", "paused_ns")


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
        counts = dict.fromkeys(COUNTED, np.zeros(len(ports) + 1, np.int64))
        seconds = 0.0
        if before is not None:
            was = before.columns
            counts = {name: added(was[name], now[name]).reshape(-1, CLASSES).sum(axis=1) for name in COUNTED}
            seconds = (after.queues.taken_ns - before.queues.taken_ns) / 1e9
        rates = np.array([1, *(max(1, port.rate_bps) for port in ports)], np.float64)
        use = counts["bytes"] * 8 / rates / seconds if seconds > 0 else np.zeros(len(rates))
        down = down_ports_of(ports, after)
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


def down_ports_of(ports: Sequence[Port], now: LiveReading) -> I64:
    """By port id, 1 for a port whose link carries nothing, at whichever end it was taken down."""
    dead = now.slow.down
    return np.array([0, *(int(port.ref in dead or port.peer_ref in dead) for port in ports)], np.int64)


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
        seconds = (after.queues.taken_ns - before.queues.taken_ns) / 1e9 if before else 0.0
        per_s = 1 / seconds if seconds > 0 else 0.0
        marks, drops, pauses = (int(each.sum()) * per_s for each in (figures.marks, figures.drops, figures.pauses))
        paused = int(np.count_nonzero(figures.flags & PortFlag.PAUSED))
        down = int(np.count_nonzero(figures.flags & PortFlag.DOWN)) // 2
        sent = float(figures.use @ rates)
        return cls(sent, marks, drops, pauses, paused, down, *lab.blueprint.sessions(after.slow))

    def to_json(self) -> dict[str, float]:
        """`totals` of an update."""
        return {name: round(getattr(self, name), 1) for name in self.__slots__}
