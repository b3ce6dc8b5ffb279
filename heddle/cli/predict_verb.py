"""The verb `predict`, offline: loads of the links of any fabric."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from heddle.base.extras import PLOT
from heddle.base.files import real
from heddle.base.plugins import function
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.offline.result import Prediction

MOST_TRIALS: Final = 1000


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, the workload and its matrices."""
    from heddle.endpoints.workloadfile import files_of

    return [typed["fabric"], *files_of(typed["workload"])]


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: a large fabric is a million objects, all in use, and each would be looked at."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@verb(
    group="Paths",
    help=words.PREDICT,
    extras=lambda typed: [PLOT] if typed["heatmap"] else [],
    files_in=files_in,
    files_out=["csv", "heatmap", "flows"],
)
@_uncollected()
def predict(
    out: Console,
    fabric: str,
    workload: str | None = None,
    set_: Sequence[str] = (),
    mode: str | None = None,
    trials: int = 0,
    down: Sequence[str] = (),
    drain: Sequence[str] = (),
    csv: str | None = None,
    heatmap: str | None = None,
    time: bool = False,
    calibrate: str | None = None,
    flows: str | None = None,
    background: str | None = None,
) -> None:
    """Predict the load of every link of a fabric that does not run, and compare the hashing modes.

    Nothing runs and no root is needed. It takes any fabric file and any traffic (docs/prediction.md). Exit 1 when a
    flow has no path. --time forecasts how long iterations and jobs take, and which links bound them
    (docs/forecast.md).
    """
    from heddle.endpoints.workloadfile import load_workload
    from heddle.fabric.fabricfile import load_fabric
    from heddle.offline.forecast import Ask, forecast
    from heddle.predict.selftest import verdict
    from heddle.views.style import picture_kind

    ask = Ask(_mode(mode), _trials(trials), words_of_flag("--down", down), words_of_flag("--drain", drain))
    kind = picture_kind("--heatmap", heatmap) if heatmap is not None else None
    _check_files(csv, heatmap, flows, files_in({"fabric": fabric, "workload": workload}))
    built = load_fabric(fabric, overrides=set_).fabric
    if workload is None:
        hint = "add --workload with a file, or a word: ring, all-to-all, permutation, shift:4, incast:8"
        raise InputError(Problem("", "./inv predict", "needs a workload", hint))
    if time:
        if extra := [f"--{word}" for word, value in (("trials", trials), ("csv", csv), ("heatmap", heatmap)) if value]:
            raise InputError(Problem("", extra[0], "is not for --time", "leave one of them out"))
        work = load_workload(workload).workload
        function("predict-time", "--time")(out, built, work, ask, calibrate, flows, background)
        return
    timed = {"calibrate": calibrate, "flows": flows, "background": background}
    if only := [f"--{word} {value}" for word, value in timed.items() if value is not None]:
        raise InputError(Problem("", only[0], "is for --time", "add --time"))
    result = forecast(built, load_workload(workload).workload, ask, out.observer, verdict())
    written = _write(result, csv, heatmap, kind)
    from heddle.views.forecasttext import render

    text = "\n\n".join([render(result), *(["\n".join(f"wrote {name}" for name in written)] if written else [])])
    out.result({**(result.to_json() if out.json else {}), "csv": csv, "heatmap": heatmap}, text)
    out.exit_code = 1 if result.unreachable else 0


def _check_files(csv: str | None, heatmap: str | None, flows: str | None, read: Sequence[str]) -> None:
    """InputError, before the prediction, for an output file that cannot be written, or that would overwrite an input
    file or another output file.
    """
    from heddle.views.graph import check_target

    taken = {os.path.realpath(real(name)): "is an input file of the prediction" for name in read}
    for flag, name in (("--csv", csv), ("--heatmap", heatmap), ("--flows", flows)):
        if name is None:
            continue
        check_target(real(name), name, flag)
        if why := taken.get(place := os.path.realpath(real(name))):
            raise InputError(Problem("", f"{flag} {name}", why, "use another file name"))
        taken[place] = f"is also the file of {flag}"


def _write(result: Prediction, csv: str | None, heatmap: str | None, kind: Any) -> list[str]:
    from heddle.views.graph import write_file

    if csv is not None:
        write_file(real(csv), result.csv().encode(), csv, flag="--csv")
    if heatmap is not None:
        from heddle.views.heatmap import draw

        write_file(real(heatmap), draw(kind, result), heatmap, flag="--heatmap")
    return [name for name in (csv, heatmap) if name is not None]


def words_of_flag(flag: str, typed: Sequence[str]) -> tuple[str, ...]:
    """The words of a flag that was repeated, or that has several words with commas."""
    from heddle.fabric.model import split_words

    found = split_words(typed)
    if typed and not found:
        hint = f"for example {flag} {words.EXAMPLE_SWITCH}"
        raise InputError(Problem("", f"{flag} {typed[0]}", "names nothing", hint))
    return found


def _mode(typed: str | None) -> str | None:
    from heddle.fabric.hashmodes import PREDICTED

    if typed is not None and typed not in PREDICTED:
        raise InputError(Problem("", f"--mode {typed}", "is not a hashing mode", did_you_mean(typed, PREDICTED)))
    return typed


def _trials(typed: int) -> int:
    if not 0 <= typed <= MOST_TRIALS:
        raise InputError(Problem("", f"--trials {typed}", f"is outside 0 to {MOST_TRIALS}"))
    return typed
