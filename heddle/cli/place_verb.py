"""The verb `place`: where a job belongs, by the predicted load of the links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from heddle.engineering.placement import Candidate, Ranking
    from heddle.fabric.model import Fabric

_RING: Final = "ring"
_LAB: Final = words.SHARED["lab"].help
_HELP: Final[Options] = {
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
        "heddle.engineering.placement:EXPORTS",
        value="FORMAT",
    ),
    "out": Option("write a rank file, for run --placement and predict; or the file of --export", value="FILE"),
    "lab": f"{_LAB}; with its faults",
}


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the fabric, the workload and its matrices."""
    from heddle.endpoints.workloadfile import files_of

    fabric = [typed["fabric"]] if typed["fabric"] is not None else []
    return [*fabric, *files_of(typed["workload"]), *words_of_flag("--nccl", typed["nccl"])]


@verb(
    group="Paths",
    help=_HELP,
    positional=["fabric"],
    root=lambda typed: typed["fabric"] is None,
    files_in=files_in,
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
    from heddle.engineering.nccldumps import read_dumps
    from heddle.engineering.placement import PlacementAsk, rank_placements
    from heddle.views.placementtext import render

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
    from heddle.engineering.placement import EXPORTS
    from heddle.views.graph import write_file

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
    from heddle.lab.opening import open_lab
    from heddle.lab.outages import state_of

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
