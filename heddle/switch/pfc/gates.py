"""Gates: the TBF over each lossless class of a port, which lets everything through, or nothing.

In:  a namespace whose ports have their queues. Which gates there are is read from the kernel, once.
Out: qdiscs changed by one netlink message each, and kick frames. Nothing waits: the kernel does what a message says
before `send` returns, and answers only when it refuses.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import (
    NLM_F_REQUEST,
    NLMSG_ERROR,
    RTM_GETLINK,
    RTM_GETQDISC,
    RTM_NEWQDISC,
    RouteSocket,
    attribute,
    attributes,
)
from heddle.kernel.uapi import (
    IFF_LOWER_UP,
    IFF_UP,
    IFINFOMSG,
    IFLA_ADDRESS,
    IFLA_IFNAME,
    IFLA_MTU,
    NLMSGHDR,
    SOL_PACKET,
    TC_H_ROOT,
    TCA_KIND,
    TCA_OPTIONS,
    TCA_STATS2,
    TCA_STATS_QUEUE,
    TCA_TBF_PARMS,
    TCA_TBF_RATE64,
    TCMSG,
)

KICK_ETHERTYPE: Final = 0x88B5  # IEEE 802: local experimental use; BPF's `enqueue` knows it
KICK_CLASS: Final = 0x10FF0  # its leaf takes nothing

RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
_PACKET_QDISC_BYPASS: Final = 20
_RTMGRP_LINK: Final = 1
_UP_AND_CARRIER: Final = IFF_UP | IFF_LOWER_UP
_TCA_TBF_BURST: Final = 6
_RATESPEC: Final = struct.Struct("=BBHhHI")  # cell_log, linklayer, overhead, cell_align, mpu, rate
_LIMITS: Final = struct.Struct("=III")  # of struct tc_tbf_qopt: limit, buffer, mtu
_LIMIT_AT: Final = 2 * _RATESPEC.size
_LINKLAYER_ETHERNET: Final = 1
_HTB: Final = 0x10000  # qdisc 1:, whose classes 1:10 ... 1:80 are our classes 0 ... 7
_OPEN_BYTES_PER_S: Final = 5_000_000_000  # 40 Gbit/s
_OPEN_BURST: Final = 100_000
_CLOSED_BYTES_PER_S: Final = 20_000  # a bucket for the largest frame is below 2^32 ns, the most that TBF has
_CLOSED_MPU: Final = 65_535
_TICK_NS: Final = 64
_RECEIVE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate's two messages."""

    port: str
    opening: bytes
    closing: bytes


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """A port's link, as a notification has it. `port` is empty when one was lost: all of them have to be read anew."""

    port: str
    up: bool


class Gates:
    """The gates of one namespace. Its sockets stay there for life, and a forked process may go on with them."""

    def __init__(self, netns: Path) -> None:
        """Open the sockets and read which gates there are. OSError when the kernel refuses, MachineError without it."""
        self.netns = netns
        self.mark = netns.stat().st_ino
        self.errors = 0
        self._sockets: list[socket.socket] = []
        try:
            with inside(netns):
                self.netlink = self._open(socket.AF_NETLINK, socket.NETLINK_ROUTE)
                self._kicker = self._open(socket.AF_PACKET, 0)
                self._control = self._open(socket.AF_PACKET, 0)
            self.netlink.bind((0, _RTMGRP_LINK))
            self._kicker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, KICK_CLASS)
            # A MAC sends control frames past its queues: here past the qdiscs and the programs at egress.
            self._control.setsockopt(SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
            self._names, self.macs, self.gates = _read(netns)
        except BaseException:
            self.close_sockets()
            raise
        self._kick = b"\2" * 12 + struct.pack("!H", KICK_ETHERTYPE) + bytes(46)

    def _open(self, family: int, protocol: int) -> socket.socket:
        made = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
        self._sockets.append(made)
        return made

    def close_sockets(self) -> None:
        """Let go of the namespace. Some 10 ms a socket: the kernel waits for all processors (packet_release)."""
        for each in self._sockets:
            each.close()

    def close(self, port: str, number: int) -> None:
        """From now on no packet of that class leaves by the port. KeyError when it has no gate."""
        self._change(self.gates[port, number].closing)

    def open(self, port: str, number: int) -> None:
        """Let the class go on at once. KeyError when it has no gate."""
        self._change(self.gates[port, number].opening)
        self.kick(port)

    def kick(self, port: str) -> None:
        """Have the port look at its queues now.

        A TBF that is changed does not wake its parent: without this the queue rests until its next packet comes. The
        frame is refused by its queue, and the kernel runs the others after that as after any.
        """
        with suppress(OSError):  # ENOBUFS, as wanted; ENETDOWN, ENXIO where the port is down or gone
            self._kicker.sendto(self._kick, (port, 0))

    def send(self, port: str, frame: bytes) -> bool:
        """Send a MAC control frame out of the port, ahead of all that waits; False when the port is down or gone."""
        try:
            self._control.sendto(frame, (port, 0))
        except OSError:
            return False
        return True

    def _change(self, message: bytes) -> None:
        try:
            self.netlink.send(message)
        except OSError:  # ENOBUFS: the answer to an earlier one did not fit; this one was heard
            self.errors += 1

    def notices(self) -> list[LinkEvent]:
        """What netlink has told since: links that changed. Refused changes are counted in `errors`."""
        found: list[LinkEvent] = []
        while True:
            try:
                block = self.netlink.recv(_RECEIVE)
            except BlockingIOError:
                return found
            except OSError:  # ENOBUFS: more was told than the socket could keep
                found.append(LinkEvent("", False))
                continue
            offset = 0
            while offset + NLMSGHDR.size <= len(block):
                length, kind, _, _, _ = NLMSGHDR.unpack_from(block, offset)
                if kind == NLMSG_ERROR:
                    self.errors += struct.unpack_from("=i", block, offset + NLMSGHDR.size)[0] != 0
                elif kind in (RTM_NEWLINK, RTM_DELLINK):
                    _, _, ifindex, flags, _ = IFINFOMSG.unpack_from(block, offset + NLMSGHDR.size)
                    up = kind == RTM_NEWLINK and flags & _UP_AND_CARRIER == _UP_AND_CARRIER
                    if (name := self._names.get(ifindex)) is not None:
                        found.append(LinkEvent(name, up))
                offset += (length + 3) & ~3

    def links(self) -> dict[str, bool]:
        """Port -> whether it is up and has a carrier, asked now."""
        found: dict[str, bool] = {}
        with RouteSocket(self.netns) as netlink:
            for body in netlink.dump(RTM_GETLINK, IFINFOMSG.pack(0, 0, 0, 0, 0)):
                _, _, ifindex, flags, _ = IFINFOMSG.unpack_from(body)
                if (name := self._names.get(ifindex)) is not None:
                    found[name] = flags & _UP_AND_CARRIER == _UP_AND_CARRIER
        return found

    def waiting(self) -> dict[tuple[str, int], int]:
        """(port, class) -> packets in that class's qdisc, asked now; under class -1 those of the port's root."""
        found: dict[tuple[str, int], int] = {}
        with RouteSocket(self.netns) as netlink:
            for body in netlink.dump(RTM_GETQDISC, TCMSG.pack(0, 0, 0, 0, 0)):
                _, ifindex, handle, parent, _ = TCMSG.unpack_from(body)
                number, rest = divmod(handle >> 16, 16)
                if parent != TC_H_ROOT and (rest or not 1 <= number <= CLASSES):
                    continue
                statistics = attributes(attributes(body, TCMSG.size).get(TCA_STATS2, b""), 0)
                if (name := self._names.get(ifindex)) is not None and TCA_STATS_QUEUE in statistics:
                    (packets,) = struct.unpack_from("=I", statistics[TCA_STATS_QUEUE])
                    found[name, -1 if parent == TC_H_ROOT else number - 1] = packets
        return found

    def gone(self) -> bool:
        """Whether the namespace has lost its name, or that is another's now: its node was removed, or its container."""
        try:
            return self.netns.stat().st_ino != self.mark
        except OSError:
            return True


def _read(netns: Path) -> tuple[dict[int, str], dict[str, bytes], dict[tuple[str, int], Gate]]:
    """Names by ifindex, MACs by name, and (port, class) -> gate for each TBF below a class of our HTB."""
    with RouteSocket(netns) as netlink:
        names: dict[int, str] = {}
        macs: dict[str, bytes] = {}
        mtus: dict[int, int] = {}
        for body in netlink.dump(RTM_GETLINK, IFINFOMSG.pack(0, 0, 0, 0, 0)):
            ifindex, attrs = IFINFOMSG.unpack_from(body)[2], attributes(body, IFINFOMSG.size)
            names[ifindex] = name = attrs[IFLA_IFNAME].rstrip(b"\0").decode()
            macs[name], (mtus[ifindex],) = attrs[IFLA_ADDRESS], struct.unpack("=I", attrs[IFLA_MTU])
        gates: dict[tuple[str, int], Gate] = {}
        for body in netlink.dump(RTM_GETQDISC, TCMSG.pack(0, 0, 0, 0, 0)):
            _, ifindex, handle, parent, _ = TCMSG.unpack_from(body)
            attrs = attributes(body, TCMSG.size)
            if attrs.get(TCA_KIND) != b"tbf\0" or parent & 0xFFFF000F != _HTB or not 0x10 <= parent & 0xFFFF <= 0x80:
                continue
            parms = attributes(attrs[TCA_OPTIONS], 0)[TCA_TBF_PARMS]
            limit = _LIMITS.unpack_from(parms, _LIMIT_AT)[0]
            spot = (ifindex, handle, parent)
            opening, closing = _opened(spot, limit), _closed(spot, limit, mtus[ifindex])
            gates[names[ifindex], ((parent & 0xFFFF) >> 4) - 1] = Gate(names[ifindex], opening, closing)
    return names, macs, gates


def of_lab(spaces: Mapping[str, Path]) -> dict[str, Gates]:
    """Node -> its gates, for all nodes; nothing stays open when one fails."""
    made: dict[str, Gates] = {}
    try:
        for node, netns in spaces.items():
            made[node] = Gates(netns)
    except BaseException:
        for each in made.values():
            each.close_sockets()
        raise
    return made


def _opened(spot: tuple[int, int, int], limit: int) -> bytes:
    """The message that lets everything through."""
    wide = attribute(TCA_TBF_RATE64, struct.pack("=Q", _OPEN_BYTES_PER_S))
    burst = attribute(_TCA_TBF_BURST, struct.pack("=I", _OPEN_BURST)) + wide
    return _message(spot, limit, 0xFFFFFFFF, 0, 0, burst)


def _closed(spot: tuple[int, int, int], limit: int, mtu: int) -> bytes:
    """The message that lets nothing through.

    To TBF each packet costs what 65,535 bytes (mpu) take at 20,000 bytes/s, and the bucket never holds as much: it is
    what mtu + 200 bytes take. A smaller bucket would refuse packets at enqueue (max_size in tbf_change, which knows no
    mpu), and a bucket is cut to 2^32 ns. With TCA_TBF_BURST the kernel makes it from the mpu, so that one packet more
    would pass.
    """
    ticks = (mtu + 200) * 10**9 // _CLOSED_BYTES_PER_S // _TICK_NS
    return _message(spot, limit, _CLOSED_BYTES_PER_S, _CLOSED_MPU, ticks, b"")


def _message(spot: tuple[int, int, int], limit: int, rate: int, mpu: int, ticks: int, more: bytes) -> bytes:
    """RTM_NEWQDISC for a qdisc that is there; it keeps its packets. No answer is asked for."""
    ifindex, handle, parent = spot
    rates = _RATESPEC.pack(0, _LINKLAYER_ETHERNET, 0, 0, mpu, rate) + _RATESPEC.pack(0, 0, 0, 0, 0, 0)
    parms = attribute(TCA_TBF_PARMS, rates + _LIMITS.pack(limit, ticks, 0))
    body = TCMSG.pack(0, ifindex, handle, parent, 0)
    body += attribute(TCA_KIND, b"tbf\0") + attribute(TCA_OPTIONS, parms + more)
    return NLMSGHDR.pack(NLMSGHDR.size + len(body), RTM_NEWQDISC, NLM_F_REQUEST, 0, 0) + body
