"""`./inv graph`: the fabric to draw, the file of the drawing, and the text about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.views import graph as drawings

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.views.linkloads import LinkLoad
    from heddle.views.usage import Usage


@dataclass(frozen=True, slots=True)
class GraphSubject:
    """The user's choice: a lab and one of its runs, or a fabric without a lab."""

    lab: str | None
    run: str | None
    fabric: str | None
    settings: Sequence[str]


def draw_graph(out: Console, subject: GraphSubject, kind: str | None, file: str | None) -> None:
    """Draw a lab with one of its runs, or a fabric; to `file`, else to the default of its kind."""
    wanted = drawings.kind_of(kind, file)
    built, usage, topology = _drawn(subject)
    loads, caption = (usage.loads, usage.caption) if usage else ((), "")
    content = drawings.drawing(wanted, built, loads, caption, topology)
    to_stdout = file is None and wanted in drawings.TEXTS
    path = None if to_stdout else Path(file or f"{built.name}.{wanted}")
    data: dict[str, Any] = {"graph": str(path) if path else None, "kind": wanted}
    data |= {"run_id": usage.run_id if usage else None, "links": _rows(built, loads)}
    if path is None:
        return out.result({**data, "text": content.decode()}, content.decode())
    drawings.write_file(real(str(path)), content, str(path))
    what = f"run {usage.run_id}, {caption}" if usage else "no run yet, so links have no load"
    if wanted in drawings.TEXTS:  # containerlab's drawings do not show a run
        what = f"{len(built.nodes)} nodes, {len(built.links)} links"
    return out.result(data, f"wrote {path}: {what}")


def _drawn(subject: GraphSubject) -> tuple[Fabric, Usage | None, Path | None]:
    """The fabric to draw, the loads of a run, and the topology of a lab."""
    if subject.fabric is not None:
        from heddle.fabric.fabricfile import load_fabric

        if subject.lab is not None:
            raise InputError(
                Problem("", f"{subject.lab} and --fabric", "exclude each other", "draw a lab, or a fabric")
            )
        if subject.run is not None:
            raise InputError(Problem("", "--run and --fabric", "exclude each other", "name a lab: only labs have runs"))
        return load_fabric(subject.fabric, overrides=subject.settings).fabric, None, None
    if subject.settings:
        raise InputError(Problem("", "--set", "needs --fabric", "./inv graph --fabric FABRIC --set PATH=VALUE"))
    from heddle.lab.opening import open_lab
    from heddle.views.usage import usage_of

    running = open_lab(subject.lab)
    return running.fabric, usage_of(running, subject.run), running.topology


def _rows(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[dict[str, Any]]:
    """A row per link; without a run its numbers are null."""
    if loads:
        return [load.to_json() for load in loads]
    nothing = dict.fromkeys(("packets", "bytes", "share", "utilisation"))
    return [{"a": ":".join(link.a), "b": ":".join(link.b), **nothing} for link in fabric.links]
