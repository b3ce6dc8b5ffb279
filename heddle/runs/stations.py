"""Where messages and packets of a run waited, as values: timeline.py finds them. Readers of records need no arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SPLIT: Final = -1  # QP of a message that is split over all QPs of its connection


@dataclass(frozen=True, slots=True)
class Station:
    """The QP `qp` from rank src to rank dst (SPLIT: all of the connection), or with qp None the rank dst itself.

    share: mean over iterations, 0 to 1. spread: half of the 95 % interval of that mean; 0 for one iteration.
    """

    src: int
    dst: int
    qp: int | None
    share: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class PortWait:
    """A switch's egress port, and the packets of data that waited there. Bytes, seconds; marks in packets.

    wait_s: the mean of a byte. high_water: the most bytes that its queue held. paused_s: its gate was closed.
    """

    port: str
    wait_s: float
    high_water: int
    paused_s: float
    marks: int
