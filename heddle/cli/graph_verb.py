"""`./inv graph`: which fabric is meant, where its drawing goes, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.views import graph as drawings

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.views.picture import LinkLoad


def draw_graph(
    out: Console, lab: str | None, fabric: str | None, set_: Sequence[str], kind: str | None, file: str | None
) -> None:
    """Draw a lab with its last run, or a fabric that need not run; to `file`, else where the kind belongs."""
    wanted = drawings.kind_of(kind, file)
    built, loads, caption, topology = _subject(lab, fabric, set_)
    content = drawings.drawing(wanted, built, loads, caption, topology)
    to_stdout = file is None and wanted in drawings.TEXTS
    path = None if to_stdout else Path(file or f"{built.name}.{wanted}")
    data: dict[str, Any] = {"graph": str(path) if path else None, "kind": wanted, "links": _rows(built, loads)}
    if path is None:
        return out.result({**data, "text": content.decode()}, content.decode())
    drawings.write_file(real(str(path)), content, str(path))
    what = caption or "no run yet, so links carry no numbers"
    if wanted in drawings.TEXTS:  # containerlab's drawings know of no run
        what = f"{len(built.nodes)} nodes, {len(built.links)} links"
    return out.result(data, f"wrote {path}: {what}")


def _subject(
    lab: str | None, fabric: str | None, set_: Sequence[str]
) -> tuple[Fabric, Sequence[LinkLoad], str, Path | None]:
    """What is drawn, with what a run put on it, which run that was, and the topology of a lab."""
    if fabric is not None:
        from heddle.fabric.fabricfile import load_fabric

        if lab is not None:
            raise InputError(Problem("", f"{lab} and --fabric", "are two things to draw", "name one of them"))
        return load_fabric(fabric, overrides=set_).fabric, (), "", None
    if set_:
        raise InputError(Problem("", "--set", "is for a fabric that is named with --fabric", "a lab is as it runs"))
    from heddle.lab.opening import open_lab
    from heddle.views.usage import last_usage

    running = open_lab(lab)
    loads, caption = last_usage(running) or ([], "")
    return running.fabric, loads, caption, running.topology


def _rows(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[dict[str, Any]]:
    """A row per link; without a run its numbers are null."""
    if loads:
        return [load.to_json() for load in loads]
    nothing = {"packets": None, "bytes": None, "share": None}
    return [{"a": ":".join(link.a), "b": ":".join(link.b), **nothing} for link in fabric.links]
