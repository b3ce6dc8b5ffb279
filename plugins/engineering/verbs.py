"""The verbs of engineering: `te`, central traffic engineering, whose actions te_live.py has; `schedule`, where a job
belongs by the predicted loads of links, offline; `diagnose`, the cause of a slow or failed run; `rails`, a lint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.tables import some_of
from heddle.cli import completion
from heddle.cli import helptexts as words
from heddle.cli.argv import Option, Options, Tool
from heddle.cli.console import Console
from heddle.cli.predict_verb import words_of_flag
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle_plugins.engineering.placement import Candidate, Ranking

_ACTIONS: Final = ("plan", "apply", "watch", "off", "show")  # functions of te_live.py
_TE_HELP: Final[Options] = {
    "action": Option(
        "plan: entries for a traffic matrix; apply: install them; watch: do so repeatedly; off; show",
        _ACTIONS,
    ),
    "run": "the traffic matrix is what this run sent: an ID or number that ./inv runs lists (default: last)",
    "interval": Option(
        "the traffic matrix is what switches count from now on: 2s; with watch: time between two plans (30s)",
        value="TIME",
    ),
    "workload": Option(
        "the traffic matrix is one iteration of a workload: a file, a name of traffic/, or a word, as in predict",
        completion.workloads,
    ),
    "out": Option("write all entries to this file, for hashing exact-match --table", value="FILE"),
    "all": "show all changes or entries, not only 16",
}


def _files_of_te(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the workload."""
    from heddle.endpoints.workloadfile import files_of

    return files_of(typed["workload"])


@verb(
    group="Paths",
    help=_TE_HELP,
    positional=["action"],
    root=True,
    files_in=_files_of_te,
    files_out=["out_"],
    tool=Tool(
        "Show the installed entries of traffic engineering; with a run, a workload or an interval, plan entries.",
        without=("action", "all"),
        runs=("run",),
    ),
)
def te(
    out: Console,
    action: str | None = None,
    run: str | None = None,
    interval: str | None = None,
    workload: str | None = None,
    out_: str | None = None,
    all_: bool = False,
    lab: str | None = None,
) -> None:
    """Choose paths for the flows of a running lab centrally: exact-match entries, with BGP's ECMP as fall-back.

    ./inv te plan shows the entries for the flows of the last run, and the utilization of links. The topology is what
    BGP and the links say now. --interval 2s takes the flows from the switches' counters. --workload takes them
    from a file. apply installs the plan, without loss. watch does so at an interval, and when a link or a route
    changes. off restores the hashing from before. show, the default, prints what is installed. docs/te.md has more.
    """
    action = action or ("plan" if run or interval or workload else "show")
    if action not in _ACTIONS:
        raise InputError(Problem("", f"te {action}", "is not an action of te", did_you_mean(action, _ACTIONS)))
    from heddle_plugins.engineering import te_live

    act: Callable[[Console, te_live.TeWords], None] = getattr(te_live, action)
    act(out, te_live.TeWords(lab, run, interval, workload, out_, all_))


_RING: Final = "ring"
_LAB: Final = words.SHARED["lab"].help
_SCHEDULE_HELP: Final[Options] = {
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
    help=_SCHEDULE_HELP,
    positional=["fabric"],
    root=lambda typed: typed["fabric"] is None,
    files_in=_placed_files,
    files_out=["out_"],
    tool=Tool(
        "Rank placements of a ring all-reduce of so many ranks in a running lab. Its links that are down and its "
        "drained switches count. The result has completion, racks, bytes between switches, busiest link.",
        without=("fabric", "workload", "job", "set", "nccl", "export"),
    ),
)
def schedule(
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
    from heddle_plugins.engineering.nccldumps import read_dumps
    from heddle_plugins.engineering.placement import PlacementAsk, rank_placements, render

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
        raise InputError(Problem("", "--set", "needs a fabric", "./inv schedule FABRIC --set PATH=VALUE"))
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
    head = f"# {len(chosen.nics)} ranks placed {chosen.name} by ./inv schedule, fabric {ranking.fabric.name}"
    write_file(real(name), "\n".join([head, *chosen.nics, ""]).encode(), name)
    use = f"./inv run --placement {name} --ranks {len(chosen.nics)}"
    if ranking.job.name:
        use = f"write placement: {name} in job {ranking.job.name}, in the place of its ranks"
    return [f"wrote {name}: {use}"]


@verb(
    group="Results",
    help={"no_probes": "send no packets: judge only what was recorded, and the state of the lab"},
    root=True,
    tool=Tool(
        "Find why a run was slow or failed: a cause with its object, how certain it is, the evidence, and what was "
        "ruled out. Sends probes over all paths of a running lab when counters do not decide.",
        runs=("run",),
    ),
)
def diagnose(out: Console, lab: str | None = None, run: str | None = None, no_probes: bool = False) -> None:
    """Find why a run was slow or failed: a cause, its evidence, and what was ruled out.

    The run is the last one, or --run ID; while a run is measured, or without any, the lab is watched for a second
    instead. It reads counters, states, queues, times and the checks of validate, never the record of faults that were
    set. Where they do not decide, it sends probes over every link. The exit code is 0 with and without a cause.
    """
    from heddle.lab.opening import open_lab
    from heddle.runs.store import History
    from heddle_plugins.engineering.diagnosis.diagnosis import diagnose as judge
    from heddle_plugins.engineering.runsection import diagnosis_text

    where = open_lab(lab)
    history = History.of(where)
    measured = history.writing()
    watched = run is None and (measured or history.last() is None)
    stored = None if watched else history.open(run)
    found = judge(stored, where, None if no_probes or measured else out.observer)
    out.result(found.to_json(), diagnosis_text(found))


def _rail_files(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle_plugins.engineering.railfile import files_of_rails

    return files_of_rails(typed["file"])


@verb(group="Paths", help={"file": "NICs of a job, with NCCL's settings (docs/rails.md)"}, files_in=_rail_files)
def rails(out: Console, file: str) -> None:
    """Find NIC pairs of a job that cannot reach each other, or that cross rails or planes, and the setting for it.

    FILE has a fabric, or the addresses of a real cluster's hosts, and NCCL's variables. Nothing runs, and no root is
    needed. Each cause has its number of pairs, the first two, and the remedy. A sound file prints nothing. Exit 1 with
    a finding.
    """
    from heddle_plugins.engineering.railfile import load_rails
    from heddle_plugins.engineering.rails import findings_of, to_json, to_text

    job = load_rails(file)
    found = findings_of(job)
    if found or out.json:
        out.result(to_json(job, found), to_text(job, found))
    out.exit_code = 1 if found else 0
