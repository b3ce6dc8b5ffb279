"""A load under which links would lose the order of packets."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FORK: Final = multiprocessing.get_context("fork")
_BUSY_S: Final = 0.003


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
