"""The reference says what the schema says: every key with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from heddle.base.units import parse_duration, parse_rate, parse_size
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes import SHAPES

DOC = Path(__file__).resolve().parents[2] / "docs" / "fabric-file.md"


def keys_of(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= keys_of(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.default
    return found


def rows_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+?) \|", text, re.MULTILINE))


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


@pytest.mark.parametrize("shape", SHAPES)
def test_every_key_is_in_the_reference_with_its_default(shape: str) -> None:
    common, *tables = re.split(r"^Keys of `shape: ([a-z]+)`", DOC.read_text(), flags=re.MULTILINE)
    own = dict(zip(tables[::2], tables[1::2], strict=True))
    rows = rows_of(common) | rows_of(own[shape].partition("\nSizes: ")[0])
    keys = keys_of(SHAPES[shape])
    assert set(own) == set(SHAPES)
    assert list(rows) == [*keys_of(FabricSpec), *(key for key in keys if key not in keys_of(FabricSpec))]
    rows.pop("shape")  # the shape itself is not always a default
    keys.pop("shape")
    for key, default in keys.items():
        if default is PydanticUndefined:
            assert rows[key] == "needed"
        elif default is not None:
            assert value_of(rows[key].strip("`"), default) == default, key
