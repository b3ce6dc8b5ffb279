"""The verb `check`: what a change of fabric files does, predicted offline, with limits for CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.verbs import verb

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

    files = [typed[key] for key in ("base", "head") if typed[key] and real(typed[key]).is_file()]
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
    from heddle.experiments.changes import LIMITED, ChangeLimit, compare_fabrics
    from heddle.views.experimenttext import changes_text, junit_xml
    from heddle.views.graph import check_target, write_file

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
