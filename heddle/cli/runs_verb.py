"""The verbs about stored runs: runs (list, remove), export (files, table), report (HTML), compare (two runs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heddle.base.extras import PLOT
from heddle.base.files import is_dir, is_file, real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.units import format_bytes
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.outputs import STORED, Outputs
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison
    from heddle.runs.stored import Stored, StoredRun


@verb(
    group="Results",
    help=words.RUNS,
    positional=["lab"],
    tool=Tool("List the stored runs of all labs, or of one: options, busbw, MMR, paths proven.", without=("remove",)),
)
def runs(out: Console, lab: str | None = None, remove: Sequence[str] = ()) -> None:
    """List the kept runs of a lab: options, bandwidth, wrong elements, and whether all paths were proven.

    paths, plot, graph and hashing --explain take --run ID; without it they read the last run. The newest 50 runs of a
    lab are kept, at most 200 MB; HEDDLE_KEEP_RUNS and HEDDLE_KEEP_BYTES set other limits. `down` removes the runs with
    the lab. docs/runs.md describes the files.
    """
    from heddle.base import state
    from heddle.runs.store import History, limits
    from heddle.views.runstext import runs_json, runs_text

    keep = limits()
    known = state.labs()
    if lab is not None and lab not in known:
        hint = did_you_mean(lab, known) if known else "no lab exists; run ./inv up zone to start one"
        raise InputError(Problem("", f"lab {lab}", "does not exist; runs are removed with their lab", hint))
    names = known if lab is None else [lab]
    removed: list[str] = []
    if remove:
        removed = History.named(_one(names)).remove([word for each in remove for word in each.split(",") if word])
    kept = {name: History.named(name).runs() for name in names}
    out.result(runs_json(kept, keep, removed), runs_text(kept, keep, removed))


def _one(names: Sequence[str]) -> str:
    """The lab of --remove: an ID alone is not enough when there are several labs."""
    if not names:
        raise InputError(
            Problem("", "--remove", "has no run to remove: no lab exists", "run ./inv up zone to start a lab")
        )
    if len(names) > 1:
        hint = f"name one of them: ./inv runs {names[0]} --remove ..."
        raise InputError(Problem("", "--remove", f"needs a LAB, because there are {', '.join(names)}", hint))
    return names[0]


@verb(group="Results", help=words.EXPORT, positional=["run"], files_out=STORED)
def export(
    out: Console,
    run: str | None = None,
    lab: str | None = None,
    json: str | None = None,
    csv: str | None = None,
    inspector: str | None = None,
    perfetto: str | None = None,
    otg: str | None = None,
    min_busbw: float | None = None,
    per_iter_timing: int | None = None,
    per_iter_skip: int | None = None,
) -> None:
    """Write a stored run as files that other tools read, and print its table again.

    Without RUN it is the last one. Exit 1 for wrong elements, and below --min-busbw. docs/formats.md says which tool
    reads which file.
    """
    from heddle.cli.run_verb import LiveTable
    from heddle.runs.store import open_runs

    (found,) = open_runs([run] if run else [], lab)
    files = {"json": json, "csv": csv, "inspector": inspector, "perfetto": perfetto, "otg": otg}
    result = found.result
    outputs = Outputs.of(files, min_busbw, per_iter_timing, per_iter_skip, result.options.iters)
    more, table = outputs.write(found), LiveTable(out, outputs)
    table.head(result)
    for row in result.rows:
        table.row(row)
    table.end(result, more)


@verb(
    group="Results",
    help=words.REPORT,
    positional=["runs"],
    extras=[PLOT],
    files_out=["out_"],
    endings_here=[".html"],
    tool=Tool(
        "Write stored runs as one HTML file for the user: fabric, results, queues, paths, parameters. Without runs, "
        "the last one. `report` of the result is the path of the file.",
        changes=True,
        runs=("runs",),
    ),
)
def report(out: Console, runs: Sequence[str] = (), out_: str | None = None, lab: str | None = None) -> None:
    """Write runs as one HTML file: fabric, results, queues, paths, every parameter, the commands to reproduce them.

    ./inv report writes the last run; ./inv report 3 5 -o both.html writes two. The lab need not be up, and the file
    needs no network. A directory of a run that was copied elsewhere can be named too. docs/runs.md describes it.
    """
    from heddle.runs.store import open_runs

    found = open_runs(runs, lab)
    name = out_ or f"report-{'-'.join(_short_name(run, found) for run in found[:4])}.html"
    size = _write(found, None, name)
    rows = [{"run_id": run.id, "lab": run.record.lab, "path": str(run.path), "missing": _missing(run)} for run in found]
    missing = [f"run {run.id}: {text}" for run in found for text in _missing(run)]
    data = {"report": name, "bytes": size, "runs": rows, "missing": missing}
    lines = [f"wrote {name}: {format_bytes(size)}, {_named(found)}", *(f"missing: {each}" for each in missing)]
    out.result(data, "\n".join(lines))


@verb(
    group="Results",
    help=words.COMPARE,
    extras=lambda typed: [PLOT] if typed["report"] or typed["out_"] else [],
    files_in=lambda typed: [word for word in (typed["a"], typed["b"]) if _is_file(word)],
    files_out=["out_"],
    endings_here=[".html"],
    tool=Tool(
        "Compare two stored runs of one collective, as a=3, b=5 or a=zone:3: settings that differ, ratios B / A, and "
        "whether noise explains each difference.",
        without=("report", "accept-unreliable"),
        runs=("a", "b"),
    ),
)
def compare(
    out: Console, a: str, b: str, report: bool = False, out_: str | None = None, accept_unreliable: bool = False,
    lab: str | None = None,
) -> None:  # fmt: skip
    """Compare two runs: settings that differ, ratios B / A, and which differences noise explains.

    ./inv compare 3 5 compares two runs of a lab, ./inv compare zone:3 tiny:2 runs of two labs. With --report the
    comparison and both runs are written as one HTML file. docs/runs.md says how noise is judged. Exit 1 for wrong
    data and unproven paths: there is no verdict on them. A or B can be a file of nccl-tests, its text or its JSON: then
    the shapes of the curves of busbw are compared (docs/formats.md).
    """
    if _is_file(a) or _is_file(b):
        _compare_shapes(out, a, b, lab, report=report or out_ is not None)
        return
    from heddle.runs.compare import compare as compare_runs
    from heddle.runs.store import open_runs
    from heddle.views.runstext import compare_text

    pair = open_runs([a, b], lab)
    if len(pair) == 1:
        why = f"are both run {pair[0].id} of lab {pair[0].lab}"
        raise InputError(Problem("", f"{a} and {b}", why, "name two runs; ./inv runs lists them"))
    found = compare_runs(*pair, unreliable=accept_unreliable)
    data, text = found.to_json(), compare_text(found)
    if report or out_:
        name = out_ or f"compare-{'-'.join(_short_name(run, pair) for run in pair)}.html"
        size = _write(pair, found, name)
        data |= {"report": name, "bytes": size}
        text += f"\n\nwrote {name}: {format_bytes(size)}, the comparison and {_named(pair)}"
    out.result(data, text)
    out.exit_code = 0 if found.ok else 1


def _is_file(word: str) -> bool:
    """Whether a word names a file, or was meant to. The record of a run names its directory."""
    try:
        path = real(word)
    except InputError:  # an assistant names runs only
        return False
    ending = path.suffix in (".json", ".txt", ".log", ".out")
    return is_file(path, word) or (ending and not is_dir(path, word))


def _compare_shapes(out: Console, a: str, b: str, lab: str | None, *, report: bool) -> None:
    from heddle.runs.curve import BusbwCurve, read_curve, shapes_of
    from heddle.runs.store import open_runs
    from heddle.views.runstext import shapes_text

    if report:
        raise InputError(Problem("", "--report", "is for two runs, and one of these is a file", "leave it out"))
    one, other = (
        read_curve(word) if _is_file(word) else BusbwCurve.of_run(open_runs([word], lab)[0]) for word in (a, b)
    )
    found = shapes_of(one, other)
    out.result(found.to_json(), shapes_text(found))
    out.exit_code = 0 if found.ok else 1


def _write(runs: Sequence[StoredRun], comparison: Comparison | None, name: str) -> int:
    from heddle.views.graph import write_file
    from heddle.views.report.page import report_html

    content = report_html(runs, comparison).encode()
    write_file(real(name), content, name)
    return len(content)


def _short_name(run: StoredRun, among: Sequence[StoredRun]) -> str:
    """The ID; with the lab where there are several."""
    labs = {each.record.lab for each in among}
    return run.name if len(labs) > 1 else run.id


def _named(runs: Sequence[StoredRun]) -> str:
    names = [f"run {run.id} of {run.record.lab}" for run in runs]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _missing(run: StoredRun) -> list[str]:
    """What the run does not carry, each with its reason."""
    parts: dict[str, Stored[Any]] = {
        "drawing": run.fabric, "paths": run.proof, "queues": run.recorded, "versions and machine": run.surroundings,
    }  # fmt: skip
    return [f"{name}: {part.why}" for name, part in parts.items() if part.why]
