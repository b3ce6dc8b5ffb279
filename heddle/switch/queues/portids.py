"""Numbers for ports: the same in every program and process of a lab, from the fabric alone.

In:  a Fabric.
Out: port ids from 1, in the order of its nodes and of their ports. A filter carries one as its classid (0:1f), the
shared maps are indexed by it, and the ports of one node follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric, Port

MOST_PORTS: Final = 65535  # the minor number of a classid

OWNER: Final = "_queues"  # the directory of the lab's pins; no node can be called this
PortRef = tuple[str, str]  # node, port


def port_ids(fabric: Fabric) -> Mapping[PortRef, int]:
    """(node, port) -> its number. InputError when a lab has more ports than there are numbers."""
    found = {(port.node, port.name): number for number, port in numbered_ports(fabric)}
    if len(found) > MOST_PORTS:
        why = f"has {len(found)} ports, and a lab's queues can tell {MOST_PORTS} apart"
        raise InputError(Problem("", fabric.name, why, f"fewer {fabric.box}s, hosts or NICs"))
    return found


def numbered_ports(fabric: Fabric) -> Iterator[tuple[int, Port]]:
    """Every port with its number, in their order."""
    return enumerate((port for node in fabric.nodes for port in node.ports), 1)


def classid(port_id: int) -> str:
    """As tc takes it: `0:1f`."""
    return f"0:{port_id:x}"


def row(port_id: int, number: int) -> int:
    """Where class `number` of a port stands in the maps that have a row for each."""
    return port_id * CLASSES + number
