"""The oracle: kernel lookups hop by hop, without sending a packet over the fabric.

In:  a fabric, the handles of its switches, and flows.
Out: Answers: for each flow the ordered egress ports, from its source's leaf to the port of its destination host; where
     packets of one flow are spread, all ports of that step in one word (walk.py). For a route to a bridge with an
     address, the port that the kernel's neighbour table and the bridge's table name (netlink.py). And the source of the
     choices:

`kernel`: if the kernel hashes, RTM_GETROUTE for the flow's 5-tuple and ingress port (`ip route get ... iif`). If the
    BPF program sets a hash, it is run on the flow's header (BPF_PROG_TEST_RUN, on the switch's own maps). Then
    RTM_GETROUTE is called for 5-tuples with nearly the same hash (_Standins).
`program`: the program steers. The same run; in it the program looks up the port in the kernel (bpf_fib_lookup).
`packet`: IPv6 with policy 3. Packets through a router that is made for this lookup (selftest.py).
`route`: packets are spread. All live next hops of the kernel's route (RTM_F_FIB_MATCH); there is no choice.
`arithmetic`: the program sets a hash, but the kernel's own seed is not known, or no 5-tuple is near enough. Thresholds
    over the next hops of the kernel's route: the same formula as in the prediction.

Shared with the prediction: the links of the fabric, the mode and policy read from each switch (SwitchHashing: they
decide which lookup is used, not its result), names of ports, the word of a step (walk.py), the number of buckets of a
resilient next-hop group (fib.py), and `kernel_hash`, with which _Standins finds 5-tuples. The prediction uses
`kernel_hash` only where no program sets a hash; there the oracle does not use it.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final, Literal, Protocol

import numpy as np

from heddle.base.arrays import I64, U32
from heddle.base.families import Version
from heddle.base.problems import CheckError, Problem
from heddle.base.sysctls import HASH_SEED, sysctl_number, sysctl_path
from heddle.fabric.hashmodes import MODES, POLICY_CUSTOM, POLICY_L4, SPREADING, programmed
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Port
from heddle.kernel.fib import Fib, NextHop, read_fib, read_names, route_hops
from heddle.kernel.libbpf import Program, run_on
from heddle.kernel.namespace import NodeHandle, inside
from heddle.kernel.netlink import RTM_GETROUTE, RouteSocket, attribute, attributes, port_behind
from heddle.kernel.uapi import RTA_DPORT, RTA_DST, RTA_IIF, RTA_IP_PROTO, RTA_OIF, RTA_SPORT, RTA_SRC, RTMSG
from heddle.lab.spread import spread, union
from heddle.predict.forwarding import FlowArrays, address_words
from heddle.predict.hashes import kernel_hash
from heddle.predict.selftest import MAX_PACKETS, trial, verdict
from heddle.predict.walk import MAX_HOPS, element
from heddle.switch.hashing.hashing import SwitchHashing, pin_dir
from heddle.traffic.flow import Flow
from heddle.wire.layout import ECN_CE, TOS_DATA

Path = tuple[str, ...]
Chooser = Literal["kernel", "program", "packet", "route", "arithmetic"]
Ports = tuple[str, ...]  # the egress ports of one flow at a switch; empty: the kernel refuses

_RTM_F_FIB_MATCH: Final = 0x2000
_TTL: Final = 64
_PAYLOAD: Final = 256  # bytes after the BTH: as far as a user-defined field may reach
_FEW: Final = 1 << 12  # candidates: a value is about 2^31 / _FEW from its neighbours; computed in a millisecond
_MANY: Final = 1 << 16  # for values near the end of an interval
_PORTS: Final = (1 << 16) - 1  # from 1

_Ends = tuple[int, int]  # UDP source port, destination port


@dataclass(frozen=True)
class _Standins:
    """5-tuples to one destination, sorted by hash. value, sport, dport: (candidates,).

    With policy 1 a kernel uses the hash that the program set on a packet, but a netlink request cannot carry one.
    Measured on Linux 6.18: RTM_GETROUTE ignores RTA_MARK, and bpf_fib_lookup, also in BPF_PROG_TEST_RUN after
    bpf_set_hash, chooses by the 5-tuple (fib_multipath_hash without an skb). So the request has another 5-tuple, whose
    kernel hash is close. The selection depends only on the hash, with one interval per next hop
    (fib_select_multipath, nexthop_select_path_hthr, fib6_select_path). If the neighbours on both sides get the same
    port, the value between them gets it too.
    """

    value: I64
    sport: U32
    dport: U32

    @classmethod
    def of(cls, src: str, dst: str, seed: int, count: int = _FEW) -> _Standins:
        """`count` of these 5-tuples. seed: of the kernel's hash, not 0."""
        number = np.arange(count, dtype=np.uint32)
        sport, dport = number % np.uint32(_PORTS) + np.uint32(1), number // np.uint32(_PORTS) + np.uint32(1)
        ends = (address_words([each]) for each in (src, dst))
        one, other = (np.repeat(words, count, axis=0) for words in ends)
        flows = FlowArrays(one, other, sport, dport, np.zeros(count, np.uint32))
        value = (kernel_hash(flows, seed, POLICY_L4) >> np.uint32(1)).astype(np.int64)
        order = np.argsort(value, kind="stable")
        return cls(value[order], sport[order], dport[order])

    def around(self, value: int) -> tuple[_Ends, _Ends]:
        """The nearest on each side of a value; twice the same if the value is beyond all."""
        at = int(np.searchsorted(self.value, value))
        return self._at(max(0, at - 1)), self._at(min(at, len(self.value) - 1))

    def in_bucket(self, value: int, buckets: int) -> _Ends | None:
        """One with a hash in the same bucket of a resilient group (value % buckets); None if there is none."""
        found = np.flatnonzero(self.value % buckets == value % buckets)
        return self._at(int(found[0])) if len(found) else None

    def _at(self, at: int) -> _Ends:
        return int(self.sport[at]), int(self.dport[at])


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A flow that arrives at a switch on a port. hops: the number of switches before it."""

    row: int
    port: str
    hops: int


class _SwitchLookups:
    """The lookups in one switch's kernel and program."""

    def __init__(self, fabric: Fabric, handle: NodeHandle, hashing: SwitchHashing, flows: Mapping[int, Flow]) -> None:
        if hashing.mode not in MODES:
            raise CheckError(
                Problem("", handle.name, f"hashes by {hashing.mode}, which the kernel lookup does not know")
            )
        self._lab = fabric.name
        ports = fabric.by_name[handle.name].ports
        self._macs = {port.name: port.router_mac for port in ports}
        self._routers = {port.name: port.router_port for port in ports}
        self._bridges = {port.bridge.name for port in ports if port.bridge is not None}
        self._handle = handle
        self._hashing = hashing
        self._flows = flows
        self._tables: dict[Version, Fib] = {}  # read when an answer is not sufficient

    def ask(self, arrivals: Sequence[_Arrival]) -> list[tuple[Ports, Chooser]]:
        """The egress ports of each arrival, empty if the kernel refuses; and the source of the choice."""
        with RouteSocket(self._handle.netns) as netlink:
            names = read_names(netlink)
            indexes = {name: index for index, name in names.items()}
            found: dict[int, tuple[Ports, Chooser]] = {}
            values: dict[int, int] = {}  # row -> hash of the program, if the kernel uses it
            # The program leaves all packets but RoCEv2 to the kernel.
            own = [at for at, arrival in enumerate(arrivals) if self._flows[arrival.row].has_qp]
            spread = set(own) if self._hashing.mode in SPREADING else set()
            if programmed(self._hashing.mode, self._hashing.options) and not spread:
                runs = self._run([arrivals[at] for at in own], indexes)
                for at, (steered, value) in zip(own, runs, strict=True):
                    if steered is None:
                        spread.add(at)
                    elif steered:
                        found[at] = (names.get(steered, f"if{steered}"),), "program"
                    elif self._hashing.policy == POLICY_L4:
                        values[at] = value >> 1
            for at, ports in self._by_value(netlink, arrivals, values, indexes, names).items():
                found[at] = ports, "kernel"
            rest = sorted({*values, *spread} - set(found))
            matched = self._matched(netlink, [arrivals[at] for at in rest], indexes, names)
            for at, hops in zip(rest, matched, strict=True):
                if at in spread:
                    found[at] = tuple(dict.fromkeys(hop.port for hop in hops if not hop.dead)), "route"
                else:
                    found[at] = self._bucket(arrivals[at], values[at]) or _by_threshold(hops, values[at]), "arithmetic"
            rest = [at for at in range(len(arrivals)) if at not in found]
            hashed, chooser = self._hashed(netlink, [arrivals[at] for at in rest], indexes, names)
            found.update((at, (ports, chooser)) for at, ports in zip(rest, hashed, strict=True))
            if self._bridges:
                found = {
                    at: (tuple(self._behind(netlink, port, arrivals[at], indexes, names) for port in ports), chooser)
                    for at, (ports, chooser) in found.items()
                }
        return [found[at] for at in range(len(arrivals))]

    def _behind(
        self,
        netlink: RouteSocket,
        port: str,
        arrival: _Arrival,
        indexes: Mapping[str, int],
        names: Mapping[int, str],
    ) -> str:
        """The port of a bridge that the kernel chose by its route; the bridge itself if its port is not known."""
        if port not in self._bridges:
            return port
        return names.get(port_behind(netlink, indexes[port], self._flows[arrival.row].dst_ip), port)

    def _by_value(
        self, netlink: RouteSocket, arrivals: Sequence[_Arrival], values: Mapping[int, int],
        indexes: Mapping[str, int], names: Mapping[int, str],
    ) -> dict[int, Ports]:  # fmt: skip
        """The kernel's choice for hashes that the program set, by row; rows without a near 5-tuple are omitted.

        If the neighbours of a value have different ports, it is near the end of an interval; then more 5-tuples are
        tried.
        """
        seed = self._kernel_seed() if values else 0
        found: dict[int, Ports] = {}
        for count in (_FEW, _MANY) if seed and not verdict().differs else ():
            tables: dict[str, tuple[str, _Standins]] = {}  # destination -> source address and 5-tuples of its lookups
            for at in values:
                flow = self._flows[arrivals[at].row]
                if at not in found and flow.dst_ip not in tables:
                    tables[flow.dst_ip] = flow.src_ip, _Standins.of(flow.src_ip, flow.dst_ip, seed, count)
            asked: list[tuple[int, bytes]] = []
            for at, value in values.items():
                if at in found:
                    continue
                flow = self._flows[arrivals[at].row]
                source, table = tables[flow.dst_ip]
                buckets = self._buckets(arrivals[at])
                ends = [table.in_bucket(value, buckets)] if buckets else table.around(value)
                for each in filter(None, ends):
                    other = replace(flow, src_ip=source, sport=each[0], dport=each[1])
                    asked.append((at, self._question(arrivals[at], indexes, 0, other)))
            said: dict[int, set[Ports]] = {}
            answers = netlink.ask(RTM_GETROUTE, [question for _, question in asked])
            for (at, _), answer in zip(asked, answers, strict=True):
                said.setdefault(at, set()).add(() if isinstance(answer, int) else _egress(answer, names))
            found |= {at: ports.pop() for at, ports in said.items() if len(ports) == 1}
        return found

    def _kernel_seed(self) -> int:
        """The seed of the kernel's own hash; 0 if it is random, or the kernel has none."""
        with inside(self._handle.netns), suppress(OSError, ValueError):
            return sysctl_number(sysctl_path(HASH_SEED).read_text())
        return 0

    def _hashed(
        self,
        netlink: RouteSocket,
        arrivals: Sequence[_Arrival],
        indexes: Mapping[str, int],
        names: Mapping[int, str],
    ) -> tuple[list[Ports], Chooser]:
        """The kernel's choice by its own hash, and the kind of lookup."""
        if self._hashing.policy == POLICY_CUSTOM and any(":" in self._flows[a.row].dst_ip for a in arrivals):
            return self._tried(arrivals, self._matched(netlink, arrivals, indexes, names)), "packet"
        answers = netlink.ask(RTM_GETROUTE, [self._question(a, indexes, 0) for a in arrivals])
        return [() if isinstance(answer, int) else _egress(answer, names) for answer in answers], "kernel"

    def _tried(self, arrivals: Sequence[_Arrival], matched: Sequence[Sequence[NextHop]]) -> list[Ports]:
        """The choice with IPv6's policy 3, by packets through a test router with the same hashing.

        RTM_GETROUTE would answer for a packet that the machine itself sends, which is hashed once less
        (rt6_multipath_custom_hash_fl6 and _skb). Its answer would be wrong.
        """
        found: list[Ports] = [()] * len(arrivals)
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for at, hops in enumerate(matched):
            groups.setdefault(tuple((hop.port, hop.weight) for hop in hops if not hop.dead), []).append(at)
        with trial(max(1, *map(len, groups))) as router:
            router.sysctl(6, self._hashing.policy, self._hashing.fields, self._hashing.seed)
            for live, rows in groups.items():
                if not live:
                    continue
                router.route(6, [weight for _, weight in live], "::/0")
                for start in range(0, len(rows), MAX_PACKETS):
                    part = rows[start : start + MAX_PACKETS]
                    went = router.send(FlowArrays.of([self._flows[arrivals[at].row] for at in part]))
                    for at, port in zip(part, went.tolist(), strict=True):
                        found[at] = (live[port][0],) if port >= 0 else ()
        return found

    def _matched(
        self,
        netlink: RouteSocket,
        arrivals: Sequence[_Arrival],
        indexes: Mapping[str, int],
        names: Mapping[int, str],
    ) -> list[tuple[NextHop, ...]]:
        """The next hops of the kernel's route for each arrival, in the route's order."""
        answers = netlink.ask(RTM_GETROUTE, [self._question(a, indexes, _RTM_F_FIB_MATCH) for a in arrivals])
        found = [() if isinstance(answer, int) else route_hops(answer, names) for answer in answers]
        return [self._ordered(arrival, hops) for arrival, hops in zip(arrivals, found, strict=True)]

    def _ordered(self, arrival: _Arrival, hops: tuple[NextHop, ...]) -> tuple[NextHop, ...]:
        """The next hops in the order of the table: IPv6 answers start with the chosen sibling (rt6_fill_node)."""
        if len(hops) < 2 or self._version(arrival) == 4:
            return hops
        order = self._table(6).lookup(ip_address(self._flows[arrival.row].dst_ip))
        turned = {hops[at:] + hops[:at] for at in range(len(hops))}
        return order if order in turned else hops

    def _bucket(self, arrival: _Arrival, value: int) -> Ports:
        """The port of a value's bucket, if the route's next hops are a resilient group."""
        table = self._table(self._version(arrival))
        prefix = table.match(ip_address(self._flows[arrival.row].dst_ip))
        dealt = table.buckets.get(prefix, ()) if prefix is not None else ()
        return (table.routes[prefix][dealt[value % len(dealt)]].port,) if prefix is not None and dealt else ()

    def _buckets(self, arrival: _Arrival) -> int:
        """The number of buckets of the route's resilient group; 0 if it has none."""
        table = self._table(self._version(arrival))
        prefix = table.match(ip_address(self._flows[arrival.row].dst_ip)) if table.buckets else None
        return len(table.buckets.get(prefix, ())) if prefix is not None else 0

    def _version(self, arrival: _Arrival) -> Version:
        return 6 if ":" in self._flows[arrival.row].dst_ip else 4

    def _table(self, version: Version) -> Fib:
        if version not in self._tables:
            self._tables[version] = read_fib(self._handle, version)
        return self._tables[version]

    def _run(self, arrivals: Sequence[_Arrival], indexes: Mapping[str, int]) -> Iterator[tuple[int | None, int]]:
        """For each arrival the port that the program steers to (0: none), and the hash that it sets.

        Two packets of the flow are run that differ in every field that may differ; None: the program treats them
        differently.
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

    def _question(self, arrival: _Arrival, indexes: Mapping[str, int], flags: int, asked: Flow | None = None) -> bytes:
        """`ip route get DST from SRC iif PORT tos T ipproto P sport S dport D`, as struct rtmsg and attributes.

        asked: a flow to look up instead of the one that arrives.
        """
        flow = asked or self._flows[arrival.row]
        family = socket.AF_INET6 if ":" in flow.dst_ip else socket.AF_INET
        bits = 128 if family == socket.AF_INET6 else 32
        return (
            RTMSG.pack(family, bits, bits, flow.dscp << 2, 0, 0, 0, 0, flags)
            + attribute(RTA_DST, socket.inet_pton(family, flow.dst_ip))
            + attribute(RTA_SRC, socket.inet_pton(family, flow.src_ip))
            + attribute(RTA_IIF, struct.pack("=I", indexes.get(self._routers.get(arrival.port, ""), 0)))
            + attribute(RTA_IP_PROTO, bytes([flow.protocol]))
            + attribute(RTA_SPORT, struct.pack("!H", flow.sport))
            + attribute(RTA_DPORT, struct.pack("!H", flow.dport))
        )


def _egress(answer: bytes, names: Mapping[int, str]) -> Ports:
    out = attributes(answer, RTMSG.size).get(RTA_OIF)
    name = None if out is None else names.get(struct.unpack("=I", out)[0])
    return () if name is None else (name,)


def _by_threshold(hops: Sequence[NextHop], value: int) -> Ports:
    """Hash-threshold in exact integers: the live next hop whose share of 2^31 contains the value.

    A share ends at round(running weight * 2^31 / total), with a half rounded up (DIV_ROUND_CLOSEST_ULL).
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
    """A packet of this flow that arrives on the port with that MAC: all bytes that the BPF program reads.

    odd: with other values in every byte that may differ between packets of one flow.
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


@dataclass(frozen=True, slots=True)
class Answers:
    """paths: of each flow, in their order. choices: source of the choice -> number of hops over all flows."""

    paths: tuple[Path, ...]
    choices: Mapping[str, int]


class OracleLab(Protocol):
    """The part of a lab that lookups need."""

    @property
    def fabric(self) -> Fabric:
        """The lab's fabric."""

    def handles(self) -> Mapping[str, NodeHandle]:
        """The handle of every node."""


def ask(lab: OracleLab, hashing: Mapping[str, SwitchHashing], flows: Sequence[Flow]) -> Answers:
    """The path of every flow; one batch of lookups per switch and tier.

    A path ends early where a kernel has no route. CheckError for an unknown mode.
    """
    fabric = lab.fabric
    peers: dict[str, Port] = {port.ref: port for node in fabric.nodes for port in node.ports}
    paths: list[list[str]] = [[] for _ in flows]
    choices: Counter[str] = Counter()
    here: dict[str, dict[int, _Arrival]] = {}
    for row, flow in enumerate(flows):
        switch, _, port = flow.first_hop.partition(":")
        here.setdefault(switch, {})[row] = _Arrival(row, port, 0)
    for hops in range(1, MAX_HOPS + 1):
        there: dict[str, dict[int, _Arrival]] = {}
        taken: dict[int, list[str]] = {}
        asked = {switch: (hashing[switch], list(found.values())) for switch, found in here.items()}
        answers = at_switches(lab, asked, {row: flows[row] for found in here.values() for row in found})
        for switch, found in here.items():
            for arrival, (ports, chooser) in zip(found.values(), answers[switch], strict=True):
                choices[chooser] += 1
                for out in ports:
                    taken.setdefault(arrival.row, []).append(f"{switch}:{out}")
                    link = peers.get(f"{switch}:{out}")
                    if link is not None and fabric.by_name[link.peer_node].role is Role.SWITCH:
                        on = there.setdefault(link.peer_node, {})
                        on.setdefault(arrival.row, _Arrival(arrival.row, link.peer_port, hops))
        for row, refs in taken.items():
            paths[row].append(element(_in_order(fabric, refs)))
        here = there
    return Answers(tuple(tuple(path) for path in paths), dict(choices))


@spread(union, nodes=lambda asked, _: asked)
def at_switches(
    lab: OracleLab, asked: Mapping[str, tuple[SwitchHashing, Sequence[_Arrival]]], flows: Mapping[int, Flow]
) -> dict[str, list[tuple[Ports, Chooser]]]:
    """Switch -> the egress ports of each arrival there, and the source of the choice. flows: by the arrivals' rows."""
    fabric, handles = lab.fabric, lab.handles()
    return {
        switch: _SwitchLookups(fabric, handles[switch], rule, flows).ask(arrivals)
        for switch, (rule, arrivals) in asked.items()
        if switch in handles
    }


def ask_one(lab: OracleLab, switch: str, hashing: SwitchHashing, flow: Flow, arrives: str, hops: int = 0) -> Ports:
    """The egress ports of a flow at one switch. arrives: the ingress port; hops: the number of switches before."""
    return at_switches(lab, {switch: (hashing, [_Arrival(0, arrives, hops)])}, {0: flow})[switch][0][0]


def _in_order(fabric: Fabric, refs: Sequence[str]) -> list[str]:
    """Ports in the order of the fabric's switches; ports of one switch in its kernel's order."""
    if len(refs) == 1:
        return list(refs)
    places = {switch.name: at for at, switch in enumerate(fabric.switches)}
    return sorted(refs, key=lambda ref: places[ref.partition(":")[0]])
