"""`routing.control: static`: the routes that BGP would install, computed and installed by netlink. No program runs.

In:  a running lab: its links that are down and its switches that are drained, as its kernels have them.
Out: routes of every switch with the next hops, order, weights, gateways and metric of FRR's, so that hashing gives the
same paths. Routes that are there already are not written.
State is read when Heddle has changed a link or a drain, and by `up --repair`: no failure is detected otherwise. The
kernel itself leaves out next hops of its own ports that are down.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from heddle.base import owners
from heddle.base.problems import MachineError, Problem
from heddle.fabric.nexthops import Group, edges_of
from heddle.fabric.ucmp import RELEASES, weights_of
from heddle.host.preflight import frr_release
from heddle.kernel import netlink as nl
from heddle.kernel import uapi
from heddle.kernel.fib import AF, RT_TABLE_MAIN, RTN_UNICAST, NextHop, read_names
from heddle.kernel.namespace import NodeHandle, inside
from heddle.lab.control import ControlPlane, gateway_of
from heddle.lab.daemons import BgpPeer, Daemons
from heddle.lab.linkstate import State
from heddle.lab.ports import in_network
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import concat, in_processes, spread

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.base.families import Network
    from heddle.fabric.model import Fabric
    from heddle.fabric.wiring import Node, Port
    from heddle.lab.lab import Lab

_LOCK_S: Final = 60.0  # for another command that installs routes
_ALIAS: Final = "drained"  # of `lo` of a drained switch
_IFLA_IFALIAS: Final = 20
_RTPROT_STATIC, _METRIC = 4, 20  # the metric is that of FRR's routes
_RTA_GATEWAY, _RTA_PRIORITY, _RTA_MULTIPATH = 5, 6, 9
_RTNH_F_ONLINK: Final = 4
_NDA_DST, _NDA_LLADDR, _NUD_PERMANENT = 1, 2, 0x80
_NEW: Final = nl.NLM_F_CREATE | nl.NLM_F_REPLACE

Hop = tuple[str, str, int]  # port, gateway, weight


class _NoDaemons(Daemons):
    """No daemon runs. A drained switch has a mark in its kernel: the alias of its `lo`."""

    def sessions(self, switch: str) -> Mapping[str, str] | None:
        return {}

    def peers(self, switch: str) -> Mapping[str, BgpPeer] | None:
        return {}

    def silent(self, switch: str, known: set[Path] | None = None) -> tuple[str, ...]:
        return ()

    @cached_property
    def _nodes(self) -> Mapping[str, NodeHandle]:
        return self.runtime.nodes(self.fabric.name, self.topology)

    def drained(self, switch: str) -> bool:
        netns = self._nodes[switch].netns
        with inside(netns), nl.RouteSocket(netns, here=True) as netlink:
            (found,) = netlink.ask(nl.RTM_GETLINK, [uapi.IFINFOMSG.pack(0, 0, 1, 0, 0)])
        attrs = {} if isinstance(found, int) else nl.attributes(found, uapi.IFINFOMSG.size)
        return attrs.get(_IFLA_IFALIAS, b"").rstrip(b"\0").decode() == _ALIAS


class Static(ControlPlane):
    """See above."""

    daemons = _NoDaemons
    drained = "its neighbours have no route through it as transit"

    def follow(self, lab: Lab) -> list[str]:
        with owners.lock(lab.name, "routes", seconds=_LOCK_S):
            now = lab.snapshot(LabPart.CARRIER | LabPart.DRAINED)
            # A link between switches is down where an end is set down: the carrier of a cut link follows later.
            dead = [ref for ref in State.of(lab.fabric, now).dead if now.down.get(ref, True)]
            return _follow(lab, dead, now.drained)

    def drain(self, lab: Lab, switch: str, *, on: bool) -> None:
        done = in_network(lab, switch, ["ip", "link", "set", "dev", "lo", "alias", _ALIAS * on])
        if done.code:
            raise MachineError(Problem(switch, "the mark of a drain", f"cannot be set: {done.reason}"))


STATIC: Final = Static()


@spread(concat)
def _follow(lab: Lab, dead: Collection[str], drained: Collection[str]) -> list[str]:
    """Install the routes of the switches of a shard, or of all; returns those that had others."""
    now, fabric, handles = lab.snapshot(LabPart.CARRIER | LabPart.FIBS), lab.fabric, lab.handles()
    groups = fabric.groups_without(dead, drained) if dead or drained else fabric.next_hop_groups

    def install(part: Sequence[Node]) -> list[str]:
        return [n.name for n in part if _installed(fabric, n, groups[n.name], now, handles[n.name].netns)]

    return concat(in_processes(install, [node for node in fabric.switches if node.name in handles]))


def _installed(fabric: Fabric, node: Node, groups: Sequence[Group], now: Snapshot, netns: Path) -> bool:
    """Install the routes of a switch that differ; returns whether there were any."""
    has, wanted = now.fibs[node.name].routes, _wanted(fabric, node, groups)
    known: dict[int, tuple[Hop, ...]] = {}  # by identity: most routes share next hops
    for hops in has.values():
        if id(hops) not in known:
            known[id(hops)] = _plain(hops)
    late = [prefix for prefix, hops in wanted.items() if known.get(id(has.get(prefix))) != hops]
    gone = [prefix for prefix in fabric.edge_prefixes if prefix in has and prefix not in wanted]
    with inside(netns), nl.RouteSocket(netns, here=True) as netlink:
        index = {name: number for number, name in read_names(netlink).items()}
        entries = {(each.ifindex, each.address, each.mac) for each in nl.neighbours(netlink)}
        new = [
            (index[port.name], gateway_of(fabric, port), _mac(fabric, port))
            for port in node.ports
            if port.address is None and port.name in index and not now.down.get(port.ref)
        ]
        new = [entry for entry in new if entry not in entries]
        if not (late or gone or new):
            return False
        requests = [(nl.RTM_NEWNEIGH, _neighbour(*entry), _NEW) for entry in new]
        bodies: dict[tuple[Hop, ...], tuple[int, bytes]] = {}
        for prefix in late:
            over = wanted[prefix]
            if over not in bodies:
                bodies[over] = _over(over, index)
            requests.append((nl.RTM_NEWROUTE, _route(prefix, *bodies[over]), _NEW))
        requests += [(nl.RTM_DELROUTE, _route(prefix, 0, b""), 0) for prefix in gone]

        def refused(at: int, error: nl.NetlinkError) -> None:
            if requests[at][0] != nl.RTM_DELROUTE or error.errno != errno.ESRCH:  # the kernel has removed it
                what = str([*(entry[1] for entry in new), *late, *gone][at])
                raise MachineError(Problem(node.name, what, f"cannot be installed: {error.strerror}"))

        netlink.change_all(requests, refused)
    return True


def _wanted(fabric: Fabric, node: Node, groups: Sequence[Group]) -> dict[Network, tuple[Hop, ...]]:
    ports, found = {port.name: port for port in node.ports}, dict["Network", tuple[Hop, ...]]()
    for group in groups:
        found |= dict.fromkeys((fabric.prefixes[edge] for edge in edges_of(group.edges)), _hops(fabric, ports, group))
    return found


def _hops(fabric: Fabric, ports: Mapping[str, Port], group: Group) -> tuple[Hop, ...]:
    """The next hops of a group as zebra orders them (_nexthop_cmp_no_labels): by weight, then by link-local address.

    The second is the order of the neighbours' MACs.
    """
    weights = (1,) * len(group.ports)
    if group.bandwidths:
        weights = weights_of(group.bandwidths, frr_release() or RELEASES[-1])
    rows = [(weight, _mac(fabric, ports[name]), name) for name, weight in zip(group.ports, weights, strict=True)]
    return tuple((name, gateway_of(fabric, ports[name]), weight) for weight, _, name in sorted(rows))


def _plain(hops: Sequence[NextHop]) -> tuple[Hop, ...]:
    """A route of a kernel. A dead next hop is part of it: the kernel would use it again."""
    return tuple((hop.port, hop.gateway, hop.weight) for hop in hops)


def _mac(fabric: Fabric, port: Port) -> str:
    """Of the neighbour."""
    return fabric.by_name[port.peer_node].port(port.peer_port).mac


@cache
def _packed(address: str) -> bytes:
    return ip_address(address).packed


def _over(hops: Sequence[Hop], index: Mapping[str, int]) -> tuple[int, bytes]:
    """The flags of struct rtmsg, and the attributes that are the next hops."""
    flags = 0 if ":" in hops[0][1] else _RTNH_F_ONLINK
    vias = [nl.attribute(_RTA_GATEWAY, _packed(gateway)) for _, gateway, _ in hops]
    if len(hops) == 1:
        return flags, vias[0] + nl.attribute(uapi.RTA_OIF, struct.pack("=I", index[hops[0][0]]))
    rows = (
        uapi.RTNEXTHOP.pack(uapi.RTNEXTHOP.size + len(via), flags, weight - 1, index[port]) + via
        for (port, _, weight), via in zip(hops, vias, strict=True)
    )
    return 0, nl.attribute(_RTA_MULTIPATH, b"".join(rows))


def _route(prefix: Network, flags: int, over: bytes) -> bytes:
    family, length = AF[prefix.version], prefix.prefixlen
    head = uapi.RTMSG.pack(family, length, 0, 0, RT_TABLE_MAIN, _RTPROT_STATIC, 0, RTN_UNICAST, flags)
    to = nl.attribute(uapi.RTA_DST, prefix.network_address.packed)
    return head + to + nl.attribute(_RTA_PRIORITY, struct.pack("=I", _METRIC)) + over


def _neighbour(ifindex: int, address: str, mac: str) -> bytes:
    """A permanent entry: the first packet waits for nothing, and a program that steers finds the MAC."""
    packed = _packed(address)
    head = uapi.NDMSG.pack(AF[4 if len(packed) == 4 else 6], ifindex, _NUD_PERMANENT, 0, 0)
    return head + nl.attribute(_NDA_DST, packed) + nl.attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
