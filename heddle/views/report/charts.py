"""Charts of the report: the pictures of `plot`, as SVG in the page.

Their colours are those of paper. Each that has a partner on a dark screen becomes a variable of the page's style.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from heddle.views.style import ON_DARK

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
