"""Copies between ranks of one host: their rate, who shares a process, and what is left for NICs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.endpoints.connections import address_of, announced_by
from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.worker import InsideHost
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.ideal import ideal_seconds
from heddle.offline.loads import traffic_of
from heddle.traffic.collectives import find_pattern
from heddle.traffic.options import describe
from heddle.traffic.plan import Plan, build_plan
from heddle.traffic.workload import Workload
from tests.answers import Answers

RAILS = load_fabric("rail", overrides=("hosts_per_pod=2", "nics_per_host=4")).fabric  # 4 hosts


def planned(**typed: Any) -> Plan:
    return build_plan(RAILS, run_options(**typed))


def test_a_rank_sends_one_message_after_the_other_at_the_rate() -> None:
    now, came = 0.0, []

    def delivered(rank: int, *message: Any) -> None:
        came.append((now, rank, *message[:2], message[2].tolist()))

    ranks: Any = {rank: SimpleNamespace(delivered=lambda *m, rank=rank: delivered(rank, *m)) for rank in range(3)}
    host = InsideHost(8e6, ranks, clock=lambda: now)
    data = np.arange(1000, dtype=np.uint8)
    for to, key in ((1, (4, 0)), (2, (4, 1))):
        host.link(0, to).post(data, address_of(0x10005, 4, 0), 0, announced_by(0x10005, key), 0)
    host.link(2, 1).post(data[:500], address_of(6, 0, 0), 0, announced_by(6, (0, 2)), 0)
    data[0] = 9  # a message is read when it passes, as packets are
    times = []
    while host.due < NEVER:
        now = host.due
        times.append(now)
        host.advance()
    assert times == pytest.approx([500e-6, 1e-3, 2e-3])
    assert [each[1:4] for each in came] == [(1, 6, (0, 2)), (1, 5, (4, 0)), (2, 5, (4, 1))]
    assert all(each[4][0] == 9 for each in came)


@pytest.mark.parametrize(("collective", "algorithm"), [("all-reduce", "hierarchical"), ("all-to-all", "rail-aligned")])
def test_packets_stay_within_rails_and_ranks_of_a_host_in_one_process(collective: str, algorithm: str) -> None:
    plan = planned(collective=collective, algorithm=algorithm, placement="cyclic")
    ends = plan.endpoints
    assert {(ends[qp.flow.src_rank].port == ends[qp.flow.dst_rank].port) for qp in plan.qps} == {True}
    assert plan.inside_bps == 3600e9 / RAILS.policy.k
    assert [{ends[rank].host for rank in each} for each in plan.processes] == [
        {h} for h in ("host1", "host3", "host2", "host4")
    ]
    (traffic,) = traffic_of(RAILS, Workload.of(plan.options))
    assert len(traffic.connections) == len(plan.qps) == 4 * (4 if algorithm == "hierarchical" else 12)


def test_any_collective_can_copy_inside_hosts_and_a_hierarchy_can_use_nics() -> None:
    ring = planned(nvlink_rate=900)
    assert {(qp.flow.src, qp.flow.dst) for qp in ring.qps} == {
        ("host1", "host2"), ("host2", "host3"), ("host3", "host4"), ("host4", "host1"),
    }  # fmt: skip
    assert planned().inside_bps == 0 and len(planned().qps) == 16
    over_nics = planned(algorithm="hierarchical", nvlink_rate=0)
    assert len(over_nics.qps) == 4 * (4 + 12) and len(over_nics.processes) == 16


def test_hosts_that_do_not_fit_are_refused(answers: Answers) -> None:
    answers(lambda typed: planned(**typed).communicators)


def test_the_ideal_iteration_copies_and_sends_at_the_same_time() -> None:
    size, seconds = 1 << 20, {}
    for rate in (3600, 36_000):
        plan = planned(algorithm="hierarchical", nvlink_rate=rate, size=str(size), iters=1, warmup=0, chunk="4K")
        seconds[rate] = ideal_seconds(plan, size) or 0.0
        copies = 2 * 3 / 4 * 8 * size / plan.inside_bps
        wire = 2 * 3 / 4 * 8 * size / 4 / plan.endpoints[0].rate_bps
        assert max(copies, wire) < seconds[rate] < 1.2 * (copies + wire)
    assert seconds[36_000] < seconds[3600]


def test_the_head_of_a_run_names_channels_and_copies() -> None:
    text = ", ".join(describe(run_options(channels=4, nvlink_rate=900)))
    assert "algorithm: ring, channels: 4, inside hosts: 900 Gb/s, QPs: 1" in text
    assert "inside hosts: 3600 Gb/s" in describe(run_options(algorithm="hierarchical"))
    assert not any("inside" in each or "channels" in each for each in describe(run_options()))


def test_planes_without_a_link_between_them_are_one_communicator_of_rails() -> None:
    apart = load_fabric("rail", overrides=("planes=2",)).fabric
    assert len(build_plan(apart, run_options()).communicators) == 2
    assert len(build_plan(apart, run_options(algorithm="hierarchical")).communicators) == 1
    with pytest.raises(InputError, match="there is no path between their planes"):
        build_plan(apart, run_options(algorithm="hierarchical", nvlink_rate=0, split="OR 0xff"))


def test_the_fabric_carries_a_share_of_a_hierarchy_and_all_of_an_aligned_all_to_all() -> None:
    count = 16 * 64
    for collective, algorithm, each in (
        ("all-reduce", "hierarchical", 2 * 3 / 4 / 4),
        ("all-to-all", "rail-aligned", 3 / 4),
    ):
        pattern = find_pattern(collective, algorithm).hosted([f"host{rank // 4}" for rank in range(16)])
        for rank in range(16):
            sent = sum(many for to, many in pattern.sent_by(16, rank, count) if to // 4 != rank // 4)
            assert sent == each * count
