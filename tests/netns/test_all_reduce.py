"""All-reduces with real data over a live fabric, and the proof of where every queue pair went."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.lookup import paths_of
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.traffic.options import RunOptions, parse_source_ports
from heddle.views.pathstext import paths_text
from tests.conftest import FabricLab
from tests.netns.collectives import proven, total
from tests.netns.static_fabric import dropping

ROOT = Path(__file__).resolve().parents[2]


def all_reduce(lab: Lab, **options: object) -> RunResult:
    """A short run; what is not given is the smallest that still says something."""
    defaults: dict[str, object] = {"sizes": (1 << 18,), "iters": 2, "warmup": 1}
    return run(lab, RunOptions(**{**defaults, **options}), Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"qps": 16},
        {"qps": 16, "qp_mode": "round-robin", "chunk": 8192},
        {"qps": 3, "placement": "cyclic", "source_ports": parse_source_ports("list:50000,50001")},
        {"qps": 4, "placement": "cyclic", "fastpath": "off", "source_ports": parse_source_ports("own-qpn")},
        {"qps": 4, "placement": "cyclic", "source_ports": parse_source_ports("rxe")},
        {"qps": 4, "ranks": 2, "placement": "host4,host1", "source_ports": parse_source_ports("fixed")},
    ],
    ids=lambda o: ",".join(f"{k}={getattr(v, 'mode', v)}" for k, v in o.items()),
)
def test_sums_are_right_and_every_path_is_proven(tiny: Lab, options: dict[str, object]) -> None:
    result = all_reduce(tiny, **options)
    assert result.wrong == 0
    assert result.icrc_errors == result.stray == 0
    paths = proven(tiny)
    assert len(paths.flows) == len(result.flows)
    for flow, proof in zip(result.flows, paths.flows, strict=True):
        assert proof.predicted == proof.oracle == proof.measured
        assert proof.counted == (flow.sent.packets,) * len(proof.measured)
        assert proof.measured[-1].startswith("rtsw")


@pytest.mark.containers
def test_sizes_from_one_element_to_many_messages(tiny: Lab) -> None:
    sizes = (4, 8, 20, 4096, 100_000, 1 << 20)
    result = all_reduce(tiny, sizes=sizes, qps=2)
    assert [row.size for row in result.rows] == list(sizes)
    assert [row.wrong for row in result.rows] == [0] * len(sizes)
    proven(tiny)


def test_the_table_has_the_size_that_was_sent(tiny: Lab) -> None:
    """Of 300,001 bytes, chunks of four ranks with whole 16 bytes: 18,748 of 18,750 elements."""
    sent = 4 * 74_992
    result = all_reduce(tiny, collective="all-to-all", sizes=(300_001,))
    (row,) = result.rows
    assert (row.size, row.wrong) == (sent, 0)
    assert f"{sent:12d}  {sent // 4:12d}     float" in result.table()
    proven(tiny)


def test_two_nics_a_host_are_two_ranks(fabric_lab: FabricLab) -> None:
    lab = fabric_lab(racks=2, ctsw=2, hosts_per_rack=1, nics_per_host=2)
    result = all_reduce(lab, qps=2)
    assert [(e.host, e.port) for e in result.endpoints] == [
        ("host1", "eth1"), ("host1", "eth2"), ("host2", "eth1"), ("host2", "eth2"),
    ]  # fmt: skip
    assert result.wrong == 0
    proven(lab)


def test_drops_of_a_small_buffer_are_retransmitted_and_named(fabric_lab: FabricLab) -> None:
    keys = {"link": {"host": "100mbit", "fabric": "20mbit"}, "queues": dropping("20KB")}
    lab = fabric_lab(racks=2, ctsw=1, hosts_per_rack=2, **keys)
    result = all_reduce(lab, placement="cyclic", sizes=(1 << 17,), timeout=15, retries=100)
    assert total(result, "retransmitted") > 0
    assert result.wrong == 0
    paths = paths_of(lab)
    assert paths.lost
    assert paths.agree, paths_text(paths)
    for flow, proof in zip(result.flows, paths.flows, strict=True):
        assert proof.counted[0] == flow.sent.packets
