"""What verbs do with running labs beyond one call: commands in nodes, a lab for the length of a run, taking down."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.base import state
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.lab import lifecycle as labs
from heddle.lab.opening import open_lab

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab


def run_inside(out: Console, lab: str | None, node: str, cmd: Sequence[str]) -> None:
    """Run a command in a node; the verb leaves with its exit code."""
    where = open_lab(lab)
    where.handle(node)
    if not cmd or not cmd[0]:
        hint = f"./inv exec {node} ip route, or ./inv exec {node} bash"
        raise InputError(Problem("", f"exec {node}", "has no command", hint))
    if cmd[0].startswith("-"):
        hint = f"flags of Heddle stand before the node: ./inv exec {cmd[0]} ... {node} COMMAND"
        raise InputError(Problem("", cmd[0], "is not a command", hint))
    if out.json:
        with tempfile.TemporaryFile() as file:
            with _stdout_to(file.fileno()):
                out.exit_code = where.exec(node, cmd)
            file.seek(0)
            printed = file.read().decode(errors="replace")
        data = {"lab": where.name, "node": node, "command": shlex.join(cmd), "exit_code": out.exit_code}
        return out.result({**data, "stdout": printed})
    out.close()
    out.exit_code = where.exec(node, cmd)
    return None


@contextmanager
def _stdout_to(fd: int) -> Iterator[None]:
    """Let children of this process write to `fd` instead of stdout, which is for one JSON document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def lab_for_run(
    out: Console,
    lab: str | None,
    fabric: str | None,
    overrides: Sequence[str],
    runtime: str | None,
    check: Callable[[Fabric], object],
) -> Iterator[Lab]:
    """The running lab; or, for `--fabric`, one that is brought up now and taken down at the end, however that comes.

    check: raises what is wrong with the run on such a fabric, before anything is brought up for it.
    """
    if fabric is None:
        for flag, given in (("--set", overrides), ("--runtime", runtime)):
            if given:
                hint = (
                    f"a running lab is what it is: ./inv run --fabric FABRIC {flag} ..., or ./inv up FABRIC {flag} ..."
                )
                raise InputError(Problem("", flag, "has no meaning without --fabric", hint))
        yield open_lab(lab)
        return
    if lab is not None:
        hint = "--lab takes a running one, --fabric brings one up for the run"
        raise InputError(Problem("", "--lab and --fabric", "exclude each other", hint))
    from heddle.fabric.fabricfile import load_fabric

    loaded = load_fabric(fabric, overrides=overrides)
    check(loaded.fabric)
    done = labs.up(loaded, runtime=runtime or "netns", observer=out.observer, rollback=True, source=fabric)
    try:
        yield done.lab
    finally:
        if done.created:
            labs.down(done.lab.name, out.observer)


def take_down(out: Console, lab: str | None, *, everything: bool) -> None:
    """Take one lab or all of them down; having none to take down is no error, not knowing which is."""
    known = state.labs()
    if everything and lab is not None:
        raise InputError(Problem("", f"{lab} and --all", "exclude each other", "name one lab, or take all"))
    if lab is None and not everything and len(known) > 1:
        hint = f"one of: {', '.join(known)}; or ./inv down --all"
        raise InputError(Problem("", "down", "needs a LAB, since several run", hint))
    names = known if lab is None else [lab]
    removed = [name for name in names if labs.down(name, out.observer)]
    text = f"{', '.join(removed)}: down, nothing of it is left" if removed else "nothing to take down"
    if lab is not None and not removed:
        text = f"nothing of {lab} is here" + (f"; running: {', '.join(known)}" if known else "")
    out.result({"down": removed}, text)
