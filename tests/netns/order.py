"""Whether queue pairs kept their order, by what receivers counted; and a load under which links would lose it."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from heddle.runs.results import RunResult
from tests.netns.collectives import total

FORK: Final = multiprocessing.get_context("fork")
_BUSY_S: Final = 0.003


def late(result: RunResult) -> int:
    """Packets that came out of order."""
    return total(result, "out_of_order")


def in_order(result: RunResult) -> RunResult:
    """The run, which must have kept the order of every QP."""
    assert late(result) == 0, f"{late(result)} packets came out of order"
    return result


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
