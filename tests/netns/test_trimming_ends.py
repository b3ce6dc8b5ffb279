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
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RunRecord
from tests.marks import long
from tests.netns.collectives import ran, total

KEYS = ("routing.control=static", "racks=2", "hosts_per_rack=2", "link.host=25mbit", "link.fabric=25mbit",
        "queues.lossless=[]", "queues.buffer=180KB", "queues.trimming.queue=5")  # fmt: skip


@pytest.fixture(scope="module", params=["ipv4", long("ipv6")])
def lab(request: pytest.FixtureRequest, lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    lifecycle.up(load_fabric("tiny", name=name, overrides=[*KEYS, f"family={request.param}"]))
    yield open_lab(name)
    lifecycle.down(name)


def incast(lab: Lab, **options: Any) -> tuple[RunRecord, int]:
    """A run, and the trimmed packets that hosts must have seen."""
    result = ran(lab, collective="incast", sizes=(1 << 20,), iters=1, warmup=0, **options)
    use = result[QueueUse]
    assert use.trims > 20 and result.icrc_errors == 0
    return result, use.trims - use.dropped


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
