"""The verb `tuner`: measure algorithms, channels and QPs of a collective, and write NCCL's tuner file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from heddle.base.declared import options_of
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli import helptexts
from heddle.cli.console import Console
from heddle.cli.run_verb import files_in, lab_for_run, packages_of
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.base.declared import OptionField
    from heddle.fabric.model import Fabric
    from heddle.runs.tuning import TunerSetting
    from heddle.traffic.options import RunOptions

_VARIED: Final = ("collective", "algorithm", "channels", "qps")
_MOST: Final = 32  # runs
_SIZES: Final = "64K:1M:x4"
_QPS: Final = "1,4"


def options_of_tuner() -> list[OptionField]:
    """Those of `run` that are the same in all runs; several sizes are the default."""
    from heddle.endpoints.runoptions import option_fields

    found = {each.word: each for each in option_fields() if each.word not in _VARIED}
    size = found["size"]
    return [*{**found, "size": replace(size, declared=replace(size.declared, typed=_SIZES))}.values()]


@verb(
    group="Traffic",
    help=helptexts.TUNER,
    options="heddle.cli.tuner_verb:options_of_tuner",
    positional=["collective"],
    packages=packages_of,
    root=True,
    files_in=files_in,
    files_out=["conf", "csv"],
)
def tuner(
    out: Console,
    collective: str = "all-reduce",
    algorithm: Sequence[str] = (),
    channels: Sequence[str] = (),
    qps: Sequence[str] = (),
    lab: str | None = None,
    fabric: str | None = None,
    runtime: str | None = None,
    set_: Sequence[str] = (),
    conf: str = "nccl_tuner.conf",
    csv: str | None = None,
    **options: Any,
) -> None:
    """Measure algorithms, channels and QPs for each size on this fabric, and write a file for NCCL's tuner plugin.

    Each combination is one run, which is kept as the runs of ./inv run are. A choice is written where it is better than
    noise; equal runs of earlier calls count. docs/formats.md describes the file.
    """
    from heddle.runs.compare import equal_runs
    from heddle.runs.run import plan_workload, run_workload
    from heddle.runs.store import History
    from heddle.runs.tuning import Tuning
    from heddle.traffic.workload import Workload
    from heddle.views.graph import check_target, write_file
    from heddle.views.runstext import tuning_text

    wanted = _wanted(collective, algorithm, channels, qps, options)
    files = {"--conf": conf, **({"--csv": csv} if csv else {})}
    for flag, name in files.items():
        check_target(real(name), name, flag)

    def possible(built: Fabric) -> object:
        return [plan_workload(built, Workload.of(each)) for each in wanted.values()]

    results = {}
    with lab_for_run(out, lab, fabric, set_, runtime, check=possible) as where:
        for number, (setting, each) in enumerate(wanted.items(), 1):
            out.say(f"run {number} of {len(wanted)}: {setting.text}")
            results[setting] = run_workload(where, Workload.of(each), out.observer).jobs[0]
            if results[setting].wrong:
                why = "has wrong elements, so its times mean nothing"
                raise InputError(Problem("", f"the run with {setting.text}", why, "run ./inv validate"))
        kept = History.of(where)
        equal = {setting: [*equal_runs(kept.open(each.id)).values()] for setting, each in results.items()}
    found = Tuning.of(results, equal)
    for (flag, name), content in zip(files.items(), (found.conf(), found.csv()), strict=False):
        write_file(real(name), content.encode(), name, flag)
    text = "\n".join([tuning_text(found), *(f"wrote {name}" for name in files.values())])
    out.result({**found.to_json(), "conf": conf, "csv": csv}, text)


def _wanted(
    collective: str, algorithm: Sequence[str], channels: Sequence[str], qps: Sequence[str], options: dict[str, Any]
) -> dict[TunerSetting, RunOptions]:
    """The options of each run. InputError for values that NCCL does not have, and for too many runs."""
    from heddle.endpoints.runoptions import run_options
    from heddle.runs.tuning import ALGORITHMS, ANY, TunerSetting

    if collective not in ALGORITHMS:
        what = f"./inv tuner {collective}"
        raise InputError(Problem("", what, "is not a collective of tuner files", did_you_mean(collective, ALGORITHMS)))
    known = ALGORITHMS[collective]
    by_nccl = {theirs: ours for ours, theirs in known.items()}
    chosen = _words(algorithm) or [*by_nccl]
    if unknown := next((each for each in chosen if each not in by_nccl), None):
        why = f"is not an algorithm that NCCL has for {collective}, and Heddle too"
        raise InputError(Problem("", f"--algorithm {unknown}", why, f"use {', '.join(by_nccl)}"))
    with_channels = [name for name in chosen if _has_channels(collective, by_nccl[name])]
    if channels and not with_channels:
        why = f"are not an option of {collective} by {', '.join(chosen)}"
        raise InputError(Problem("", f"--channels {','.join(channels)}", why, "leave them out"))
    numbers, pairs = _numbers("--channels", channels) or [ANY], _numbers("--qps", qps or [_QPS])
    settings = [
        TunerSetting(name, channel, qp)
        for name in chosen
        for channel, qp in product(numbers if name in with_channels else [ANY], pairs)
    ]
    if len(settings) > _MOST:
        why = f"are {len(settings)} runs, and {_MOST} is the most"
        raise InputError(Problem("", "these algorithms, channels and QPs", why, "name fewer of them"))
    found: dict[TunerSetting, RunOptions] = {}
    for each in settings:
        typed: dict[str, Any] = {"size": _SIZES, **options, "qps": each.qps}
        typed |= {} if each.channels == ANY else {"channels": each.channels}
        found[each] = run_options(**typed, collective=collective, algorithm=by_nccl[each.algorithm])
    return found


def _has_channels(collective: str, algorithm: str) -> bool:
    """Whether an algorithm can use several channels; a tree has its two trees always."""
    from heddle.traffic.collectives import find_pattern

    return any(each.word == "channels" for each in options_of(type(find_pattern(collective, algorithm))))


def _words(typed: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word for each in typed for word in each.split(",") if word))


def _numbers(flag: str, typed: Sequence[str]) -> list[int]:
    words = _words(typed)
    if wrong := next((word for word in words if not word.isdecimal() or int(word) < 1), None):
        raise InputError(Problem("", f"{flag} {wrong}", "is not a whole number of 1 or more", f"write {flag} 1,4"))
    return [int(word) for word in words]
