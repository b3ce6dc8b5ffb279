"""Convert a derived fabric to plain data and back, for the record of a lab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from ipaddress import IPv4Interface
from typing import Any

from heddle.fabric.model import Fabric, Link, Node, Port, Role
from heddle.fabric.policydata import dump_policy, load_policy
from heddle.fabric.shapes.clos import LEVELS
from heddle.lab.imported.derive import BOX


def dump_fabric(fabric: Fabric) -> dict[str, Any]:
    """The whole fabric as plain data."""
    nodes = [asdict(node) for node in fabric.nodes]
    for node in nodes:
        node["ports"] = [
            {**port, "address": str(port["address"]) if port["address"] else None} for port in node["ports"]
        ]
    policy = dump_policy(fabric.policy)
    return {"name": fabric.name, "policy": policy, "nodes": nodes, "links": [asdict(link) for link in fabric.links]}


def restore_fabric(data: Mapping[str, Any]) -> Fabric:
    """From the output of `dump_fabric`; ValueError, KeyError or TypeError for another version's data."""
    nodes = tuple(Node(**{**row, **_typed(row)}) for row in data["nodes"])
    links = tuple(Link(tuple(r["a"]), tuple(r["b"]), int(r["rate_bps"]), int(r["mtu"])) for r in data["links"])
    return Fabric(str(data["name"]), load_policy(data["policy"]), nodes, links, LEVELS, box=BOX)


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    ports = tuple(_port(port) for port in row["ports"])
    groups = tuple((str(word), int(number)) for word, number in row["groups"])
    return {"role": Role(row["role"]), "ports": ports, "groups": groups}


def _port(row: Mapping[str, Any]) -> Port:
    address = row["address"]
    return Port(**{**row, "address": IPv4Interface(address) if address else None})
