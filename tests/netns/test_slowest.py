"""What held a live run back, and its files: nccl-tests' JSON names the slow rank, a stored run has its table."""

from __future__ import annotations

import json
from dataclasses import replace

from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.lab.lab import Lab
from heddle.runs.exports import EXPORTS
from heddle.runs.exports.asked import Asked
from heddle.runs.parts.slowest import Slowest
from heddle.runs.run import run_workload
from heddle.runs.store import History
from heddle.traffic.workload import Workload
from tests.netns.collectives import ran


def test_a_slow_host_is_named_with_a_qp_that_ends_there(tiny: Lab) -> None:
    result = ran(tiny, sizes=(1 << 16,), slow=(("host3", 0.1),))
    found = result[Slowest]
    assert [(each.rank, each.nic) for each in found.ranks] == [(2, "host3:eth1")]
    (qp,) = found.qps
    assert qp.to_nic == "host3:eth1"
    assert qp.qpns == tuple(row.sent.flow.qpn for row in result.flows if row.sent.flow.dst == "host3")
    stored = History.of(tiny).open(result.id)
    timeline = stored.needed(stored.timeline)
    assert len(timeline.iterations.rank) == 4 * result.options.iters
    assert len(timeline.messages.src) == 4 * 6 * result.options.iters, "six messages of each rank of the ring"


def test_the_packets_of_an_incast_wait_at_the_port_of_its_receiver(tiny: Lab) -> None:
    found = ran(tiny, collective="incast")[Slowest]
    assert {qp.to_nic for qp in found.qps} == {"host1:eth1"}
    assert tiny.fabric.by_name["host1"].ports[0].peer_ref in {wait.port for wait in found.waits}


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
