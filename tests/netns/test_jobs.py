"""Workloads with several jobs on one fabric: who runs when, on which NICs, and what is kept when one of them fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import HeddleError, MachineError
from heddle.endpoints.workloadfile import load_workload
from heddle.lab.lab import Lab
from heddle.runs.run import run_workload
from heddle.runs.store import History, limits
from heddle.runs.together import REPEATS, WorkloadResult
from heddle.traffic.workload import Workload
from heddle.views.report.page import report_html
from heddle.views.runpicture import Drawn
from heddle.views.runstext import runs_json, runs_text
from heddle_plugins.testing.calls import RunCall
from tests import traces
from tests.machine import patience
from tests.marks import long
from tests.netns.collectives import proven, when_busy, workers
from tests.netns.live import started
from tests.typed import typed

SHARED: Final = """
qps: 2
size: 128K
iters: 4
share_nics: true
jobs:
  training: {{collective: all-reduce, ranks: "0:4", fastpath: {loop}}}
  storage: {{collective: matrix, matrix: "0,1,64K;0,2,64K;3,0,32K", ranks: "0:4", iters: 1, repeat: background}}
  late: {{collective: broadcast, ranks: "0:4", after: training, start: 300ms, iters: 1, repeat: 2, transport: srd,
         entropy: 4}}
"""
# The first size is a few packets: once many have passed the ports of both jobs, both have measured it.
IN_BOTH: Final = ("rtsw1:eth3", "rtsw1:eth4")
TWO: Final = """
size: 8K:16M:x2048
iters: {iters}
warmup: 0
jobs:
  a: {{collective: all-reduce, ranks: "0:4:2"}}
  b: {{collective: all-to-all, ranks: "1:4:2"}}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Callable[[str], Workload]:
    def read(text: str) -> Workload:
        path = tmp_path / "jobs.yml"
        path.write_text(text)
        return load_workload(str(path)).workload

    return read


def done(lab: Lab, wanted: Workload) -> WorkloadResult:
    found = run_workload(lab, wanted, Silent())
    assert found.wrong == 0
    for job in found.jobs:
        assert (job.stray, job.icrc_errors) == (0, 0)
        paths = proven(lab, job.id)
        assert {proof.flow.job for proof in paths.flows} == {each.name for each in wanted.jobs}
    return found


@pytest.mark.parametrize("loop", ["auto", long("off")])  # the loop in Python: test_forecast_live.py
def test_jobs_share_nics_and_each_has_its_own_barriers_and_every_path_is_proven(
    tiny: Lab, workload: Callable[[str], Workload], loop: str
) -> None:
    found = done(tiny, workload(SHARED.format(loop=loop)))
    training, storage, late = found.jobs
    assert found.name == "jobs" and [job.job for job in found.jobs] == ["training", "storage", "late"]
    assert training.nic_loop == ("python" if loop == "off" else "compiled")
    assert training.span_s is not None and storage.span_s is not None and late.span_s is not None
    assert late.span_s[0] >= training.span_s[1] + 0.3
    assert storage.span_s[0] < training.span_s[0] + 0.3 and storage.span_s[1] >= late.span_s[1]
    (row,) = storage.rows
    assert len(row.iteration_us) > 2, "it went on until the others had ended"
    assert [len(each.iteration_us) for each in late.rows] == [2]
    for job in found.jobs:
        assert {flow.sent.flow.job for flow in job.flows} == {job.job}
        stored = History.of(tiny).open(job.id)
        assert [row.sent for row in stored.flows] == [row.sent for row in job.flows]
        assert (stored.record.job, stored.record.workload) == (job.job, "jobs")
    ends = [{(flow.sent.flow.dst_ip, flow.sent.flow.qpn) for flow in job.flows} for job in found.jobs]
    assert len({*ends[0], *ends[1], *ends[2]}) == sum(map(len, ends)), "jobs have queue pairs of their own at a NIC"
    assert [max(end.seat for end in job.ranks) for job in found.jobs] == [0, 1, 2]


def test_the_run_of_a_file_without_jobs_has_the_name_of_the_file_everywhere(tiny: Lab, tmp_path: Path) -> None:
    path = tmp_path / "my ring.yml"
    path.write_text("collective: all-reduce\nranks: 4\nsize: 64K\niters: 1\n")
    table = typed("run", "--workload", str(path), "--lab", tiny.name)
    assert table.returncode == 0 and "#workload : my ring\n" in table.stdout
    kept = History.of(tiny).runs()[-1]
    assert (kept.record.job, kept.record.workload, kept.record.to_json()["workload"]) == ("", "my ring", "my ring")
    (row,) = [each for each in runs_json({tiny.name: [kept]}, limits(), [])["runs"] if each["id"] == kept.id]
    assert row["workload"] == "my ring" and "job" not in row
    assert " my ring: all-" in runs_text({tiny.name: [kept]}, limits(), [])
    assert f"run {kept.id}: my ring: ring all-reduce of 64 KiB" in typed("paths", "--lab", tiny.name).stdout
    assert "my ring: ring all-reduce of 64 KiB" in report_html([kept])
    drawn = Drawn(kept, kept.id, "#000000")
    assert drawn.name == f"run {kept.id}: my ring, ECMP {kept.record.ecmp}, 1 QP"


def test_traces_of_other_tools_run_as_jobs(tiny: Lab, workload: Callable[[str], Workload], tmp_path: Path) -> None:
    for rank in range(4):
        coll = traces.node(2, traces.COLL, [1], comm_type=2, comm_size=1 << 16)
        move = traces.node(3, traces.SEND, [2], comm_dst=rank + 1, comm_size=4096)
        if rank % 2:
            move = traces.node(3, traces.RECV, [2], comm_src=rank - 1, comm_size=4096)
        (tmp_path / f"gpt.{rank}.et").write_bytes(traces.et([traces.node(1, traces.COMP, micros=9), coll, move]))
    (tmp_path / "m.cm").write_text(traces.MATRIX)
    found = done(tiny, workload("share_nics: true\nqps: 2\njobs:\n  a: {trace: gpt, scale: 1/4}\n  b: {trace: m.cm}\n"))
    assert [len(job.ranks) for job in found.jobs] == [4, 4]
    assert [job.rows[0].size for job in found.jobs] == [3 * (1 << 14) + 1024, 12000]  # of the busiest rank


@pytest.mark.long
def test_a_job_is_compared_with_itself_alone(tiny: Lab, tmp_path: Path) -> None:
    path = tmp_path / "two tenants.yml"
    path.write_text(TWO.format(iters=2).replace("8K:16M:x2048", "256K"))
    shown = typed("run", "--workload", str(path), "--interference", "--lab", tiny.name, "--format", "json")
    data = json.loads(shown.stdout)
    assert shown.returncode == 0 and data["workload"] == "two tenants"
    assert [job["job"] for job in data["jobs"]] == ["a", "b"]
    assert all(job["span_s"][1] > job["span_s"][0] >= 0 for job in data["jobs"])
    for each, job in zip(data["interference"], data["jobs"], strict=True):
        assert each["job"] == job["job"] and each["together_runs"][-1] == job["run_id"]
        assert len({*each["alone_runs"], *each["together_runs"]}) == 2 * REPEATS
        assert each["others"] == [other["job"] for other in data["jobs"] if other is not job]
        # With two iterations of each job, perhaps none was within the time of the other one.
        assert (each["share"] > 0) == (each["ratio"] is not None) == bool(each["together"])
        assert each["verdict"] == "not known" or each["together"] or each["doubts"]
        if each["ratio"] is not None:
            assert each["ratio"] == pytest.approx(each["together_busbw"] / each["alone_busbw"])
        for run_id in each["alone_runs"]:
            alone = History.of(tiny).open(run_id)
            assert {row.sent.flow.job for row in alone.flows} == {each["job"]}
            nics = [(end["host"], end["port"]) for end in job["ranks"]]
            assert nics == [(end.host, end.port) for end in alone.record.ranks]


@pytest.mark.long("it needs two jobs that keep their pace")
def test_iterations_after_the_other_job_ended_do_not_count(tiny: Lab, tmp_path: Path) -> None:
    path = tmp_path / "long.yml"
    path.write_text(TWO.format(iters=4).replace("8K:16M:x2048", "256K").replace('"0:4:2"', '"0:4:2", iters: 24'))
    done = RunCall(tiny).workload(path, interference=True)
    a, b = done.interference
    assert 0 < a.share < 0.75, "a goes on when b has ended"
    assert b.ratio is not None and b.share > 0.5, "b is always beside a"
    assert a.ratio is not None
    (row,) = done.jobs[0].rows
    assert row.busbw not in a.together, "the mean over all iterations hides what b does"


@pytest.mark.long
def test_a_test_of_users_runs_the_jobs_of_a_file(tiny: Lab, tmp_path: Path) -> None:
    path = tmp_path / "two.yml"
    path.write_text(TWO.format(iters=2).replace("8K:16M:x2048", "64K"))
    call = RunCall(tiny)
    done = call.workload(path, interference=True)
    assert [each.job for each in done.interference] == [each.job for each in done.jobs] == ["a", "b"]
    assert call.runs == [*done.jobs]


def test_a_worker_that_is_killed_ends_its_job_as_failed_and_the_other_as_ended(
    tiny: Lab, workload: Callable[[str], Workload]
) -> None:
    before = History.of(tiny).ids()

    with pytest.raises(HeddleError) as caught, when_busy(tiny, lambda: os.kill(workers()[0], signal.SIGKILL), IN_BOTH):
        run_workload(tiny, workload(TWO.format(iters=20)), Silent())
    assert isinstance(caught.value, MachineError)
    text = str(caught.value)
    assert "job a  the worker of rank 0 on host1:eth1" in text and "was ended by SIGKILL" in text
    assert "job b  the job was ended, because job a failed" in text
    assert workers() == []
    runs = {run.record.job: run.record for run in History.of(tiny).runs() if run.id not in before}
    assert runs["a"].state == "failed"
    assert runs["b"].state == "interrupted" and runs["b"].failure == (
        "interrupted after 1 of 2 sizes, because job a failed",
    )


def test_ctrl_c_keeps_the_rows_of_each_job_and_a_second_run_is_told_the_name_of_the_first(
    tiny: Lab, tmp_path: Path
) -> None:
    before = History.of(tiny).ids()
    path = tmp_path / "long.yml"
    path.write_text(TWO.format(iters=30))
    with started("run", "--workload", str(path), lab=tiny, errors=subprocess.PIPE) as process:
        busy = threading.Event()
        with when_busy(tiny, busy.set, IN_BOTH):
            assert busy.wait(patience(60))
            second = typed("run", "--lab", tiny.name, "--size", "8K")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=patience(60))
    assert second.returncode == 2
    assert "its run (long: a: all-reduce over 2 ranks, 8 KiB to 16 MiB, 1 QP; b: all-to-all" in second.stderr
    assert process.returncode == 130
    for job in ("a", "b"):
        assert f"#job      : {job}: interrupted after 1 of 2 sizes" in out
    kept = [run.record for run in History.of(tiny).runs() if run.id not in before]
    assert {each.job: (each.state, len(each.rows)) for each in kept} == {
        "a": ("interrupted", 1), "b": ("interrupted", 1),
    }  # fmt: skip
