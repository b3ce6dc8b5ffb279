"""The verbs `predict`, `check` and `place`, offline: loads of the links of any fabric, what a change of its files does,
and where a job belongs by these loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from heddle.base.extras import PLOT
from heddle.base.files import is_file, real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.tables import some_of
from heddle.cli import completion
from heddle.cli import helptexts as words
from heddle.cli.argv import Option, Options, Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.offline.result import Prediction
    from heddle_plugins.engineering.placement import Candidate, Ranking

MOST_TRIALS: Final = 1000


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, the workload and its matrices."""
    from heddle.endpoints.workloadfile import files_of

    return [typed["fabric"], *files_of(typed["workload"])]


@verb(
    group="Paths",
    help=words.PREDICT,
    extras=lambda typed: [PLOT] if typed["heatmap"] else [],
    files_in=files_in,
    files_out=["csv", "heatmap"],
)
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
) -> None:
    """Predict the load of every link of a fabric that does not run, and compare the hashing modes.

    Nothing runs and no root is needed. It takes any fabric file and any traffic (docs/prediction.md). Exit 1 when a
    flow has no path.
    """
    from heddle.endpoints.workloadfile import load_workload
    from heddle.fabric.fabricfile import load_fabric
    from heddle.offline.forecast import Ask, forecast
    from heddle.predict.selftest import verdict
    from heddle.views.style import picture_kind

    ask = Ask(_mode(mode), _trials(trials), words_of_flag("--down", down), words_of_flag("--drain", drain))
    kind = picture_kind("--heatmap", heatmap) if heatmap is not None else None
    _check_files(csv, heatmap, files_in({"fabric": fabric, "workload": workload}))
    built = load_fabric(fabric, overrides=set_).fabric
    if workload is None:
        hint = "add --workload with a file, or a word: ring, all-to-all, permutation, shift:4, incast:8"
        raise InputError(Problem("", "./inv predict", "needs a workload", hint))
    result = forecast(built, load_workload(workload).workload, ask, out.observer, verdict())
    written = _write(result, csv, heatmap, kind)
    from heddle.views.forecasttext import render

    text = "\n\n".join([render(result), *(["\n".join(f"wrote {name}" for name in written)] if written else [])])
    out.result({**(result.to_json() if out.json else {}), "csv": csv, "heatmap": heatmap}, text)
    out.exit_code = 1 if result.unreachable else 0


def _check_files(csv: str | None, heatmap: str | None, read: Sequence[str]) -> None:
    """InputError, before the prediction, for an output file that cannot be written, or that would overwrite an input
    file or the other output file.
    """
    from heddle.views.graph import check_target

    taken = {os.path.realpath(real(name)): "is an input file of the prediction" for name in read}
    for flag, name in (("--csv", csv), ("--heatmap", heatmap)):
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


_USUAL: Final = "ring,qps=4"
_HELP: Final[Options] = {
    "base": Option("before: a preset, a fabric file, a folder of them, or REV:path of git", value="A"),
    "head": Option("after: the same", value="B"),
    "workload": Option(
        f"the traffic, as of predict; can be repeated (default: {_USUAL})",
        "heddle.cli.completion:workloads",
        value="FILE",
    ),
    "max_worst_link": Option("exit 1 if the time of the worst link grows by more: +5%", value="LIMIT"),
    "max_moved": Option("exit 1 if a larger share of paths moves: 10%", value="LIMIT"),
    "max_mmr": Option("exit 1 if the MMR grows by more (+10%), or is above a number (1.3)", value="LIMIT"),
    "max_completion": Option("exit 1 if time / shortest time grows by more (+5%), or is above a number", value="LIMIT"),
    "junit": Option("write JUnit XML with a test case for each fabric and workload", value="FILE"),
}


def _files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle.endpoints.workloadfile import files_of

    files = [typed[key] for key in ("base", "head") if typed[key] and is_file(real(typed[key]), typed[key])]
    return [*files, *(name for each in typed["workload"] for name in files_of(each))]


@verb(group="Paths", help=_HELP, files_in=_files_in, files_out=["junit"])
def check(
    out: Console,
    base: str | None = None,
    head: str | None = None,
    workload: Sequence[str] = (),
    max_worst_link: str | None = None,
    max_moved: str | None = None,
    max_mmr: str | None = None,
    max_completion: str | None = None,
    junit: str | None = None,
) -> None:
    """Predict what a change of fabric files does to a workload: paths moved, worst link, MMR, completion.

    Nothing runs and no root is needed. Folders are compared file by file. Exit 1 beyond a limit, when flows lose their
    path, or when a file is gone; unchanged files are never beyond one (docs/experiments.md). With fewer links upwards,
    the time of the worst link decides for --max-mmr, too.
    """
    from heddle.endpoints.workloadfile import load_workload
    from heddle.views.graph import check_target, write_file
    from heddle_plugins.experiments.changes import LIMITED, ChangeLimit, compare_fabrics
    from heddle_plugins.experiments.experimenttext import changes_text, junit_xml

    if base is None or head is None:
        missing = "--base" if base is None else "--head"
        hint = "./inv check --base main:topologies/zone.yml --head topologies/zone.yml"
        raise InputError(Problem("", missing, "is missing", hint))
    typed = dict(zip(LIMITED, (max_worst_link, max_moved, max_mmr, max_completion), strict=True))
    limits = {name: ChangeLimit.parse(name, text) for name, text in typed.items() if text}
    if junit is not None:
        check_target(real(junit), junit, "--junit")
    workloads = {each: load_workload(each).workload for each in workload or [_USUAL]}
    changes = compare_fabrics(base, head, workloads, limits, out.observer)
    if junit is not None:
        write_file(real(junit), junit_xml(changes).encode(), junit, "--junit")
    wrote = [f"wrote {junit}"] if junit is not None else []
    out.result({**changes.to_json(), "junit": junit}, "\n".join([changes_text(changes), *wrote]))
    out.exit_code = 0 if changes.ok else 1


_RING: Final = "ring"
_LAB: Final = words.SHARED["lab"].help
_PLACE_HELP: Final[Options] = {
    "fabric": Option("preset name or fabric file; without it, a running lab", excludes="lab"),
    "ranks": Option("number of ranks (default: of the job, else all free NICs)", value="N", least=2),
    "workload": Option(
        "the job and the others on the fabric, as predict takes it (default: ring)", completion.workloads
    ),
    "job": Option("the job to place; the others stay where the workload places them", value="NAME"),
    "down": words.PREDICT["down"],
    "drain": words.PREDICT["drain"],
    "seed": Option("of the random orders and of the search", value="N", least=0),
    "choose": Option("list and write this candidate, instead of the best", value="NAME"),
    "nccl": Option("dumps of a job's hosts by NCCL, with commas: its order is the candidate nccl", value="FILE"),
    "export": Option(
        "write the fabric for a scheduler: slurm (topology.conf), slurm-yaml, topograph (labels of nodes)",
        "heddle_plugins.engineering.placement:EXPORTS",
        value="FORMAT",
    ),
    "out": Option("write a rank file, for run --placement and predict; or the file of --export", value="FILE"),
    "lab": f"{_LAB}; with its faults",
}


def _placed_files(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, the workload and its matrices."""
    from heddle.endpoints.workloadfile import files_of

    fabric = [typed["fabric"]] if typed["fabric"] is not None else []
    return [*fabric, *files_of(typed["workload"]), *words_of_flag("--nccl", typed["nccl"])]


@verb(
    group="Paths",
    help=_PLACE_HELP,
    positional=["fabric"],
    root=lambda typed: typed["fabric"] is None,
    files_in=_placed_files,
    files_out=["out_"],
    tool=Tool(
        "Rank placements of a ring all-reduce of so many ranks in a running lab, with its links that are down and its "
        "switches that are drained: completion, racks, bytes between switches, busiest link.",
        without=("fabric", "workload", "job", "set", "nccl", "export"),
    ),
)
def place(
    out: Console,
    fabric: str | None = None,
    ranks: int | None = None,
    workload: str | None = None,
    job: str = "",
    set_: Sequence[str] = (),
    down: Sequence[str] = (),
    drain: Sequence[str] = (),
    seed: int = 0,
    choose: str = "",
    nccl: Sequence[str] = (),
    export: str | None = None,
    out_: str | None = None,
    lab: str | None = None,
) -> None:
    """Find the NICs for a job: packed, spread, interleaved, random, or by a search for the least loaded links.

    Each candidate is predicted as by ./inv predict. It takes any fabric file, or a running lab as it is now. --out
    writes a file for run --placement and predict (docs/placement.md). --export writes the fabric for a scheduler
    instead. Exit 1 when a flow has no path.
    """
    from heddle.endpoints.workloadfile import load_workload
    from heddle_plugins.engineering.placement import PlacementAsk, rank_placements
    from heddle_plugins.engineering.placementtext import render
    from heddle_plugins.readers.nccldumps import read_dumps

    if export is not None:
        _check_export({
            "--ranks": ranks, "--workload": workload, "--job": job, "--down": down, "--drain": drain, "--seed": seed,
            "--choose": choose, "--nccl": nccl,
        })  # fmt: skip
        _export(out, export, _fabric(fabric, lab, set_)[0], out_)
        return
    _check_out(out_)
    for flag, number, least in (("--ranks", ranks, 2), ("--seed", seed, 0)):
        if number is not None and number < least:
            raise InputError(Problem("", f"{flag} {number}", f"is below {least}", f"use {flag} {least} or more"))
    built, dead, drained = _fabric(fabric, lab, set_)
    dumps = words_of_flag("--nccl", nccl)
    dumped = read_dumps(dumps, ranks) if dumps else ()
    ask = PlacementAsk(
        job, ranks, [*words_of_flag("--down", down), *dead], [*words_of_flag("--drain", drain), *drained], seed, dumped
    )  # fmt: skip
    ranking = rank_placements(built, load_workload(workload or _RING).workload, ask, out.observer)
    chosen = ranking.candidate(choose)
    chosen = replace(chosen, name=choose or chosen.name)
    text = [render(ranking, chosen), *_written(ranking, chosen, out_)]
    out.result({**ranking.to_json(), "file": out_}, "\n\n".join(text))
    out.exit_code = 1 if chosen.unreachable else 0


def _check_export(given: Mapping[str, Any]) -> None:
    """InputError for flags of the ranking: the export is of the whole fabric."""
    if words := [flag for flag, value in given.items() if value]:
        verb_ = "has" if len(words) == 1 else "have"
        why = f"{verb_} no effect with --export, which writes the whole fabric"
        raise InputError(Problem("", some_of(words), why, "leave it out, or leave --export out"))


def _export(out: Console, kind: str, fabric: Fabric, name: str | None) -> None:
    """Write the tree of a fabric's switches for a scheduler, to a file or to stdout."""
    from heddle.views.graph import write_file
    from heddle_plugins.engineering.placement import EXPORTS

    if kind not in EXPORTS:
        hint = did_you_mean(kind, EXPORTS)
        raise InputError(Problem("", f"--export {kind}", "is not a format of a scheduler", hint))
    text = "\n".join(EXPORTS[kind](fabric))
    data = {"fabric": fabric.name, "export": kind, "file": name}
    if name is None:
        out.result({**data, "text": text}, text)
        return
    write_file(real(name), f"{text}\n".encode(), name)
    out.result(data, f"wrote {name}: {len(fabric.hosts)} hosts of {fabric.name} for {kind}")


def _fabric(
    fabric: str | None, lab: str | None, settings: Sequence[str]
) -> tuple[Fabric, Sequence[str], Sequence[str]]:
    """The fabric of a file, or of a running lab with its links that are down and its switches that are drained."""
    if fabric is not None:
        from heddle.fabric.fabricfile import load_fabric

        return load_fabric(fabric, overrides=settings).fabric, (), ()
    if settings:
        raise InputError(Problem("", "--set", "needs a fabric", "./inv place FABRIC --set PATH=VALUE"))
    from heddle.lab.linkstate import state_of
    from heddle.lab.opening import open_lab

    running = open_lab(lab)
    if not running.fabric.edges:
        why, hint = "is an imported topology, whose paths are not predicted offline", "name a fabric file"
        raise InputError(Problem("", f"lab {running.name}", why, hint))
    now = state_of(running)
    return running.fabric, now.dead, now.drained


def _check_out(name: str | None) -> None:
    """InputError, before the prediction, for a file that cannot be written, or that --placement would not take."""
    from heddle.traffic.placement import is_rank_file
    from heddle.views.graph import check_target

    if name is not None and not is_rank_file(name):
        why = "would not be a rank file for --placement"
        raise InputError(Problem("", f"--out {name}", why, f"use {name}.txt, or a path with /"))
    if name is not None:
        check_target(real(name), name)


def _written(ranking: Ranking, chosen: Candidate, name: str | None) -> list[str]:
    """Write the rank file; return the lines that say how to use it."""
    from heddle.views.graph import write_file

    if name is None:
        return []
    head = f"# {len(chosen.nics)} ranks placed {chosen.name} by ./inv place, fabric {ranking.fabric.name}"
    write_file(real(name), "\n".join([head, *chosen.nics, ""]).encode(), name)
    use = f"./inv run --placement {name} --ranks {len(chosen.nics)}"
    if ranking.job.name:
        use = f"write placement: {name} in job {ranking.job.name}, in the place of its ranks"
    return [f"wrote {name}: {use}"]
