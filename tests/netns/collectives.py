"""Runs of tests: short ones whose data must be right, what their flows counted, and paths that must be proven."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from heddle.base.ethernet import CLASSES
from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.proof.verdict import PathsResult
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import paths_of
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import numbered_ports
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests.machine import children_of, commands, until

FORK: Final = multiprocessing.get_context("fork")
_BUSY_S: Final = 0.003
_DATA: Final = 3  # the class of data packets
_PACKETS: Final = 100  # so many have passed queues: the run is under way


def ran(lab: Lab, **options: Any) -> RunRecord:
    """A run of the smallest size that still says something, by default an all-reduce. options: of RunOptions."""
    result = run(lab, RunOptions(**{"sizes": (1 << 18,), "iters": 2, "warmup": 1, **options}), Silent())
    assert result.wrong == 0
    return result


def proven(lab: Lab, run_id: str | None = None) -> PathsResult:
    """The paths of a run, on which prediction, kernels and counters must agree."""
    paths = paths_of(lab, run_id)
    assert paths.agree, paths_text(paths)
    return paths


def total(result: RunRecord, key: str) -> int:
    """A counter of all flows together; 0 for one that the transport does not have."""
    return sum(flow.counters.get(key, 0) for flow in result.flows)


def late(result: RunRecord) -> int:
    """Packets that came out of order."""
    return total(result, "out_of_order")


def in_order(result: RunRecord) -> RunRecord:
    """The run, which must have kept the order of every QP."""
    assert late(result) == 0, f"{late(result)} packets came out of order"
    return result


def workers(of: int = 0) -> list[int]:
    """The worker processes of a run's process, by default of this one."""
    here = commands()
    return [each for each in children_of(of or os.getpid()) if "heddle.endpoints.worker" in here.get(each, ())]


def run_and(lab: Lab, options: RunOptions, change: Callable[[], object]) -> RunRecord:
    """A run, and a change while it is under way. What the change raises is raised here, after the run."""
    with when_busy(lab, change):
        return run(lab, options, Silent())


@contextmanager
def when_busy(lab: Lab, change: Callable[[], object], at: Sequence[str] = ()) -> Iterator[None]:
    """A change, once some packets of a with block have passed queues; at: of each of these ports.

    What it raises is raised after the block.
    """
    numbers = [number for number, port in numbered_ports(lab.fabric) if port.ref in at]
    wrong: list[BaseException] = []
    with LabQueues.pinned(lab.fabric) as queues:
        seen = queues.cells["in_packets"]

        start = seen[_DATA::CLASSES].copy()

        def passed() -> int:
            since = seen[_DATA::CLASSES] - start
            return int(since[numbers].min() if numbers else since.sum())

        def make() -> None:
            try:
                until(lambda: passed() >= _PACKETS)
                change()
            except BaseException as error:  # the test's own thread reports it
                wrong.append(error)

        changing = threading.Thread(target=make)
        changing.start()
        try:
            yield
        finally:
            changing.join()
    if wrong:
        raise wrong[0]


@contextmanager
def cpu_taken(cpu: int) -> Iterator[None]:
    """Another process takes this CPU for 3 ms of every 6, before ksoftirqd, for the length of a with block.

    Packets in the CPU's backlog wait that long. Where links do not keep order, the other CPU overtakes them.
    """
    process = FORK.Process(target=_take, args=(cpu, os.getpid()), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _take(cpu: int, parent: int) -> None:
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while os.getppid() == parent:
        end = time.monotonic() + _BUSY_S
        while time.monotonic() < end:
            pass
        time.sleep(_BUSY_S)
