"""The verb `simulate`: hours of a cluster, offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from heddle.base.extras import PLOT
from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle_plugins.time.cluster import ClusterResult

_HELP: Final[Options] = {
    "file": Option("a cluster file, or one of Heddle by its name", "heddle_plugins.time.clusterfile:clusters_shipped"),
    "seed": Option("of all that is drawn, instead of the file's", value="N"),
    "csv": Option("write a line for each job", value="FILE"),
    "svg": Option("draw jobs over racks and time: .svg, .png or .pdf", value="FILE"),
    "perfetto": Option("write a trace of jobs and failures for ui.perfetto.dev", value="FILE"),
}


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle_plugins.time.clusterfile import files_of_cluster

    return files_of_cluster(typed["file"])


def _extras(typed: Mapping[str, Any]) -> Sequence[str]:
    return [PLOT] if typed["svg"] else []


@verb(group="Paths", help=_HELP, extras=_extras, files_in=_files, files_out=["csv", "svg", "perfetto"])
def simulate(
    out: Console, file: str, seed: int | None = None, csv: str | None = None, svg: str | None = None,
    perfetto: str | None = None,
) -> None:  # fmt: skip
    """Simulate hours of a cluster: jobs arrive, get NICs, share links, meet failures, and end.

    FILE states a fabric, how jobs are placed, jobs (a list, random ones, a trace) and failures (docs/forecast.md).
    Nothing runs, and no root is needed. Times are of hardware. Ctrl-C ends it, and nothing is written then.
    """
    from heddle.views.graph import check_target, write_file
    from heddle.views.style import picture_kind
    from heddle_plugins.time import clustertext
    from heddle_plugins.time.cluster import ClusterSimulation
    from heddle_plugins.time.clusterfile import files_of_cluster, find_cluster, load_cluster

    if seed is not None and seed < 0:
        raise InputError(Problem("", f"--seed {seed}", "is below 0", "use --seed 0 or more"))
    targets = {"--csv": csv, "--svg": svg, "--perfetto": perfetto}
    taken = {real(each).resolve(): each for each in files_of_cluster(file)}
    for flag, name in targets.items():
        if name is not None:
            check_target(real(name), name, flag)
            if (before := taken.setdefault(real(name).resolve(), flag)) is not flag:
                raise InputError(Problem("", f"{flag} {name}", f"is the file of {before}, too", "use another name"))
    kind = picture_kind("--svg", svg) if svg is not None else None
    result = ClusterSimulation(load_cluster(*find_cluster(file), seed), out.observer).run()
    makers: dict[str, Callable[[ClusterResult], bytes]] = {
        "--csv": clustertext.to_csv, "--perfetto": clustertext.to_perfetto,
    }  # fmt: skip
    if kind is not None:
        from heddle_plugins.time.clusterpicture import draw

        makers["--svg"] = partial(draw, kind)
    written = []
    for flag, name in targets.items():
        if name is not None:
            write_file(real(name), makers[flag](result), name, flag)
            written.append(name)
    text = "\n".join([clustertext.render(result), *(f"wrote {name}" for name in written)])
    out.result({**clustertext.to_json(result), "written": written} if out.json else {}, text)
