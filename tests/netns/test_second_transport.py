"""A transport that Heddle does not have, added by one file and one line: it runs, is proven, and is reported.

And sizes of one run, with a worker that is slow: each starts for all ranks together, and what one needs of another is
answered while it waits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import CheckError, InputError
from heddle.endpoints import crew
from heddle.endpoints.transports import TRANSPORTS
from heddle.lab.lab import Lab
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import paths_of
from tests import slowcheck, stopandwait
from tests.machine import rc_timeout
from tests.netns.collectives import proven, ran, total
from tests.stopandwait import NAME, StopAndWait

FAILED = r"rank \d on host\d:eth1: QP 0x\w+ (to|from) rank \d on host\d:eth1: "
PACKETS = 2 * 3 * (1 << 16) // 4 // 4096  # of a rank in one ring all-reduce of 64 KiB over four ranks


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in the workers that a run starts. Worker, NIC and results are those of Heddle."""
    monkeypatch.setattr(crew, "_WORKER", stopandwait.__name__)
    monkeypatch.setitem(TRANSPORTS.core, NAME, StopAndWait)


def all_reduce(lab: Lab, **options: Any) -> RunRecord:
    return ran(lab, **{"sizes": (1 << 16,), "transport": NAME, "timeout": rc_timeout(14), **options})


def test_it_runs_and_every_path_is_proven(tiny: Lab) -> None:
    result = all_reduce(tiny)
    assert (result.icrc_errors, result.stray) == (0, 0)
    paths = proven(tiny)
    assert {flow.sent.packets for flow in result.flows} == {3 * PACKETS}
    assert all(proof.counted == (3 * PACKETS,) * len(proof.measured) for proof in paths.flows)
    assert all(flow.counters["pauses"] >= 3 * PACKETS - 1 for flow in result.flows), "its rate limiter has a timer"


@pytest.mark.deep
def test_its_columns_are_reported_by_results_that_do_not_know_them(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopAndWait, "ignore_every", 10)
    result = all_reduce(tiny, qps=2, iters=1)
    again, ignored = (sum(flow.counters[key] for flow in result.flows) for key in ("again", "ignored"))
    assert again >= ignored > 0
    table = result.table()
    assert f"#packets  : {again} sent a second time, {ignored} ignored on purpose, 0 with a wrong ICRC" in table
    assert f"transport: {NAME}" in table
    document = json.loads(json.dumps(result.to_json()))
    assert document["transport"]["name"] == NAME
    assert document["transport"]["parameters"]["ignore_every"] == 10
    assert [column["key"] for column in document["transport"]["columns"]] == ["again", "ignored", "pauses"]
    assert list(document["flows"][0])[-8:-1] == ["packets", "bytes", "again", "ignored", "pauses", "ce", "received"]
    proven(tiny)


@pytest.mark.deep
def test_flows_are_those_that_it_reports_and_ports_outside_the_plan_are_named(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopAndWait, "ports", 3)
    result = all_reduce(tiny, iters=1, warmup=0)
    flows = [each.sent for each in result.flows]
    assert [sent.planned for sent in flows] == [True, False, False] * 4
    assert {sum(sent.packets for sent in flows[at : at + 3]) for at in range(0, 12, 3)} == {PACKETS}
    assert all(each.received == each.sent.packets > 0 for each in result.flows)
    paths = proven(tiny)
    assert [proof.sent for proof in paths.flows] == flows and paths.units == "source ports of 4 QPs"
    for first, second, third in zip(flows[::3], flows[1::3], flows[2::3], strict=True):
        ports = ", ".join(str(port) for port in sorted((second.flow.sport, third.flow.sport)))
        count = second.packets + third.packets
        said = f"{first.flow.src} sent {count} packets with source ports {ports}, which the plan does not have"
        assert said in result.warnings and said in paths.notes


@pytest.mark.deep
def test_ports_that_it_does_not_report_are_seen_by_the_receiving_nic(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopAndWait, "ports", 2)
    monkeypatch.setattr(StopAndWait, "silent", True)
    result = all_reduce(tiny, iters=1, warmup=0)
    own, other = result.flows[:2]
    assert (own.sent.packets, other.sent.packets) == (PACKETS, 0) and other.received is not None
    said = f"{other.received} packets with source port {other.sent.flow.sport}, which the plan does not have"
    assert f"{other.sent.flow.dst} received {said}" in result.warnings
    paths = paths_of(tiny)
    assert not paths.agree
    assert paths.flows[0].why == f"{PACKETS} packets were sent, the first hop counted {own.received}"
    assert paths.flows[1].why == f"0 packets were sent, the first hop counted {other.received}"


def test_it_may_refuse_options_before_anything_is_sent(tiny: Lab) -> None:
    with pytest.raises(InputError, match=f"--window 8 is not 1, as {NAME} needs"):
        all_reduce(tiny, window=8)


@pytest.mark.deep
def test_the_reason_of_a_failed_queue_pair_ends_the_run(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopAndWait, "ignore_every", 1)
    with pytest.raises(CheckError, match=rf"{FAILED}no acknowledgement after 200 retries"):
        all_reduce(tiny, timeout=8)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 takes time to check each size, in a worker that knows both transports, one of two."""
    monkeypatch.setattr(crew, "_WORKER", slowcheck.__name__)
    monkeypatch.setattr("heddle.runs.run.worker_count", lambda plan: 2)


@pytest.mark.deep
@pytest.mark.usefixtures("slow")
def test_the_check_of_one_rank_is_in_no_figure_of_another(
    tiny: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the order of events: all ranks end a size before one is checked, and all checks end before the next size."""
    monkeypatch.setenv(slowcheck.LOG, str(tmp_path / "checks"))
    sizes = (1 << 14, 1 << 15, 1 << 16)
    ran(tiny, sizes=sizes, warmup=0, iters=1)
    rows = [json.loads(line) for line in (tmp_path / "checks").read_text().splitlines()]
    assert sorted((row["size"], row["rank"]) for row in rows) == [(size, rank) for size in sizes for rank in range(4)]
    last_check = 0.0
    for size in sizes:
        began, ended, checked, done = zip(*(row["times"] for row in rows if row["size"] == size), strict=True)
        assert last_check < min(began) <= max(ended) < min(checked), rows
        last_check = max(done)
    proven(tiny)


@pytest.mark.deep
@pytest.mark.usefixtures("slow")
def test_lost_packets_are_retransmitted_while_a_worker_waits(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third packet is ignored: a rank that is done has to repeat its last ones."""
    monkeypatch.setattr(StopAndWait, "ignore_every", 3)
    result = ran(tiny, sizes=(1 << 12, 1 << 15, 1 << 13), warmup=0, iters=1, transport=NAME, timeout=14)
    assert total(result, "again") > 0
