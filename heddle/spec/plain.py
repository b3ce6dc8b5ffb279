"""A spec as plain data and back, and the differences between two specs.

Rates, lengths and durations are written with their unit, since a fabric file requires one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from heddle.base.problems import MachineError, Problem
from heddle.base.tables import flat
from heddle.spec.shapes import DEFAULT, SHAPES

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec


def dump_spec(spec: FabricSpec) -> dict[str, Any]:
    """Plain data that `load_spec` and a fabric file's loader understand."""
    return spec.model_dump(mode="json")


def load_spec(data: Mapping[str, Any]) -> FabricSpec:
    """The spec that was dumped. MachineError when this version of Heddle cannot read it."""
    try:
        # As JSON, since strict models take lists for tuples and text for enums only there.
        return SHAPES[data.get("shape", DEFAULT)].model_validate_json(json.dumps(data))
    except (ValidationError, KeyError):
        name = data.get("name", "")
        why = "was made by another version of Heddle, and this version cannot read its fabric"
        raise MachineError(Problem("", f"lab {name}", why, f"run ./inv down {name}, then up again")) from None


def differences(old: FabricSpec, new: FabricSpec) -> list[tuple[str, Any, Any]]:
    """(path, old value, new value) of every key that differs, in the file's order."""
    before, after = nested_values(dump_spec(old)), nested_values(dump_spec(new))
    rows = ((key, _value(before, key), _value(after, key)) for key in dict.fromkeys([*before, *after]))
    return [row for row in rows if row[1] != row[2]]


def _value(values: Mapping[str, Any], key: str) -> Any:
    """A level without its own buffer size has the size of all switches."""
    return values.get(key, values.get("queues.buffer.switch") if key.startswith("queues.buffer.") else None)


def nested_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Path -> value, for nested keys of a fabric file; without empty groups."""
    return {path: value for path, value in flat(data).items() if value != {}}
