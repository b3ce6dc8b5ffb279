"""The buffer layout of a switch.

In:  QueuePolicy, the switch's level and whether hosts are connected there, the rates and MTUs of its ports.
Out: Budget: bytes of headroom, of reserve, and the rest, which all ports share.
This module only computes the numbers; bpf/queue.c decides by them which packets are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import HEADER
from heddle.base.units import round_up, shown

if TYPE_CHECKING:
    from heddle.fabric.policy import QueuePolicy

# Bytes per port that `auto` gives in addition to headroom: edge switches have shallow buffers, others deep ones.
SHALLOW: Final = 150_000
DEEP: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """The buffer layout of one switch, in bytes: buffer = headroom + reserved + shared."""

    buffer: int
    headroom: int
    reserved: int

    @property
    def shared(self) -> int:
        """The bytes that all classes of all ports share; below 0 if the buffer is too small."""
        return self.buffer - self.headroom - self.reserved


def buffer_bytes(queues: QueuePolicy, level: int, ports: Sequence[tuple[int, int]], *, is_edge: bool) -> Budget:
    """The layout of a switch of a level with these ports: (rate in bit/s, mtu) each. is_edge: of that level."""
    pauses = len(queues.paused)
    headroom = pauses * sum(queues.pfc.headroom_bytes(rate, mtu) for rate, mtu in ports)
    reserved = len(ports) * sum(map(queues.reserve_of, queues.numbers))
    given = queues.buffer.at_level(level)
    a_port = SHALLOW if is_edge else DEEP
    total = headroom + len(ports) * a_port if given == "auto" else given
    return Budget(buffer=total, headroom=headroom, reserved=reserved)


def too_small(queues: QueuePolicy, name: str, ports: int, found: Budget, mtu: int) -> tuple[str, str]:
    """The reason that a switch's buffer is too small, and a hint. name: of the switch, or its level."""
    frame = mtu + HEADER
    alike = Counter(map(queues.reserve_of, queues.numbers))
    parts = [f"reserve {shown(size)} x {count} classes x {ports} ports" for size, count in alike.items()]
    if found.headroom:
        pauses = "" if len(queues.lossless) == 1 else f" x {len(queues.lossless)} lossless classes"
        each = found.headroom // ports // len(queues.lossless)
        parts.insert(0, f"headroom {shown(each)}{pauses} x {ports} ports of {name}")
    need = found.headroom + found.reserved + frame
    why = f"is below {need} bytes: {' + '.join(parts)} + a frame of {frame}"
    smaller = "a smaller queues.reserve" if not found.headroom else "queues.pfc.enabled: false, or a smaller reserve"
    return why, f"try {round_up(need + len(queues.numbers) * frame * ports)}, {smaller}"
