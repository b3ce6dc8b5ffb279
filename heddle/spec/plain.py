"""A spec as plain data and back, and the differences between two specs.

Rates and durations are written with their unit, since a fabric file requires one. pydantic writes everything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel, ValidationError

from heddle.base.problems import MachineError, Problem
from heddle.base.units import format_duration, format_rate
from heddle.spec.delayspec import Delay
from heddle.spec.keys import Duration, Rate
from heddle.spec.linkspec import Jitter, Length, format_length
from heddle.spec.shapes import DEFAULT, SHAPES

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec

# A field is a rate or a duration when its annotation has this parser.
_RATE: Final = get_args(Rate)[1]
_DURATION: Final = get_args(Duration)[1]
_DELAY: Final = get_args(Delay)[1]
_LENGTH: Final = get_args(Length)[1]
_JITTER: Final = get_args(Jitter)[1]


def dump_spec(spec: FabricSpec) -> dict[str, Any]:
    """Plain data that `load_spec` and a fabric file's loader understand."""
    return _dump(spec)


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
    before, after = _flat(dump_spec(old)), _flat(dump_spec(new))
    rows = ((key, _value(before, key), _value(after, key)) for key in dict.fromkeys([*before, *after]))
    return [row for row in rows if row[1] != row[2]]


def _value(flat: Mapping[str, Any], key: str) -> Any:
    """A level without its own buffer size has the size of all switches."""
    return flat.get(key, flat.get("queues.buffer.switch") if key.startswith("queues.buffer.") else None)


def _dump(model: BaseModel) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json")
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            data[name] = _dump(value)
        elif _RATE in info.metadata:
            data[name] = format_rate(value)
        elif _LENGTH in info.metadata:
            data[name] = format_length(value)
        elif (
            _DURATION in info.metadata
            or _JITTER in info.metadata
            or (_DELAY in info.metadata and isinstance(value, int))
        ):
            data[name] = format_duration(value)
        elif isinstance(value, dict) and any(
            _RATE in getattr(each, "__metadata__", ()) for each in get_args(info.annotation)
        ):
            data[name] = {key: format_rate(rate) for key, rate in value.items()}
    return data


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
