"""The `steps` of a job in a workload file: what they become, what waits for what, and the line of every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.demand import traffic_of
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
      - {collective: send-recv, size: 128K, groups: [[0, 4], [1, 5]], with: tp}
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


WRONG = [
    ("{compute: -2ms}", "steps[1].compute: -2ms is not a duration"),
    ("{compute: 0us}", "steps[1].compute: 0us is not between 0 and 3600 s"),
    ("{compute: [1]}", "steps[1].compute must be one value"),
    ("{compute: 1us, groups: DIV 2}", "steps[1].groups: DIV 2 is not a key of a computation"),
    ("{collective: all-reduc, size: 4M}", "steps[1].collective: all-reduc is not a supported collective"),
    ("{collective: all-reduce, size: 4Q}", "steps[1].size: 4Q has the unit Q"),
    ("{collective: all-reduce, size: 4, groups: auto}", "steps[1].groups: auto is not an operation and a number"),
    ("{collective: all-reduce}", "steps[1] needs a size"),
    ("{matrix: shift:1}", "steps[1] needs a size"),
    ("{collective: broadcast, size: 1M, root: x}", "steps[1].root: x is not a whole number"),
    ("{collective: broadcast, size: 1M, op: max}", "steps[1].op: max is not a key of this step"),
    ("{collective: gather, size: 1M, datatype: int32}", "steps[1].datatype: int32 is not of one step"),
    ("{collective: gather, matrix: shift:1}", "steps[1].matrix: shift:1 does not go together with collective"),
    ("{matrix: shift:1, size: 4, bytes: 3}", "steps[1].bytes: 3 is not a key of this step"),
    ("{}", "steps[1] is empty"),
    ("7", "steps[1]: 7 is not a group of keys"),
    ("{size: 4M}", "steps[1] names nothing to do"),
    ("{collect: send-recv}", "did you mean collective?"),
    ("{collective: send-recv, size: 1M, ranks: [1, 1]}", "steps[1].ranks names a rank twice"),
    ("{collective: send-recv, size: 1M, ranks: [1, x]}", "steps[1].ranks has x, which names no ranks"),
    ("{collective: send-recv, size: 1M, groups: [[1, 2], [2, 3]]}", "steps[1].groups names rank 2 twice"),
    ("{collective: send-recv, size: 1M, name: a b}", "steps[1].name: a b is not a name of a step"),
    ("{collective: send-recv, size: 1M, name: first}", "steps[1].name: first is the name of an earlier step"),
    ("{compute: 1us, after: frist}", r"steps[1].after: frist is not the name of an earlier step"),
    ("{compute: 1us, with: first, after: first}", "steps[1].with: first does not go together with after"),
    ("{collective: send-recv, size: 1M, ranks: [1, 20]}", "steps[1].ranks names rank 20, which this job does not have"),
    ("{collective: send-recv, size: 1M, groups: MOD 8}", "steps[1].groups make a group of rank 0 alone"),
    ("{collective: send-recv, size: 1M, ranks: [3]}", "steps[1].ranks are one rank, but a collective needs two"),
    ("{collective: broadcast, size: 1M, root: 5, ranks: 0:4}", "steps[1].collective has root 5: ranks are 0 to 3"),
    ("{collective: all-to-all, size: 8}", "steps[1].size is rounded down to 0 bytes by all-to-all over 8 ranks"),
    ('{matrix: "0,5,64K", ranks: 0:4}', "steps[1] --matrix row 1: dst: 5 is not a rank of this job"),
]


@pytest.mark.parametrize(("step", "why"), WRONG)
def test_an_error_names_the_step_with_its_line(tmp_path: Path, step: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parts(of(tmp_path, f"ranks: 8\nsteps:\n  - {{compute: 1us, name: first}}\n  - {step}\n"))
    (problem,) = caught.value.problems
    assert problem.where == f"{tmp_path}/w.yml:4" and why in str(problem)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("steps: []", "w.yml:1  steps has no step"),
        ("steps: {compute: 1us}", "w.yml:1  steps is not a list of steps"),
        ("collective: gather\nsteps: [{compute: 1us}]", "w.yml:1  collective: gather does not go together with steps"),
        ("root: 2\nsteps: [{compute: 1us}]", "w.yml:1  root: 2 does not go together with steps"),
        ("scale: 1/0\nsteps: [{compute: 1us}]", "w.yml:1  scale: 1/0 is not a factor"),
        ("scale: 1/2\nsteps: [{matrix: '0,1,4K'}]", "w.yml:2  steps[0].matrix: 0,1,4K has bytes of its own"),
        ("scale: 1/2\ncollective: gather", "w.yml:1  scale: 1/2 is for a job with steps"),
        ("steps: [{compute: 1us}]", "steps have no collective, so no rank sends anything"),
        ("scale: 1/1000\nsteps: [{collective: gather, size: 100}]", "is scaled down to 0 bytes by 1/1000"),
    ],
)
def test_steps_of_a_job_that_cannot_run_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parts(of(tmp_path, text + "\n"))
    assert why in str(caught.value)
