"""A test router to query the kernel: several ports, in a network namespace without a name.

In:  the number of ports; then routes with weighted next hops, and the sysctls of hashing.
Out: the port that the kernel selects for a flow: by its netlink answer (`ask`), or by real packets (`send`).
The namespace belongs to this thread for a with block. It is removed afterwards, even if the process is killed.
Needs root.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from heddle.base.arrays import I32, U32
from heddle.base.process import run
from heddle.kernel.namespace import nameless
from heddle.kernel.netlink import RTM_GETROUTE, RouteSocket, attribute, attributes
from heddle.kernel.uapi import RTA_DPORT, RTA_DST, RTA_IIF, RTA_IP_PROTO, RTA_OIF, RTA_SPORT, RTA_SRC, RTMSG
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.forwarding import NOWHERE
from heddle.traffic.flow import PROTOCOL_SHIFT
from heddle.wire.layout import PROTO_TCP, ROCE_PORT

MAX_PACKETS: Final = 256  # of one `send`: they fit into a socket's buffer
ROUTED: Final = {4: "10.1.0.0/16", 6: "fd01::/32"}  # the prefixes of trial destinations
_SOURCES: Final = {4: (0x0A020000,), 6: (0xFD020000, 0, 0, 0)}
_DESTINATIONS: Final = {4: (0x0A010000,), 6: (0xFD010000, 0, 0, 0)}
_GATEWAYS: Final = {4: "169.254.0.1", 6: "fe80::1"}
_ETHERTYPES: Final = {4: 0x0800, 6: 0x86DD}
_MAC: Final = bytes.fromhex("020000000002")
_PEER_MAC: Final = "02:00:00:00:00:01"
_MARK: Final = b"trial:"

_SYSCTL: Final = Path("/proc/sys/net")
_ETH_P_ALL: Final = 0x0003
_PACKET_OUTGOING: Final = 4
_PATIENCE_S: Final = 2.0


def some_flows(count: int, version: int, seed: int) -> FlowArrays:
    """Flows to ROUTED with random ports, RoCEv2 and TCP in turn; the same seed gives the same flows."""
    chance = np.random.default_rng(seed)

    def addresses(base: Sequence[int]) -> U32:
        words = np.tile(np.array(base, dtype=np.uint32), (count, 1))
        words[:, -1] |= chance.integers(1, 0xFFFF, count, dtype=np.uint32)
        if version == 6:
            words[:, 2] = chance.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
        return words if version == 6 else words[:, 0]

    sport = chance.integers(0xC000, 0x10000, count).astype(np.uint32)
    qpn = chance.integers(2, 1 << 24, count).astype(np.uint32)
    dport = np.full(count, ROCE_PORT, dtype=np.uint32)
    dport[1::2] = qpn[1::2] & 0xFFFF
    qpn[1::2] = PROTO_TCP << PROTOCOL_SHIFT | dport[1::2]
    return FlowArrays(addresses(_SOURCES[version]), addresses(_DESTINATIONS[version]), sport, dport, qpn)


class Trial:
    """The router: packets enter at `in`, and leave at `out0`, `out1`, ..."""

    def __init__(self, ports: int) -> None:
        self.ports = ports
        self.versions = (4, 6) if (_SYSCTL / "ipv6").exists() else (4,)  # IP versions of this kernel
        self._objects = 1000  # the next number of a nexthop object
        names = ["in", *(f"out{i}" for i in range(ports))]
        lines = ["link set lo up"]
        for name in names:
            lines.append(f"link add {name} address {_MAC.hex(':')} type veth peer name far-{name}")
            lines += [f"link set {name} up", f"link set far-{name} up"]
        self._ip(lines)
        for each in ("all", "default", "in"):
            (_SYSCTL / "ipv4/conf" / each / "rp_filter").write_text("0")  # sources of trials have no route back
        (_SYSCTL / "ipv4/ip_forward").write_text("1")
        for name, value in (("forwarding", "1"), ("disable_ipv6", "0")) if 6 in self.versions else ():
            (_SYSCTL / "ipv6/conf/all" / name).write_text(value)
        self._index = {name: socket.if_nametoindex(name) for name in names}
        self._port = {index: int(name[3:]) for name, index in self._index.items() if name != "in"}
        for port in range(ports):
            self._neighbours(port)

    def sysctl(self, version: int, policy: int, fields: int, seed: int) -> None:
        """Set the kernel's hashing."""
        for name, value in (("policy", policy), ("fields", fields)):
            (_SYSCTL / f"ipv{version}" / f"fib_multipath_hash_{name}").write_text(str(value))
        (_SYSCTL / "ipv4/fib_multipath_hash_seed").write_text(str(seed))  # IPv6 uses this one, too

    def route(self, version: int, weights: Sequence[int], prefix: str = "") -> None:
        """Set one route to `prefix` (default ROUTED), over as many ports as there are weights."""
        onlink = "onlink " if version == 4 else ""
        hops = [f"nexthop via {_GATEWAYS[version]} dev out{i} {onlink}weight {w}" for i, w in enumerate(weights)]
        self._ip([f"route replace {prefix or ROUTED[version]} {' '.join(hops)}"], version)

    def buckets(self, version: int, count: int, ports: int) -> tuple[int, ...]:
        """Set one route over a resilient group of `count` buckets; returns the port of each bucket in the kernel."""
        first = self._objects
        self._objects = group = first + ports
        self._objects += 1
        onlink = " onlink" if version == 4 else ""
        singles = [f"nexthop add id {first + i} via {_GATEWAYS[version]} dev out{i}{onlink}" for i in range(ports)]
        self._ip(singles, version)
        members = "/".join(str(first + i) for i in range(ports))
        self._ip([f"nexthop add id {group} group {members} type resilient buckets {count}"])  # of no family
        self._ip([f"route replace {ROUTED[version]} nhid {group}"], version)
        said = run(["ip", "nexthop", "bucket", "show", "id", str(group)]).out
        return tuple(int(line.split(" nhid ")[1].split()[0]) - first for line in said.splitlines())

    def link(self, port: int, *, up: bool) -> None:
        """Set a port down, so that the kernel marks its next hops dead; or up again, with its neighbours."""
        self._ip([f"link set out{port} {'up' if up else 'down'}"])
        if up:
            self._neighbours(port)

    def ask(self, flows: FlowArrays) -> I32:
        """The kernel's answer (RTM_GETROUTE) for each flow: the number of the port, -1 for an error."""
        bits = 128 if flows.ipv6 else 32
        head = RTMSG.pack(socket.AF_INET6 if flows.ipv6 else socket.AF_INET, bits, bits, 0, 0, 0, 0, 0, 0)
        iif = attribute(RTA_IIF, struct.pack("=I", self._index["in"]))
        questions = [
            b"".join((
                head, attribute(RTA_DST, dst), attribute(RTA_SRC, src), iif, attribute(RTA_IP_PROTO, bytes([protocol])),
                attribute(RTA_SPORT, struct.pack("!H", sport)), attribute(RTA_DPORT, struct.pack("!H", dport)),
            ))
            for (src, dst, sport, dport), protocol in zip(flows.rows(), flows.protocol.tolist(), strict=True)
        ]  # fmt: skip
        with RouteSocket(Path("/proc/thread-self/ns/net")) as netlink:
            answers = netlink.ask(RTM_GETROUTE, questions)
        ports = [NOWHERE if isinstance(answer, int) else self._out(answer) for answer in answers]
        return np.array(ports, dtype=np.int32)

    def send(self, flows: FlowArrays) -> I32:
        """The number of the port at which a packet of each flow leaves, -1 for none; at most MAX_PACKETS flows."""
        if len(flows) > MAX_PACKETS:
            raise ValueError(f"a trial sends at most {MAX_PACKETS} packets at a time")
        found = np.full(len(flows), NOWHERE, dtype=np.int32)
        deadline = time.monotonic() + _PATIENCE_S
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as seen,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire,
        ):
            seen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            wire.bind(("far-in", 0))
            for number, (row, protocol) in enumerate(zip(flows.rows(), flows.protocol.tolist(), strict=True)):
                wire.send(_frame(number, *row, protocol))
            while (found == NOWHERE).any() and (left := deadline - time.monotonic()) > 0:
                seen.settimeout(left)
                try:
                    data, (name, _, direction, *_) = seen.recvfrom(256)
                except TimeoutError:
                    break
                if direction == _PACKET_OUTGOING and name.startswith("out") and data[-8:-2] == _MARK:
                    found[int.from_bytes(data[-2:], "big")] = int(name[3:])
        return found

    def _out(self, answer: bytes) -> int:
        out = attributes(answer, RTMSG.size).get(RTA_OIF)
        return NOWHERE if out is None else self._port.get(struct.unpack("=I", out)[0], NOWHERE)

    def _neighbours(self, port: int) -> None:
        gateways = [_GATEWAYS[version] for version in self.versions]
        self._ip([f"neigh replace {each} lladdr {_PEER_MAC} dev out{port} nud permanent" for each in gateways])

    def _ip(self, lines: Sequence[str], version: int = 4) -> None:
        run(["ip", *(["-6"] if version == 6 else []), "-batch", "-"], stdin="\n".join(lines) + "\n")


@contextmanager
def trial(ports: int) -> Iterator[Trial]:
    """A router for a with block; this thread is in its namespace. MachineError when the kernel refuses."""
    with nameless():
        yield Trial(ports)


def _frame(number: int, src: bytes, dst: bytes, sport: int, dport: int, protocol: int) -> bytes:
    """A whole packet that ends with its number. With another protocol than UDP, its ports are those that are hashed."""
    payload = _MARK + struct.pack("!H", number)
    udp = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0)
    if len(src) == 16:
        head = struct.pack("!IHBB", 6 << 28, 8 + len(payload), protocol, 64) + src + dst
        return _MAC + bytes(6) + struct.pack("!H", _ETHERTYPES[6]) + head + udp + payload
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, protocol, 0) + src + dst
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~total & 0xFFFF) + head[12:]
    return _MAC + bytes(6) + struct.pack("!H", _ETHERTYPES[4]) + head + udp + payload
