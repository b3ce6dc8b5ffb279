"""What SSH adds to a verb: `up tiny` on a lab server, against the same verb here, when nothing has changed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from tests.sshd import SshServer, copy_of_project, ssh_server

from . import Figure, at_most

_LAB: Final = "benchplace"
_TIMES: Final = 3


def figures(observer: Observer) -> Iterator[Figure]:
    """The best of some runs each, in turn, by a server on loopback: distance comes on top, some round trips of it."""
    here, there, nothing = float("inf"), float("inf"), float("inf")
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as spot:
        project = copy_of_project(Path(spot, "project"))
        with ssh_server(Path(spot), project=project) as server:
            _took(server, "render", "tiny")  # the project is there now
            for _ in range(_TIMES):
                for place in ("here", server.place):
                    try:
                        seconds = _took(server, "up", "tiny", "--name", _LAB, place=place)
                    finally:
                        server.inv("down", _LAB, place=place)
                    if place == "here":
                        here = min(here, seconds)
                    else:
                        there = min(there, seconds)
                nothing = min(nothing, _took(server, "render", "tiny") - _took(server, "render", "tiny", place="here"))
    yield at_most("SSH adds to up tiny, nothing changed", there - here, "s", 2.0)
    yield Figure("up tiny on a lab server", there, "s")
    yield Figure("up tiny here", here, "s")
    yield Figure("SSH adds to render tiny", nothing, "s")


def _took(server: SshServer, *typed: str, place: str | None = None) -> float:
    """Seconds of a verb; MachineError with its last line when it fails."""
    start = time.perf_counter()
    done = server.inv(*typed, place=place)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise MachineError(Problem("", " ".join(typed), f"failed with exit code {done.returncode}: {said}"))
    return time.perf_counter() - start
