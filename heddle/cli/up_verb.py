"""The verb `up`: bring up a fabric or a topology, or repair a running lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heddle.base.problems import InputError, Problem
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle.lab.imported.choose import files_of

    return files_of(typed["fabric"], typed["topology"])


@verb(
    help=words.UP,
    packages=lambda typed: () if typed["explain"] else packages.for_runtime(typed["runtime"]),
    root=lambda typed: not typed["explain"],
    positional=["fabric"],
    files_in=_files,
    lasting=True,
)
def up(
    out: Console,
    fabric: str | None = None,
    name: str | None = None,
    topology: str | None = None,
    runtime: str = "netns",
    set_: Sequence[str] = (),
    dialect: str | None = None,
    mgmt: str = "own",
    explain: bool = False,
    repair: bool = False,
    rollback: bool = False,
    timeout: float | None = None,
) -> None:
    """Bring up a fabric, or your own containerlab topology, and wait until all routes are in all kernels.

    If the lab is already running and has faults, they are reported with exit code 1. --repair repairs them: it sets
    links up that were not taken down on purpose, restarts dead daemons, and installs missing queues and BPF programs.
    ./inv up --repair needs no fabric: it repairs the only running lab, or --name LAB.
    """
    from heddle.host.engine.binary import installed_version
    from heddle.lab import lifecycle as lab
    from heddle.lab.imported.choose import blueprint_of
    from heddle.render.dialects import render_options
    from heddle.views import labtext as views

    if timeout is not None and timeout <= 0:
        hint = "use a positive number of seconds, for example --timeout 60"
        raise InputError(Problem("", f"--timeout {timeout:g}", "leaves no time to converge", hint))
    if repair and explain:
        hint = "./inv status LAB and ./inv validate show the faults"
        raise InputError(Problem("", "--repair and --explain", "exclude each other", hint))
    if repair and fabric is None and topology is None:
        if set_:
            hint = "remove it, or name the fabric"
            raise InputError(Problem("", "--set", "cannot change a lab that is only repaired", hint))
        done = lab.repair_lab(name, out.observer, timeout)
        return out.result(views.up_json(done), views.up_text(done))
    options = render_options(dialect, mgmt, version=installed_version() if runtime == "containerlab" else None)
    made, source = blueprint_of(fabric, topology, runtime, name=name, overrides=set_, dialect=dialect)
    if explain:
        script = lab.script_of(made, runtime, options)
        return out.result({"lab": made.fabric.name, "script": script}, script)
    done = lab.up(
        made, runtime=runtime, options=options, observer=out.observer, rollback=rollback, timeout=timeout,
        source=source, repair=repair,
    )  # fmt: skip
    return out.result(views.up_json(done), views.up_text(done))
