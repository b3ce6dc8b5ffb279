"""The verb `plot`: pictures of a run over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from heddle.base.extras import PLOT
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.runs.series import Recorded
    from heddle.views.queuepicture import Panel

WHATS: Final = ("queues",)


@verb(
    help=words.PLOT,
    positional=["what"],
    extras=[PLOT],
    root=True,
    files_out=["out_"],
    endings_here=[".svg", ".png", ".pdf"],
)
def plot(
    out: Console,
    what: str = "queues",
    port: Sequence[str] = (),
    class_: Sequence[str] = (),
    out_: str | None = None,
    run: str | None = None,
    lab: str | None = None,
) -> None:
    """Draw the fullest queues of a run: depth, thresholds, marks, pauses and controlled rates.

    Example: ./inv plot queues --port 'ctsw*' --class 3 --out spines.png. For smaller time steps,
    record the run with ./inv run --bucket 1ms.
    """
    from heddle.base.files import real
    from heddle.lab.opening import open_lab
    from heddle.runs.store import History
    from heddle.views import graph
    from heddle.views.queuepicture import draw
    from heddle.views.style import picture_kind

    if what not in WHATS:
        raise InputError(Problem("", f"plot {what}", "cannot be drawn", did_you_mean(what, WHATS)))
    kind = picture_kind("--out", out_) if out_ is not None else "svg"
    where = open_lab(lab)
    found = History.of(where).open(run)
    recorded = found.needed(found.recorded)
    shown = _panels(found.id, recorded, port, class_)
    path = out_ or f"{where.name}-queues.{kind}"
    graph.write_file(real(path), draw(kind, recorded, shown, found.rates.value), path)
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
