"""The kernel's RED as ECN marker, in place of the program: `queues.ecn.marker: red`.

In:  the ports of one namespace, after their queues are created, and a marking curve for each class that marks (bytes).
Out: a RED over the class's FIFO; the number of packets it has marked; changes of curves while packets wait.
It marks arriving packets by the bytes that wait in its own FIFO at that moment: an average of weight 2^0 = 1, which the
kernel accepts and `tc` does not. Packets that are not ECN-capable pass unmarked (`nodrop`). Only the programs drop.

RED draws the gap to the next mark uniformly from 0 to 1/p packets, while a switch chip decides for each packet: with
the same p, RED marks more, see `marked`. So it is configured with a smaller p, which matches the wanted curve at kmin
and at kmax. Between them it marks more: by at most 0.006 of all packets with pmax 0.2, 0.04 with 0.5 and 0.17 with 1.
"""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.base.problems import MachineError, Problem
from heddle.kernel import netlink as nl
from heddle.kernel.fib import read_names
from heddle.kernel.uapi import TCA_OPTIONS, TCA_TBF_PARMS
from heddle.spec.queuepolicy import QueuePolicy

Key = tuple[str, int]  # port, class

_LIMIT_AT: Final = 24  # of struct tc_tbf_qopt: two struct tc_ratespec of 12 bytes come first
_TCA_RED_PARMS, _TCA_RED_STAB, _TCA_RED_MAX_P, _TCA_RED_FLAGS = 1, 2, 3, 4
_QOPT: Final = struct.Struct("=IIIBBBB")  # struct tc_red_qopt: limit, qth_min, qth_max, Wlog, Plog, Scell_log, flags
_FLAGS: Final = struct.pack("=II", 1 | 8, 1 | 2 | 4 | 8)  # struct nla_bitfield32: ECN and NODROP of all four
_IDLE: Final = bytes([31]) * 256  # any idle time shifts the average to 0, so it never includes the past
_MOST: Final = 2**31 - 1  # red_check_params
_WHOLE: Final = 2**32 - 1
BESIDE: Final = 8  # added to the handle of a class's FIFO: the RED over FIFO 41: is 48:


@dataclass(frozen=True, slots=True)
class Curve:
    """A marking curve: no packet below kmin bytes, a fraction `pmax` just below kmax, all packets from kmax on."""

    kmin: int
    kmax: int
    pmax: float

    def fraction(self, depth: int) -> float:
        """The fraction (0 to 1) that RED marks of the packets that find `depth` bytes before them."""
        if depth < self.kmin or depth >= self.kmax:
            return float(depth >= self.kmax)
        return marked(configured(self.pmax) * (depth - self.kmin) / (self.kmax - self.kmin))


NEVER: Final = Curve(_MOST, _MOST, 0.0)


def marked(p: float) -> float:
    """The fraction of all packets that RED marks with probability p: one in E packets.

    The gap is the draw from 0 to 1/p, rounded up, so E = sum of P(gap > j) = (k + 1) (1 - p k / 2), k = floor(1/p);
    where 1/p is whole, that is 2p / (1 + p) of all.
    """
    if p <= 0:
        return 0.0
    k = math.floor(1 / p)
    return 1 / ((k + 1) * (1 - p * k / 2))


def configured(pmax: float) -> float:
    """The p with which RED marks a fraction `pmax` of all packets, the inverse of `marked`. 0.2 -> 0.111, 1 -> 1."""
    if pmax <= 0:
        return 0.0
    k = math.floor(2 / pmax) - 1
    return 2 / k * (1 - 1 / (pmax * (k + 1)))


def curves_of(queues: QueuePolicy) -> dict[int, Curve]:
    """Class -> its curve, for every class except control, which is never marked; with ECN off, curves without marks."""
    marked = [number for number in queues.numbers if queues.kind(number) != "control"]
    return {number: Curve(*queues.ecn.curve(number)) if queues.ecn.enabled else NEVER for number in marked}


@cache
def missing() -> str:
    """Empty when this kernel's RED has the features needed here, else the reason."""
    return nl.refusal("red", _options(NEVER))


def require() -> None:
    """MachineError when this kernel has no such RED."""
    if why := missing():
        hint = "use ecn.marker: bpf: the program marks by the same curve, on any kernel"
        raise MachineError(Problem("kernel", "queues.ecn.marker: red", f"is not possible: {why}", hint))


def install(netns: Path, curves: Mapping[Key, Curve]) -> None:
    """Put a RED over the FIFO of each (port, class), or over its gate's FIFO.

    Waiting packets are lost, so call it before there is traffic. MachineError when the kernel refuses, or when a class
    has no FIFO.
    """
    with nl.RouteSocket(netns) as netlink:
        leaves = _leaves(netlink)
        for key, curve in curves.items():
            if key not in leaves:
                raise MachineError(Problem("", f"{key[0]} in {netns.name}", f"has no queue for class {key[1]}"))
            leaf, red = leaves[key], _red_of(key[1])
            limit = struct.pack("=I", leaf.limit)
            try:
                body = nl.qdisc_body(leaf.ifindex, red, leaf.parent, "red", _options(curve))
                netlink.change(nl.RTM_NEWQDISC, body, nl.NLM_F_CREATE | nl.NLM_F_REPLACE)
                body = nl.qdisc_body(leaf.ifindex, leaf.handle, red | 1, "bfifo", limit, nested=False)
                netlink.change(nl.RTM_NEWQDISC, body, nl.NLM_F_CREATE | nl.NLM_F_REPLACE)
            except nl.NetlinkError as error:
                raise _refused(netns, key, error) from None


def change(netns: Path, curves: Mapping[Key, Curve]) -> None:
    """Change the curves of REDs; waiting packets stay. MachineError when a port has no RED for a class."""
    with nl.RouteSocket(netns) as netlink:
        indices = {name: index for index, name in read_names(netlink).items()}
        for key, curve in curves.items():
            body = nl.qdisc_body(indices.get(key[0], 0), _red_of(key[1]), 0, "red", _options(curve))
            try:
                netlink.change(nl.RTM_NEWQDISC, body)
            except nl.NetlinkError as error:
                raise _refused(netns, key, error) from None


def read_curves(netns: Path) -> dict[Key, Curve]:
    """(port, class) -> the curve of its RED, as read from the kernel; pmax with the precision of 32 bits."""
    found: dict[Key, Curve] = {}
    for key, attrs in _reds(netns).items():
        options = nl.attributes(attrs[TCA_OPTIONS], 0)
        _, kmin, kmax, *_ = _QOPT.unpack_from(options[_TCA_RED_PARMS])
        p = struct.unpack_from("=I", options[_TCA_RED_MAX_P])[0] / _WHOLE
        found[key] = Curve(kmin, kmax, marked(p) if kmax > kmin else 0.0)
    return found


def differences(netns: Path, curves: Mapping[Key, Curve]) -> list[str]:
    """The REDs that are missing, or use a curve different from the configured one: a line each."""
    found = read_curves(netns)
    lines: list[str] = []
    for (port, number), curve in sorted(curves.items()):
        now, wanted = found.get((port, number)), _shown(curve)
        if now is None:
            lines.append(f"{port}, class {number}, has no RED")
        elif _shown(now) != wanted:
            lines.append(f"{port}, class {number}: RED marks {_shown(now)}, not {wanted}")
    return lines


def _shown(curve: Curve) -> str:
    """A curve in the kernel's form: if it marks nothing below kmax, it starts there."""
    kmin, kmax, _ = _parameters(curve)
    return f"from {kmin} bytes on, {curve.pmax if kmin < kmax else 0:.6g} at {kmax}"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The queue of a class: the FIFO `handle`, which belongs below `parent`. limit in bytes."""

    ifindex: int
    handle: int
    parent: int
    limit: int


def _red_of(number: int) -> int:
    return (number + 1 << 4 | BESIDE) << 16


def _leaves(netlink: nl.RouteSocket) -> dict[Key, _Leaf]:
    """The queue of each (port, class). FIFO 40: belongs to class 3. If 40: is a gate, 41: replaces its inner FIFO,
    which has no handle.
    """
    names = read_names(netlink)
    found: dict[Key, _Leaf] = {}
    for ifindex, handle, parent, kind, attrs in nl.qdiscs(netlink):
        number, rest = divmod(handle >> 16, 16)
        if rest or not 1 <= number <= CLASSES:
            continue
        key = names.get(ifindex, ""), number - 1
        if kind == "bfifo":
            found[key] = _Leaf(ifindex, handle, parent, struct.unpack_from("=I", attrs[TCA_OPTIONS])[0])
        elif kind == "tbf":
            parameters = nl.attributes(attrs[TCA_OPTIONS], 0)[TCA_TBF_PARMS]
            (limit,) = struct.unpack_from("=I", parameters, _LIMIT_AT)
            found[key] = _Leaf(ifindex, handle + (1 << 16), handle | 1, limit)
    return found


def _reds(netns: Path) -> dict[Key, dict[int, bytes]]:
    found: dict[Key, dict[int, bytes]] = {}
    with nl.RouteSocket(netns) as netlink:
        names = read_names(netlink)
        for each in nl.qdiscs(netlink):
            number = (each.handle >> 20) - 1
            if each.kind == "red" and each.handle == _red_of(number):
                found[names.get(each.ifindex, ""), number] = each.attrs
    return found


def _parameters(curve: Curve) -> tuple[int, int, int]:
    """qth_min, qth_max and max_P, which is a fraction of 2^32."""
    kmin, kmax = min(curve.kmin, _MOST), min(curve.kmax, _MOST)
    p = round(configured(curve.pmax) * _WHOLE)
    if p < kmax - kmin:  # a slope below 1/2^32 per byte: the kernel would use that slope, or a default for 0
        kmin, p = kmax, 1
    return kmin, kmax, max(1, p)


def _options(curve: Curve) -> bytes:
    """TCA_OPTIONS. Limit 0: the FIFO below keeps its own limit, and its packets when the curve changes."""
    kmin, kmax, p = _parameters(curve)
    parameters = _QOPT.pack(0, kmin, kmax, 0, 0, 0, 0)
    return (
        nl.attribute(_TCA_RED_PARMS, parameters) + nl.attribute(_TCA_RED_STAB, _IDLE)
        + nl.attribute(_TCA_RED_MAX_P, struct.pack("=I", p)) + nl.attribute(_TCA_RED_FLAGS, _FLAGS)
    )  # fmt: skip


def _refused(netns: Path, key: Key, error: nl.NetlinkError) -> MachineError:
    where = f"RED of {key[0]}, class {key[1]}, in {netns.name}"
    why = "does not exist" if error.errno in (errno.ENOENT, errno.ENODEV) else f"was refused: {error.strerror}"
    return MachineError(Problem("", where, why, "run ./inv down, then ./inv up"))
