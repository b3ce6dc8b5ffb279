"""What share of packets each ECN marker marks, by the depth that a packet finds: the program of a lab, and RED.

No packet passes a link: the program runs on a packet and a depth (BPF_PROG_TEST_RUN), at port 0, which no filter has.
The kernel's RED gets packets in a namespace of its own, behind a token bucket that lets nothing pass; without sch_red
it is not measured (`./inv bench marking --place vm`). Its own curve is above the line by at most 0.006 for pmax 0.2.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.base.events import Observer
from heddle.base.process import run
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.libbpf import run_on
from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.lab import lifecycle as labs
from heddle.switch.queues import red
from heddle.switch.queues.cells import KINDS, LINK_HOST, POLICY_ECN, LabQueues
from heddle.switch.queues.classes import row
from tests.readings import read_marks

from . import Figure, at_most

_LAB: Final = "benchmk"
# A range of depth has 800 packets, whose share of marks has a standard error of at most 0.018: four to six of them, for
# the largest of 40 distances.
_FAR: Final = 0.08
_RANGES: Final = 40
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

    depths: tuple[int, ...]
    shares: tuple[float, ...]

    def worst(self, curve: red.Curve) -> float:
        """The largest distance from a curve's straight line, as a share; ranges across kmin or kmax are left out."""
        half = (self.depths[1] - self.depths[0]) / 2
        return max(
            abs(share - _configured_share(curve, depth))
            for depth, share in zip(self.depths, self.shares, strict=True)
            if not any(abs(depth - edge) <= half for edge in (curve.kmin, curve.kmax))
        )


def figures(observer: Observer) -> Iterator[Figure]:
    """The distance of each marker from the configured line."""
    done = labs.up(load_fabric("tiny", name=_LAB), observer=observer, rollback=True)
    try:
        queues = done.lab.fabric.policy.queues
        curve = red.curves_of(queues)[queues.lossless[0]]
        with LabQueues.pinned(done.lab.fabric) as live:
            worst = _measure_program(live, curve).worst(curve)
        yield at_most("marking by the program: farthest from the line", worst, "share", _FAR)
    finally:
        labs.down(_LAB, observer)
    if not red.missing():
        yield at_most("marking by RED: farthest from the line", _measure_red(curve).worst(curve), "share", _FAR)


def _configured_share(curve: red.Curve, depth: float) -> float:
    """The share that the file configures: a straight line from 0 at kmin to pmax at kmax, then 1."""
    if depth < curve.kmin or depth >= curve.kmax:
        return float(depth >= curve.kmax)
    return curve.pmax * (depth - curve.kmin) / (curve.kmax - curve.kmin)


def _measure_program(live: LabQueues, curve: red.Curve) -> MarkedShares:
    """Run the lab's own program at every depth. Rows of port 0 are used, which belong to no port of the lab."""
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
    return MarkedShares(depths, tuple(shares))


def _measure_red(curve: red.Curve) -> MarkedShares:
    """Fill a queue behind RED packet by packet, several times."""
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
    return MarkedShares(depths, shares)


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
            now = read_marks(THIS_NAMESPACE)["pa", _CLASS]
            marks[index] += now - seen
            seen = now


def _ranges(curve: red.Curve) -> tuple[int, tuple[int, ...]]:
    """The width of a range, a multiple of a packet, and the middles of all."""
    step = max(2 * _FRAME, round(_BEYOND * curve.kmax / _RANGES / _FRAME) * _FRAME)
    return step, tuple(step * index + step // 2 for index in range(_RANGES))


def _packet() -> bytes:
    """An ECN-capable IPv4 packet of protocol 253 (experiments): nothing routes it."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, _ECT0, _FRAME - 14, 0, 0, 64, 253, 0, bytes(4), bytes(4))
    return b"\2" * 12 + b"\x08\x00" + head + bytes(_FRAME - 34)
