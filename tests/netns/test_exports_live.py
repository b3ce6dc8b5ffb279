"""Files of a live run: nccl-tests' JSON names the slow rank, and a stored run has the table that was printed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.lab.lab import Lab
from heddle.runs.exports import EXPORTS
from heddle.runs.exports.asked import Asked
from heddle.runs.run import run_workload
from heddle.runs.store import History
from heddle.traffic.workload import Workload

pytestmark = pytest.mark.root


def test_cycles_with_a_common_start_show_which_rank_is_slow(tiny: Lab) -> None:
    options = run_options(size="256K:512K:x2", iters=1, warmup=0, slow=["host3=40%"])
    wanted = Workload.of(options)
    cycles = replace(wanted, jobs=tuple(replace(job, repeat=3) for job in wanted.jobs))
    (result,) = run_workload(tiny, cycles, Silent()).jobs
    run = History.of(tiny).open(result.id)
    found = json.loads(EXPORTS["json"].written(run, Asked()))
    slow = next(each["rank"] for each in found["config"]["devices"] if each["hostname"] == "host3")
    for row in found["results"]:
        side = "in_place" if row["out_of_place"] is None else "out_of_place"
        figures = row[f"{side}_per_iter"]
        assert len(figures["times_us"]) == 3 and row[side]["nwrong"] == 0
        each = figures["per_process_max_times_us"]
        assert figures["times_us"] == [max(times) for times in zip(*each, strict=True)]
        # The sum over iterations is what analyze_perf_json.py of nccl-tests sorts processes by.
        assert max(range(len(each)), key=lambda rank: sum(each[rank])) == slow
    assert [run.result.row(row) for row in run.result.rows] == [result.row(row) for row in result.rows]
    lines = EXPORTS["inspector"].written(run, Asked()).decode().splitlines()
    assert len(lines) == 2 * 3 * len(result.ranks)
