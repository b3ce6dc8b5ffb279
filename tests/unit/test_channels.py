"""Several channels: their orders, their labels, and what is not possible."""

from __future__ import annotations

from typing import NoReturn

import pytest

from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.collectives import find_pattern
from heddle.traffic.collectives.hosts import orders
from heddle.traffic.plan import build_plan
from tests.answers import Answers


def test_channels_enter_and_leave_hosts_by_different_nics_and_take_other_paths() -> None:
    four = [rank // 4 for rank in range(16)]
    between = []
    for order in orders(tuple(four), 16, 6):
        assert sorted(order) == [*range(16)]
        ring = [*zip(order, [*order[1:], order[0]], strict=True)]
        between.append({(src, dst) for src, dst in ring if four[src] != four[dst]})
        assert len(between[-1]) == 4, "a ring is in every host once"
    assert [{(src % 4, dst % 4) for src, dst in each} for each in between[:4]] == [
        {(3, 0)},
        {(0, 1)},
        {(1, 2)},
        {(2, 3)},
    ]
    assert between[4] == {(dst + 3, src - 3) for src, dst in between[0]}, (
        "the next stride turns the ring of hosts round"
    )
    single = orders(tuple(range(8)), 8, 5)
    assert [line[1] for line in single] == [1, 3, 5, 7, 1]
    assert orders((0, 1, 0, 1), 4, 1) == ((0, 1, 2, 3),) and orders((0, 1, 0, 1), 4, 2)[0] == (0, 2, 1, 3)
    plan = build_plan(load_fabric("rail").fabric, run_options(channels=4, nvlink_rate=3600, size="1M"))
    ports = {plan.endpoints[qp.flow.src_rank].nic for qp in plan.qps}
    assert len(ports) == len(plan.endpoints) and len(plan.qps) == 4 * 4, "each NIC has a ring of its own between hosts"
    assert len(build_plan(load_fabric("rail").fabric, run_options(split="DIV 5", ranks=10)).communicators) == 2
    for collective in ("all-reduce", "all-gather", "reduce-scatter"):
        one, many = find_pattern(collective, channels=1), find_pattern(collective, channels=4)
        assert one.volume(8, 8 * 64) == many.volume(8, 8 * 64)


def test_labels_of_channels_need_no_operations_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise AssertionError("a program of each of 1,024 ranks takes minutes")

    for collective in ("all-reduce", "all-gather", "reduce-scatter"):
        pattern = find_pattern(collective, channels=8)
        monkeypatch.setattr(type(pattern), "program", refused)
        assert len(pattern.pair_labels(1024, 1 << 20, pattern.peers(1024))) == pattern.connections(1024)


def test_channels_that_are_not_possible_are_refused(answers: Answers) -> None:
    tiny = load_fabric("tiny").fabric
    answers(lambda typed: build_plan(tiny, run_options(**typed)))
    assert "use --channels 16 or fewer" in find_pattern("all-reduce", channels=17).unfit(2048)
