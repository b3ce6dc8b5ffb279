"""The verbs that draw: graph (a lab or a fabric, with link loads), plot (the queues of a run, or runs side by side)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.extras import PLOT
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.runs.series import Recorded
    from heddle.views.linkloads import LinkLoad, Usage
    from heddle.views.queuepicture import Panel

WHATS: Final = ("queues", "run")


def _is_picture(typed: Mapping[str, Any]) -> bool:
    from heddle.views.graph import kind_of
    from heddle.views.style import PICTURES

    return kind_of(typed["kind"], typed["out_"]) in PICTURES


@verb(
    group="Lab",
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
    from heddle.views.linkloads import usage_of

    running = open_lab(lab)
    return running.fabric, usage_of(running, run), running.topology


def _rows(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[dict[str, Any]]:
    """A row per link; without a run its numbers are null."""
    if loads:
        return [load.to_json() for load in loads]
    nothing = dict.fromkeys(("packets", "bytes", "share", "utilisation"))
    return [{"a": ":".join(link.a), "b": ":".join(link.b), **nothing} for link in fabric.links]


@verb(
    group="Queues",
    help=words.PLOT,
    positional=["what", "runs"],
    extras=[PLOT],
    root=lambda typed: typed["what"] != "run",
    files_out=["out_"],
    endings_here=[".svg", ".png", ".pdf"],
)
def plot(
    out: Console,
    what: str = "queues",
    runs: Sequence[str] = (),
    port: Sequence[str] = (),
    class_: Sequence[str] = (),
    out_: str | None = None,
    run: str | None = None,
    lab: str | None = None,
) -> None:
    """Draw the fullest queues of a run over time; or runs: bandwidth, uplinks, iterations.

    ./inv plot queues draws depth, thresholds, marks, pauses, controlled rates and faults. For smaller time steps,
    record the run with ./inv run --bucket 1ms. ./inv plot run 3 5 draws run 0003 beside run 0005; the lab need not be
    up.
    """
    from heddle.lab.opening import open_lab
    from heddle.runs.store import History
    from heddle.views import graph
    from heddle.views.queuepicture import draw
    from heddle.views.style import picture_kind

    if what not in WHATS:
        raise InputError(Problem("", f"plot {what}", "cannot be drawn", did_you_mean(what, WHATS)))
    if what == "run":
        if port or class_:
            flag = "--port" if port else "--class"
            raise InputError(Problem("", flag, "chooses queues, and plot run has none to choose", "use plot queues"))
        _plot_runs(out, [*runs, *([run] if run else [])], lab, out_)
        return
    if runs:
        raise InputError(
            Problem("", f"plot queues {runs[0]}", "names a run in the place of --run", f"use --run {runs[0]}")
        )
    kind = picture_kind("--out", out_) if out_ is not None else "svg"
    where = open_lab(lab)
    found = History.of(where).open(run)
    recorded = found.needed(found.recorded)
    shown = _panels(found.id, recorded, port, class_)
    path = out_ or f"{where.name}-queues.{kind}"
    times = found.record.times
    graph.write_file(real(path), draw(kind, recorded, shown, found.rates.value, times), path)
    series = recorded.series
    data = {
        "plot": path, "kind": kind, "lab": where.name, "run_id": found.id, "run": recorded.what,
        "bucket_ms": series.bucket_s * 1e3,
        "seconds": float(series.ends_s[-1]) if len(series.ends_s) else 0.0,
        "panels": [each.to_json() for each in shown],
        "emulated": {"k": recorded.k},
    }  # fmt: skip
    ports = ", ".join(dict.fromkeys(each.label.port for each in shown))
    what = f"run {found.id}, {recorded.what}"
    out.result(data, f"wrote {path}: {what}; {ports}; {series.bucket_s * 1e3:.2g} ms per bucket")


def _plot_runs(out: Console, words: Sequence[str], lab: str | None, file: str | None) -> None:
    from heddle.runs.store import open_runs
    from heddle.views import graph
    from heddle.views.runpicture import MOST_RUNS, draw
    from heddle.views.style import picture_kind

    kind = picture_kind("--out", file) if file is not None else "svg"
    found = open_runs(words, lab)
    if len(found) > MOST_RUNS:
        why = f"are more than the {MOST_RUNS} that one picture can show"
        raise InputError(Problem("", f"{len(found)} runs", why, "name fewer; ./inv report takes any number"))
    path = file or f"{'-'.join(each.name for each in found)}.{kind}"
    graph.write_file(real(path), draw(kind, found), path)
    rows = [{"run_id": each.id, "lab": each.lab, "path": str(each.path)} for each in found]
    names = ", ".join(each.what for each in found)
    out.result({"plot": path, "kind": kind, "runs": rows}, f"wrote {path}: {names}")


def _panels(run: str, recorded: Recorded, port: Sequence[str], class_: Sequence[str]) -> list[Panel]:
    """The panels to draw; InputError when no matching queue ever held a packet."""
    from heddle.cli.queues_verb import matching
    from heddle.views.queuepicture import panels

    has = matching(port, class_)
    shown = panels(recorded, (lambda label: has(label.port, label.traffic_class)) if has else None)
    if shown:
        return shown
    held = list(dict.fromkeys(label.name for label in recorded.labels))
    hint = "queues with packets: " + ", ".join(held[:8]) + (", ..." if len(held) > 8 else "") if held else "send more"
    what = " ".join([*(f"--port {each}" for each in port), *(f"--class {each}" for each in class_)])
    if not what:
        raise InputError(Problem("", f"run {run}", "has no queue that ever held a packet", hint))
    raise InputError(Problem("", what, "matches no queue that ever held a packet", hint))
