"""The oracle: what the kernels say, hop by hop, without a packet sent.

In:  a fabric, the handles of its switches, and flows.
Out: for each flow the ordered egress ports, from its source's RTSW to the port that its destination host hangs on.
Under `flow` each kernel is asked for its forwarding decision (RTM_GETROUTE, as `ip route get ... iif`), which builds a
UDP packet and hashes it by itself. Under `e-ecmp` the BPF program on the switch's ports is run on the packet's header
as it would look there, and the kernel is asked for the route that matches. No code is shared with predict.py.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topologies.fabric import Fabric, Port, Tier
from topologies.problems import CheckError, Problem
from topologies.runtimes import NodeHandle
from topologies.switch.fib import NextHop, read_names, route_hops
from topologies.switch.hashing import MODES, SwitchHashing, pin_dir
from topologies.switch.libbpf import Program
from topologies.switch.netlink import RTM_GETROUTE, RouteSocket, attribute, attributes
from traffic.plan import Flow

MAX_HOPS: Final = 16
Path = tuple[str, ...]

_RTMSG: Final = struct.Struct("=8BI")
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF, _RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 1, 2, 3, 4, 27, 28, 29
_RTM_F_FIB_MATCH: Final = 0x2000
_TTL: Final = 64


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A flow that arrives at a switch, after so many hops."""

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
    here: dict[str, list[_Arrival]] = {}
    for row, flow in enumerate(flows):
        switch, _, port = flow.first_hop.partition(":")
        here.setdefault(switch, []).append(_Arrival(row, port, 0))
    for hops in range(1, MAX_HOPS + 1):
        there: dict[str, list[_Arrival]] = {}
        for switch, arrivals in here.items():
            answers = _ask_switch(fabric.name, handles[switch], hashing[switch], arrivals, flows)
            for arrival, out in zip(arrivals, answers, strict=True):
                if out is None:
                    continue
                paths[arrival.row].append(f"{switch}:{out}")
                link = peers.get(f"{switch}:{out}")
                if link is not None and fabric.by_name[link.peer_node].tier is not Tier.HOST:
                    there.setdefault(link.peer_node, []).append(_Arrival(arrival.row, link.peer_port, hops))
        here = there
    return [tuple(path) for path in paths]


def _ask_switch(
    lab: str, handle: NodeHandle, hashing: SwitchHashing, arrivals: Sequence[_Arrival], flows: Sequence[Flow]
) -> list[str | None]:
    """The egress port of each arrival at one switch; None where the kernel refuses."""
    if hashing.mode not in MODES:
        raise CheckError(Problem("", handle.name, f"hashes by {hashing.mode}, which the oracle cannot ask about"))
    with RouteSocket(handle.netns) as netlink:
        names = read_names(netlink)
        indexes = {name: index for index, name in names.items()}
        flags = _RTM_F_FIB_MATCH if hashing.by_program else 0
        questions = [_question(flows[a.row], indexes.get(a.port, 0), flags) for a in arrivals]
        answers = netlink.ask(RTM_GETROUTE, questions)
    if not hashing.by_program:
        return [None if isinstance(answer, int) else _egress(answer, names) for answer in answers]
    found: list[str | None] = []
    with Program.pinned(pin_dir(lab, handle.name) / "hash") as program:
        for arrival, answer in zip(arrivals, answers, strict=True):
            hops = () if isinstance(answer, int) else route_hops(answer, names)
            value = program.test_run(_header(flows[arrival.row], _TTL - arrival.hops)).cb[0]
            found.append(_take(hops, value >> 1))
    return found


def _question(flow: Flow, iif: int, flags: int) -> bytes:
    """`ip route get DST from SRC iif PORT ipproto udp sport S dport D`, as struct rtmsg and attributes."""
    return (
        _RTMSG.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, flags)
        + attribute(_RTA_DST, socket.inet_aton(flow.dst_ip))
        + attribute(_RTA_SRC, socket.inet_aton(flow.src_ip))
        + attribute(_RTA_IIF, struct.pack("=I", iif))
        + attribute(_RTA_IP_PROTO, bytes([socket.IPPROTO_UDP]))
        + attribute(_RTA_SPORT, struct.pack("!H", flow.sport))
        + attribute(_RTA_DPORT, struct.pack("!H", flow.dport))
    )


def _egress(answer: bytes, names: Mapping[int, str]) -> str | None:
    out = attributes(answer, _RTMSG.size).get(_RTA_OIF)
    return None if out is None else names.get(struct.unpack("=I", out)[0])


def _take(hops: Sequence[NextHop], value: int) -> str | None:
    """Hash-threshold by exact integers: the first live next hop whose share of 2^31 the value falls in.

    A share ends at round(running weight * 2^31 / total), a half rounded up (DIV_ROUND_CLOSEST_ULL).
    """
    live = [hop for hop in hops if not hop.dead]
    total = sum(hop.weight for hop in live)
    running = 0
    for hop in live:
        running += hop.weight
        if value < (2 * (running << 31) + total) // (2 * total):
            return hop.port
    return None


def _header(flow: Flow, ttl: int) -> bytes:
    """Ethernet, IPv4, UDP and BTH of a packet of this flow: all that the BPF program looks at."""
    addresses = socket.inet_aton(flow.src_ip) + socket.inet_aton(flow.dst_ip)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 44, 0, 0x4000, ttl, socket.IPPROTO_UDP, 0) + addresses
    udp = struct.pack("!HHHH", flow.sport, flow.dport, 24, 0)
    bth = struct.pack("!BBHII", 0x0A, 0, 0xFFFF, flow.qpn, 0)  # RC RDMA WRITE ONLY
    return bytes(12) + b"\x08\x00" + ip + udp + bth + bytes(4)
