"""Nested plain data as rows of text, for tables of settings.

In:  what JSON or YAML can hold, and tuples. Out: `queues.ecn.kmin`, 40000; and a value in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Path -> value. An empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{before}{key}.") if nested else {f"{before}{key}": value}
    return found


def value_text(value: Any) -> str:
    """`yes`, `40,000`, `a, b`, `none`; `default` for None."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {value_text(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) if isinstance(each, int) else value_text(each) for each in value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def some_of(texts: Sequence[str], most: int = 4, joint: str = ", ") -> str:
    """The first of several texts: `a, b, c, d and 3 more`; joined by `; `, `a; b; c; d; and 3 more`."""
    more = f"{joint.rstrip(' ,')} and {len(texts) - most} more" if len(texts) > most else ""
    return joint.join(texts[:most]) + more
