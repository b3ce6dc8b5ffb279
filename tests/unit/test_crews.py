"""The jobs of a run: when each begins, how often it repeats, and when all of them stop. Workers are played by lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, MachineError
from heddle.endpoints import crew
from heddle.endpoints.transports import find_transport
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import plan_workload
from heddle.runs.runtable import SizeRow
from heddle.traffic.flow import SEAT_QPNS, qpns_of
from heddle.traffic.options import RunOptions
from heddle.traffic.workload import BACKGROUND, Job, Workload
from tests import lineworker

TINY: Final = load_fabric("tiny").fabric
OPTIONS: Final = RunOptions(sizes=(64, 128), warmup=0, iters=1)
FIRST: Final = Job("first", OPTIONS, slots=(0, 1))


@pytest.fixture(autouse=True)
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_WORKER", lineworker.__name__)
    monkeypatch.setenv("LINEWORKER_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LINEWORKER_CHECK_S", "0.02")


def ran(*jobs: Job) -> tuple[dict[str, crew.Crew], list[tuple[str, int]], int]:
    """The crews by job; each checked size by job and number, in order; how often all NICs were asked to stop."""
    planned, _ = plan_workload(TINY, Workload(jobs, "some"))
    heard: list[tuple[str, int]] = []
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        assert all(each.ended_ns for each in running.crews)

    with crew.crews_of([(each.job, each.plan, each.transport) for each in planned], {}, [1] * len(jobs)) as running:
        running.run(Silent(), stop, lambda each, number, _: heard.append((each.job.name, number)))
    return {each.job.name: each for each in running.crews}, heard, stops


def test_a_job_begins_at_its_time_or_after_another_one_and_all_stop_together() -> None:
    second = Job("second", OPTIONS, slots=(2, 3), after="first", start_s=0.3, repeat=2)
    crews, heard, stops = ran(second, replace(FIRST, start_s=0.2))
    began = min(each.began_ns for each in crews.values())
    assert crews["first"].began_ns == began
    assert crews["second"].began_ns >= crews["first"].ended_ns + 300_000_000
    assert heard == [*(("first", number) for number in (0, 1)), *(("second", number) for number in (0, 1, 0, 1))]
    assert stops == 1
    assert [phase.size for phase in crews["second"].phases] == [64, 128, 64, 128]


def test_a_job_in_the_background_ends_with_the_last_of_the_others() -> None:
    background = Job("noise", OPTIONS, slots=(2, 3), repeat=BACKGROUND)
    crews, heard, _ = ran(background, replace(FIRST, repeat=3))
    assert sum(name == "first" for name, _ in heard) == 6
    assert heard[-1][0] == "noise" and sum(name == "noise" for name, _ in heard) > 2
    assert crews["noise"].ended_ns > crews["first"].ended_ns


def test_ranks_of_one_nic_have_qp_numbers_of_their_own_and_sockets_that_see_no_others() -> None:
    jobs = (Job("a", OPTIONS, slots=(0, 1)), Job("b", OPTIONS, slots=(1, 2)))
    (a, b), _ = plan_workload(TINY, Workload(jobs, "some", share_nics=True))
    assert [(end.nic, end.seat, end.shared) for end in (*a.plan.endpoints, *b.plan.endpoints)] == [
        ("host1:eth1", 0, False), ("host2:eth1", 0, True), ("host2:eth1", 1, True), ("host3:eth1", 0, False),
    ]  # fmt: skip
    near, far = qpns_of(a.plan.endpoints[1]), qpns_of(b.plan.endpoints[0])
    assert near is not None and far is not None and near.stop == far.start and len(near) == SEAT_QPNS
    for each, own in ((a, near), (b, far)):
        flows = [flow for flow in each.plan.flows() if flow.dst == "host2"]
        assert flows and all(flow.qpn in own for flow in flows)
    assert qpns_of(a.plan.endpoints[0]) is None


def test_a_repetition_becomes_part_of_the_row_of_its_size() -> None:
    first = SizeRow(64, 10.0, 6.4, 12.8, 0, (10.0,))
    both = first.again(SizeRow(64, 20.0, 3.2, 6.4, 1, (20.0, 20.0)))
    assert both.time_us == pytest.approx(50 / 3) and both.algbw == pytest.approx(64 / (50 / 3))
    assert both.busbw == pytest.approx(2 * both.algbw)
    assert (both.wrong, both.iteration_us) == (1, (10.0, 20.0, 20.0))


def test_the_job_in_which_a_worker_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_WORKER", "heddle.no_such_module")
    planned, _ = plan_workload(TINY, Workload((FIRST,), "some"))
    triples = [(each.job, each.plan, find_transport("rc").of(each.plan)) for each in planned]
    with crew.crews_of(triples, {}, [1]) as running, pytest.raises(MachineError, match="job first  the worker of rank"):
        running.run(Silent())
    assert running.failed == "first"


def test_when_a_rank_fails_the_nics_of_the_others_tell_what_they_have_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEWORKER_FAILS", "1")
    planned, _ = plan_workload(TINY, Workload((Job("", OPTIONS),), "some"))
    triples = [(each.job, each.plan, find_transport("rc").of(each.plan)) for each in planned]
    with crew.crews_of(triples, {}, [2]) as running, pytest.raises(CheckError) as failed:
        running.run(Silent())
    assert str(failed.value) == "rank 0: no acknowledgement\nrank 1: frames for another MAC"
