"""Gates: the TBF over each lossless class of a port, which passes all packets or none.

In:  a namespace whose ports have their queues. The list of gates is read from the kernel, once.
Out: qdiscs changed by one netlink message each, and kick frames. Nothing blocks: the kernel executes a message before
`send` returns, and answers only when it refuses.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.kernel import netlink as nl
from heddle.kernel import uapi
from heddle.kernel.libc import libc
from heddle.kernel.namespace import inside

# Python's sendto looks an interface's name up for every frame, and raises an exception for every refused one.
libc.sendto.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
libc.sendto.restype = ctypes.c_ssize_t
_ADDRESS: Final = struct.Struct("=HHiHBB8x")  # struct sockaddr_ll: family, protocol, ifindex, ...

KICK_ETHERTYPE: Final = 0x88B5  # IEEE 802: local experimental use; BPF's `enqueue` knows it
KICK_CLASS: Final = 0x10000  # HTB's direct queue, which refuses every packet (direct_qlen 0)

RTM_DELLINK: Final = 17
_RTMGRP_LINK: Final = 1
_TCA_TBF_BURST: Final = 6
_LIMITS: Final = struct.Struct("=III")  # of struct tc_tbf_qopt: limit, buffer, mtu
_LIMIT_AT: Final = 2 * uapi.TC_RATESPEC.size
_HTB: Final = 0x10000  # qdisc 1:, whose classes 1:10 ... 1:80 are our classes 0 ... 7
_OPEN_BYTES_PER_S: Final = 5_000_000_000  # 40 Gbit/s
_OPEN_BURST: Final = 100_000
_CLOSED_BYTES_PER_S: Final = 20_000  # the bucket for the largest frame stays below 2^32 ns, the maximum of TBF
_CLOSED_MPU: Final = 65_535
_TICK_NS: Final = 64
_RECEIVE: Final = 1 << 16
_MAC_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Gate:
    """The two netlink messages that open and close one gate."""

    port: str
    opening: bytes
    closing: bytes


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """The state of a port's link, from a notification. `port` is empty when one was lost: read all links again."""

    port: str
    up: bool


class Gates:
    """The gates of one namespace. Its sockets stay in that namespace, and a forked process can use them, too."""

    def __init__(self, netns: Path) -> None:
        """Open the sockets and read the gates. OSError when the kernel refuses, MachineError without the namespace."""
        self.netns = netns
        self.mark = netns.stat().st_ino
        self.errors = 0
        self._sockets: list[socket.socket] = []
        try:
            with inside(netns):
                self.netlink = self._open(socket.AF_NETLINK, socket.NETLINK_ROUTE)
                self.kicker = self._open(socket.AF_PACKET, 0)
                self.control = self._open(socket.AF_PACKET, 0)
            self.netlink.bind((0, _RTMGRP_LINK))
            self.kicker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, KICK_CLASS)
            # A MAC sends control frames ahead of its queues: here they bypass the qdiscs and the egress programs.
            self.control.setsockopt(uapi.SOL_PACKET, uapi.PACKET_QDISC_BYPASS, 1)
            self._names, self.macs, self.gates = _read(netns)
        except BaseException:
            self.close_sockets()
            raise
        self.addresses = {name: _ADDRESS.pack(socket.AF_PACKET, 0, at, 0, 0, 0) for at, name in self._names.items()}
        self.kick_frame = b"\2" * 12 + struct.pack("!H", KICK_ETHERTYPE) + bytes(46)

    def _open(self, family: int, protocol: int) -> socket.socket:
        made = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
        self._sockets.append(made)
        return made

    def close_sockets(self) -> None:
        """Close the sockets. About 10 ms per socket, because the kernel waits for all CPUs (packet_release)."""
        for each in self._sockets:
            each.close()

    def close(self, port: str, number: int) -> None:
        """Stop the class: no packet of it leaves by the port from now on. KeyError when it has no gate."""
        self._change(self.gates[port, number].closing)

    def open(self, port: str, number: int) -> None:
        """Resume the class at once. KeyError when it has no gate."""
        self._change(self.gates[port, number].opening)
        self.kick(port)

    def kick(self, port: str) -> None:
        """Make the port serve its queues now.

        Changing a TBF does not wake its parent: without this the queue waits until its next packet arrives. The
        queue of the kick frame refuses it, and the kernel then serves the other queues, as after every frame.
        """
        self._sendto(self.kicker, port, self.kick_frame)  # ENOBUFS is the expected refusal

    def send(self, port: str, frame: bytes) -> bool:
        """Send a MAC control frame by the port, ahead of its queues; False when the port is down or gone."""
        return self._sendto(self.control, port, frame)

    def _sendto(self, sender: socket.socket, port: str, frame: bytes) -> bool:
        address = self.addresses[port]
        return int(libc.sendto(sender.fileno(), frame, len(frame), 0, address, len(address))) >= 0

    def _change(self, message: bytes) -> None:
        try:
            self.netlink.send(message)
        except OSError:  # ENOBUFS: no room for the answer to an earlier message; this one was executed
            self.errors += 1

    def notices(self) -> list[LinkEvent]:
        """Read the netlink notifications: links that changed. Refused changes are counted in `errors`."""
        found: list[LinkEvent] = []
        while True:
            try:
                block = self.netlink.recv(_RECEIVE)
            except BlockingIOError:
                return found
            except OSError:  # ENOBUFS: the socket had no room, notifications were lost
                found.append(LinkEvent("", False))
                continue
            offset = 0
            while offset + uapi.NLMSGHDR.size <= len(block):
                length, kind, _, _, _ = uapi.NLMSGHDR.unpack_from(block, offset)
                if kind == nl.NLMSG_ERROR:
                    self.errors += struct.unpack_from("=i", block, offset + uapi.NLMSGHDR.size)[0] != 0
                elif kind in (nl.RTM_NEWLINK, RTM_DELLINK):
                    _, _, ifindex, flags, _ = uapi.IFINFOMSG.unpack_from(block, offset + uapi.NLMSGHDR.size)
                    up = kind == nl.RTM_NEWLINK and nl.carries_traffic(flags)
                    if (name := self._names.get(ifindex)) is not None:
                        found.append(LinkEvent(name, up))
                offset += (length + 3) & ~3

    def links(self) -> dict[str, bool]:
        """Port -> whether it is up and has a carrier, read now."""
        with nl.RouteSocket(self.netns) as netlink:
            known = [each for each in nl.interfaces(netlink) if each.ifindex in self._names]
        return {self._names[each.ifindex]: nl.carries_traffic(each.flags) for each in known}

    def waiting(self) -> dict[tuple[str, int], int]:
        """(port, class) -> packets in that class's qdisc, read now; class -1 is the port's root qdisc."""
        found: dict[tuple[str, int], int] = {}
        with nl.RouteSocket(self.netns) as netlink:
            for each in nl.qdiscs(netlink):
                number, rest = divmod(each.handle >> 16, 16)
                root = each.parent == uapi.TC_H_ROOT
                if not root and (rest or not 1 <= number <= CLASSES):
                    continue
                statistics = nl.attributes(each.attrs.get(uapi.TCA_STATS2, b""), 0)
                if (name := self._names.get(each.ifindex)) is not None and uapi.TCA_STATS_QUEUE in statistics:
                    (packets,) = struct.unpack_from("=I", statistics[uapi.TCA_STATS_QUEUE])
                    found[name, -1 if root else number - 1] = packets
        return found

    def gone(self) -> bool:
        """Whether the namespace's path is gone, or leads to another namespace: its node or container was removed."""
        try:
            return self.netns.stat().st_ino != self.mark
        except OSError:
            return True


def _read(netns: Path) -> tuple[dict[int, str], dict[str, bytes], dict[tuple[str, int], Gate]]:
    """Names by ifindex, MACs by name, and (port, class) -> gate for each TBF below a class of our HTB.

    Without devices that have no MAC (tun, WireGuard, PIM's register device): they are no ports.
    """
    with nl.RouteSocket(netns) as netlink:
        names: dict[int, str] = {}
        macs: dict[str, bytes] = {}
        mtus: dict[int, int] = {}
        for each in nl.interfaces(netlink):
            if len(mac := each.attrs.get(uapi.IFLA_ADDRESS, b"")) == _MAC_BYTES:
                names[each.ifindex], macs[each.name] = each.name, mac
                (mtus[each.ifindex],) = struct.unpack("=I", each.attrs[uapi.IFLA_MTU])
        gates: dict[tuple[str, int], Gate] = {}
        for ifindex, handle, parent, kind, attrs in nl.qdiscs(netlink):
            gate = parent & 0xFFFF000F == _HTB and 0x10 <= parent & 0xFFFF <= 0x80
            if kind != "tbf" or not gate or ifindex not in names:
                continue
            parms = nl.attributes(attrs[uapi.TCA_OPTIONS], 0)[uapi.TCA_TBF_PARMS]
            limit = _LIMITS.unpack_from(parms, _LIMIT_AT)[0]
            qdisc = (ifindex, handle, parent)
            opening, closing = _opened(qdisc, limit), _closed(qdisc, limit, mtus[ifindex])
            gates[names[ifindex], ((parent & 0xFFFF) >> 4) - 1] = Gate(names[ifindex], opening, closing)
    return names, macs, gates


def of_lab(spaces: Mapping[str, Path]) -> dict[str, Gates]:
    """Node -> its gates, for all nodes; if one fails, all are closed again."""
    made: dict[str, Gates] = {}
    try:
        for node, netns in spaces.items():
            made[node] = Gates(netns)
    except BaseException:
        for each in made.values():
            each.close_sockets()
        raise
    return made


def _opened(qdisc: tuple[int, int, int], limit: int) -> bytes:
    """The message that opens a gate: all packets pass."""
    wide = nl.attribute(uapi.TCA_TBF_RATE64, struct.pack("=Q", _OPEN_BYTES_PER_S))
    burst = nl.attribute(_TCA_TBF_BURST, struct.pack("=I", _OPEN_BURST)) + wide
    return _message(qdisc, limit, 0xFFFFFFFF, 0, 0, burst)


def _closed(qdisc: tuple[int, int, int], limit: int, mtu: int) -> bytes:
    """The message that closes a gate: no packet passes.

    TBF charges each packet as 65,535 bytes (mpu) at 20,000 bytes/s. The bucket never holds as much: its size is mtu +
    200 bytes. A smaller bucket would refuse packets at enqueue (max_size in tbf_change, which ignores the mpu), and a
    bucket is limited to 2^32 ns. TCA_TBF_BURST is not used: the kernel would derive the bucket from the mpu, and one
    more packet would pass.
    """
    ticks = (mtu + 200) * 10**9 // _CLOSED_BYTES_PER_S // _TICK_NS
    return _message(qdisc, limit, _CLOSED_BYTES_PER_S, _CLOSED_MPU, ticks, b"")


def _message(qdisc: tuple[int, int, int], limit: int, rate: int, mpu: int, ticks: int, more: bytes) -> bytes:
    """RTM_NEWQDISC for an existing qdisc, which keeps its packets. No answer is requested."""
    ifindex, handle, parent = qdisc
    rates = uapi.TC_RATESPEC.pack(0, uapi.TC_LINKLAYER_ETHERNET, 0, 0, mpu, rate) + uapi.TC_RATESPEC.pack(
        0, 0, 0, 0, 0, 0
    )
    parms = nl.attribute(uapi.TCA_TBF_PARMS, rates + _LIMITS.pack(limit, ticks, 0))
    body = uapi.TCMSG.pack(0, ifindex, handle, parent, 0)
    body += nl.attribute(uapi.TCA_KIND, b"tbf\0") + nl.attribute(uapi.TCA_OPTIONS, parms + more)
    return uapi.NLMSGHDR.pack(uapi.NLMSGHDR.size + len(body), nl.RTM_NEWQDISC, nl.NLM_F_REQUEST, 0, 0) + body
