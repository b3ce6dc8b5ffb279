"""A built fabric as plain data and back: what is kept beside a run can be drawn and proven without its lab.

In:  Fabric, or what `fabric_to_json` wrote. Out: the other one, equal to the first.
Reading raises ValueError, LookupError, TypeError or AttributeError for data of another version of Heddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from heddle.fabric.model import Fabric, Level, Link, Node
from heddle.fabric.policydata import dump_policy, load_policy

_NODES: Final = TypeAdapter(tuple[Node, ...])
_LINKS: Final = TypeAdapter(tuple[Link, ...])
_LEVELS: Final = TypeAdapter(tuple[Level, ...])


def fabric_to_json(fabric: Fabric) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "name": fabric.name,
        "policy": dump_policy(fabric.policy),
        "levels": _LEVELS.dump_python(fabric.levels, mode="json"),
        "box": fabric.box,
        "area": fabric.area,
        "sizes": list(fabric.sizes),
        "nodes": _NODES.dump_python(fabric.nodes, mode="json"),
        "links": _LINKS.dump_python(fabric.links, mode="json"),
    }


def fabric_from_json(data: Mapping[str, Any]) -> Fabric:
    """What `fabric_to_json` wrote."""
    return Fabric(
        str(data["name"]),
        load_policy(data["policy"]),
        _NODES.validate_python(data["nodes"]),
        _LINKS.validate_python(data["links"]),
        _LEVELS.validate_python(data["levels"]),
        box=str(data["box"]),
        area=str(data["area"]),
        sizes=tuple(str(each) for each in data["sizes"]),
    )
