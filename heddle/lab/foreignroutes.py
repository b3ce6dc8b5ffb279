"""Routes of switches that are not part of the fabric: static routes, announcements by hand, a wrong prefix length.

In:  a fabric and the FIBs of its switches. Out: ForeignRoutes.
Prediction, kernel and packets follow them alike, so only a comparison with the fabric finds one that exists during a
whole run. Next hops of the fabric's own prefixes are compared in convergence.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network

from heddle.base.families import Network
from heddle.fabric.model import Fabric, Node, Role
from heddle.kernel.fib import Fib


@dataclass(frozen=True, slots=True)
class ForeignRoute:
    """A route that the fabric does not have. ports: none where it discards packets.

    overrides: the longest prefix of the fabric that contains it, which it takes packets from; None if there is none.
    """

    switch: str
    prefix: Network
    ports: tuple[str, ...]
    overrides: Network | None

    @property
    def what(self) -> str:
        """`10.0.1.1/32 over eth2`."""
        return f"{self.prefix} " + (f"over {', '.join(self.ports)}" if self.ports else "to nowhere")

    @property
    def why(self) -> str:
        """`is not a route of the fabric and overrides 10.0.1.0/24`."""
        return "is not a route of the fabric" + (f" and overrides {self.overrides}" if self.overrides else "")


def foreign_routes(fabric: Fabric, fibs: Mapping[str, Fib]) -> list[ForeignRoute]:
    """Routes over the fabric's ports, and routes inside its prefixes, that a fabric of a fabric file does not have.

    A route over another interface, such as that of a management network, counts only inside a prefix of the fabric.
    So does a route that discards packets.
    """
    edges = set(fabric.prefixes.values())
    loopbacks = {ip_network(node.loopback) for node in fabric.switches if node.loopback is not None}
    return [
        route
        for name, fib in fibs.items()
        for node in [fabric.by_name[name]]
        for route in _unknown(node, fib, {*fabric.expected_next_hops[name], *loopbacks, *(edges - {node.prefix})})
    ]


def overriding_routes(fabric: Fabric, fibs: Mapping[str, Fib]) -> list[ForeignRoute]:
    """Routes inside the networks of host ports. An imported topology defines no routes, so they may be intended."""
    networks = {
        port.address.network
        for port in fabric.host_ports
        if port.address is not None and fabric.by_name[port.peer_node].role is Role.SWITCH
    }
    found = (route for name, fib in fibs.items() for route in _unknown(fabric.by_name[name], fib, networks))
    return [route for route in found if route.overrides is not None]


def _unknown(node: Node, fib: Fib, known: Collection[Network]) -> Iterator[ForeignRoute]:
    names = {port.name for port in node.ports}
    for prefix, hops in fib.routes.items():
        if prefix in known:
            continue
        wider = (prefix.supernet(new_prefix=length) for length in reversed(range(prefix.prefixlen)))
        overrides = next((each for each in wider if each in known), None)
        if overrides is not None or names & {hop.port for hop in hops}:
            yield ForeignRoute(node.name, prefix, tuple(dict.fromkeys(hop.port for hop in hops)), overrides)
