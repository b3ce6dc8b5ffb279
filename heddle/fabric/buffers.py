"""How a switch lays its buffer out.

In:  QueuePolicy, the switch's level, and the rates and MTUs of its ports.
Out: Budget: bytes of headroom, of reserve, and what all ports share.
Every number here is arithmetic; which packet is dropped by them, bpf/queue.c decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import HEADER
from heddle.base.units import round_up, shown

if TYPE_CHECKING:
    from heddle.fabric.policy import QueuePolicy

# Bytes a port that `auto` gives beside headroom: a leaf's buffer is shallow, other switches' are deep.
SHALLOW: Final = 150_000
DEEP: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """How one switch's buffer is laid out, in bytes: buffer = headroom + reserved + shared."""

    buffer: int
    headroom: int
    reserved: int

    @property
    def shared(self) -> int:
        """What all classes of all ports share; below 0 where the buffer is too small."""
        return self.buffer - self.headroom - self.reserved


def buffer_bytes(queues: QueuePolicy, level: int, ports: Sequence[tuple[int, int]]) -> Budget:
    """The layout of a switch of a level (1: a leaf) with these ports: (rate in bit/s, mtu) each."""
    pauses = len(queues.paused)
    headroom = pauses * sum(queues.pfc.headroom_bytes(rate, mtu) for rate, mtu in ports)
    reserved = len(ports) * len(queues.numbers) * queues.reserve
    given = queues.buffer.at_level(level)
    a_port = SHALLOW if level == 1 else DEEP
    total = headroom + len(ports) * a_port if given == "auto" else given
    return Budget(buffer=total, headroom=headroom, reserved=reserved)


def too_small(queues: QueuePolicy, name: str, ports: int, found: Budget, mtu: int) -> tuple[str, str]:
    """Why a switch's buffer does not do, and a hint. name: of the switch, or its level."""
    frame = mtu + HEADER
    parts = [f"reserve {shown(queues.reserve)} x {len(queues.numbers)} classes x {ports} ports"]
    if found.headroom:
        pauses = "" if len(queues.lossless) == 1 else f" x {len(queues.lossless)} lossless classes"
        each = found.headroom // ports // len(queues.lossless)
        parts.insert(0, f"headroom {shown(each)}{pauses} x {ports} ports of {name}")
    need = found.headroom + found.reserved + frame
    why = f"is below {need} bytes: {' + '.join(parts)} + a frame of {frame}"
    smaller = "a smaller queues.reserve" if not found.headroom else "queues.pfc.enabled: false, or a smaller reserve"
    return why, f"try {round_up(need + len(queues.numbers) * frame * ports)}, {smaller}"
