"""A small fabric without daemons, for tests: real namespaces, links, queues and programs, and static routes.

What BGP would install is installed by hand, with next hops as FRR makes them for unnumbered ports: 169.254.0.1 onlink,
and a permanent neighbour entry with the peer's MAC. In IPv6 a link-local address takes its place.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.base.events import Silent
from heddle.base.process import Journal, run
from heddle.base.units import parse_size
from heddle.fabric.model import Fabric, Role
from heddle.fabric.shapes import clos
from heddle.fabric.wiring import Node
from heddle.kernel.namespace import NodeHandle, inside
from heddle.lab.snapshot import LabPart, Snapshot, take
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch import install as switch
from heddle.traffic.flow import Flow, Sent
from tests.netns.claimed import claimed, namespace_of
from tests.netns.sockets import checksum, packet_socket

GATEWAY = "169.254.0.1"
GATEWAY6 = "fe80::1"


@dataclass(frozen=True)
class StaticLab:
    """Enough of a lab for paths: name, fabric, handles, snapshots."""

    fabric: Fabric
    nodes: Mapping[str, NodeHandle]

    @property
    def name(self) -> str:
        return self.fabric.name

    def handles(self) -> Mapping[str, NodeHandle]:
        return self.nodes

    def handle(self, node: str) -> NodeHandle:
        return self.nodes[node]

    def snapshot(self, parts: LabPart, nodes: Collection[str] | None = None, *, keep_errors: bool = False) -> Snapshot:
        return take(self.fabric, self.nodes, parts, nodes=nodes, keep_errors=keep_errors)

    def ip(self, node: str, *arguments: str) -> None:
        run(["ip", "-n", self.handle(node).netns.name, *arguments])


@contextmanager
def static_fabric(
    ecmp: str = "flow", weights: Sequence[int] = (1, 1, 1, 1), racks: int = 2, hosts_per_rack: int = 2, **keys: Any
) -> Iterator[StaticLab]:
    """A Clos with a CTSW for each weight, up for the length of a with block; its name is its own."""
    with claimed() as name, _static_fabric(name, ecmp, weights, racks, hosts_per_rack, keys) as lab:
        yield lab


@contextmanager
def noticing_fabric(family: str) -> Iterator[StaticLab]:
    """One whose rtsw1 notices that the link of its port eth2 is down at the far end."""
    with static_fabric("flow", hosts_per_rack=6, family=family) as lab:
        with inside(lab.handle("rtsw1").netns):
            for version, port in ((4, "all"), (4, "eth2"), (6, "all"), (6, "eth2")):
                Path(f"/proc/sys/net/ipv{version}/conf/{port}/ignore_routes_with_linkdown").write_text("1")
        yield lab


@contextmanager
def _static_fabric(
    name: str, ecmp: str, weights: Sequence[int], racks: int, hosts_per_rack: int, keys: dict[str, Any]
) -> Iterator[StaticLab]:
    spec = ClosSpec.model_validate(
        {"name": name, "racks": racks, "ctsw": len(weights), "hosts_per_rack": hosts_per_rack}
        | {"routing": {"ecmp": ecmp}}
        | keys
    )
    fabric = clos.build(spec)
    lab = StaticLab(fabric, {n.name: NodeHandle(n.name, namespace_of(name, n.name)) for n in fabric.nodes})
    try:
        _create(lab)
        for node in fabric.nodes:
            run(["ip", "-n", lab.handle(node.name).netns.name, "-batch", "-"], stdin=_node_batch(fabric, node, weights))
            with inside(lab.handle(node.name).netns):
                for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                    Path("/proc/sys/net", key).write_text("0" if node.role is Role.HOST else "1")
        switch.apply(fabric, lab.handles(), Journal(), Silent())
        yield lab
    finally:
        switch.remove(name)
        batch = "".join(f"netns del {h.netns.name}\n" for h in lab.handles().values())
        run(["ip", "-force", "-batch", "-"], stdin=batch, check=False)


def _create(lab: StaticLab) -> None:
    space = {name: handle.netns.name for name, handle in lab.handles().items()}
    lines = [f"netns add {netns}" for netns in space.values()]
    for link in lab.fabric.links:
        ends = []
        for node, name in (link.a, link.b):
            mac = lab.fabric.by_name[node].port(name).mac
            ends.append(f"{name} netns {space[node]} mtu {link.mtu} address {mac}")
        lines.append(f"link add {ends[0]} type veth peer name {ends[1]}")
    run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")


def _node_batch(fabric: Fabric, node: Node, weights: Sequence[int]) -> str:
    lines = ["link set lo up"]
    gateway, nodad = (GATEWAY, "") if fabric.policy.ip_version == 4 else (GATEWAY6, " nodad")
    peers = {port.name: fabric.by_name[port.peer_node] for port in node.ports}
    for port in node.ports:
        lines.append(f"link set {port.name} up")
        peer_mac = peers[port.name].port(port.peer_port).mac
        if port.address is not None:
            lines.append(f"addr add {port.address} dev {port.name}{nodad}")
            peer_ip = peers[port.name].port(port.peer_port).address
            assert peer_ip is not None
            lines.append(f"neigh add {peer_ip.ip} lladdr {peer_mac} dev {port.name} nud permanent")
            if node.role is Role.HOST:
                lines.append(f"route add default via {peer_ip.ip}")
        else:
            lines.append(f"neigh add {gateway} lladdr {peer_mac} dev {port.name} nud permanent")
    if node.role is Role.SWITCH:
        for prefix, ports in fabric.expected_next_hops[node.name].items():
            if prefix not in fabric.edge_prefixes:
                continue  # host links have their routes by their addresses
            ordered = [p.name for p in node.ports if p.name in ports]
            hops = [f"nexthop via {gateway} dev {p} onlink weight {weights[i]}" for i, p in enumerate(ordered)]
            lines.append(f"route add {prefix} {' '.join(hops)}")
    return "\n".join(lines) + "\n"


def dropping(queue: str) -> dict[str, Any]:
    """`queues` of a fabric file with which a queue that is alone in its switch holds so much, and drops what is more.

    Half of a buffer without reserve: by the dynamic threshold of alpha 1 a queue has as much as it leaves.
    """
    return {"pfc": {"enabled": False}, "reserve": 0, "buffer": 2 * parse_size(queue)}


def some_flows(fabric: Fabric, count: int) -> list[Flow]:
    """Flows between hosts of different racks, with all kinds of ports and QP numbers; the same at every call."""
    hosts = fabric.hosts
    flows = []
    for i in range(count):
        src = hosts[i % len(hosts)]
        others = [h for h in hosts if h.group("rack") != src.group("rack")]
        dst = others[i * 7 % len(others)]
        flows.append(
            Flow(
                src.name, dst.name, address(src), address(dst),
                sport=0xC000 | (i * 2654435761 >> 7 & 0x3FFF),
                qpn=(i * 40503 + 17) & 0xFFFFFF,
                first_hop=src.ports[0].peer_ref,
            )
        )  # fmt: skip
    return flows


def address(host: Node) -> str:
    """The address of a host's first port."""
    interface = host.ports[0].address
    assert interface is not None
    return str(interface.ip)


def roce_frame(
    flow: Flow, payload: int = 64, src_mac: str = "", dst_mac: str = "", ihl: int = 5, dscp: int = 0
) -> bytes:
    """An RDMA WRITE ONLY frame of a flow, as switches see it (the ICRC is zeros: no switch looks at it)."""
    macs = bytes.fromhex((dst_mac + src_mac).replace(":", "")) or bytes(12)
    if ":" in flow.src_ip:
        return macs + b"\x86\xdd" + _ipv6(flow, 8 + 12 + 16 + payload + 4, dscp) + _above_ip(flow, payload)
    length = 4 * ihl + 8 + 12 + 16 + payload + 4
    addresses = socket.inet_aton(flow.src_ip) + socket.inet_aton(flow.dst_ip)
    ip = struct.pack("!BBHHHBBH", 0x40 | ihl, dscp << 2, length, 0, 0x4000, 64, 17, 0) + addresses
    ip = ip[:10] + struct.pack("!H", checksum(ip + b"\x01" * (4 * ihl - 20))) + ip[12:] + b"\x01" * (4 * ihl - 20)
    return macs + b"\x08\x00" + ip + _above_ip(flow, payload)


def _ipv6(flow: Flow, length: int, dscp: int) -> bytes:
    ends = socket.inet_pton(socket.AF_INET6, flow.src_ip) + socket.inet_pton(socket.AF_INET6, flow.dst_ip)
    return struct.pack("!IHBB", 0x60000000 | dscp << 22, length, 17, 64) + ends


def _above_ip(flow: Flow, payload: int) -> bytes:
    udp = struct.pack("!HHHH", flow.sport, flow.dport, 8 + 12 + 16 + payload + 4, 0)
    bth = struct.pack("!BBHII", 0x0A, 0, 0xFFFF, flow.qpn, 0)
    return udp + bth + bytes(16 + payload + 4)


def sent_flow(flow: Flow, packets: int, payload: int = 64) -> Sent:
    """What a run would report of so many packets."""
    return Sent(flow, packets, packets * len(roce_frame(flow, payload)))


def send(lab: StaticLab, packets: Mapping[Flow, int], payload: int = 64, dscp: int = 0) -> None:
    """Put so many packets of each flow on its host's wire."""
    for host in lab.fabric.hosts:
        port = host.ports[0]
        gateway = lab.fabric.by_name[port.peer_node].port(port.peer_port)
        with packet_socket(lab.handle(host.name).netns, port.name) as wire:
            # They are built first: on a slow machine that takes longer than sending them.
            mine = {flow: count for flow, count in packets.items() if flow.src == host.name}
            frames = [roce_frame(flow, payload, port.mac, gateway.mac, dscp=dscp) for flow in mine]
            for frame, count in zip(frames, mine.values(), strict=True):
                for _ in range(count):
                    wire.send(frame)
