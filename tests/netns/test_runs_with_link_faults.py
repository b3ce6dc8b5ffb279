"""Collectives over links with faults: go-back-N delivers every byte, and each fault shows up where it belongs.

`status`, `validate`, `up --repair` and the reset between two tests know what was set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.checks.validate import validate
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.linkfault import LinkFault
from heddle.lab import lifecycle as life
from heddle.lab import linkfaults
from heddle.lab.lab import Lab
from heddle.lab.status import status
from heddle.runs.lookup import paths_of
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.switch.links import delaylines
from heddle.switch.queues.cells import LINK_FAULT, LabQueues
from heddle.testing.labprocesses import processes_of
from heddle.testing.reset import ResetResult, reset
from heddle.traffic.options import RunOptions

pytestmark = pytest.mark.root

NO_NETEM: Final = delaylines.missing()
needs_netem = pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM)
RING: Final = RunOptions(sizes=(1 << 19,), iters=2, warmup=0)


@pytest.fixture(scope="module")
def lab(lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    try:
        yield life.up(load_fabric("tiny", name=name)).lab
    finally:
        life.down(name)


@pytest.fixture(autouse=True)
def cleared(lab: Lab) -> Iterator[None]:
    yield
    linkfaults.clear_faults(lab)
    assert linkfaults.read_faults(lab) == []


def total(result: RunResult, key: str) -> int:
    return sum(flow.counters[key] for flow in result.flows)


def test_a_lossy_link_is_survived_and_each_loss_is_explained(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw2:eth3"], LinkFault(loss=1 / 32))
    result = run(lab, RING, Silent())
    (fault,) = linkfaults.read_faults(lab)
    assert result.wrong == 0
    assert fault.counts is not None and fault.counts.lost > 0
    assert result.queues is not None and result.queues.drops.keys() == {"fault"}
    # The port's own packets, such as IPv6 neighbour discovery, may be lost before and after the run.
    assert 0 < result.queues.drops["fault"] <= fault.counts.lost
    assert total(result, "retransmitted") > 0
    assert paths_of(lab).agree


def test_corrupt_packets_are_counted_by_the_icrc_check_of_the_nic(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw2:eth3"], LinkFault(corrupt=1 / 32))
    result = run(lab, RING, Silent())
    (fault,) = linkfaults.read_faults(lab)
    assert result.wrong == 0
    assert fault.counts is not None and result.icrc_errors == fault.counts.corrupted > 0
    assert total(result, "retransmitted") > 0


def test_duplicates_are_taken_once(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw2:eth3"], LinkFault(duplicate=1 / 16))
    result = run(lab, RING, Silent())
    (fault,) = linkfaults.read_faults(lab)
    assert result.wrong == 0
    assert fault.counts is not None and fault.counts.duplicated > 0


@needs_netem
def test_reordered_packets_cause_naks_and_no_wrong_data(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw2:eth3"], LinkFault(delay_ns=5_000, reorder=1 / 32))
    result = run(lab, RING, Silent())
    assert result.wrong == 0
    assert total(result, "out_of_order") > 0
    assert total(result, "retransmitted") > 0


@needs_netem
def test_a_path_of_four_delayed_links_delivers_everything_in_order(lab: Lab) -> None:
    """Each packet passes up to four delay lines: the kernel must not take that for a loop."""
    linkfaults.set_fault(lab, ["rtsw*", "ctsw*", "host*"], LinkFault(delay_ns=150, jitter_ns=20))
    result = run(lab, RunOptions(sizes=(1 << 18,), iters=1, warmup=0), Silent())
    assert result.wrong == 0
    assert (total(result, "out_of_order"), total(result, "retransmitted")) == (0, 0)
    assert paths_of(lab).agree


def test_status_and_validate_name_a_fault(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw1:eth1"], LinkFault(loss=1 / 256, duplicate=0.005))
    (row,) = status(lab.name)
    assert row.converged, "routes do not depend on it"
    assert row.link_faults == ("rtsw1:eth1: 1/256 lost, 1/200 duplicated",)
    (check,) = [each for each in validate(lab, ["faults"]) if each.name == "faults"]
    assert check.ok
    assert check.notes == ("a fault is set on rtsw1:eth1: 1/256 lost, 1/200 duplicated",)


def test_repair_sets_a_fault_again_that_was_changed_by_hand(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw1:eth1"], LinkFault(loss=1 / 256))
    with LabQueues.pinned(lab.fabric) as live:
        live.links["flags"][live.ids["rtsw1", "eth1"]] ^= LINK_FAULT
    (check,) = [each for each in validate(lab, ["faults"]) if each.name == "faults"]
    assert not check.ok
    assert check.detail == "rtsw1:eth1 has lost the fault that was set on it: ./inv up --repair sets it again"
    done = life.repair_lab(lab.name).repaired
    assert done is not None and "rtsw1:eth1: link fault set again" in done.done
    assert [each.ok for each in validate(lab, ["faults"])] == [True, True]


def test_the_reset_between_two_tests_clears_faults(lab: Lab) -> None:
    linkfaults.set_fault(lab, ["rtsw1", "host1:eth1"], LinkFault(loss=1.0))
    assert len(linkfaults.read_faults(lab)) == 5
    assert reset(lab, processes_of(lab)) == ResetResult()
    assert linkfaults.read_faults(lab) == []


def test_a_port_that_is_not_there_is_named_and_nothing_is_set(lab: Lab) -> None:
    with pytest.raises(InputError, match=r"rtsw1:eth9 is not a port of .*\n.*rtsw1 has eth1, eth2, eth3, eth4"):
        linkfaults.set_fault(lab, ["rtsw1:eth1", "rtsw1:eth9"], LinkFault(loss=1.0))
    assert linkfaults.read_faults(lab) == []


@pytest.mark.skipif(not NO_NETEM, reason="this kernel has sch_netem")
def test_without_netem_a_delay_leaves_no_record(lab: Lab) -> None:
    with pytest.raises(MachineError, match="no sch_netem"):
        linkfaults.set_fault(lab, ["rtsw1:eth1"], LinkFault(delay_ns=1000))
    assert linkfaults.read_faults(lab) == []
