"""The verbs `experiment` and `reproduce`, files of runs and comparisons, one or a folder of them; and `impact`, what a
change of fabric files does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from heddle.base import resources
from heddle.base.extras import KUBERNETES, PLOT
from heddle.base.files import is_file, real
from heddle.base.problems import InputError, Problem
from heddle.base.tables import some_of
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.endings import INTERRUPTED
from heddle.cli.helptexts import KUBERNETES as KUBERNETES_OPTIONS
from heddle.cli.helptexts import target_of
from heddle.cli.verbs import WHERE, verb
from heddle.host import packages

if TYPE_CHECKING:
    from heddle_plugins.experiments.folders import FolderResult
    from heddle_plugins.experiments.loading import Experiment
    from heddle_plugins.experiments.outcome import ExperimentResult
    from heddle_plugins.experiments.running import Pods

_REPEATS: Final = "repeat each live run N times (default: as the file says)"
_EXPERIMENT: Final[Options] = {
    "file": Option(
        "an experiment file, or one of Heddle by its name", "heddle_plugins.experiments.finding:experiments_shipped"
    ),
    "repeats": Option(_REPEATS, value="N"),
    "only": Option("these checks of the file alone, and the runs that they use", value="CHECK"),
    "list": "show what would run, and how long it takes",
    "out": Option("directory for JSON, CSV, pictures and the stored runs", value="DIR"),
    "break": "make the runs that must break each check (`broken_by`); exit 1 where one does not fail",
    "accept_unreliable": "verdicts may rest on runs that the host CPU limited; their rows say UNRELIABLE",
    "on": Option(
        f"{WHERE.help}; or kubernetes: bring each fabric up in a pod of a cluster", (KUBERNETES,), value="PLACE"
    ),
    "parallel": Option(
        "with --on kubernetes: at most N fabrics at the same time (default: one on each node that is free)", value="N"
    ),
    **{key: each for key, each in KUBERNETES_OPTIONS.items() if key != "tunnel_port"},
    "image": replace(KUBERNETES_OPTIONS["image"], help="image of the pods (default: heddle-fabric:latest)"),
}

_REPRODUCE: Final[Options] = {
    "name": Option("a folder of experiments", "heddle_plugins.experiments.folders:folders_shipped"),
    "repeats": Option(_REPEATS, value="N"),
    "only": Option("these experiments alone: names or numbers", value="NAME"),
    "list": "show what would run, how long it takes, and what is left out",
    **{key: _EXPERIMENT[key] for key in ("out", "break", "accept_unreliable")},
}


def _live(typed: Mapping[str, Any]) -> bool:
    """Whether one of the experiments needs a lab here; errors are reported by the verb."""
    if typed.get("list_") or typed.get("on"):
        return False
    try:
        experiments = _loaded(typed["file"]) if "file" in typed else _folder(typed.get("name", "")).experiments
    except InputError:
        return False
    except ImportError:  # before the setup of Heddle's Python packages
        return _live_surely(typed.get("file") or typed.get("name", ""))
    return any(variant.live for each in experiments for variant in each.variants)


def _live_surely(name: str) -> bool:
    """Whether an experiment file has no run that is `offline`; for a Python without YAML."""
    shipped = resources.HERE.content(resources.TRAFFIC) / "experiments"
    places = [shipped / f"{name}.yml", shipped / name, real(name)] if name else []
    place = next((each for each in places if each.exists()), None)
    try:
        files = sorted(place.glob("*.yml")) if place and place.is_dir() else [place] if place else []
        return any("offline" not in each.read_text(errors="replace") for each in files if each.stem != "index")
    except OSError:  # the verb says so
        return False


def _packages(typed: Mapping[str, Any]) -> Sequence[str]:
    return packages.for_runtime("netns") if _live(typed) else ()


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle_plugins.experiments.finding import files_of_experiment

    return [*files_of_experiment(typed["file"]), *filter(None, [typed["pod"]])]


def _extras(typed: Mapping[str, Any]) -> Sequence[str]:
    in_pods = typed.get("on") and typed["file"] and not typed["list_"]
    return [*([PLOT] if typed["out_"] else []), *([KUBERNETES] if in_pods else [])]


def _loaded(file: str) -> list[Experiment]:
    from heddle_plugins.experiments.finding import find_experiment
    from heddle_plugins.experiments.loading import load_experiment

    return [load_experiment(*find_experiment(file))]


def _folder(name: str) -> Any:
    from heddle_plugins.experiments.folders import load_folder

    return load_folder(name)


_measuring: Final = partial(
    verb, group="Traffic", extras=_extras, packages=_packages, root=_live, files_out=["out_"], directory_out=True
)


@_measuring(help=_EXPERIMENT, positional=["file"], files_in=_files)
def experiment(
    out: Console,
    file: str = "",
    repeats: int | None = None,
    only: Sequence[str] = (),
    list_: bool = False,
    out_: str | None = None,
    break_: bool = False,
    accept_unreliable: bool = False,
    on: str | None = None,
    parallel: int | None = None,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    pull_secret: str | None = None,
    pod: str | None = None,
) -> None:
    """Run an experiment: runs, and checks of what they measure. Without words, list the experiments of Heddle.

    A file has fabrics, runs and checks (docs/experiments.md). Each fabric is brought up once and taken down at the end.
    Lists in settings make a grid. Exit 1 when a check fails, or nothing is known about it.
    --on kubernetes brings the fabrics up in pods of a cluster, several at the same time (docs/kubernetes.md).
    """
    from heddle_plugins.experiments.experimenttext import checks_text, list_text, result_text
    from heddle_plugins.experiments.finding import experiments_shipped

    _check(repeats, alone=break_ and (on or out_))
    given = {"context": context, "namespace": namespace, "image": image, "pull_secret": pull_secret, "pod": pod}
    where = _place(on, parallel, target_of(given))
    if not file:
        if needs := [flag for flag, value in (("--only", only), ("--out", out_), ("--break", break_)) if value]:
            hint = "name one: ./inv experiment FILE; ./inv experiment lists those of Heddle"
            raise InputError(Problem("", some_of(needs), "needs an experiment", hint))
        found = [each for name in experiments_shipped() for each in _loaded(name)]
        listed = [{"name": each.name, "title": each.spec.title} for each in found]
        return out.result({"experiments": listed}, list_text(found, repeats, where.pods))
    (wanted,) = _loaded(file)
    wanted = wanted.only(only)
    if list_:
        document = {"experiments": [{"name": wanted.name, "title": wanted.spec.title}]}
        lines = (list_text([wanted], repeats, where.pods), "", checks_text([wanted]))
        return out.result(document, "\n".join(lines))
    if break_:
        return _break(out, [wanted], repeats, accept_unreliable=accept_unreliable)
    where = replace(where, typed=file, only=tuple(only), accept_unreliable=accept_unreliable)
    result = _run(out, wanted, repeats, out_, where)
    written = [] if out_ is None else _write(out_, [result])
    return _finish(out, result, result_text(result), written, interrupted=result.interrupted)


@_measuring(help=_REPRODUCE, positional=["name"])
def reproduce(
    out: Console,
    name: str,
    repeats: int | None = None,
    only: Sequence[str] = (),
    list_: bool = False,
    out_: str | None = None,
    break_: bool = False,
    accept_unreliable: bool = False,
) -> None:
    """Run every experiment of a folder: what a publication reports, and what is measured here.

    NAME is a folder of traffic/experiments/, or the path of one with an index.yml (docs/experiments.md). Exit 1 when a
    check fails. Experiments whose needs this machine does not have are skipped, with the reason.
    """
    from heddle.base.tables import many
    from heddle_plugins.experiments.experimenttext import folder_list_text, folder_text
    from heddle_plugins.experiments.folders import FolderResult

    _check(repeats, alone=break_ and out_)
    folder = _folder(name).only([word for each in only for word in each.split(",") if word])
    if list_:
        listed = [{"name": each.name, "title": each.spec.title} for each in folder.experiments]
        return out.result({"name": folder.name, "experiments": listed}, folder_list_text(folder, repeats))
    if break_:
        return _break(out, folder.experiments, repeats, accept_unreliable=accept_unreliable)
    results: list[ExperimentResult] = []
    for number, each in enumerate(folder.experiments, 1):
        out.say(f"experiment {number} of {len(folder.experiments)}: {each.spec.title}")
        results.append(_run(out, each, repeats, out_, _Place(accept_unreliable=accept_unreliable)))
        if results[-1].interrupted:
            out.say(f"interrupted: {many(len(folder.experiments) - number, 'experiment')} did not run")
            break
    result = FolderResult(folder, tuple(results))
    written = [] if out_ is None else _write(out_, results, result)
    return _finish(out, result, folder_text(result), written, interrupted=any(each.interrupted for each in results))


def _break(out: Console, experiments: Sequence[Experiment], repeats: int | None, *, accept_unreliable: bool) -> None:
    """Make the runs that must break each check, and name those that did not fail."""
    from heddle_plugins.experiments.experimenttext import breaks_text
    from heddle_plugins.experiments.outcome import breaks, unbroken

    results: list[ExperimentResult] = []
    left: dict[str, str] = {}
    for each in experiments:
        found: list[ExperimentResult] = []
        for broken in breaks(each):
            if not any(result.interrupted for result in results):
                found.append(_run(out, broken, repeats, None, _Place(accept_unreliable=accept_unreliable)))
                results.append(found[-1])
        left |= {f"{each.name}: {name}": why for name, why in unbroken(each, found).items()}
    ok = not left and any(each.rows for each in results)  # where nothing ran, nothing is shown
    document = {"ok": ok, "not_broken": left, "experiments": [each.to_json() for each in results]}
    out.result(document, breaks_text(results, left))
    out.exit_code = INTERRUPTED if any(each.interrupted for each in results) else int(not ok)


def _finish(
    out: Console, result: ExperimentResult | FolderResult, text: str, written: list[str], *, interrupted: bool
) -> None:
    out.result({**result.to_json(), "written": written}, "\n".join([text, *(f"wrote {name}" for name in written)]))
    out.exit_code = INTERRUPTED if interrupted else 1 if result.failed else 0


def _check(repeats: int | None, *, alone: str | bool | None) -> None:
    from heddle_plugins.experiments.spec import MOST_REPEATS

    if alone:
        hint = "leave them out; --format json has everything"
        raise InputError(Problem("", "--break", "excludes --on kubernetes and --out", hint))
    if repeats is not None and not 1 <= repeats <= MOST_REPEATS:
        raise InputError(Problem("", f"--repeats {repeats}", f"is outside 1 to {MOST_REPEATS}"))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an experiment runs. pods: None: on this machine. target: flags of the cluster. Others: see Sweep."""

    pods: Pods | None = None
    cluster: str = ""
    target: Mapping[str, str] = field(default_factory=dict)
    typed: str = ""
    only: tuple[str, ...] = ()
    accept_unreliable: bool = False


def _place(on: str | None, parallel: int | None, target: Mapping[str, str]) -> _Place:
    from heddle.runtimes.clusterkind import CLUSTERS
    from heddle_plugins.experiments.running import Pods

    if on is None:
        given = [*(["parallel"] if parallel is not None else []), *target]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            raise InputError(Problem("", flag, "is for --on kubernetes", "write --on kubernetes, too"))
        return _Place()
    if parallel is not None and parallel < 1:
        raise InputError(Problem("", f"--parallel {parallel}", "is not a number of pods", "use --parallel 1 or more"))
    CLUSTERS[on].check(target)
    return _Place(Pods(parallel), on, target)


def _run(
    out: Console, wanted: Experiment, repeats: int | None, directory: str | None, where: _Place
) -> ExperimentResult:
    from heddle.base.userfiles import output_directory
    from heddle_plugins.experiments.running import Running, plan_text

    copies = None
    if directory is not None:
        copies = real(directory) / "runs"
        output_directory(copies, f"--out {directory}")
    pods = where.pods
    out.say(plan_text(wanted, repeats, pods))
    if pods is None:
        return Running(wanted, out.observer, repeats, copies, where.accept_unreliable).run()
    from heddle_plugins.experiments.sweep import Sweep

    sweep = Sweep(
        wanted, out.observer, repeats, copies, where.accept_unreliable,
        cluster=where.cluster, target=where.target, parallel=pods.parallel, typed=where.typed, only=where.only,
    )  # fmt: skip
    return sweep.run()


def _write(directory: str, results: Sequence[ExperimentResult], folder: FolderResult | None = None) -> list[str]:
    """The files of each result: JSON, a table of checks, one of all figures, a picture; and a report of all."""
    import json

    from heddle.views.graph import write_file
    from heddle_plugins.experiments.benchmarkreport import benchmark_report
    from heddle_plugins.experiments.experimentreport import draw, experiments_html

    def write(file: str, content: bytes) -> None:
        name = f"{directory.rstrip('/')}/{file}"
        write_file(real(directory) / file, content, name, "--out")
        written.append(name)

    written: list[str] = []
    for each in results:
        name = each.experiment.name
        write(f"{name}.json", (json.dumps(each.to_json(), indent=1, default=str) + "\n").encode())
        write(f"{name}.csv", each.checks_csv().encode())
        write(f"{name}-runs.csv", each.runs_csv().encode())
        if each.rows:
            write(f"{name}.svg", draw("svg", each))
    write("report.html", experiments_html(results).encode())
    if folder is not None and folder.folder.spec.report is not None:
        write(f"{folder.folder.name}.md", benchmark_report(folder).encode())
    return written


_USUAL: Final = "ring,qps=4"
_IMPACT: Final[Options] = {
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


def _changed_files(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle.endpoints.workloadfile import files_of

    files = [typed[key] for key in ("base", "head") if typed[key] and is_file(real(typed[key]), typed[key])]
    return [*files, *(name for each in typed["workload"] for name in files_of(each))]


@verb(group="Paths", help=_IMPACT, files_in=_changed_files, files_out=["junit"])
def impact(
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
        hint = "./inv impact --base main:topologies/zone.yml --head topologies/zone.yml"
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
