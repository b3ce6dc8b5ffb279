"""Measure what share of packets each ECN marker marks, by the depth that a packet finds.

In:  a marking curve; the program `enqueue` of a running lab. Out: MarkedShares: shares of packets for equal ranges of
depth. No packet passes a link: the program runs on a packet and a depth (BPF_PROG_TEST_RUN), at port 0, which no filter
has. The kernel's RED gets packets in a namespace of its own, behind a token bucket that lets nothing pass.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import CLASSES
from heddle.base.process import run
from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.kernel.testrun import run_on
from heddle.switch.queues import red
from heddle.switch.queues.portids import row

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

RANGES: Final = 40
_EACH: Final = 800  # packets of a range: standard error 1.4 % at a share of 0.2
_BEYOND: Final = 1.15  # depths up to so many times kmax
_FRAME: Final = 64
_CLASS: Final = 3
_ECT0: Final = 2
_SO_SNDBUFFORCE: Final = 32
_HELD: Final = "tbf rate 8bit burst 100b limit 1073741824b"  # handle 40: is that of class 3


@dataclass(frozen=True, slots=True)
class MarkedShares:
    """What one marker did. depths: the middle of each range, in bytes; shares: of the packets that found it."""

    marker: str
    depths: tuple[int, ...]
    shares: tuple[float, ...]
    packets: int

    def worst(self, curve: red.Curve) -> float:
        """The largest distance from a curve's straight line, as a share; ranges across kmin or kmax are left out."""
        half = (self.depths[1] - self.depths[0]) / 2 if len(self.depths) > 1 else 0
        clear = [
            abs(share - configured_share(curve, depth))
            for depth, share in zip(self.depths, self.shares, strict=True)
            if not any(abs(depth - edge) <= half for edge in (curve.kmin, curve.kmax))
        ]
        return max(clear, default=0.0)


def configured_share(curve: red.Curve, depth: float) -> float:
    """The share that the file configures: a straight line from 0 at kmin to pmax at kmax, then 1."""
    if depth < curve.kmin or depth >= curve.kmax:
        return float(depth >= curve.kmax)
    return curve.pmax * (depth - curve.kmin) / (curve.kmax - curve.kmin)


def measure_program(live: LabQueues, curve: red.Curve) -> MarkedShares:
    """Run the lab's own program at every depth. Rows of port 0 are used, which belong to no port of the lab."""
    from heddle.switch.queues.cells import KINDS, LINK_HOST, POLICY_ECN

    step, depths = _ranges(curve)
    frame, at = _packet(), row(0, 0)
    cell, rule = live.cells[at : at + CLASSES], live.rules[2 * at + live.half : 2 * (at + CLASSES) : 2]
    before = live.links[0].copy(), cell.copy(), rule.copy()
    try:
        live.links[0] = (1, 0, 0, 1, 0, LINK_HOST, 10**8)
        for name, value in (
            ("kind", KINDS["lossy"]), ("flags", POLICY_ECN), ("kmin", curve.kmin), ("kmax", curve.kmax),
            ("pmax", round(curve.pmax * 2**32)), ("buffer", 1 << 40),
        ):  # fmt: skip
            rule[name] = value
        shares = []
        for middle in depths:
            cell["marks"] = 0
            for number in range(_EACH):
                cell["depth"] = middle - step // 2 + step * number // _EACH
                run_on(live.program("enqueue"), frame)
            shares.append(int(cell["marks"].sum()) / _EACH)
    finally:
        live.links[0] = before[0]
        cell[:], rule[:] = before[1], before[2]
    return MarkedShares("bpf", depths, tuple(shares), _EACH * len(depths))


def measure_red(curve: red.Curve) -> MarkedShares:
    """Fill a queue behind RED packet by packet, several times. MachineError when this kernel has no such RED."""
    red.require()
    step, depths = _ranges(curve)
    per_range = max(1, step // _FRAME)
    rounds = -(-_EACH // per_range)
    marks, packets = [0] * len(depths), [0] * len(depths)
    with nameless():
        lines = "link add pa type veth peer name pb\nlink set pa up\nlink set pb up\n"
        run(["ip", "-batch", "-"], stdin=lines)
        for _ in range(rounds):
            run(["tc", "qdisc", "replace", "dev", "pa", "root", "handle", "40:", *_HELD.split()])
            red.install(THIS_NAMESPACE, {("pa", _CLASS): curve})
            _fill(depths, step, marks, packets)
            run(["tc", "qdisc", "del", "dev", "pa", "root"])
    shares = tuple(some / max(1, count) for some, count in zip(marks, packets, strict=True))
    return MarkedShares("red", depths, shares, sum(packets))


def _fill(depths: tuple[int, ...], step: int, marks: list[int], packets: list[int]) -> None:
    """Send packets until the last range is full; add what RED marked in each range."""
    frame = _packet()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as mouth:
        mouth.bind(("pa", 0))
        mouth.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 1 << 28)
        mouth.send(frame)  # the token bucket has tokens for one packet
        seen, depth = 0, 0
        for index, middle in enumerate(depths):
            while depth < middle + step // 2:
                mouth.send(frame)
                packets[index] += 1
                depth += _FRAME
            now = red.read_marks(THIS_NAMESPACE)["pa", _CLASS]
            marks[index] += now - seen
            seen = now


def _ranges(curve: red.Curve) -> tuple[int, tuple[int, ...]]:
    """The width of a range, a multiple of a packet, and the middles of all."""
    step = max(2 * _FRAME, round(_BEYOND * curve.kmax / RANGES / _FRAME) * _FRAME)
    return step, tuple(step * index + step // 2 for index in range(RANGES))


def _packet() -> bytes:
    """An ECN-capable IPv4 packet of protocol 253 (experiments): nothing routes it."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, _ECT0, _FRAME - 14, 0, 0, 64, 253, 0, bytes(4), bytes(4))
    return b"\2" * 12 + b"\x08\x00" + head + bytes(_FRAME - 34)
