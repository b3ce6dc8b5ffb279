"""Route netlink, as far as Heddle needs it: dumps and batched single requests, by one socket in a namespace.

In:  a namespace and request bodies (struct rtmsg and others, already packed).
Out: message bodies, and attributes as a dict of type -> payload.
Why not pyroute2: every switch is polled with dumps while BGP converges, and decoding only the needed attributes is
about thirty times faster. The layouts are the kernel's ABI (include/uapi/linux/rtnetlink.h, nexthop.h), never changed.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from heddle.base.families import Version
from heddle.base.problems import MachineError, Problem
from heddle.kernel import uapi
from heddle.kernel.namespace import THIS_NAMESPACE, NodeHandle, inside, nameless

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP: Final = 0x300
NLM_F_REPLACE: Final = 0x100
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400
NLM_F_DUMP_INTR: Final = 0x10
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
RTM_NEWLINK: Final = 16
RTM_GETLINK: Final = 18
RTM_SETLINK: Final = 19
RTM_GETADDR: Final = 22
RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
RTM_GETROUTE: Final = 26
RTM_NEWNEIGH: Final = 28
RTM_NEWQDISC: Final = 36
RTM_GETQDISC: Final = 38
RTM_NEWTCLASS: Final = 40
RTM_GETTCLASS: Final = 42
RTM_NEWTFILTER: Final = 44
RTM_GETTFILTER: Final = 46
RTM_GETNEXTHOP: Final = 106
RTM_GETNEXTHOPBUCKET: Final = 118

_SOL_NETLINK: Final = 270
_NETLINK_GET_STRICT_CHK: Final = 12
_ATTR: Final = struct.Struct("=HH")
_RTMGRP_LINK, _RTMGRP_IPV4_ROUTE, _RTMGRP_IPV6_ROUTE = 0x1, 0x40, 0x400  # include/uapi/linux/rtnetlink.h
_RECEIVE: Final = 1 << 18
_BATCH: Final = 64  # requests in one datagram: their answers fit into the default receive buffer
_CHANGES: Final = 256  # of a few hundred bytes each: one datagram fits into the default send buffer
_RETRIES: Final = 20
_ENDS: Final = (NLMSG_ERROR, NLMSG_DONE)
NESTED: Final = 0x8000  # NLA_F_NESTED
_LOOPBACK: Final = 1  # a new namespace has `lo` and nothing else


Change = tuple[int, bytes, int]  # type, body and flags of a request


class NetlinkError(OSError):
    """The kernel answered a request with an error number."""


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _ATTR.pack(4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


# Body of RTM_GETLINK: every interface, without the statistics (RTEXT_FILTER_SKIP_STATS), which take most of the time.
ALL_LINKS: Final = uapi.IFINFOMSG.pack(0, 0, 0, 0, 0) + attribute(uapi.IFLA_EXT_MASK, struct.pack("=I", 1 << 3))


_known: Final[dict[tuple[int, bytes], tuple[tuple[int, ...], tuple[int, ...], struct.Struct]]] = {}
_MOST_KNOWN: Final = 4096


def attributes(data: bytes, offset: int) -> dict[int, bytes]:
    """The attributes of `data` from `offset` on; the last of a kind wins. ValueError when a length is wrong.

    Most messages of a dump have attributes of the same kinds and lengths as the one before of that size. So a struct
    unpacks all of them at once, also their heads, which show whether it is the right one.
    """
    key = len(data) - offset, data[offset : offset + 4]
    if (known := _known.get(key)) is not None:
        heads, kinds, layout = known
        row = layout.unpack_from(data, offset)
        if row[::2] == heads:
            return dict(zip(kinds, row[1::2], strict=True))
    found = [*each_attribute(data, offset)]
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    words = [f"I{len(payload)}s{-len(payload) % 4}x" for _, payload in found]
    layout = struct.Struct("=" + "".join(words).rpartition("s")[0] + "s" * bool(words))  # the last may not be padded
    _known[key] = layout.unpack_from(data, offset)[::2], tuple(kind for kind, _ in found), layout
    return dict(found)


def each_attribute(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each attribute, of which several may be of one kind. ValueError when a length is wrong."""
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTR.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            raise ValueError(f"netlink attribute of {length} bytes where {end - offset} are left")
        yield kind & 0x3FFF, data[offset + 4 : offset + length]  # the upper bits are NLA_F_NESTED, _NET_BYTEORDER
        offset += (length + 3) & ~3


class RouteSocket:
    """A netlink socket in one namespace, of NETLINK_ROUTE if not said otherwise. Threads must not share it.

    requests: messages that all sockets of this process have sent, dumps included.
    """

    requests: ClassVar[int] = 0

    def __init__(self, netns: Path, *, here: bool = False, protocol: int = socket.NETLINK_ROUTE) -> None:
        """Open it in `netns`. here: the calling thread is already in that namespace, and does not enter it again."""
        with nullcontext() if here else inside(netns):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._where = netns.name
        self._sequence = 0
        try:
            self._socket.bind((0, 0))
            self._socket.settimeout(5.0)
            # Without strict checking the kernel ignores rtm_table in a dump and sends every table.
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All messages of a dump. A dump that the kernel reports as interrupted is repeated.

        Raises NetlinkError with the kernel's errno, MachineError when every attempt is interrupted.
        """
        for _ in range(_RETRIES):
            self._send([(kind, body)], NLM_F_REQUEST | NLM_F_DUMP)
            found: list[bytes] = []
            torn, ended = 0, False
            while not ended:
                for answer, flags, sequence, data in _messages(self._block()):
                    if sequence != self._sequence:
                        continue  # the rest of an earlier, abandoned answer
                    torn |= flags & NLM_F_DUMP_INTR
                    ended = answer in _ENDS
                    if ended:
                        _raise_for(data)
                        break
                    found.append(data)
            if not torn:
                return found
        why = "changes its routes faster than Heddle can read them"
        raise MachineError(Problem("", self._where, why, "run the command again"))

    def ask(self, kind: int, bodies: Sequence[bytes]) -> list[bytes | int]:
        """One answer for each body, in order: the message, or the kernel's errno (positive)."""
        answers: list[bytes | int] = []
        for start in range(0, len(bodies), _BATCH):
            part = bodies[start : start + _BATCH]
            first = self._sequence + 1
            self._send([(kind, body) for body in part], NLM_F_REQUEST)
            for sequence in range(first, first + len(part)):
                try:
                    answers.append(next(self._receive(sequence))[2])
                except NetlinkError as error:
                    answers.append(error.errno or errno.EIO)
        return answers

    def change(self, kind: int, body: bytes, flags: int = 0) -> None:
        """Change one object, or with NLM_F_CREATE create it; NetlinkError with the kernel's errno."""
        self._send([(kind, body)], NLM_F_REQUEST | NLM_F_ACK | flags)
        next(self._receive(self._sequence))

    def change_all(self, requests: Sequence[Change], refused: Callable[[int, NetlinkError], None]) -> None:
        """Many changes in order, in few system calls: only the last of a batch has an answer, and what is refused.

        refused: called with the index of each request that the kernel refuses; it may raise.
        """
        for start in range(0, len(requests), _CHANGES):
            part = requests[start : start + _CHANGES]
            first = self._sequence + 1
            parts = []
            for number, (kind, body, own) in enumerate(part, first):
                flags = own | NLM_F_REQUEST | NLM_F_ACK * (number == first + len(part) - 1)
                parts += [uapi.NLMSGHDR.pack(16 + len(body), kind, flags, number, 0), body, bytes(-len(body) % 4)]
            self._sequence += len(part)
            RouteSocket.requests += len(part)
            self._socket.send(b"".join(parts))
            for number, code in self._answers(first, self._sequence):
                if code:
                    refused(start + number - first, NetlinkError(code, os.strerror(code)))

    def _answers(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """(sequence, errno) of the answers to requests from `first` on, until that to `last` has come."""
        while True:
            block = self._block()
            for _, _, number, body in _messages(block):
                if first <= number <= last:
                    yield number, -struct.unpack_from("=i", body)[0]
                    if number == last:
                        return

    def _send(self, requests: Sequence[tuple[int, bytes]], flags: int) -> None:
        parts: list[bytes] = []
        RouteSocket.requests += len(requests)
        for kind, body in requests:
            self._sequence += 1
            parts.append(uapi.NLMSGHDR.pack(16 + len(body), kind, flags, self._sequence, 0) + body)
            parts.append(b"\0" * (-len(body) % 4))
        self._socket.send(b"".join(parts))

    def _receive(self, sequence: int) -> Iterator[tuple[int, int, bytes]]:
        """Type, flags and body of the messages that answer `sequence`, until the caller stops iterating."""
        while True:
            for kind, flags, answers, body in _messages(self._block()):
                if answers != sequence:
                    continue  # the rest of an earlier, abandoned answer
                if kind in _ENDS:
                    _raise_for(body)
                yield kind, flags, body

    def _block(self) -> bytes:
        try:
            return self._socket.recv(_RECEIVE)
        except TimeoutError:
            raise MachineError(Problem("", self._where, "did not answer over netlink within 5 s")) from None


def _raise_for(body: bytes) -> None:
    """NetlinkError for the error number at the end of an answer."""
    if len(body) >= 4 and (code := -struct.unpack_from("=i", body)[0]):
        raise NetlinkError(code, os.strerror(code))


def _messages(block: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence and body of each message."""
    offset = 0
    while offset + 16 <= len(block):
        length, kind, flags, sequence, _ = uapi.NLMSGHDR.unpack_from(block, offset)
        yield kind, flags, sequence, block[offset + 16 : offset + length]
        offset += (length + 3) & ~3


def changes_of_links_and_routes(netns: Path) -> socket.socket:
    """A socket on which the kernel reports changes of interfaces and routes in a namespace; reading does not block.

    MachineError when the namespace does not exist.
    """
    with inside(netns):
        found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    found.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_ROUTE | _RTMGRP_IPV6_ROUTE))
    found.setblocking(False)
    return found


def down_ports(handle: NodeHandle) -> dict[str, bool]:
    """Interfaces that carry no traffic -> whether they were set down at this end.

    Raises MachineError when the namespace does not exist.
    """
    with RouteSocket(handle.netns) as netlink:
        return carriers([*interfaces(netlink)])[0]


def carriers(found: Collection[NetInterface]) -> tuple[dict[str, bool], dict[str, int]]:
    """The same of interfaces, and interface -> how often its carrier was lost or found since it was made."""
    down = {each.name: not each.flags & uapi.IFF_UP for each in found if not carries_traffic(each.flags)}
    counts = {each.name: each.attrs.get(uapi.IFLA_CARRIER_CHANGES, b"") for each in found}
    return down, {name: int.from_bytes(count, sys.byteorder) for name, count in counts.items()}


class NetInterface(NamedTuple):
    """An interface, with flags IFF_* and the other attributes that the kernel reports."""

    ifindex: int
    name: str
    flags: int
    attrs: dict[int, bytes]


def carries_traffic(flags: int) -> bool:
    """Whether an interface with these flags is up and has a carrier."""
    return flags & (uapi.IFF_UP | uapi.IFF_LOWER_UP) == uapi.IFF_UP | uapi.IFF_LOWER_UP


def interfaces(netlink: RouteSocket) -> Iterator[NetInterface]:
    """Every interface of the socket's namespace, without statistics."""
    for body in netlink.dump(RTM_GETLINK, ALL_LINKS):
        _, _, index, flags, _ = uapi.IFINFOMSG.unpack_from(body)
        attrs = attributes(body, uapi.IFINFOMSG.size)
        yield NetInterface(index, attrs[uapi.IFLA_IFNAME].rstrip(b"\0").decode(), flags, attrs)


class Qdisc(NamedTuple):
    """A queueing discipline. handle, parent: major and minor number. attrs: TCA_*."""

    ifindex: int
    handle: int
    parent: int
    kind: str
    attrs: dict[int, bytes]


def qdiscs(netlink: RouteSocket) -> Iterator[Qdisc]:
    """Every queueing discipline in the socket's namespace."""
    for body in netlink.dump(RTM_GETQDISC, uapi.TCMSG.pack(0, 0, 0, 0, 0)):
        _, ifindex, handle, parent, _ = uapi.TCMSG.unpack_from(body)
        attrs = attributes(body, uapi.TCMSG.size)
        yield Qdisc(ifindex, handle, parent, attrs[uapi.TCA_KIND].rstrip(b"\0").decode(), attrs)


def qdisc_body(ifindex: int, handle: int, parent: int, kind: str, options: bytes, *, nested: bool = True) -> bytes:
    """The body of RTM_NEWQDISC for one queueing discipline. nested: options are attributes, not a struct."""
    what = attribute(uapi.TCA_KIND, kind.encode() + b"\0")
    what += attribute(uapi.TCA_OPTIONS | (NESTED if nested else 0), options)  # sch_ets requires the flag
    return uapi.TCMSG.pack(0, ifindex, handle, parent, 0) + what


def refusal(kind: str, options: bytes) -> str:
    """Whether this kernel has a queueing discipline: empty, or the reason: `this kernel has no sch_ets`.

    One is created in a temporary namespace, which belongs to this thread alone. options: in netlink format.
    """
    if os.geteuid() != 0:
        return "only root can check this"
    with nameless(), RouteSocket(THIS_NAMESPACE) as netlink:
        try:
            netlink.change(RTM_NEWQDISC, qdisc_body(_LOOPBACK, 0x10000, uapi.TC_H_ROOT, kind, options), NLM_F_CREATE)
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return f"this kernel has no sch_{kind}"
            return f"this kernel's sch_{kind} refuses these options: {os.strerror(error.errno or errno.EIO)}"
    return ""


_RTM_GETNEIGH: Final = 30
_NDA_DST, _NDA_LLADDR, _NDA_MASTER = 1, 2, 9
_UNUSED: Final = 0x01 | 0x20  # INCOMPLETE, FAILED: no frame goes to this MAC
_RTM_F_CLONED: Final = 0x200
_RTA_METRICS, _RTAX_MTU = 8, 2
_MAC_BYTES, _RTN_MULTICAST = 6, 5


class Neighbour(NamedTuple):
    """One usable entry."""

    ifindex: int
    address: str
    mac: str


def neighbours(netlink: RouteSocket) -> Iterator[Neighbour]:
    """Every entry with a MAC of Ethernet, of all interfaces of the socket's namespace; not those of multicast."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for body in netlink.dump(_RTM_GETNEIGH, uapi.NDMSG.pack(family, 0, 0, 0, 0)):
            _, ifindex, state, _, kind = uapi.NDMSG.unpack_from(body)
            if not state or state & _UNUSED or kind == _RTN_MULTICAST:
                continue
            attrs = attributes(body, uapi.NDMSG.size)
            mac, address = attrs.get(_NDA_LLADDR, b""), attrs.get(_NDA_DST, b"")
            if len(mac) == _MAC_BYTES and address:
                yield Neighbour(ifindex, socket.inet_ntop(family, address), mac.hex(":"))


def path_mtus(netlink: RouteSocket) -> dict[str, int]:
    """Address -> the MTU that was learned for the path there, in bytes."""
    found = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for body in netlink.dump(RTM_GETROUTE, uapi.RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, _RTM_F_CLONED)):
            attrs = attributes(body, uapi.RTMSG.size)
            metrics = attributes(attrs.get(_RTA_METRICS, b""), 0)
            if uapi.RTA_DST in attrs and _RTAX_MTU in metrics:
                found[str(ip_address(attrs[uapi.RTA_DST]))] = struct.unpack("=I", metrics[_RTAX_MTU])[0]
    return found


_GROUPS: Final[dict[Version, int]] = {4: 0x40, 6: 0x400}  # RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE
_LOOK_S: Final = 0.1


class RouteWatch:
    """Notes the time of each change in a with block, in a thread. changes: ns of CLOCK_MONOTONIC, in order.

    OSError when the kernel refuses a socket, MachineError without a namespace.
    """

    def __init__(self, spaces: Iterable[Path], version: Version) -> None:
        self.changes: list[int] = []
        self._sockets: list[socket.socket] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="routes", daemon=True)
        for netns in spaces:
            with inside(netns):
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            self._sockets.append(made)
            made.setblocking(False)
            made.bind((0, _GROUPS[version]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _work(self) -> None:
        with selectors.DefaultSelector() as waiting:
            for each in self._sockets:
                waiting.register(each, selectors.EVENT_READ)
            while not self._end.is_set():
                ready = waiting.select(_LOOK_S)
                if ready:
                    self.changes.append(time.monotonic_ns())
                for key, _ in ready:
                    with suppress(OSError):  # ENOBUFS: more changes than the socket holds; it is one change, too
                        while key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                            pass


def port_behind(netlink: RouteSocket, bridge: int, address: str) -> int:
    """The ifindex of the only port to which the bridge sends a packet for an address; 0 if it is not known or floods.

    Entries of the bridge end after 300 s without a packet from there. Without one it floods, which leads to one port if
    it has only one.
    """
    target = ip_address(address)
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    asked = uapi.NDMSG.pack(family, bridge, 0, 0, 0) + attribute(_NDA_DST, target.packed)
    (neighbour,) = netlink.ask(_RTM_GETNEIGH, [asked])
    mac = b"" if isinstance(neighbour, int) else attributes(neighbour, uapi.NDMSG.size).get(_NDA_LLADDR, b"")
    if not mac:
        return 0
    asked = uapi.NDMSG.pack(socket.AF_BRIDGE, 0, 0, 0, 0) + attribute(_NDA_LLADDR, mac)
    (entry,) = netlink.ask(_RTM_GETNEIGH, [asked + attribute(_NDA_MASTER, struct.pack("=I", bridge))])
    if not isinstance(entry, int):
        return int(uapi.NDMSG.unpack_from(entry)[1])
    rows = list(netlink.dump(RTM_GETLINK, ALL_LINKS))
    members = [row for row in rows if attributes(row, 16).get(uapi.IFLA_MASTER) == struct.pack("=I", bridge)]
    return int(struct.unpack_from("=i", members[0], 4)[0]) if len(members) == 1 else 0
