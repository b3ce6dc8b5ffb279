"""`./inv inspect` as text: one row per node of a lab; for single nodes one row per port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.base.tables import table
from heddle.base.units import format_rate

if TYPE_CHECKING:
    from heddle.lab.inventory import LabInventory, NodeEntry, PortEntry


def lab_text(found: LabInventory) -> str:
    """A table of all nodes. `address` is a switch's loopback, or the address of a host's only NIC."""
    rows = [
        (
            node.name,
            _role(node),
            "stopped" if node.trouble else "running",
            str(node.asn or "-"),
            _address(node),
            ", ".join(_link(node, port) for port in node.ports),
        )
        for node in found.nodes
    ]
    head = (
        f"{found.lab}: {found.switches} switches, {found.hosts} hosts, {found.links} links; runtime {found.runtime}\n"
        f"topology {found.topology}"
    )
    columns = ("node", "role", "state", "AS", "address", "ports and peers")
    example = found.nodes[0].name if found.nodes else "NODE"
    more = f"./inv inspect {found.lab} --node {example} shows one node: rates, MTU, BGP states"
    return f"{head}\n\n{table(columns, rows)}\n\n{more}"


def nodes_text(found: LabInventory) -> str:
    """The details of each node."""
    return "\n\n\n".join(_node_text(found.lab, node) for node in found.nodes)


def _node_text(lab: str, node: NodeEntry) -> str:
    facts = [
        ("role", _role(node)),
        ("state", f"stopped: {node.trouble}" if node.trouble else "running"),
        ("AS", str(node.asn) if node.asn else ""),
        ("loopback", node.loopback),
        ("router ID", node.router_id),
        ("prefix", node.prefix),
        *((name, ", ".join(rows)) for name, rows in node.others.items() if not _is_loopback(node, rows)),
        ("namespace", node.netns),
    ]
    head = table((node.name, f"of lab {lab}"), [(name, value) for name, value in facts if value])
    columns = ("port", "link", "peer", "peer AS", "BGP", "rate", "MTU", "address and MAC")
    rows = [
        (
            port.name,
            _state(port),
            port.peer,
            str(port.peer_as or "-"),
            port.bgp or "-",
            format_rate(port.rate_bps),
            str(port.mtu),
            " ".join([*port.addresses, port.mac]),
        )
        for port in node.ports
    ]
    return f"{head}\n\n{table(columns, rows)}" if rows else head


def _role(node: NodeEntry) -> str:
    return str(node.role) if node.role == "host" else node.title


def _state(port: PortEntry) -> str:
    return "-" if port.up is None else "up" if port.up else "down"


def _link(node: NodeEntry, port: PortEntry) -> str:
    """`eth1->ctsw1:eth1`; for a host with several NICs `eth1(10.0.0.2/24)->rtsw1:eth3`."""
    own = f"({' '.join(port.addresses)})" if node.role == "host" and len(node.ports) > 1 and port.addresses else ""
    return f"{port.name}{own}->{port.peer}{' (down)' if port.up is False else ''}"


def _address(node: NodeEntry) -> str:
    """One word, or `-`."""
    if node.role == "host" and len(node.ports) == 1:
        return " ".join(node.ports[0].addresses) or "-"
    return node.loopback or " ".join(node.others.get("lo", ())) or "-"


def _is_loopback(node: NodeEntry, rows: tuple[str, ...]) -> bool:
    """Whether these addresses are the loopback, which has a row of its own."""
    return {row.partition("/")[0] for row in rows} == {node.loopback}
