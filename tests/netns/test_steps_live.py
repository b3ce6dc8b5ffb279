"""Jobs with steps on a fabric: every element of every step is right, all paths are proven, computations take time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.endpoints.workloadfile import load_workload
from heddle.lab.lab import Lab
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.run import run_workload
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History
from heddle.traffic.workload import Workload
from tests.marks import deep
from tests.netns.collectives import proven

# traffic/llm-3d.yml with two replicas of two stages, and one micro-batch.
PIPELINE: Final = """
size: 48K
iters: 3
qps: 3
{more}
steps:
  - {{compute: 3us, ranks: 0:2, name: forward-1}}
  - {{collective: broadcast, groups: MOD 2, name: activations}}
  - {{compute: 3us, ranks: 2:4, name: forward-2}}
  - {{collective: broadcast, root: 1, groups: MOD 2, name: gradients}}
  - {{compute: 5us, ranks: 0:2, name: backward-1}}
  - {{collective: all-reduce, size: 200K, op: avg, groups: DIV 2, name: replicas}}
  - {{matrix: "0,1,9K;2,0,1K", after: forward-2, name: side}}
"""


def done(lab: Lab, workload: Workload) -> tuple[RunRecord, IdealUse]:
    """The only job, without an error, and with a proof of its paths."""
    (job,) = run_workload(lab, workload, Silent()).jobs
    assert (job.wrong, job.stray, job.icrc_errors) == (0, 0, 0)
    assert proven(lab, job.id).agree
    return job, job[IdealUse]


@pytest.mark.parametrize("more", ["fastpath: auto", deep("transport: srd"), deep("admission: on")])
def test_stages_of_a_pipeline_compute_send_and_reduce(tiny: Lab, tmp_path: Path, more: str) -> None:
    (tmp_path / "pipeline.yml").write_text(PIPELINE.format(more=more))
    job, ideal = done(tiny, load_workload(str(tmp_path / "pipeline.yml")).workload)
    k = tiny.fabric.policy.k
    assert [rank.computing_us for rank in ideal.ranks] == pytest.approx([8 * k, 8 * k, 3 * k, 3 * k])
    for rank in ideal.ranks:
        assert rank.time_us == pytest.approx(rank.computing_us + rank.exposed_us) and rank.exposed_us > 0
    (row,) = job.rows
    assert row.size == job.options.sizes[0] and ideal.sizes[0].ideal_us > 11 * k, "computations on the longest path"
    assert any(line.startswith("#step     : forward-1: compute for ") for line in job.lines())
    stored = History.of(tiny).open(job.id).record
    assert stored[IdealUse] == ideal
    assert stored.options == job.options


@pytest.mark.deep
def test_a_ranking_job_exchanges_embeddings_and_reduces_gradients(tiny: Lab) -> None:
    job, ideal = done(tiny, load_workload("ranking,scale=1/4096,iters=2").workload)
    assert [rank.computing_us for rank in ideal.ranks] == pytest.approx([6000 / 4096 * tiny.fabric.policy.k] * 4)
    ends = {(row.sent.flow.src_rank, row.sent.flow.dst_rank) for row in job.flows if row.sent.packets}
    assert len(ends) == 12 and "#exposed" in job.table()
