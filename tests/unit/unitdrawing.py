"""The drawing of a two-tier fabric, and the addresses of its racks, as READMEs of workshop units have them."""

from __future__ import annotations

from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node

_WIDE = 6  # of a port's column


def drawing(fabric: Fabric) -> str:
    """Each CTSW with its ports from above, each RTSW as a line; an o is a link of its own."""
    ports = [port for node in fabric.switches if node.level == 2 for port in node.ports]
    spines = [node for node in fabric.switches if node.level == 2]
    lines = ["".join(node.name.center(_WIDE * len(node.ports)) for node in spines)]
    lines.append("".join(port.name.center(_WIDE) for port in ports))
    racks = [node for node in fabric.switches if node.level == 1]
    for index, rack in enumerate(racks):
        open_ = {each.name for each in racks[index:]}
        lines.append("".join(("|" if port.peer_node in open_ else " ").center(_WIDE) for port in ports))
        ups = [port.name for port in rack.ports if not fabric.leads_to_host(port)]
        own = [at for at, port in enumerate(ports) if port.peer_node == rack.name]
        row = ""
        for at, port in enumerate(ports):
            mark = "o" if at in own else "|" if port.peer_node in {each.name for each in racks[index + 1 :]} else " "
            row += mark.center(_WIDE, "-" if own[0] < at < own[-1] else " ")
        row = _joined(row)
        lines.append(f"{row}  {rack.name}: {ups[0]}" + (f" to {ups[-1]}" if len(ups) > 1 else ""))
    return "\n".join(line.rstrip() for line in lines)


def _joined(row: str) -> str:
    """Dashes between the first and the last o."""
    first, last = row.index("o"), row.rindex("o")
    return "".join("-" if first < at < last and char == " " else char for at, char in enumerate(row))


def addresses(fabric: Fabric) -> str:
    """A line for each RTSW: its prefix, and its ports to hosts with their addresses."""
    rows = []
    for rack in (node for node in fabric.switches if node.level == 1):
        ports: dict[str, list[str]] = {}
        for port in (port for port in rack.ports if fabric.leads_to_host(port)):
            ports.setdefault(port.peer_node, []).append(port.name)
        hosts = [f"{_span(names)} {host} {_address(fabric.by_name[host], rack)}" for host, names in ports.items()]
        rows.append(f"{rack.name}  {rack.prefix}  {'   '.join(hosts)}")
    return "\n".join(rows)


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _address(host: Node, rack: Node) -> str:
    """Of all its NICs at the RTSW."""
    there = [port for port in host.ports if port.peer_node == rack.name]
    return _span([str(port.address.ip) for port in there if port.address is not None])
