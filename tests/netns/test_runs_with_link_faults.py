"""Collectives over links with faults: go-back-N delivers every byte, and each fault shows up where it belongs.

`status`, `validate`, `up --repair` and the reset between two tests know what was set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.checks.validate import validate
from heddle.lab import impairments
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.status import status
from heddle.runs.past import paths_of
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.spec.impairments import LinkFault
from heddle.switch.links import delaylines
from heddle.switch.queues.cells import LINK_FAULT, LabQueues
from heddle.testing.labprocesses import processes_of
from heddle.testing.reset import ResetResult, reset
from heddle.traffic.options import RunOptions

pytestmark = pytest.mark.root

NO_NETEM: Final = delaylines.missing()
needs_netem = pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM)
RING: Final = RunOptions(sizes=(1 << 19,), iters=2, warmup=0)


@pytest.fixture(autouse=True)
def cleared(tiny: Lab) -> Iterator[None]:
    yield
    impairments.clear_faults(tiny)
    assert impairments.read_faults(tiny) == []


def total(result: RunResult, key: str) -> int:
    return sum(flow.counters[key] for flow in result.flows)


def test_every_byte_arrives_and_each_fault_shows_where_it_belongs(tiny: Lab) -> None:
    loss, corrupt, duplicate = "rtsw2:eth3", "rtsw1:eth3", "rtsw2:eth4"  # to three hosts
    impairments.set_fault(tiny, [loss], LinkFault(loss=1 / 32))
    impairments.set_fault(tiny, [corrupt], LinkFault(corrupt=1 / 32))
    impairments.set_fault(tiny, [duplicate], LinkFault(duplicate=1 / 16))
    result = run(tiny, RING, Silent())
    counts = {each.port: each.counts for each in impairments.read_faults(tiny) if each.counts is not None}
    assert result.wrong == 0
    assert total(result, "retransmitted") > 0
    assert counts[duplicate].duplicated > 0
    assert result.icrc_errors == counts[corrupt].corrupted > 0, "the ICRC check of the NIC"
    assert result.queues is not None and result.queues.drops.keys() == {"fault"}
    # The port's own packets, such as IPv6 neighbour discovery, may be lost before and after the run.
    assert 0 < result.queues.drops["fault"] <= counts[loss].lost
    assert paths_of(tiny).agree


@needs_netem
def test_reordered_packets_cause_naks_and_no_wrong_data(tiny: Lab) -> None:
    impairments.set_fault(tiny, ["rtsw2:eth3"], LinkFault(delay_ns=5_000, reorder=1 / 32))
    result = run(tiny, RING, Silent())
    assert result.wrong == 0
    assert total(result, "out_of_order") > 0
    assert total(result, "retransmitted") > 0


@needs_netem
def test_a_path_of_four_delayed_links_delivers_everything_in_order(tiny: Lab) -> None:
    """Each packet passes up to four delay lines: the kernel must not take that for a loop."""
    impairments.set_fault(tiny, ["rtsw*", "ctsw*", "host*"], LinkFault(delay_ns=150, jitter_ns=20))
    result = run(tiny, RunOptions(sizes=(1 << 18,), iters=1, warmup=0), Silent())
    assert result.wrong == 0
    assert (total(result, "out_of_order"), total(result, "retransmitted")) == (0, 0)
    assert paths_of(tiny).agree


def test_status_and_validate_name_a_fault(tiny: Lab) -> None:
    impairments.set_fault(tiny, ["rtsw1:eth1"], LinkFault(loss=1 / 256, duplicate=0.005))
    (row,) = status(tiny.name)
    assert row.converged, "routes do not depend on it"
    assert row.link_faults == ("rtsw1:eth1: 1/256 lost, 1/200 duplicated",)
    (check,) = [each for each in validate(tiny, ["faults"]) if each.name == "faults"]
    assert check.ok
    assert check.notes == ("a fault is set on rtsw1:eth1: 1/256 lost, 1/200 duplicated",)


def test_repair_sets_a_fault_again_that_was_changed_by_hand(tiny: Lab) -> None:
    impairments.set_fault(tiny, ["rtsw1:eth1"], LinkFault(loss=1 / 256))
    with LabQueues.pinned(tiny.fabric) as live:
        live.links["flags"][live.ids["rtsw1", "eth1"]] ^= LINK_FAULT
    (check,) = [each for each in validate(tiny, ["faults"]) if each.name == "faults"]
    assert not check.ok
    assert check.detail == "rtsw1:eth1 has lost the fault that was set on it: ./inv up --repair sets it again"
    done = life.repair_lab(tiny.name).repaired
    assert done is not None and "rtsw1:eth1: link fault set again" in done.done
    assert [each.ok for each in validate(tiny, ["faults"])] == [True, True]


def test_the_reset_between_two_tests_clears_faults(tiny: Lab) -> None:
    impairments.set_fault(tiny, ["rtsw1", "host1:eth1"], LinkFault(loss=1.0))
    assert len(impairments.read_faults(tiny)) == 5
    assert reset(tiny, processes_of(tiny)) == ResetResult()
    assert impairments.read_faults(tiny) == []
