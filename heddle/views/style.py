"""Settings that all pictures and tables share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import InputError, Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PictureKind = Literal["svg", "png", "pdf"]
PICTURES: Final[tuple[PictureKind, ...]] = ("svg", "png", "pdf")
DPI: Final = 150  # of a PNG
INK: Final = "#1f2933"
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
        make().savefig(file, format=kind, metadata={**_ABOUT[kind], "Title": title})
    return file.getvalue()
