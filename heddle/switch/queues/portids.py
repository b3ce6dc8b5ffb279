"""Port ids: the same in every program and process of a lab, derived from the fabric alone.

In:  a Fabric.
Out: port ids from 1, in the order of its nodes and of their ports. A filter has one as its classid (0:1f), and the
shared maps use it as index. The ports of one node have consecutive ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port

MOST_PORTS: Final = 65535  # the minor number of a classid

OWNER: Final = "_queues"  # the directory of the lab's pins; not a valid node name
PortRef = tuple[str, str]  # node, port


def port_ids(fabric: Fabric) -> Mapping[PortRef, int]:
    """(node, port) -> its id. InputError when a lab has more ports than there are ids."""
    found = {(port.node, port.name): number for number, port in numbered_ports(fabric)}
    if len(found) > MOST_PORTS:
        why = f"has {len(found)} ports; the maximum is {MOST_PORTS}"
        raise InputError(Problem("", fabric.name, why, f"use fewer {fabric.box}s, hosts or NICs"))
    return found


def numbered_ports(fabric: Fabric) -> Iterator[tuple[int, Port]]:
    """Every port with its id, in ascending order."""
    return enumerate((port for node in fabric.nodes for port in node.ports), 1)


def classid(port_id: int) -> str:
    """A port id in tc's form: `0:1f`."""
    return f"0:{port_id:x}"


def row(port_id: int, number: int) -> int:
    """The row of class `number` of a port, in the maps that have a row for each class of each port."""
    return port_id * CLASSES + number
