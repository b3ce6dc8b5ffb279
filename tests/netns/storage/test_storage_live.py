"""Checkpoints and training data on the front-end beside training: right data, a dead storage host, what they cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.endpoints.workloadfile import read_workload
from heddle.lab.lab import Lab
from heddle.runs.run import run_workload
from heddle.runs.runrecord import RunRecord
from heddle.spec.yamlfile import parse
from heddle.traffic.workload import Workload
from heddle_plugins.storage import tcp
from tests.netns.collectives import proven

Borrow = Callable[..., Lab]
SMALL = ("racks=2", "ctsw=1", "hosts_per_rack=1", "frontend.storage=2", "frontend.preprocess=1")
LIVE = """
size: 64K
jobs:
  training: {collective: all-reduce}
  save: {collective: checkpoint, algorithm: read-back, every: 5us, iters: 2}
  restore: {collective: restore, after: save, iters: 1, warmup: 0}
  data: {collective: ingest, size: 16K, rate: peak, iters: 1}
"""


def jobs(text: str) -> Workload:
    return read_workload(parse(text, "a.yml"), "a.yml", "a")


def ran(lab: Lab, text: str, only: str = "") -> tuple[RunRecord, ...]:
    found = run_workload(lab, jobs(text), Silent(), only=only).jobs
    assert [job.wrong for job in found] == [0] * len(found)
    return tuple(found)


def test_checkpoints_and_training_data_are_right_and_stay_in_their_network(borrow: Borrow) -> None:
    lab = borrow("frontend", *SMALL)
    training, save, _, data = ran(lab, LIVE)
    crossed = {(p.flow.job, port[:3]) for p in proven(lab, training.id).flows for port in p.measured}
    assert {job for job, _ in crossed} == {"training", "save", "restore", "data"}
    assert {switch for job, switch in crossed if job != "training"} == {"rsw", "fsw"}
    assert {switch for job, switch in crossed if job == "training"} == {"rts", "cts"}
    k = lab.fabric.policy.k
    assert save.rows[0].time_us >= 5 * k
    assert data.rows[0].time_us == pytest.approx(16384 / (427 / k), rel=0.2), "as the rate says"
    assert "divided by" in data.table()


@pytest.mark.long("waits for the kernel's timers")
def test_a_dead_storage_host_is_named_and_read_back_works_when_it_is_up_again(
    borrow: Borrow, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = borrow("frontend", *SMALL)
    monkeypatch.setattr(tcp, "_LEAST_S", 2.0)
    save = "collective: checkpoint\nsize: 4M\niters: 4\n"
    with pytest.raises(CheckError, match=r"storage1:eth1"):
        ran(lab, save + "fault: ['storage1:eth1,down,from=200ms']")
    assert ran(lab, "collective: checkpoint\nalgorithm: read-back\nsize: 64K")[0].wrong == 0


WIDE = (
    "link.host=10mbit", "link.fabric=10mbit", "frontend.link.host=10mbit", "frontend.link.fabric=40mbit",
    "frontend.storage=4", "frontend.preprocess=4", "frontend.mtu=9000",
)  # fmt: skip
TRAINING = "jobs:\n  training: {collective: all-reduce, size: 256K, iters: 6}\n"
SAVE = TRAINING + "  save: {collective: checkpoint, size: 128K, iters: 1, repeat: background, tcp_ecn: on}"
DATA = (
    TRAINING
    + "  data: {collective: ingest, size: 512K, iters: 1, warmup: 0, preprocess_hosts: MANY, tcp_control: cubic,"
    " tcp_ecn: on}"
)


def quickest(lab: Lab, text: str, job: int, only: str = "") -> float:
    """Microseconds of an iteration of a job, the least of three runs: a busy machine only adds to it."""
    return min(ran(lab, text, only)[job].rows[0].time_us for _ in range(3))


@pytest.mark.long("depends on the machine's pace")
def test_a_checkpoint_of_16_ranks_slows_training_only_where_they_share_nics(borrow: Borrow) -> None:
    for changes, least, most in (((), 0.98, 1.02), (("frontend.share_nics=true",), 1.11, 10.0)):
        lab = borrow("zone", *WIDE, *changes)
        assert least <= quickest(lab, SAVE, 0) / quickest(lab, SAVE, 0, "training") <= most, changes


@pytest.mark.long("depends on the machine's pace")
def test_half_of_the_preprocess_hosts_take_twice_the_time_and_training_none(borrow: Borrow) -> None:
    lab = borrow("zone", *WIDE)
    four, two = (DATA.replace("MANY", many) for many in "42")
    assert quickest(lab, two, 1) / quickest(lab, four, 1) == pytest.approx(2, rel=0.1)
    assert quickest(lab, two, 0) / quickest(lab, four, 0) == pytest.approx(1, abs=0.02)
