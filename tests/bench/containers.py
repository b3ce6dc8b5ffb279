"""`zone` in containers against the tuned command line with the same file, and namespaces against that."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heddle.base.events import Observer
from heddle.base.process import run
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.host.engine import binary
from heddle.host.engine.setup import engine_running
from heddle.kernel.fib import Fib, read_fib
from heddle.kernel.namespace import NodeHandle
from heddle.lab import lifecycle as labs
from heddle.lab.convergence import ExpectedRoutes, gaps
from heddle.render.dialects import RenderOptions
from heddle.render.render import render
from heddle.runtimes.registry import get_runtime

from . import Figure, at_most

_LAB = "benchctr"
_LIMIT_S = 120.0


def figures(observer: Observer) -> Iterator[Figure]:
    """The best of two each, in turn."""
    tuned = ours = bare = float("inf")
    with engine_running(observer):
        for _ in range(2):
            tuned = min(tuned, _command_line(observer))
            ours = min(ours, _up("containerlab", observer))
            bare = min(bare, _up("netns", observer))
    yield Figure("containerlab by hand, tuned, zone converged", tuned, "s")
    yield at_most("up zone --runtime containerlab", ours / tuned, "x", 1.2, "containerlab by hand, tuned")
    yield at_most("up zone, runtime netns", bare / tuned, "x", 0.5, "containerlab by hand, tuned")


def _up(runtime: str, observer: Observer) -> float:
    """Seconds from nothing to converged, as `up` does it: rates, queues and programs included."""
    try:
        start = time.monotonic()
        labs.up(load_fabric("zone", name=_LAB), runtime=runtime, observer=observer, rollback=True)
        return time.monotonic() - start
    finally:
        labs.down(_LAB, observer)


def _command_line(observer: Observer) -> float:
    """Seconds from `containerlab deploy`, told to use as many workers as there are nodes, until all next hops are in
    every kernel. The same file; no rates, queues or programs.
    """
    fabric = load_fabric("zone", name=_LAB).fabric
    engine = get_runtime("containerlab")
    options = engine.prepare(fabric, RenderOptions(), observer)
    with _directory() as where:
        topology = render(fabric, where / "topology", options)
        handles = engine.nodes(_LAB, topology)
        start = time.monotonic()
        try:
            _containerlab("deploy", topology, "--max-workers", str(len(fabric.nodes)))
            end = start + _LIMIT_S
            while gaps(fabric, _fibs(fabric, handles), ExpectedRoutes.of(fabric)) and time.monotonic() < end:
                time.sleep(0.05)
            return time.monotonic() - start
        finally:
            _containerlab("destroy", topology, "--cleanup")


def _fibs(fabric: Fabric, handles: Mapping[str, NodeHandle]) -> dict[str, Fib]:
    return {switch.name: read_fib(handles[switch.name], fabric.policy.ip_version) for switch in fabric.switches}


def _containerlab(verb: str, topology: Path, *flags: str) -> None:
    env = ["env", "CLAB_VERSION_CHECK=disable", str(binary.require())]
    run([*env, verb, "-t", str(topology), "--log-level", "error", *flags], timeout=_LIMIT_S)


@contextmanager
def _directory() -> Iterator[Path]:
    where = Path(tempfile.mkdtemp(prefix="heddle-bench-"))
    where.chmod(0o755)
    before = os.umask(0o022)
    try:
        yield where
    finally:
        os.umask(before)
        shutil.rmtree(where, ignore_errors=True)
