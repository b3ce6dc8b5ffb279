"""Closed loops over switches that trim: which ends use trimmed packets, and that the counters of both sides agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.thresholds import changed, set_queues
from heddle.runs.explain import explain
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import plan_workload
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import load
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import RunOptions
from heddle.traffic.workload import Workload
from tests.machine import until
from tests.marks import long
from tests.netns.collectives import proven, ran, total

KEYS = ("routing.control=static", "racks=2", "hosts_per_rack=2", "link.host=25mbit", "link.fabric=25mbit",
        "queues.lossless=[]", "queues.buffer=180KB", "queues.trimming.queue=5")  # fmt: skip


@pytest.fixture(scope="module", params=["ipv4", long("ipv6")])
def lab(request: pytest.FixtureRequest, lab_name: Callable[[], str], runtime: str) -> Iterator[Lab]:
    name = lab_name()
    lifecycle.up(load_fabric("tiny", name=name, overrides=[*KEYS, f"family={request.param}"]), runtime=runtime)
    yield open_lab(name)
    lifecycle.down(name)


def incast(lab: Lab, **options: Any) -> tuple[RunRecord, int]:
    """A run, and the trimmed packets that hosts must have seen."""
    result = ran(lab, collective="incast", sizes=(1 << 20,), iters=1, warmup=0, **options)
    use = result[QueueUse]
    assert use.trims > 20 and result.icrc_errors == 0
    return result, use.trims - use.dropped


@pytest.mark.containers
def test_srd_and_selective_repeat_answer_each_trimmed_packet_and_never_wait_for_a_timer(lab: Lab) -> None:
    own = {"entropy": 8, "entropy_policy": "reps"}
    both: tuple[dict[str, Any], ...] = (
        {"transport": "srd", "congestion": "nscc", "own": own},
        {"transport": "rc", "own": {"recovery": "selective-repeat"}},
    )
    for options in both:
        result, arrived = incast(lab, **options)
        assert total(result, "trimmed") == arrived
        # A copy of a packet that is here already is answered by an ACK.
        assert 0.9 * arrived < total(result, "nacks") <= arrived
        assert total(result, "timeouts") == 0 and total(result, "retransmitted") >= arrived


@pytest.mark.long("10 seconds and more")
def test_go_back_n_drops_trimmed_packets_and_recovers_by_its_own_means(lab: Lab) -> None:
    result, arrived = incast(lab)
    assert total(result, "nacks") == 0 < arrived
    assert total(result, "naks") + total(result, "timeouts") > 0


@pytest.mark.long("10 seconds and more")
def test_what_is_cut_after_a_live_change_is_no_wrong_icrc(lab: Lab) -> None:
    queues = lab.fabric.policy.queues
    file = replace(queues, trimming=replace(queues.trimming, enabled=False))
    incast(replace(lab, fabric=replace(lab.fabric, policy=replace(lab.fabric.policy, queues=file))))


def test_a_queue_whose_link_fails_while_packets_wait_is_empty_afterwards(lab: Lab) -> None:
    """Also without classes that PFC pauses. Else the queue counts as full for ever, and trims every packet."""
    incast(lab, transport="srd", faults=("rtsw1:eth3,down,from=0.3s,to=0.8s",))
    with LabQueues.pinned(lab.fabric) as queues:
        until(lambda: not queues.cells["depth"].any())
    incast(lab, transport="srd")
    proven(lab)


def test_the_ends_of_a_run_follow_what_was_set_while_the_lab_runs(lab: Lab) -> None:
    """The target of nscc and the DSCP of what is sent again, both as of a file with the same keys."""
    options = RunOptions("incast", transport="srd", congestion="nscc")
    for setting in ("trimming.enabled=false", "trimming.actions={0: drop}", "trimming.enabled=true"):
        keys = "trimming.enabled=true", "trimming.actions={}", setting
        set_queues(lab, keys)
        queues = changed(lab.fabric, lab.fabric.policy.queues, keys)
        file = replace(lab.fabric, policy=replace(lab.fabric.policy, queues=queues))
        (live,), _ = plan_workload(lab.fabric, Workload.of(options), lab)
        (same,), _ = plan_workload(file, Workload.of(options))
        assert (live.plan, live.transport) == (same.plan, same.transport)
        assert live.plan.trims == (setting == "trimming.enabled=true")


def test_the_explanation_of_a_queue_pair_says_where_its_packets_were_trimmed(lab: Lab) -> None:
    """Behind the link to the host no counter has the bytes of a flow, so trims there are those of all flows."""
    incast(lab, transport="srd")
    paths, tallies = proven(lab), load(lab).evidence.tallies
    assert "rtsw1:eth3" in paths.trimmed
    for port, count in paths.trimmed.items():
        texts = [explain(lab, str(each.sent.flow.number)).text() for each in paths.flows if each.sent.bytes > 100_000]
        said = [line for text in texts for line in text.splitlines() if f"{port} trimmed {count:,} packets" in line]
        if port == "rtsw1:eth3":
            assert len(said) == 3 and all(each.endswith(" packets of all flows") for each in said)
        else:
            cut = [int(each.rpartition("packets, ")[2].partition(" ")[0].replace(",", "")) for each in said]
            assert sum(cut) == tallies[port][0].trimmed_bytes


@pytest.mark.long
def test_streams_of_the_kernel_are_never_trimmed_and_repeat_what_queues_dropped(lab: Lab) -> None:
    result = ran(lab, collective="incast", sizes=(1 << 20,), iters=1, warmup=0, transport="tcp")
    use = result[QueueUse]
    assert use.trims == 0 < use.dropped and total(result, "retransmitted") > 0
