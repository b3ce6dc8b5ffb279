"""A derived fabric as plain data and back: a lab that is opened again has what was found when it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from ipaddress import IPv4Interface
from typing import Any

from heddle.fabric.model import Fabric, Link, Node, Port, Role
from heddle.fabric.shapes.clos import LEVELS
from heddle.lab.imported.derive import BOX, ImportedSpec


def dump_fabric(fabric: Fabric) -> dict[str, Any]:
    """Nodes and links; the spec has a place of its own in the record."""
    nodes = [asdict(node) for node in fabric.nodes]
    for node in nodes:
        node["ports"] = [
            {**port, "address": str(port["address"]) if port["address"] else None} for port in node["ports"]
        ]
    return {"nodes": nodes, "links": [asdict(link) for link in fabric.links]}


def load_fabric(spec: Mapping[str, Any], data: Mapping[str, Any]) -> Fabric:
    """What `dump_fabric` gave; ValueError, KeyError or TypeError when another version of Heddle dumped it."""
    # As JSON, since strict models take text for enums only there.
    model = ImportedSpec.model_validate_json(json.dumps(spec))
    nodes = tuple(Node(**{**row, **_typed(row)}) for row in data["nodes"])
    links = tuple(Link(tuple(r["a"]), tuple(r["b"]), int(r["rate_bps"]), int(r["mtu"])) for r in data["links"])
    return Fabric(model.name, model, nodes, links, LEVELS, box=BOX)


def _typed(row: Mapping[str, Any]) -> dict[str, Any]:
    ports = tuple(_port(port) for port in row["ports"])
    groups = tuple((str(word), int(number)) for word, number in row["groups"])
    return {"role": Role(row["role"]), "ports": ports, "groups": groups}


def _port(row: Mapping[str, Any]) -> Port:
    address = row["address"]
    return Port(**{**row, "address": IPv4Interface(address) if address else None})
