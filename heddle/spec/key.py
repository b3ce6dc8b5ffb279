"""A key of a fabric file, declared once: as metadata of the field that holds its value.

In:  a frozen dataclass of the policy, `kmin: int = key(40_000, "no mark below it", unit="size", least=0)`.
Out: what heddle/spec/groups.py needs to read and write the file. The model of the file, its
errors, completion and the page of keys follow from it. Nothing here loads pydantic: processes that only use a policy
start without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a fabric file, in the metadata of a field. A field without it is no key, unless it is a group.

    help: its meaning, in Markdown. name: in the file, where the field has another one.
    unit: how a number is written; the field has bytes or nanoseconds. least, most, above: bounds; the value `above`
    itself is not legal. auto: the word `auto` is legal too. numbers: a reader of the numbers that a map has as keys.
    file, reads, writes: the type in the file, and functions from it and to it, where the field has another type.
    A reader raises ValueError with `reason; hint`.
    one: the key of the group that a single value stands for. levels: the keys of this map are keys of the group.
    lifted: the key is in the group around the group of its class.
    """

    help: str = ""
    name: str = ""
    unit: Literal["", "size", "duration"] = ""
    least: int | None = None
    most: int | None = None
    above: int | None = None
    auto: bool = False
    numbers: Callable[[str], int] | None = None
    file: Any = None
    reads: Callable[[Any], Any] | None = None
    writes: Callable[[Any], Any] | None = None
    one: str = ""
    levels: bool = False
    lifted: bool = False


def key(default: Value, help_text: str = "", **more: Any) -> Value:
    """A field of a dataclass that is a key. more: of Key."""
    declared = {"key": Key(help_text, **more)}
    found: Any = (
        field(default_factory=dict, metadata=declared)
        if isinstance(default, dict)
        else field(default=default, metadata=declared)
    )
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error of a key that depends on others.

    path: the dotted path of the key. given: paths of other keys that the error depends on; counts: it also depends on
    the numbers of nodes and ports. valued: the sentence shows the key's value.
    """

    path: str
    why: str
    hint: str = ""
    given: tuple[str, ...] = ()
    counts: bool = False
    valued: bool = True
