"""The oracle: what the kernels say, hop by hop, without a packet sent over the fabric.

In:  a fabric, the handles of its switches, and flows.
Out: for each flow the ordered egress ports, from its source's leaf to the port that its destination host hangs on;
     where packets of one flow are spread, all ports of that step in one word (spread.py).
Where the kernel hashes, each kernel is asked for its forwarding decision (RTM_GETROUTE, as `ip route get ... iif`).
Where the BPF program decides, it is run on the packet's header as it would look there: it steers, or it gives a hash,
and the kernel is asked for the route that matches. No code is shared with predict.py.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from heddle.base.families import Version
from heddle.base.problems import CheckError, Problem
from heddle.fabric.hashmodes import MODES, POLICY_CUSTOM, POLICY_L4, SPREADING, programmed
from heddle.fabric.model import Fabric, Port, Role
from heddle.kernel.fib import Fib, NextHop, read_fib, read_names, route_hops
from heddle.kernel.handle import NodeHandle
from heddle.kernel.libbpf import Program
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import RTM_GETROUTE, RouteSocket, attribute, attributes
from heddle.kernel.testrun import run_on
from heddle.kernel.uapi import RTA_DPORT, RTA_DST, RTA_IIF, RTA_IP_PROTO, RTA_OIF, RTA_SPORT, RTA_SRC, RTMSG
from heddle.predict.spread import element
from heddle.predict.walk import MAX_HOPS
from heddle.switch.hashing.hashing import SwitchHashing, pin_dir
from heddle.traffic.flow import Flow
from heddle.wire.layout import DSCP_DATA, ECN_CE, TOS_DATA

Path = tuple[str, ...]
Ports = tuple[str, ...]  # that packets of one flow leave a switch by; none: the kernel refuses

_RTM_F_FIB_MATCH: Final = 0x2000
_TTL: Final = 64
_PAYLOAD: Final = 256  # bytes behind the BTH: as far as a user-defined field may reach


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A flow that arrives at a switch by a port, after so many hops."""

    row: int
    port: str
    hops: int


def ask(
    fabric: Fabric, handles: Mapping[str, NodeHandle], hashing: Mapping[str, SwitchHashing], flows: Sequence[Flow]
) -> list[Path]:
    """The path of every flow, in their order; one batch of questions a switch and tier.

    A path ends early where a kernel has no route. CheckError when it is asked for a mode that it cannot tell.
    """
    peers: dict[str, Port] = {port.ref: port for node in fabric.nodes for port in node.ports}
    paths: list[list[str]] = [[] for _ in flows]
    here: dict[str, dict[int, _Arrival]] = {}
    for row, flow in enumerate(flows):
        switch, _, port = flow.first_hop.partition(":")
        here.setdefault(switch, {})[row] = _Arrival(row, port, 0)
    for hops in range(1, MAX_HOPS + 1):
        there: dict[str, dict[int, _Arrival]] = {}
        taken: dict[int, list[str]] = {}
        for switch, found in here.items():
            arrivals = list(found.values())
            answers = _Switch(fabric, handles[switch], hashing[switch], flows).ask(arrivals)
            for arrival, ports in zip(arrivals, answers, strict=True):
                for out in ports:
                    taken.setdefault(arrival.row, []).append(f"{switch}:{out}")
                    link = peers.get(f"{switch}:{out}")
                    if link is not None and fabric.by_name[link.peer_node].role is Role.SWITCH:
                        on = there.setdefault(link.peer_node, {})
                        on.setdefault(arrival.row, _Arrival(arrival.row, link.peer_port, hops))
        for row, refs in taken.items():
            paths[row].append(element(_in_order(fabric, refs)))
        here = there
    return [tuple(path) for path in paths]


def ask_one(
    fabric: Fabric, handle: NodeHandle, hashing: SwitchHashing, flow: Flow, arrives: str, hops: int = 0
) -> Ports:
    """The ports that one switch sends a flow to, which arrives by that port of it after so many hops."""
    return _Switch(fabric, handle, hashing, [flow]).ask([_Arrival(0, arrives, hops)])[0]


def _in_order(fabric: Fabric, refs: Sequence[str]) -> list[str]:
    """Ports of several switches in the order of the fabric's switches; those of one as its kernel has them."""
    if len(refs) == 1:
        return list(refs)
    places = {switch.name: at for at, switch in enumerate(fabric.switches)}
    return sorted(refs, key=lambda ref: places[ref.partition(":")[0]])


class _Switch:
    """One switch's kernel and program, and how they are asked."""

    def __init__(self, fabric: Fabric, handle: NodeHandle, hashing: SwitchHashing, flows: Sequence[Flow]) -> None:
        if hashing.mode not in MODES:
            raise CheckError(Problem("", handle.name, f"hashes by {hashing.mode}, which the oracle cannot ask about"))
        self._lab = fabric.name
        self._macs = {port.name: port.mac for port in fabric.by_name[handle.name].ports}
        self._handle = handle
        self._hashing = hashing
        self._flows = flows
        self._tables: dict[Version, Fib] = {}  # read when an answer alone does not say enough

    def ask(self, arrivals: Sequence[_Arrival]) -> list[Ports]:
        """The egress ports of each arrival; none where the kernel refuses."""
        with RouteSocket(self._handle.netns) as netlink:
            names = read_names(netlink)
            indexes = {name: index for index, name in names.items()}
            found: dict[int, Ports] = {}
            values: dict[int, int] = {}  # rows that the program has given a hash which the kernel heeds
            spread = set(range(len(arrivals))) if self._hashing.mode in SPREADING else set()
            if programmed(self._hashing.mode, self._hashing.options) and not spread:
                for at, (steered, value) in enumerate(self._run(arrivals, indexes)):
                    if steered is None:
                        spread.add(at)
                    elif steered:
                        found[at] = (names.get(steered, f"if{steered}"),)
                    elif self._hashing.policy == POLICY_L4:
                        values[at] = value
            matched = self._matched(netlink, [arrivals[at] for at in (*values, *sorted(spread))], indexes, names)
            for at, hops in zip((*values, *sorted(spread)), matched, strict=True):
                live = tuple(hop.port for hop in hops if not hop.dead)
                if at in spread:
                    found[at] = tuple(dict.fromkeys(live))
                else:
                    found[at] = self._bucket(arrivals[at], values[at] >> 1) or _take(hops, values[at] >> 1)
            rest = [at for at in range(len(arrivals)) if at not in found]
            found.update(zip(rest, self._hashed(netlink, [arrivals[at] for at in rest], indexes, names), strict=True))
        return [found[at] for at in range(len(arrivals))]

    def _hashed(
        self, netlink: RouteSocket, arrivals: Sequence[_Arrival], indexes: Mapping[str, int], names: Mapping[int, str]
    ) -> list[Ports]:
        """What the kernel chooses by its own hash."""
        if self._hashing.policy == POLICY_CUSTOM and any(":" in self._flows[a.row].dst_ip for a in arrivals):
            return self._tried(arrivals, self._matched(netlink, arrivals, indexes, names))
        answers = netlink.ask(RTM_GETROUTE, [self._question(a, indexes, 0) for a in arrivals])
        return [() if isinstance(answer, int) else _egress(answer, names) for answer in answers]

    def _tried(self, arrivals: Sequence[_Arrival], matched: Sequence[Sequence[NextHop]]) -> list[Ports]:
        """The choice under IPv6's policy 3, by packets through a router of our own that hashes as this one does.

        RTM_GETROUTE would answer for a packet that the machine itself sends, which is hashed once less
        (rt6_multipath_custom_hash_fl6 and _skb): the answer would be wrong.
        """
        from heddle.predict.flowarrays import FlowArrays
        from heddle.predict.trial import MAX_PACKETS, trial

        found: list[Ports] = [()] * len(arrivals)
        alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for at, hops in enumerate(matched):
            alike.setdefault(tuple((hop.port, hop.weight) for hop in hops if not hop.dead), []).append(at)
        with trial(max(1, *map(len, alike))) as router:
            router.sysctl(6, self._hashing.policy, self._hashing.fields, self._hashing.seed)
            for ways, rows in alike.items():
                if not ways:
                    continue
                router.route(6, [weight for _, weight in ways], "::/0")
                for start in range(0, len(rows), MAX_PACKETS):
                    part = rows[start : start + MAX_PACKETS]
                    went = router.send(FlowArrays.of([self._flows[arrivals[at].row] for at in part]))
                    for at, port in zip(part, went.tolist(), strict=True):
                        found[at] = (ways[port][0],) if port >= 0 else ()
        return found

    def _matched(
        self, netlink: RouteSocket, arrivals: Sequence[_Arrival], indexes: Mapping[str, int], names: Mapping[int, str]
    ) -> list[tuple[NextHop, ...]]:
        """The next hops of the route that the kernel finds for each arrival, in the route's order."""
        answers = netlink.ask(RTM_GETROUTE, [self._question(a, indexes, _RTM_F_FIB_MATCH) for a in arrivals])
        found = [() if isinstance(answer, int) else route_hops(answer, names) for answer in answers]
        return [self._ordered(arrival, hops) for arrival, hops in zip(arrivals, found, strict=True)]

    def _ordered(self, arrival: _Arrival, hops: tuple[NextHop, ...]) -> tuple[NextHop, ...]:
        """IPv6 answers beginning with the sibling that it chose (rt6_fill_node); its table has the first one first."""
        if len(hops) < 2 or self._version(arrival) == 4:
            return hops
        order = self._table(6).lookup(ip_address(self._flows[arrival.row].dst_ip))
        turned = {hops[at:] + hops[:at] for at in range(len(hops))}
        return order if order in turned else hops

    def _bucket(self, arrival: _Arrival, value: int) -> Ports:
        """The port of the bucket that a value falls in, where the route's next hops are a resilient group."""
        table = self._table(self._version(arrival))
        prefix = table.match(ip_address(self._flows[arrival.row].dst_ip))
        dealt = table.buckets.get(prefix, ()) if prefix is not None else ()
        return (table.routes[prefix][dealt[value % len(dealt)]].port,) if prefix is not None and dealt else ()

    def _version(self, arrival: _Arrival) -> Version:
        return 6 if ":" in self._flows[arrival.row].dst_ip else 4

    def _table(self, version: Version) -> Fib:
        if version not in self._tables:
            self._tables[version] = read_fib(self._handle, version)
        return self._tables[version]

    def _run(self, arrivals: Sequence[_Arrival], indexes: Mapping[str, int]) -> Iterator[tuple[int | None, int]]:
        """Of each arrival the port that the program steers to (0: none), and the hash that it gives.

        Two packets of the flow are tried that differ in all that may differ; None: they are treated differently.
        """
        with inside(self._handle.netns), Program.pinned(pin_dir(self._lab, self._handle.name) / "hash") as program:
            for arrival in arrivals:
                mac, flow = self._macs.get(arrival.port, ""), self._flows[arrival.row]
                index = indexes.get(arrival.port, 0)
                one, other = (
                    run_on(program, _header(flow, _TTL - arrival.hops, mac, odd=odd), ifindex=index).cb
                    for odd in (False, True)
                )
                yield (None, 0) if one[:2] != other[:2] else (one[1], one[0])

    def _question(self, arrival: _Arrival, indexes: Mapping[str, int], flags: int) -> bytes:
        """`ip route get DST from SRC iif PORT tos T ipproto udp sport S dport D`, as struct rtmsg and attributes."""
        flow = self._flows[arrival.row]
        family = socket.AF_INET6 if ":" in flow.dst_ip else socket.AF_INET
        bits = 128 if family == socket.AF_INET6 else 32
        return (
            RTMSG.pack(family, bits, bits, DSCP_DATA << 2, 0, 0, 0, 0, flags)
            + attribute(RTA_DST, socket.inet_pton(family, flow.dst_ip))
            + attribute(RTA_SRC, socket.inet_pton(family, flow.src_ip))
            + attribute(RTA_IIF, struct.pack("=I", indexes.get(arrival.port, 0)))
            + attribute(RTA_IP_PROTO, bytes([socket.IPPROTO_UDP]))
            + attribute(RTA_SPORT, struct.pack("!H", flow.sport))
            + attribute(RTA_DPORT, struct.pack("!H", flow.dport))
        )


def _egress(answer: bytes, names: Mapping[int, str]) -> Ports:
    out = attributes(answer, RTMSG.size).get(RTA_OIF)
    name = None if out is None else names.get(struct.unpack("=I", out)[0])
    return () if name is None else (name,)


def _take(hops: Sequence[NextHop], value: int) -> Ports:
    """Hash-threshold by exact integers: the first live next hop whose share of 2^31 the value falls in.

    A share ends at round(running weight * 2^31 / total), a half rounded up (DIV_ROUND_CLOSEST_ULL).
    """
    live = [hop for hop in hops if not hop.dead]
    total = sum(hop.weight for hop in live)
    running = 0
    for hop in live:
        running += hop.weight
        if value < (2 * (running << 31) + total) // (2 * total):
            return (hop.port,)
    return ()


def _header(flow: Flow, ttl: int, mac: str, *, odd: bool) -> bytes:
    """A packet of this flow as it comes in by the port with that MAC: all that the BPF program looks at.

    odd: with other values in every byte that differs between packets of one flow.
    """
    more = 900 if odd else 0
    number, tos, check = (0xFFFF, TOS_DATA | ECN_CE, 0xFFFF) if odd else (0, TOS_DATA, 0)
    bth = struct.pack(
        "!BBHII",
        0x08 if odd else 0x0A,  # RC RDMA WRITE LAST, ONLY
        0x40 if odd else 0,
        0xFFFF,
        flow.qpn | (0xC0000000 if odd else 0),  # FECN, BECN
        0x80FFFFFF if odd else 0,
    )
    data = (b"\xff" if odd else b"\0") * _PAYLOAD
    udp = struct.pack("!HHHH", flow.sport, flow.dport, 24 + more, check)
    ethernet = bytes.fromhex(mac.replace(":", "")) or bytes(6)
    if ":" in flow.dst_ip:
        addresses = socket.inet_pton(socket.AF_INET6, flow.src_ip) + socket.inet_pton(socket.AF_INET6, flow.dst_ip)
        ip = struct.pack("!IHBB", 6 << 28 | tos << 20, 24 + more, socket.IPPROTO_UDP, ttl - odd) + addresses
        return ethernet + bytes(6) + b"\x86\xdd" + ip + udp + bth + data
    addresses = socket.inet_aton(flow.src_ip) + socket.inet_aton(flow.dst_ip)
    head = (0x45, tos, 44 + more, number, 0x4000, ttl - odd, socket.IPPROTO_UDP, check)
    return ethernet + bytes(6) + b"\x08\x00" + struct.pack("!BBHHHBBH", *head) + addresses + udp + bth + data
