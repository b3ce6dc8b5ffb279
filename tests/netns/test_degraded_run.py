"""A run over a lab that is not as its file says, or that changes meanwhile, says so in text and JSON."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from heddle.base import process
from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.checks.validate import validate
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.outages import link_down
from heddle.lab.status import status
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import History, paths_of
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
    record = History.of(lab).open("last").record
    assert record.outcome is not None and record.outcome.fabric_state == result.fabric_state
    return state


@pytest.mark.deep
def test_the_label_of_a_run_is_the_state_of_the_fabric(lab: Lab) -> None:
    """Converged; with a link down; converged again; with a link that goes down during the run; with a dead bgpd."""
    state = labelled(lab, run(lab, SHORT, Silent()))
    assert (state["state"], state["before"]["converged"], state["after"]["converged"]) == ("converged", True, True)
    with link_down(lab, "rtsw1:eth1"):
        (row,) = status(lab.name)
        assert not row.converged
        result = run(lab, SHORT, Silent())
    state = labelled(lab, result)
    assert (state["state"], state["before"]["faults"]) == ("degraded", list(row.faults))
    assert "rtsw1:eth1" in result.warnings[0]
    assert labelled(lab, run(lab, SHORT, Silent()))["state"] == "converged", "the label goes with the fault"

    # By hand: a fault of Heddle's waits for the lock that the run holds.
    link = ["nsenter", f"--net={lab.handle('rtsw1').netns}", "ip", "link", "set", "eth1"]
    result = run_and(lab, LONG, lambda: process.run([*link, "down"]))
    process.run([*link, "up"])
    state = labelled(lab, result)
    assert state["before"]["converged"] and not state["after"]["converged"] and state["changed"]
    assert result.warnings[0].startswith("the fabric changed during the run, and is degraded now: rtsw1:eth1")

    lab.wait()
    os.kill(int(lab.output("ctsw1", ["cat", "/run/frr/bgpd.pid"])), signal.SIGKILL)
    deadline = time.monotonic() + patience(60)
    while status(lab.name)[0].converged and time.monotonic() < deadline:
        time.sleep(0.1)
    result = run(lab, SHORT, Silent())
    assert labelled(lab, result)["state"] == "degraded"
    assert "ctsw1  bgpd does not answer" in result.warnings[0]
    assert "#fabric   : degraded before this run (ctsw1  bgpd does not answer)" in result.table()


def test_a_wrong_route_that_stays_is_found_though_all_paths_agree(lab: Lab) -> None:
    """Prediction, kernel and packets follow it, before the run and after it. Only the fabric does not have it."""
    address = lab.fabric.by_name["host3"].ports[0].address
    assert address is not None
    route = ["nsenter", f"--net={lab.handle('rtsw1').netns}", "ip", "route"]
    stray = f"{address.ip}/32"
    process.run([*route, "add", stray, "via", "169.254.0.1", "dev", "eth2", "onlink"])
    said = f"{stray} over eth2 is not a route of the fabric and overrides 10.0.1.0/24"
    (row,) = status(lab.name)
    assert not row.converged and row.faults == (f"rtsw1  {said}",)
    (check,) = [each for each in validate(lab, ["routes"]) if each.name == "routes"]
    assert not check.ok and check.detail.startswith(f"rtsw1: {said}; run ./inv exec ")
    result = run(lab, replace(SHORT, placement="cyclic"), Silent())
    proof = paths_of(lab)
    assert proof.agree and any("10.0.1.0/24" in note for note in proof.notes), "a path uses it, and is proven"
    state = labelled(lab, result)
    assert (state["state"], state["before"]["faults"]) == ("degraded", [f"rtsw1  {said}"])
    assert f"#fabric   : degraded before this run (rtsw1  {said})" in result.table()
    with pytest.raises(CheckError, match="is not a route of the fabric"):
        life.up(load_fabric("tiny", name=lab.name), repair=True)
    process.run([*route, "del", stray])
    assert status(lab.name)[0].converged
    assert [each.ok for each in validate(lab, ["routes"])] == [True, True]


def test_routes_that_do_not_use_the_fabric_are_no_fault(tiny: Lab) -> None:
    """A management network with a default route, as containers have it."""
    inside = ["nsenter", f"--net={tiny.handle('rtsw1').netns}", "ip"]
    try:
        for words in (
            "link add other0 type veth peer name other1",
            "addr add 192.0.2.2/24 dev other0",
            "link set other0 up",
            "route append default via 192.0.2.1 dev other0 metric 4096",
        ):
            process.run([*inside, *words.split()])
        assert status(tiny.name)[0].converged
        assert [each.ok for each in validate(tiny, ["routes"])] == [True, True]
    finally:
        process.run([*inside, "link", "del", "other0"])
