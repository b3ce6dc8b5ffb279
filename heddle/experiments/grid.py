"""Lists in the settings of a run make a grid: the run is made once for each combination of their values.

In:  the settings of a run as nested data. Out: Axis for each list; settings at a point of the grid.
A setting whose value is a list by itself needs a list of lists to vary: `queues.lossless: [[3], [3, 4]]`.
Runs that have the same list below the same key vary together: a comparison takes both at the same value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.spec.yamlfile import Trail, dotted


@dataclass(frozen=True, slots=True)
class Axis:
    """One list of the settings of a run. trail: its place below the run; key: its key as the user knows it.

    values: as the file has them; texts: as tables and expressions name them.
    """

    trail: Trail
    key: str
    values: tuple[Any, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The values in words."""
        return tuple(_text(each) for each in self.values)

    @property
    def word(self) -> str:
        """The last word of its key, by which an expression chooses a value."""
        return self.key.rpartition(".")[2]


def axes_of(group: Mapping[str, Any], before: Trail, is_list: Callable[[str], bool]) -> Iterator[Axis]:
    """Every list of nested settings that varies. before: the trail of the group.

    is_list: whether the value of a dotted key, below the group, is a list by itself.
    """
    yield from _axes(group, before, (), is_list)


def _axes(group: Mapping[str, Any], before: Trail, inner: Trail, is_list: Callable[[str], bool]) -> Iterator[Axis]:
    for name, value in group.items():
        trail = (*inner, name)
        key = dotted(trail)
        if isinstance(value, Mapping):
            yield from _axes(value, before, trail, is_list)
        elif isinstance(value, list) and value and (not is_list(key) or all(isinstance(e, list) for e in value)):
            yield Axis((*before, *trail), key, tuple(value))


def at_point(data: Mapping[str, Any], axes: Sequence[Axis], point: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a run's data with one value for each of its axes. point: key of an axis -> text of its value."""
    found: dict[str, Any] = copy.deepcopy(dict(data))
    for axis in axes:
        here = found
        for step in axis.trail[:-1]:
            here = here[step]  # type: ignore[index]
        here[axis.trail[-1]] = axis.values[axis.texts.index(point[axis.key])]  # type: ignore[index]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
