"""Sizes of one run: each starts for all ranks together, and what one needs of another is answered while it waits."""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from heddle.endpoints import crew
from heddle.endpoints.transports import TRANSPORTS
from heddle.lab.lab import Lab
from heddle.runs.past import paths_of
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests import slowcheck, stopandwait
from tests.slowcheck import CHECK_S


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 takes half a second to check each size. Two workers run the ranks, whatever the number of processors."""
    monkeypatch.setattr(crew, "_WORKER", slowcheck.__name__)
    monkeypatch.setattr("heddle.runs.run.worker_count", lambda plan: 2)
    monkeypatch.setitem(TRANSPORTS, stopandwait.NAME, stopandwait.StopAndWait)


@pytest.mark.parametrize("collective", ["all-reduce", "all-to-all"])
def test_the_check_of_one_rank_is_in_no_figure_of_another(tiny: Lab, collective: str) -> None:
    options = RunOptions(collective, sizes=(1 << 14, 1 << 15, 1 << 16), warmup=0, iters=1)
    result = run(tiny, options, Silent())
    assert result.wrong == 0
    assert max(row.time_us for row in result.rows) < CHECK_S * 1e6 / 4
    assert max(phase.seconds for phase in result.machine.phases) < CHECK_S
    assert paths_of(tiny).agree, paths_text(paths_of(tiny))


def test_what_others_lack_is_sent_again_while_a_worker_waits(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third packet is ignored: a rank that is done has to repeat its last ones."""
    monkeypatch.setattr(stopandwait.StopAndWait, "ignore_every", 3)
    options = RunOptions(
        sizes=(1 << 12, 1 << 15, 1 << 13), warmup=0, iters=1, transport=stopandwait.NAME, timeout=14
    )  # fmt: skip
    result = run(tiny, options, Silent())
    assert [row.wrong for row in result.rows] == [0, 0, 0]
    assert sum(flow.counters["again"] for flow in result.flows) > 0
