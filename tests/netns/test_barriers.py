"""Sizes of one run: each starts for all ranks together, and what one needs of another is answered while it waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.endpoints import crew
from heddle.endpoints.transports import TRANSPORTS
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests import slowcheck, stopandwait
from tests.marks import deep


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 takes half a second to check each size. Two workers run the ranks, whatever the number of processors."""
    monkeypatch.setattr(crew, "_WORKER", slowcheck.__name__)
    monkeypatch.setattr("heddle.runs.run.worker_count", lambda plan: 2)
    monkeypatch.setitem(TRANSPORTS, stopandwait.NAME, stopandwait.StopAndWait)


@pytest.mark.parametrize("collective", ["all-reduce", deep("all-to-all")])
def test_the_check_of_one_rank_is_in_no_figure_of_another(
    tiny: Lab, collective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the order of events: all ranks end a size before one is checked, and all checks end before the next size."""
    monkeypatch.setenv(slowcheck.LOG, str(tmp_path / "checks"))
    sizes = (1 << 14, 1 << 15, 1 << 16)
    result = run(tiny, RunOptions(collective, sizes=sizes, warmup=0, iters=1), Silent())
    assert result.wrong == 0
    rows = [json.loads(line) for line in (tmp_path / "checks").read_text().splitlines()]
    assert sorted((row["size"], row["rank"]) for row in rows) == [(size, rank) for size in sizes for rank in range(4)]
    last_check = 0.0
    for size in sizes:
        began, ended, checked, done = zip(*(row["times"] for row in rows if row["size"] == size), strict=True)
        assert last_check < min(began) <= max(ended) < min(checked), rows
        last_check = max(done)
    assert paths_of(tiny).agree, paths_text(paths_of(tiny))


def test_lost_packets_are_retransmitted_while_a_worker_waits(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third packet is ignored: a rank that is done has to repeat its last ones."""
    monkeypatch.setattr(stopandwait.StopAndWait, "ignore_every", 3)
    options = RunOptions(
        sizes=(1 << 12, 1 << 15, 1 << 13), warmup=0, iters=1, transport=stopandwait.NAME, timeout=14
    )  # fmt: skip
    result = run(tiny, options, Silent())
    assert [row.wrong for row in result.rows] == [0, 0, 0]
    assert sum(flow.counters["again"] for flow in result.flows) > 0
