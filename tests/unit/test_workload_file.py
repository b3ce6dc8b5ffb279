"""Workload files: jobs and their keys, defaults, the ranks of each job, and the line of every error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.runoptions import option_fields, run_options
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.columns import flows_of
from heddle.offline.forecast import Ask, forecast
from heddle.offline.loads import traffic_of
from heddle.predict.forwarding import FlowArrays
from heddle.traffic.plan import build_plan
from heddle.traffic.workload import BACKGROUND, Workload
from heddle.views.forecasttext import render

ZONE = load_fabric("zone").fabric


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def of(path: Path, text: str) -> Workload:
    return load_workload(written(path / "w.yml", text)).workload


TWO = """\
qps: 4
size: 4M
admission: true
share_nics: false
jobs:
  a:
    collective: all-reduce
    ranks: 0:16:2
  b:
    collective: all-to-all
    ranks: [1, 3, "5:16:2"]
    qps: "8"
    start: 500ms
    repeat: background
  c:
    collective: send-recv
    ranks: 0:4
    after: a
    repeat: 3
"""


def test_keys_beside_jobs_are_defaults_and_jobs_have_their_own(tmp_path: Path) -> None:
    a, b, c = of(tmp_path, TWO).jobs
    assert a.options == run_options(collective="all-reduce", qps=4, size="4M", admission="on")
    assert b.options == run_options(collective="all-to-all", qps=8, size="4M", admission="on")
    assert (a.slots, b.slots) == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert (b.start_s, b.repeat) == (0.5, BACKGROUND) and b.in_background
    assert (c.after, c.repeat, c.start_s) == ("a", 3, 0.0)


def test_a_file_without_jobs_is_one_job_and_so_are_words(tmp_path: Path) -> None:
    text = "collective: broadcast\nroot: 3\nranks: 8\nsize: 64K:1M:x4\nslow: host3=25%\ncc_set: [a=1, b=2]\ncc: swift\n"
    (job,) = of(tmp_path, text).jobs
    options: dict[str, Any] = {
        "root": 3,
        "ranks": 8,
        "size": "64K:1M:x4",
        "slow": ["host3=25%"],
        "cc_set": ["a=1", "b=2"],
    }
    assert job.options == run_options(collective="broadcast", cc="swift", **options)
    assert (job.name, job.slots) == ("", None)
    (job,) = load_workload("ring,qps=16,size=64M").workload.jobs
    assert job.options == run_options(collective="all-reduce", algorithm="ring", qps=16, size="64M")


def test_every_option_of_a_run_is_a_key(tmp_path: Path) -> None:
    path = written(tmp_path / "w.yml", "collective: all-reduce\n" + "".join(f"{e.word}: {{}}\n" for e in KEYS))
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert all("is a group, but must be one value" in problem.why for problem in caught.value.problems)
    assert len(caught.value.problems) == len(KEYS)


KEYS = [each for each in option_fields() if each.word not in ("collective", "matrix")]


def test_typed_keys_replace_those_of_all_jobs() -> None:
    jobs = load_workload("all-reduce-16qp,qps=2").workload.jobs
    assert [job.options.qps for job in jobs] == [2]
    with pytest.raises(InputError, match=r"--workload  qps: 129 is outside 1 to 128"):
        load_workload("ring,qps=129")
    with pytest.raises(InputError, match="did you mean qps"):
        load_workload("ring,qpss=1")


def test_keys_after_an_own_file_are_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keys cannot follow the name of your own file"):
        load_workload(f"{tmp_path}/w.yml,qps=4")


def test_jobs_may_share_nics_if_the_file_says_so(tmp_path: Path) -> None:
    job = "{collective: all-reduce, ranks:"
    text = f"share_nics: true\njobs:\n a: {job} 0:4}}\n b: {job} 2:9}}\n"
    a, b = of(tmp_path, text).endpoints(ZONE)
    assert [end.nic for end in a[2:]] == [end.nic for end in b[:2]]
    assert [end.seat for end in b] == [1, 1, 0, 0, 0, 0, 0]
    (ends,) = of(tmp_path, "share_nics: true\ncollective: all-reduce\nranks: [0, 0, 1]\n").endpoints(ZONE)
    assert [(end.nic, end.seat) for end in ends] == [("host1:eth1", 0), ("host1:eth1", 1), ("host2:eth1", 0)]


def test_the_files_of_all_jobs_come_along(tmp_path: Path) -> None:
    jobs = "jobs:\n a: {matrix: m.csv}\n b: {matrix: sub/n.csv}\n c: {matrix: shift:1}\n"
    typed = written(tmp_path / "p.yml", jobs)
    assert files_of(typed) == [typed, str(tmp_path / "m.csv"), str(tmp_path / "sub/n.csv")]
    (tmp_path / "p.yml").write_text("matrix: ~nobody-of-that-name/m.csv\n")
    with pytest.raises(InputError, match="names files outside its directory"):
        files_of(typed)
    with pytest.raises(InputError, match=r"p\.yml:1  matrix: .*m\.csv does not exist"):
        traffic_of(ZONE, load_workload(typed).workload)
    assert files_of("two-tenants,qps=2") == files_of("ring") == files_of(None) == []


def test_loads_of_jobs_are_added_up_and_ranks_that_share_a_nic_have_the_queue_pairs_of_a_run(tmp_path: Path) -> None:
    jobs = """\
qps: 3
share_nics: true
jobs:
  a: {collective: all-reduce, ranks: 0:6, size: 300K}
  b: {matrix: "0,1,64K;host5,4,8K;incast:2,4K", ranks: 4:12, qps: 2, admission: true, chunk: 1M, after: a}
  c: {collective: broadcast, root: 2, datatype: bfloat16, ranks: [0, 0, 8], size: 64K:256K:x2, repeat: 3}
"""
    workload = of(tmp_path, jobs)
    together = forecast(ZONE, workload, Ask(mode="e-ecmp"), Silent())
    ends = workload.endpoints(ZONE)
    for traffic, job, ranks in zip(together.jobs, workload.jobs, ends, strict=True):
        plan = build_plan(ZONE, job.options, endpoints=ranks, job=job.name)
        found = traffic.connections
        flows = [flows_of(found, part, traffic.address) for part in found.batches()]
        for column in ("src", "dst", "sport", "qpn"):
            wanted = getattr(FlowArrays.of(plan.flows()), column)
            assert (np.concatenate([getattr(part, column) for part in flows]) == wanted).all(), column
        size = max(plan.options.sizes) // plan.options.pattern.element_bytes
        sent = traffic.volume.payload[found.kind].sum()
        assert sent == plan.options.pattern.volume(plan.size, size) * plan.options.pattern.element_bytes
    assert sum(share for share in together.shares) == pytest.approx(together.modes[0].bytes)
    alone = [
        forecast(ZONE, replace(workload, jobs=(replace(job, after=""),)), Ask(mode="e-ecmp"), Silent())
        for job in workload.jobs
    ]
    assert alone[0].modes[0].bytes == pytest.approx(together.shares[0])
    data = together.to_json()
    assert [(job["name"], job["ranks"]) for job in data["workload"]["jobs"]] == [("a", 6), ("b", 8), ("c", 3)]
    assert data["workload"]["bytes"] == sum(job["bytes"] for job in data["workload"]["jobs"])
    assert all(sum(link["jobs"].values()) == pytest.approx(link["bytes"], abs=2) for link in data["links"])
    text = render(together)
    assert "w: 3 jobs, one iteration of each" in text and "jobs that run one after the other are added up" in text
    assert "broadcast of 256 KiB, the largest of 3 sizes, 3 ranks" in text


def test_a_prediction_has_no_limits_of_runs(tmp_path: Path) -> None:
    workload = of(tmp_path, "collective: all-reduce\nsize: 1G\nranks: 16\n")
    assert traffic_of(ZONE, workload)[0].bytes > 1 << 34
    with pytest.raises(InputError, match=r"--size 1073741824 has 1073741824 bytes, which is outside"):
        build_plan(ZONE, workload.jobs[0].options)
    with pytest.raises(InputError, match=r"w.yml:1  jobs.a.transport: rxe is not predicted offline"):
        traffic_of(ZONE, of(tmp_path, "jobs: {a: {collective: all-reduce, transport: rxe}}\n"))


def test_a_matrix_by_rank_belongs_to_the_whole_job_and_a_named_one_to_each_communicator(tmp_path: Path) -> None:
    named = traffic_of(ZONE, of(tmp_path, "matrix: shift:1\nsplit: MOD 2\nsize: 64K\n"))[0]
    assert named.split.startswith("2 communicators of 8 ranks")


def test_jobs_in_fragments_avoid_each_other_and_rank_files_are_beside_the_workload(tmp_path: Path) -> None:
    job = "collective: all-reduce, placement:"
    text = (
        f"jobs:\n a: {{{job} 'fragmented:4:1'}}\n b: {{{job} 'fragmented:2:2'}}\n c: {{{job} 'random:3', ranks: 4}}\n"
    )
    a, b, c = ({end.host for end in ends} for ends in of(tmp_path, text).endpoints(ZONE))
    assert a == {"host1", "host3", "host5", "host7"} and b == {"host9", "host10", "host11", "host12"}
    assert len(c) == 4 and not c & (a | b)
    (tmp_path / "ranks.txt").write_text("host3\nhost2\n")
    text = "collective: all-reduce\nplacement: ranks.txt\n"
    (ends,) = of(tmp_path, text).endpoints(ZONE)
    assert [end.host for end in ends] == ["host3", "host2"]
    assert files_of(str(tmp_path / "w.yml")) == [str(tmp_path / "w.yml"), str(tmp_path / "ranks.txt")]
    assert files_of("ring,placement=./r.txt") == files_of("two-tenants,placement=./r.txt") == ["./r.txt"]
