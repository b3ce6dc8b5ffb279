"""What plugins may rely on (docs/plugins.md): a change of it needs a new number of the contract."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from heddle.base import plugins

PAGE = Path(__file__).parents[2] / "docs/plugins.md"
GOLDEN = Path(__file__).with_name(f"contract-{plugins.CONTRACT}.txt")


def names() -> list[str]:
    """The names that the page lists, `module:object`."""
    table = PAGE.read_text().partition("## The contract")[2].partition("\n## ")[0]
    return re.findall(r"`(heddle[\w.]*:\w+)`", table)


def signature(of: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(of)))
    except (TypeError, ValueError):
        return ""


def lines(name: str) -> Iterator[str]:
    """The name with its signature; of a class its public attributes with theirs, too."""
    found = resolve_name(name)
    if not inspect.isclass(found):
        yield f"{name}{signature(found)}"
        return
    yield f"{name} class"
    if dataclasses.is_dataclass(found):
        yield f"  fields {', '.join(field.name for field in dataclasses.fields(found))}"
    for key, member in sorted(vars(found).items()):
        if key.startswith("_"):
            continue
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(member, property):
            yield f"  {key} property"
        elif inspect.isfunction(inner):
            yield f"  {key}{signature(inner)}"


def test_what_plugins_rely_on_is_as_it_was(request: pytest.FixtureRequest) -> None:
    text = "\n".join(line for name in names() for line in lines(name)) + "\n"
    if request.config.getoption("--regen-goldens"):
        GOLDEN.write_text(text)
    assert len(names()) >= 30
    assert text == GOLDEN.read_text(), "a plugin that was written for this contract may not work: see docs/plugins.md"
