"""Something happens in the middle of a run: not after so many milliseconds, but once its packets pass the switches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import RunOptions
from tests.machine import patience

_DATA = 3  # the class of data packets
_PACKETS = 100  # so many have passed queues: the run is under way
_WAIT_S = patience(60.0)


def run_and(lab: Lab, options: RunOptions, change: Callable[[], object]) -> RunResult:
    """A run, and a change while it is under way. What the change raises is raised here, after the run."""
    wrong: list[BaseException] = []
    with LabQueues.pinned(lab.fabric) as queues:
        packets = queues.cells["in_packets"]

        def passed() -> int:
            return int(packets[_DATA::8].sum())

        before, end = passed(), time.monotonic() + _WAIT_S

        def make() -> None:
            try:
                while passed() < before + _PACKETS:
                    assert time.monotonic() < end, "no packet of the run has come"
                    time.sleep(0.002)
                change()
            except BaseException as error:  # the test's own thread reports it
                wrong.append(error)

        changing = threading.Thread(target=make)
        changing.start()
        try:
            result = run(lab, options, Silent())
        finally:
            changing.join()
    if wrong:
        raise wrong[0]
    return result
