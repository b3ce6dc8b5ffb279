"""What a section of the report is: a title, a template, and the function that gives the template its values.

A feature of the core adds a section with a template in templates/report, a function here, and its line in SECTIONS
(page.py). A plugin registers one as a part of kind `section`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from heddle.views.style import ON_DARK

if TYPE_CHECKING:
    from heddle.runs.stored import StoredRun

Values = Mapping[str, object]


class NotCarriedError(Exception):
    """The run does not carry what the section shows; the text says why, and stands in its place."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a run's part. key: of its element's ID. template: its file without `.html.j2`.

    The file is in templates/report; that of a plugin is in the folder `templates` beside the module of `values`, and
    can include those of templates/report. after: key of the core's section that it follows; empty: it is at the end.
    """

    key: str
    title: str
    template: str
    values: Callable[[StoredRun], Values]
    after: str = ""


@dataclass(frozen=True, slots=True)
class Chapter:
    """What stands above the runs, as a comparison. key, title, template: as of a Section. templates: a plugin's own."""

    key: str
    title: str
    template: str
    values: Values
    templates: Path | None = None


def counted(value: float | None) -> str:
    """A whole number with separators; `-` where it was not counted."""
    return "-" if value is None else f"{value:,.0f}"


def figure(value: float | None, digits: int = 4) -> str:
    """A number with as many digits as tell something; `-` where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


_COLOUR: Final = re.compile("|".join([*ON_DARK, "#ffffff"]), re.IGNORECASE)
_PAGE: Final = "--page"  # the page's own background, instead of white


@dataclass(frozen=True, slots=True)
class Chart:
    """key: the end of its element's ID. label: its name. told: what it shows, in a sentence. svg: safe to embed."""

    key: str
    label: str
    told: str
    svg: Markup

    @classmethod
    def of(cls, key: str, label: str, told: str, picture: bytes) -> Chart:
        """picture: an SVG file by matplotlib, which escapes all texts."""
        return cls(key, label, told, embedded(picture))


def embedded(picture: bytes) -> Markup:
    """The drawing of an SVG file, without the head of the file, in colours that follow the page."""
    text = "".join(picture.decode().partition("<svg")[1:])
    return Markup(_COLOUR.sub(lambda found: f"var({_name(found[0])})", text))  # noqa: S704 - matplotlib's


def _name(colour: str) -> str:
    return _PAGE if colour.lower() == "#ffffff" else f"--c{colour[1:].lower()}"


def palette() -> tuple[str, str]:
    """The declarations of all colours: on paper, and on a dark screen."""
    paper = "".join(f"{_name(colour)}:{colour};" for colour in ON_DARK)
    return paper, "".join(f"{_name(colour)}:{dark};" for colour, dark in ON_DARK.items())
