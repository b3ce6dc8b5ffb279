"""Settings that all pictures and tables share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import InputError, Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PictureKind = Literal["svg", "png", "pdf"]
PICTURES: Final[tuple[PictureKind, ...]] = ("svg", "png", "pdf")
DPI: Final = 150  # of a PNG
INK: Final = "#1f2933"
# Colours of plots over time: egress blue and ingress green differ in lightness too. ON_DARK: their pairs on dark pages.
DEPTH, HELD, MARKED, DROPPED, PAUSES, PAUSED = "#3b74b4", "#5d8f5f", "#d98200", "#b3123c", "#6b3fa0", "#5c6670"
SERIES_OF_RUNS: Final = (DEPTH, MARKED, HELD, PAUSES, DROPPED, PAUSED)
FAULT: Final = "#c98b9b"  # times of faults, behind everything else
QUIET: Final = "#b8c0c9"  # links that carried nothing, or whose load is not known
ON_DARK: Final[Mapping[str, str]] = {
    INK: "#e6ebf0", DEPTH: "#7fb2ea", HELD: "#8fc492", MARKED: "#ffb454", DROPPED: "#ff8fa3", PAUSES: "#c3a1f0",
    PAUSED: "#a3adb8", FAULT: "#8a4f60", QUIET: "#4b5663",
}  # fmt: skip
# It warns when it cannot write its caches, as in a read-only home; a picture needs no cache.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
WIDTH: Final = 100  # characters of a line in tables
# Metadata without a time, so that the same input gives the same bytes.
_ABOUT: Final[dict[PictureKind, dict[str, Any]]] = {
    "svg": {"Date": None, "Creator": "Heddle"},
    "png": {"Software": "Heddle"},
    "pdf": {"CreationDate": None, "Creator": "Heddle"},
}


def picture_kind(flag: str, file: str) -> PictureKind:
    """The kind of picture by the file's suffix; InputError lists the suffixes. flag: for the error."""
    ending = Path(file).suffix.removeprefix(".")
    for kind in PICTURES:
        if kind == ending:
            return kind
    stem = Path(file).stem or "name"
    hint = f"use {', '.join(f'{stem}.{kind}' for kind in PICTURES[:-1])} or {stem}.{PICTURES[-1]}"
    raise InputError(Problem("", f"{flag} {file}", "has no suffix of a picture", hint))


def saved(kind: PictureKind, title: str, make: Callable[[], Figure]) -> bytes:
    """A figure as a file's bytes; the same figure gives the same bytes. make: called with Heddle's settings."""
    import io

    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()  # not the settings of a matplotlibrc file
        mpl.rcParams["svg.hashsalt"] = "heddle"  # for ids in the file, which are random by default
        mpl.rcParams["svg.fonttype"] = "none"  # text stays text, for search and for screen readers
        mpl.rcParams["text.parse_math"] = False  # users' texts have dollar signs
        make().savefig(file, format=kind, metadata={**_ABOUT[kind], "Title": title})
    return file.getvalue()
