"""Ports whose BGP session does not come up while the lab waits for its routes: restore what is missing, or restart it.

In:  a lab of a fabric file. Out: one line for each port that was changed.
An unnumbered port reaches its neighbour by the route fe80::/64 over it. The kernel adds it together with the link-local
address, but from memory that it must get without sleeping (addrconf_add_linklocal: GFP_ATOMIC, also for the per-CPU
part in fib6_nh_init). When thousands of ports come up at once, one of these requests can fail: then the port has its
address and no route, and nothing repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from heddle.base.problems import MachineError
from heddle.base.process import run
from heddle.fabric.model import Fabric, Node
from heddle.kernel.fib import LINK_LOCAL, local_routes
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import RouteSocket, carries_traffic, interfaces
from heddle.lab.daemons import ESTABLISHED, Daemons

_AT_ONCE: Final = 32  # sessions that are restarted in one round


def restore_routes(
    fabric: Fabric, handles: Mapping[str, NodeHandle], switches: Collection[str] | None = None
) -> list[str]:
    """Add the link-local routes that ports with a carrier do not have; returns these ports. switches: all by default.

    The kernel itself adds them up to a second after a link came up (linkwatch). Either of the two additions is enough.
    """
    found = []
    for node in fabric.switches:
        if switches is not None and node.name not in switches:
            continue
        netns = handles[node.name].netns
        with inside(netns), RouteSocket(netns, here=True) as netlink:
            ports = without_route(netlink, node)
        if ports:
            lines = "".join(f"route append {LINK_LOCAL} dev {port} proto kernel metric 256\n" for port in ports)
            run(["nsenter", f"--net={netns}", "ip", "-6", "-force", "-batch", "-"], stdin=lines, check=False)
            found += [f"{node.name}:{port}" for port in ports]
    return found


def without_route(netlink: RouteSocket, node: Node) -> list[str]:
    """The unnumbered ports of a switch that have a carrier and no link-local route, read by an open socket."""
    up = {each.name: each.ifindex for each in interfaces(netlink) if carries_traffic(each.flags)}
    routed = local_routes(netlink)
    return [
        port.name for port in node.ports if port.address is None and port.name in up and up[port.name] not in routed
    ]


def revive(daemons: Daemons, handles: Mapping[str, NodeHandle], ends: Iterable[str]) -> list[str]:
    """Restore or restart the sessions of these ports (`rtsw1:eth1`) that are not established. A line for each."""
    fabric = daemons.fabric
    refs: dict[str, list[str]] = {}
    for ref in dict.fromkeys(ends):
        node, _, port = ref.partition(":")
        refs.setdefault(node, []).append(port)
    late: list[tuple[str, str, str]] = []
    for node, ports in refs.items():
        states = daemons.sessions(node)
        if states is not None:
            rows = [(node, port, states.get(port, "")) for port in ports]
            late += [row for row in rows if row[2] not in ("", ESTABLISHED)]
    ends_of = {node for node, port, _ in late} | {fabric.by_name[node].port(port).peer_node for node, port, _ in late}
    if restored := restore_routes(fabric, handles, ends_of):
        return [f"{ref}: its route {LINK_LOCAL} was missing; added" for ref in restored]
    return _restarted(daemons, late[:_AT_ONCE])


def _restarted(daemons: Daemons, late: Sequence[tuple[str, str, str]]) -> list[str]:
    lines = []
    for node, port, state in late:
        command = ["vtysh", "-d", "bgpd", "-c", f"clear bgp {port}"]
        with suppress(MachineError):  # the daemon ended meanwhile: the wait reports that
            daemons.runtime.output(daemons.fabric.name, daemons.topology, node, command)
            lines.append(f"{node}:{port}: its BGP session stayed in {state}; restarted")
    return lines
