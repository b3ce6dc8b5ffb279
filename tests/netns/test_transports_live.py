"""Every transport, recovery and source-port mode on a live fabric: right data, proven paths, and what losses cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import impairments
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.spec.impairments import LinkFault
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests.machine import rc_timeout

pytestmark = pytest.mark.root

LOSSY = "rtsw2:eth3"  # to host3


@pytest.fixture(scope="module")
def lab(lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    try:
        yield life.up(load_fabric("tiny", name=name)).lab
    finally:
        life.down(name)


@pytest.fixture(autouse=True)
def cleared(lab: Lab) -> Iterator[None]:
    yield
    impairments.clear_faults(lab)


def ran(lab: Lab, **options: object) -> RunResult:
    defaults: dict[str, object] = {"sizes": (1 << 19,), "iters": 1, "warmup": 1}
    return run(lab, RunOptions(**{**defaults, **options}), Silent())  # type: ignore[arg-type]


def total(result: RunResult, key: str) -> int:
    return sum(flow.counters[key] for flow in result.flows)


def test_each_recovery_delivers_all_data_and_selective_repeat_sends_least_again(lab: Lab) -> None:
    again = {}
    incast: dict[str, object] = {"collective": "incast", "placement": "host3,host1", "sizes": (1 << 22,)}
    impairments.set_fault(lab, [LOSSY], LinkFault(loss=1 / 64))
    for recovery in ("go-back-0", "go-back-n", "selective-repeat"):
        result = ran(lab, recovery=recovery, chunk=1 << 19, timeout=rc_timeout(14), **incast)
        lost = result.queues.drops["fault"] if result.queues is not None else 0
        assert result.wrong == 0 and lost > 0
        assert result.nic_loop == "python" or recovery == "go-back-n"
        paths = paths_of(lab)
        assert paths.agree, paths_text(paths)
        again[recovery] = total(result, "retransmitted") / lost
    assert again["selective-repeat"] < 2 < again["go-back-n"] < again["go-back-0"]


def test_uc_delivers_all_data_where_nothing_is_lost(lab: Lab) -> None:
    result = ran(lab, transport="uc", qps=2, iters=2)
    assert result.wrong == 0
    assert {key: total(result, key) for key in ("lost", "dropped_messages", "late")} == {
        "lost": 0, "dropped_messages": 0, "late": 0,
    }  # fmt: skip
    paths = paths_of(lab)
    assert paths.agree, paths_text(paths)
    assert all(flow.received == flow.sent.packets for flow in result.flows)


def test_a_lost_packet_ends_a_run_of_uc_and_is_named(lab: Lab) -> None:
    impairments.set_fault(lab, [LOSSY], LinkFault(loss=1 / 16))
    with pytest.raises(
        CheckError,
        match=r"rank \d on host3:eth1: QP 0x\w+ from rank \d on host\d:eth1: .* lost \(last good PSN 0x\w+\), and uc",
    ) as caught:
        ran(lab, transport="uc", sizes=(1 << 21,))
    assert caught.value.problems[0].hint.startswith("use --transport rc")


def test_a_run_of_uc_ends_also_when_no_later_packet_reveals_the_loss(lab: Lab) -> None:
    impairments.set_fault(lab, [LOSSY], LinkFault(loss=1.0))
    with pytest.raises(CheckError) as caught:
        ran(lab, transport="uc", timeout=16)
    said = str(caught.value)
    assert said.count("waits for") <= 2, "one rank of each worker"
    assert "on host3:eth1: waits for" in said
    assert "last good PSN 0x" in said and "no packet moves any more" in said


def test_srd_sends_the_lost_packets_again_and_all_data_arrive(lab: Lab) -> None:
    impairments.set_fault(lab, [LOSSY], LinkFault(loss=1 / 32))
    result = ran(lab, transport="srd", entropy=4, timeout=rc_timeout(14), iters=2)
    lost = result.queues.drops["fault"] if result.queues is not None else 0
    assert result.wrong == 0 and lost > 0
    assert total(result, "retransmitted") > 0
    paths = paths_of(lab)
    assert paths.agree, paths_text(paths)


def test_srd_sprays_over_source_ports_and_every_path_is_counted(lab: Lab) -> None:
    qps = 2
    result = ran(lab, transport="srd", entropy=8, qps=qps, placement="cyclic")
    assert result.wrong == 0
    paths = paths_of(lab)
    assert paths.agree, paths_text(paths)
    assert len(result.flows) == len(paths.flows) == 8 * 4 * qps
    for flow, proof in zip(result.flows, paths.flows, strict=True):
        assert proof.predicted == proof.oracle == proof.measured
        assert proof.counted == (flow.sent.packets,) * len(proof.measured)
        assert flow.received == flow.sent.packets > 0
    crossing = [proof.measured[0] for proof in paths.flows if len(proof.measured) > 1]
    assert len(set(crossing)) == 4, "both uplinks of both racks"
    assert total(result, "retransmitted") == 0
    assert f"agree on the paths of all {32 * qps} source ports of {4 * qps} QPs" in paths_text(paths)
    assert "each QP uses one path" not in result.table()
    assert all(len(values) == 4 * qps for _, values in result.counted("order"))
