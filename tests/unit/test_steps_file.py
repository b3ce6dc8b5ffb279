"""The `steps` of a job in a workload file: what they become, what waits for what, and the line of every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.loads import traffic_of
from heddle.traffic.plan import bound_steps, build_plan
from heddle.traffic.sequence import Part, PartSequence
from heddle.traffic.workload import Workload

ZONE = load_fabric("zone").fabric


def of(path: Path, text: str) -> Workload:
    (path / "w.yml").write_text(text)
    return load_workload(str(path / "w.yml")).workload


def parts(workload: Workload) -> tuple[Part, ...]:
    """Of the first job, on a fabric with 16 NICs."""
    job, endpoints = workload.jobs[0], workload.endpoints(ZONE)[0]
    pattern = bound_steps(job.options, endpoints, ZONE.policy.k).pattern
    assert isinstance(pattern, PartSequence)
    return pattern.parts


STEPS = """\
qps: 2
size: 64K
scale: 1/4
datatype: bfloat16
jobs:
  train:
    ranks: 0:8
    steps:
      - {compute: 8us, name: forward}
      - {collective: all-reduce, groups: DIV 4, name: tp, op: max}
      - {collective: send-recv, size: 128K, groups: [[0, 4], "1,5"], with: tp}
      - {matrix: "shift:1", ranks: 2:6}
      - {collective: broadcast, root: 1, ranks: [7, 6], after: [forward]}
      - {compute: 4us, after: []}
"""


def test_steps_become_parts_and_each_waits_for_the_one_before_unless_it_says_otherwise(tmp_path: Path) -> None:
    found = parts(of(tmp_path, STEPS))
    k = ZONE.policy.k
    tp = ("tp", "ring", "all-reduce", 16 << 10)
    assert [
        (p.name, p.pattern.algorithm, p.pattern.collective, p.size_bytes) if p.pattern else (p.name, p.seconds)
        for p in found
    ] == [
        ("forward", pytest.approx(2e-6 * k)), tp, tp, ("", "next", "send-recv", 32 << 10),
        ("", "next", "send-recv", 32 << 10), ("", "direct", "matrix", 16 << 10), ("", "chain", "broadcast", 16 << 10),
        ("", pytest.approx(1e-6 * k)),
    ]  # fmt: skip
    assert [p.ranks for p in found[1:7]] == [(0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 3, 4, 5), (7, 6)]
    assert {p.pattern.dtype for p in found if p.pattern} == {"bfloat16"}
    assert [p.pattern.redop for p in found if p.pattern][:2] == ["max", "max"]
    plan = build_plan(ZONE, of(tmp_path, STEPS).jobs[0].options, endpoints=of(tmp_path, STEPS).endpoints(ZONE)[0])
    assert isinstance(plan.pattern, PartSequence)
    assert [*plan.pattern.lines()][1::4] == [
        "tp: ring all-reduce of 16 KiB, 2 groups of 4 ranks", "compute for 8 ms, 8 ranks",
    ]  # fmt: skip
    assert [*plan.pattern.lines()][-1] == "sizes and times are those of the file x 1/4"
    # Ranks 2 and 3 of the matrix are not in a send-recv: there they wait for what that waits for.
    assert [p.after for p in found] == [(), (0,), (0,), (0,), (0,), (0, 1, 2, 3, 4), (0,), ()]


def test_a_rank_waits_for_the_last_step_in_which_it_was_where_it_had_no_part_in_the_one_before(tmp_path: Path) -> None:
    text = "ranks: 8\nsteps:\n- {compute: 1us}\n- {collective: send-recv, size: 1M, ranks: 0:2}\n- {compute: 2us}\n"
    assert [p.after for p in parts(of(tmp_path, text))] == [(), (0,), (0, 1)]


def test_a_prediction_has_the_bytes_of_the_plan_and_shipped_files_of_matrices_are_found(tmp_path: Path) -> None:
    workload = of(tmp_path, STEPS.replace('"shift:1"', "cells.csv").replace("scale: 1/4", ""))
    assert files_of(str(tmp_path / "w.yml")) == [str(tmp_path / name) for name in ("w.yml", "cells.csv")]
    (tmp_path / "cells.csv").write_text("src,dst,bytes\n0,3,4K\n")
    job, endpoints = workload.jobs[0], workload.endpoints(ZONE)[0]
    plan, (traffic,) = build_plan(ZONE, job.options, endpoints=endpoints), traffic_of(ZONE, workload)
    payload = int(traffic.volume.payload.sum(axis=1)[traffic.connections.kind].sum())
    assert payload == plan.pattern.volume(8, 0) * 2


def test_files_of_a_step_are_beside_the_workload(tmp_path: Path) -> None:
    (tmp_path / "shares.csv").write_text("src,dst,bytes\n0,1,1\n1,0,1\n")
    workload = of(tmp_path, "size: 64K\nsteps:\n  - {collective: all-to-all-v, counts: shares.csv}\n")
    assert [part.size_bytes for part in parts(workload)] == [64 << 10]
    with pytest.raises(InputError, match=f"{tmp_path}/mine.xml"):
        parts(of(tmp_path, "size: 64K\nsteps:\n  - {collective: msccl, msccl: mine.xml}\n"))


def test_many_ranks_of_groups_are_compared_at_once(tmp_path: Path) -> None:
    groups = "size: 4\nsteps:\n  - {collective: send-recv, groups: ['0:1000000', 999999]}\n"
    with pytest.raises(InputError, match="names rank 999999 twice"):
        of(tmp_path, groups)
