"""The reference says what the schema says: every key with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from heddle.base.units import parse_duration, parse_rate, parse_size
from heddle.spec.shapes.clos import ClosSpec

DOC = Path(__file__).resolve().parents[2] / "docs" / "fabric-file.md"


def keys_of(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= keys_of(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.default
    return found


def value_of(text: str, like: object) -> object:
    if isinstance(like, bool):
        return text == "true"
    if isinstance(like, dict):
        return {} if text == "none" else text
    if isinstance(like, int):
        return (
            parse_rate(text) if text.endswith("bit") else parse_duration(text) if text[-1] == "s" else parse_size(text)
        )
    if isinstance(like, float):
        return float(text)
    if isinstance(like, list):
        return [type(like[0])(word) for word in text.strip("[]").split(", ")]
    return text


def test_every_key_is_in_the_reference_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+?) \|", DOC.read_text(), re.MULTILINE))
    keys = keys_of(ClosSpec)
    assert list(rows) == list(keys)
    for key, default in keys.items():
        if default is PydanticUndefined:
            assert rows[key] == "needed"
        elif default is not None:
            assert value_of(rows[key].strip("`"), default) == default, key
