"""Nodes of containerlab's kind `bridge`: here each is a node of the lab with a Linux bridge in it.

In:  the group `topology` of a file. Out: the same with such nodes as kind: linux, whose `exec` makes the bridge of all
ports that links give them; and their names.
containerlab uses a bridge of the machine, which must exist (kinds/bridge). Heddle changes no bridge of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_KINDS: Final = ("bridge", "ovs-bridge")
_DEVICE: Final = "bridge0"


def with_bridges(topology: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The topology that the reader gets, and the names of the bridges."""
    names = [n for n, own in topology["nodes"].items() if isinstance(own, dict) and own.get("kind") in _KINDS]
    made = {name: _as_linux(topology["nodes"][name], _ports(topology.get("links"), name)) for name in names}
    return {**topology, "nodes": {**topology["nodes"], **made}}, names


def _as_linux(own: Mapping[str, Any], ports: Iterator[str]) -> dict[str, Any]:
    """The bridge forwards as soon as it is up: without STP it does not wait for the forward delay."""
    made = [f"ip link add {_DEVICE} type bridge", f"ip link set {_DEVICE} up"]
    return {**own, "kind": "linux", "exec": [*made, *(f"ip link set {port} master {_DEVICE}" for port in ports)]}


def _ports(links: Any, node: str) -> Iterator[str]:
    """The interfaces that links give a node."""
    for link in links if isinstance(links, list) else ():
        ends = link.get("endpoints") if isinstance(link, dict) else None
        for end in ends if isinstance(ends, list) else ():
            if isinstance(end, dict) and end.get("node") == node and end.get("interface"):
                yield str(end["interface"])
            elif isinstance(end, str) and end.partition(":")[0] == node:
                yield end.partition(":")[2]
