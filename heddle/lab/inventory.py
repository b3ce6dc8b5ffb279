"""Contents of a running lab: nodes with role, addresses and AS number; ports and their peers.

In:  a Lab, and which nodes. Out: LabInventory. The wiring comes from the lab's fabric; addresses, carrier and BGP
sessions are read from kernels and daemons now. Nodes that are not running are not read.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any, Final

from heddle.fabric.model import Role
from heddle.fabric.wiring import Node, Port
from heddle.kernel.namespace import NodeHandle
from heddle.kernel.netlink import ALL_LINKS, RTM_GETADDR, RTM_GETLINK, RouteSocket, attributes, down_ports
from heddle.kernel.uapi import (
    IFADDRMSG,
    IFLA_ADDRESS,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    IFLA_MASTER,
)
from heddle.lab import attached
from heddle.lab.daemons import BgpPeer
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import spread, union

_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_SECONDARY: Final = 0x01


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Interfaces of one node. addresses: interface -> its IPv4 addresses, primary first; macs: interface -> MAC;
    bridges: interface -> the bridge that it is a port of.
    """

    addresses: Mapping[str, tuple[IPv4Interface, ...]]
    macs: Mapping[str, str]
    bridges: Mapping[str, str]


def read_interfaces(handle: NodeHandle) -> Interfaces:
    """Read from the node's kernel. MachineError when its namespace is missing."""
    with RouteSocket(handle.netns) as netlink:
        names: dict[int, str] = {}
        macs: dict[str, str] = {}
        kinds: dict[str, bytes] = {}
        masters: dict[str, int] = {}
        for message in netlink.dump(RTM_GETLINK, ALL_LINKS):
            attrs = attributes(message, 16)
            name = attrs[IFLA_IFNAME].rstrip(b"\0").decode()
            names[struct.unpack_from("=i", message, 4)[0]] = name
            macs[name] = attrs.get(IFLA_ADDRESS, b"").hex(":")
            kinds[name] = attributes(attrs.get(IFLA_LINKINFO, b""), 0).get(IFLA_INFO_KIND, b"").rstrip(b"\0")
            if IFLA_MASTER in attrs:
                masters[name] = struct.unpack("=I", attrs[IFLA_MASTER])[0]
        found: dict[str, list[tuple[bool, IPv4Interface]]] = {}
        for message in netlink.dump(RTM_GETADDR, IFADDRMSG.pack(socket.AF_INET, 0, 0, 0, 0)):
            _, length, flags, _, index = IFADDRMSG.unpack_from(message)
            attrs = attributes(message, IFADDRMSG.size)
            raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
            if raw:
                address = IPv4Interface((IPv4Address(raw), length))
                found.setdefault(names.get(index, ""), []).append((bool(flags & _IFA_F_SECONDARY), address))
    addresses = {n: tuple(a for _, a in sorted(rows, key=lambda row: row[0])) for n, rows in found.items()}
    bridges = {name: names[index] for name, index in masters.items() if kinds.get(names.get(index, "")) == b"bridge"}
    return Interfaces(addresses, macs, bridges)


@dataclass(frozen=True, slots=True)
class PortEntry:
    """One port. up: None where it was not read. rate_bps: bit/s; mtu: bytes. bgp: state of the session over it, or
    empty where the port has none. peer_as: 0 where unknown. network: empty where the lab has one.
    attached: to which device of a user, `netns blue`.
    """

    name: str
    peer: str
    up: bool | None
    addresses: tuple[str, ...]
    mac: str
    rate_bps: int
    mtu: int
    bgp: str = ""
    peer_as: int = 0
    network: str = ""
    attached: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            **({"attached": self.attached} if self.attached else {}),
            **({"network": self.network} if self.network else {}),
            "port": self.name, "peer": self.peer, "up": self.up, "addresses": list(self.addresses), "mac": self.mac,
            "rate_bps": self.rate_bps, "mtu": self.mtu, "bgp": self.bgp or None, "peer_as": self.peer_as or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One node. title: the name of its level, `RTSW`. asn: 0 where it has none. others: interfaces outside the fabric
    (lo, a management eth0) -> their addresses. trouble: why the node is not running, or empty.
    """

    name: str
    role: Role
    title: str
    asn: int
    loopback: str
    router_id: str
    prefix: str
    netns: str
    ports: tuple[PortEntry, ...]
    others: Mapping[str, tuple[str, ...]]
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.name, "role": str(self.role), "title": self.title,
            "state": "stopped" if self.trouble else "running", "trouble": self.trouble, "asn": self.asn or None,
            "loopback": self.loopback or None, "router_id": self.router_id or None, "prefix": self.prefix or None,
            "netns": self.netns, "other_addresses": {name: list(rows) for name, rows in self.others.items()},
            "ports": [port.to_json() for port in self.ports],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LabInventory:
    """A lab. switches, hosts, links: totals of the whole lab, also when only some nodes are listed."""

    lab: str
    runtime: str
    topology: str
    switches: int
    hosts: int
    links: int
    nodes: tuple[NodeEntry, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab, "runtime": self.runtime, "topology": self.topology, "switches": self.switches,
            "hosts": self.hosts, "links": self.links, "nodes": [node.to_json() for node in self.nodes],
        }  # fmt: skip


def read_inventory(lab: Lab, names: Collection[str] | None = None) -> LabInventory:
    """The lab's nodes, in the fabric's order. names: only these. MachineError when a running node cannot be read."""
    stopped = {p.where: f"{p.what} {p.why}" for p in lab.missing_nodes()}
    fabric = lab.fabric
    nodes = [node for node in fabric.nodes if names is None or node.name in names]
    asked = [node.name for node in nodes if node.role is Role.SWITCH and node.name not in stopped]
    sessions = lab.snapshot(LabPart.SESSIONS, asked).sessions
    seen = _seen(lab, [node.name for node in nodes if node.name not in stopped])
    devices = {row.ref: row.target for row in attached.read(lab.dir)}
    found = [
        _node(lab, node, stopped.get(node.name, ""), sessions.get(node.name) or {}, seen.get(node.name), devices)
        for node in nodes
    ]
    sizes = len(fabric.switches), len(fabric.hosts), len(fabric.links)
    return LabInventory(lab.name, lab.runtime.name, str(lab.topology), *sizes, tuple(found))


_Seen = tuple[dict[str, tuple[str, ...]], Mapping[str, bool]]  # interface -> addresses; ports without a carrier


@spread(union, nodes=lambda names: names)
def _seen(lab: Lab, names: Sequence[str]) -> dict[str, _Seen]:
    """What the kernels of these nodes have."""
    handles = {name: handle for name, handle in lab.handles().items() if name in names}
    return {
        name: (
            {port: tuple(map(str, rows)) for port, rows in read_interfaces(handle).addresses.items()},
            down_ports(handle),
        )
        for name, handle in handles.items()
    }


def _node(
    lab: Lab, node: Node, trouble: str, states: Mapping[str, str], seen: _Seen | None, devices: Mapping[str, str]
) -> NodeEntry:
    addresses, down = ({}, None) if seen is None else seen
    # A fabric file defines the AS numbers; those of an imported lab are read from bgpd.
    peers: Mapping[str, BgpPeer] = {}
    if states and node.asn is None:
        peers = lab.daemons.peers(node.name) or {}
    asn = node.asn or next((peer.local_as for peer in peers.values() if peer.local_as), 0)
    ports = tuple(_port(lab, port, addresses, down, states, peers, devices) for port in node.ports)
    own = {port.name for port in node.ports}
    others = {
        name: (tuple(row for row in rows if not row.startswith("127.")))
        for name, rows in addresses.items()
        if name not in own
    }
    return NodeEntry(
        node.name, node.role, lab.fabric.level_of(node).title, asn, str(node.loopback or ""), str(node.router_id or ""),
        str(node.prefix or ""), str(lab.handle(node.name).netns), ports,
        {name: rows for name, rows in others.items() if rows}, trouble,
    )  # fmt: skip


def _port(
    lab: Lab, port: Port, addresses: Mapping[str, tuple[str, ...]], down: Mapping[str, bool] | None,
    states: Mapping[str, str], peers: Mapping[str, BgpPeer], devices: Mapping[str, str],
) -> PortEntry:  # fmt: skip
    there = lab.fabric.by_name[port.peer_node]
    far = there.port(port.peer_port).address
    key = port.name if port.name in states else str(far.ip) if far is not None else ""
    peer = peers.get(key)
    known = addresses.get(port.name) or ((str(port.address),) if port.address is not None else ())
    return PortEntry(
        port.name, port.peer_ref, None if down is None else port.name not in down, known, port.mac, port.rate_bps,
        port.mtu, states.get(key, ""), there.asn or (peer.remote_as if peer is not None else 0),
        port.network if len(lab.fabric.networks) > 1 else "",
        devices.get(port.ref, ""),
    )  # fmt: skip
