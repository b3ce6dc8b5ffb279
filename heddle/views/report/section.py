"""What a section of the report is: a title, a template, and the function that gives the template its values.

A feature adds a section with a template in templates/report, a function here, and its line in SECTIONS (page.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.runs.stored import StoredRun

Values = Mapping[str, object]


class NotCarriedError(Exception):
    """The run does not carry what the section shows; the text says why, and stands in its place."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a run's part. key: of its element's ID. template: in templates/report, without its ending."""

    key: str
    title: str
    template: str
    values: Callable[[StoredRun], Values]


def counted(value: float | None) -> str:
    """A whole number with separators; `-` where it was not counted."""
    return "-" if value is None else f"{value:,.0f}"


def figure(value: float | None, digits: int = 4) -> str:
    """A number with as many digits as tell something; `-` where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"
