"""The verb `graph`: a drawing of a lab, with the link loads of a run, or of a fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base.extras import PLOT
from heddle.base.problems import InputError, Problem
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.views.linkloads import LinkLoad
    from heddle.views.usage import Usage


def _is_picture(typed: Mapping[str, Any]) -> bool:
    from heddle.views.graph import kind_of
    from heddle.views.style import PICTURES

    return kind_of(typed["kind"], typed["out_"]) in PICTURES


@verb(
    help=words.GRAPH,
    positional=["lab"],
    extras=lambda typed: [PLOT] if _is_picture(typed) else [],
    root=lambda typed: typed["fabric"] is None or not _is_picture(typed),
    files_in=["fabric"],
    files_out=["out_"],
    endings_here=[".svg", ".png", ".pdf"],
)
def graph(
    out: Console,
    lab: str | None = None,
    run: str | None = None,
    fabric: str | None = None,
    set_: Sequence[str] = (),
    kind: str | None = None,
    out_: str | None = None,
) -> None:
    """Draw a lab or a fabric: tiers in rows, and the load of each link in a run (the last, or --run ID)."""
    from heddle.base.files import real
    from heddle.views import graph as drawings

    wanted = drawings.kind_of(kind, out_)
    built, usage, topology = _drawn(lab, run, fabric, set_)
    loads, caption = (usage.loads, usage.caption) if usage else ((), "")
    content = drawings.drawing(wanted, built, loads, caption, topology)
    to_stdout = out_ is None and wanted in drawings.TEXTS
    path = None if to_stdout else Path(out_ or f"{built.name}.{wanted}")
    data: dict[str, Any] = {"graph": str(path) if path else None, "kind": wanted}
    data |= {"run_id": usage.run_id if usage else None, "links": _rows(built, loads)}
    if path is None:
        return out.result({**data, "text": content.decode()}, content.decode())
    drawings.write_file(real(str(path)), content, str(path))
    what = f"run {usage.run_id}, {caption}" if usage else "no run yet, so links have no load"
    if wanted in drawings.TEXTS:  # containerlab's drawings do not show a run
        what = f"{len(built.nodes)} nodes, {len(built.links)} links"
    return out.result(data, f"wrote {path}: {what}")


def _drawn(
    lab: str | None, run: str | None, fabric: str | None, settings: Sequence[str]
) -> tuple[Fabric, Usage | None, Path | None]:
    """The fabric to draw, the loads of a run, and the topology of a lab."""
    if fabric is not None:
        from heddle.fabric.fabricfile import load_fabric

        if lab is not None:
            raise InputError(Problem("", f"{lab} and --fabric", "exclude each other", "draw a lab, or a fabric"))
        if run is not None:
            raise InputError(Problem("", "--run and --fabric", "exclude each other", "name a lab: only labs have runs"))
        return load_fabric(fabric, overrides=settings).fabric, None, None
    if settings:
        raise InputError(Problem("", "--set", "needs --fabric", "./inv graph --fabric FABRIC --set PATH=VALUE"))
    from heddle.lab.opening import open_lab
    from heddle.views.usage import usage_of

    running = open_lab(lab)
    return running.fabric, usage_of(running, run), running.topology


def _rows(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[dict[str, Any]]:
    """A row per link; without a run its numbers are null."""
    if loads:
        return [load.to_json() for load in loads]
    nothing = dict.fromkeys(("packets", "bytes", "share", "utilisation"))
    return [{"a": ":".join(link.a), "b": ":".join(link.b), **nothing} for link in fabric.links]
