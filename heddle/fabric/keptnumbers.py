"""The numbers of a lab that was changed while it ran: what it kept has the names and places that it had.

In:  a built fabric, and for each node the numbers of its ports and its place in the maps (plain data of a record).
Out: the fabric with those. New ports have the lowest free numbers of their node, so a port that stays is never renamed:
in a fabric that is built again, a host's port comes after all uplinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from heddle.fabric.model import Fabric
from heddle.fabric.wiring import MapRows


def numbered(fabric: Fabric, kept: Mapping[str, Any]) -> Fabric:
    """The fabric with kept numbers. kept: `ports` and `places`, by node; empty: the fabric unchanged.

    ports: numbers in the order of the built fabric. places: index, first, width and cross of MapRows.
    """
    if not kept:
        return fabric
    ports: Mapping[str, Sequence[int]] = kept["ports"]
    names = {
        (node.name, port.name): f"eth{number}"
        for node in fabric.nodes
        for port, number in zip(node.ports, ports[node.name], strict=True)
    }
    nodes, places = [], {}
    for node in fabric.nodes:
        own = [
            replace(
                port,
                name=f"eth{number}",
                mac=f"{port.mac[:-5]}{number >> 8:02x}:{number & 0xFF:02x}",
                peer_port=names[port.peer_node, port.peer_port],
            )
            for number, port in sorted(zip(ports[node.name], node.ports, strict=True), key=lambda row: row[0])
        ]
        nodes.append(replace(node, ports=tuple(own)))
        index, first, width, cross = kept["places"][node.name]
        ids = tuple(first + number - 1 for number in sorted(ports[node.name]))
        places[node.name] = MapRows(index, first, width, cross, ids)
    links = [replace(link, a=(link.a[0], names[link.a]), b=(link.b[0], names[link.b])) for link in fabric.links]
    return replace(fabric, nodes=tuple(nodes), links=tuple(links), kept_places=places)
