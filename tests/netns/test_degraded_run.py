"""A run over a lab that is not as its file says, or that changes meanwhile, says so in text and JSON."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.base import process
from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.faults import link_down
from heddle.lab.lab import Lab
from heddle.lab.status import status
from heddle.runs.history import History
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from tests.machine import patience
from tests.netns.during import run_and

pytestmark = pytest.mark.root

SHORT = RunOptions(sizes=(1 << 16,), iters=1, warmup=0)
LONG = RunOptions(sizes=(4 << 20,), iters=4, warmup=0)  # two seconds at line rate


@pytest.fixture
def lab(name: str) -> Iterator[Lab]:
    try:
        yield life.up(load_fabric("tiny", name=name)).lab
    finally:
        life.down(name)


def labelled(lab: Lab, result: RunResult) -> dict[str, Any]:
    """The result's `fabric_state`; it is also in the table, in the warnings and in the record."""
    data = result.to_json()
    state: dict[str, Any] = data["fabric_state"]
    assert (state["state"] == "converged") == (data["warnings"] == []) == ("#fabric" not in result.table())
    _, record = History.of(lab).open("last")
    assert record.outcome is not None and record.outcome.fabric_state == result.fabric_state
    return state


def test_a_converged_fabric_has_no_label(lab: Lab) -> None:
    state = labelled(lab, run(lab, SHORT, Silent()))
    assert state["state"] == "converged"
    assert state["before"]["converged"] and state["after"]["converged"]


def test_a_link_that_is_down_labels_the_run(lab: Lab) -> None:
    with link_down(lab, "rtsw1:eth1"):
        (row,) = status(lab.name)
        assert not row.converged
        result = run(lab, SHORT, Silent())
    state = labelled(lab, result)
    assert state["state"] == "degraded"
    assert state["before"]["faults"] == list(row.faults)
    assert "rtsw1:eth1" in result.warnings[0]
    assert labelled(lab, run(lab, SHORT, Silent()))["state"] == "converged", "the label goes with the fault"


@pytest.mark.deep
def test_a_bgpd_that_is_dead_labels_the_run(lab: Lab) -> None:
    os.kill(int(lab.output("ctsw1", ["cat", "/run/frr/bgpd.pid"])), signal.SIGKILL)
    deadline = time.monotonic() + patience(60)
    while status(lab.name)[0].converged and time.monotonic() < deadline:
        time.sleep(0.1)
    result = run(lab, SHORT, Silent())
    assert labelled(lab, result)["state"] == "degraded"
    assert "ctsw1  bgpd does not answer" in result.warnings[0]
    assert "#fabric   : degraded before this run (ctsw1  bgpd does not answer)" in result.table()


@pytest.mark.deep
def test_a_link_that_goes_down_during_the_run_labels_it(lab: Lab) -> None:
    # By hand: a fault of Heddle's waits for the lock that the run holds.
    down = ["nsenter", f"--net={lab.handle('rtsw1').netns}", "ip", "link", "set", "eth1", "down"]
    result = run_and(lab, LONG, lambda: process.run(down))
    state = labelled(lab, result)
    assert state["before"]["converged"] and not state["after"]["converged"]
    assert state["changed"]
    assert result.warnings[0].startswith("the fabric changed during the run, and is degraded now: rtsw1:eth1")
