"""Runs with --transport tcp: the data are right, and each stream takes the path that was predicted before the run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError
from heddle.endpoints import crew
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.workloadfile import load_workload
from heddle.lab.lab import Lab
from heddle.offline import columns
from heddle.offline.loads import traffic_of
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run, run_workload
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import paths_of
from heddle.traffic.flow import PROTOCOL_SHIFT
from heddle.traffic.options import RunOptions
from heddle.traffic.workload import Workload
from heddle.wire.layout import PROTO_TCP
from heddle_plugins.storage import tcp
from tests import lossysockets, wrongbyte
from tests.netns.collectives import proven, total
from tests.netns.live import failed, in_node

BESIDE = """
share_nics: true
size: 64K
jobs:
  train: {collective: all-reduce, ranks: "0:4"}
  store: {collective: all-to-all, ranks: "0:4", transport: tcp, streams: 2}
"""

FRONT = """
size: 64K
jobs:
  train: {collective: all-reduce}
  save:
    {collective: all-to-all, transport: tcp, network: frontend, placement: "host1,host2,storage1,preprocess1",
     streams: 2}
"""


def options(**typed: Any) -> RunOptions:
    usual: dict[str, Any] = {"transport": "tcp", "size": "256K", "iters": 1, "tcp_control": "reno"}
    return run_options(**(usual | typed))


def ran(lab: Lab, chosen: RunOptions) -> RunRecord:
    result = run(lab, chosen, Silent())
    assert result.wrong == 0
    return result


def test_two_streams_of_each_pair_take_the_paths_of_the_prediction(tiny: Lab) -> None:
    chosen = options(streams=2, tcp_ecn="on", collective="all-to-all")
    result = ran(tiny, chosen)
    paths = proven(tiny)
    assert len(paths.flows) == 2 * 12 and paths.units == "flows"
    (offline,) = traffic_of(tiny.fabric, Workload.of(chosen))
    flows = columns.flows_of(offline.connections, slice(None), offline.address)
    sent = [flow.sent.flow for flow in result.flows]
    assert flows.sport.tolist() == [flow.sport for flow in sent]
    assert flows.dport.tolist() == [flow.dport for flow in sent]
    assert flows.qpn.tolist() == [flow.qpn for flow in sent]
    assert {flow.qpn >> PROTOCOL_SHIFT for flow in sent} == {PROTO_TCP} and {flow.dscp for flow in sent} == {0}
    parameters = result.transport.parameters
    assert (parameters["control"], parameters["ecn"]) == ("reno", True)
    assert {flow.counters["mss"] for flow in result.flows} == {parameters["mss"]}
    assert result.counters["cwnd"] < total(result, "cwnd") and result.counters["min_rtt_us"] > 0, "means, not sums"
    assert all(flow.received == flow.sent.packets > 0 for flow in result.flows)
    assert "transport: tcp, streams: 2, tcp control: reno, tcp ecn: on" in result.table()


@pytest.mark.deep
def test_ecn_is_negotiated_only_if_it_is_on_and_answers_marks(tiny: Lab) -> None:
    """An incast fills the queue to the sink: with ECN it marks, without it nothing can be marked."""
    on, off = (ran(tiny, options(collective="incast", size="1M", tcp_ecn=word)) for word in ("on", "off"))
    assert total(on, "ece") > 0 and on[QueueUse].marks > 0
    with socket.socket() as probe:
        shows = len(probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)) >= 252  # tcpi_received_ce
    assert sum(flow.ce for flow in on.flows) == (on[QueueUse].marks if shows else 0)
    assert total(off, "ece") == off[QueueUse].marks == 0
    proven(tiny)


def test_a_wrong_byte_fails_the_run(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_WORKER", wrongbyte.__name__)
    assert run(tiny, options(), Silent()).wrong > 0


@pytest.mark.long("waits for the kernel's timers")
def test_handshakes_with_losses_are_proven_and_what_vanishes_is_found(
    tiny: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_WORKER", lossysockets.__name__)
    result = ran(tiny, options(collective="all-to-all"))
    for flow in result.flows:
        ends = flow.sent.flow.src_rank, flow.sent.flow.dst_rank
        assert flow.counters["retransmitted"] > 0 or not (ends[0] == 0 or ends[1] in (1, 2)), ends
        assert flow.received == flow.sent.packets, ends
    proven(tiny)
    monkeypatch.setenv(lossysockets.VANISH, "1")
    flows = ran(tiny, options(collective="all-to-all")).flows
    assert [flow.sent.flow.dst_rank for flow in flows if flow.received != flow.sent.packets] == [3]
    assert not paths_of(tiny).agree


@pytest.mark.deep
def test_a_job_over_tcp_shares_nics_with_one_over_roce(tiny: Lab, tmp_path: Path) -> None:
    (tmp_path / "beside.yml").write_text(BESIDE)
    found = run_workload(tiny, load_workload(str(tmp_path / "beside.yml")).workload, Silent())
    assert [(job.wrong, job.options.transport) for job in found.jobs] == [(0, "rc"), (0, "tcp")]
    assert {flow.sent.flow.has_qp for flow in found.jobs[0].flows} == {True}
    for job in found.jobs:
        proven(tiny, job.id)


def test_a_job_on_the_front_end_runs_beside_one_on_the_back_end(borrow: Callable[..., Lab], tmp_path: Path) -> None:
    small = ("racks=2", "ctsw=1", "hosts_per_rack=1", "frontend.storage=1", "frontend.preprocess=1")
    lab = borrow("frontend", *small)
    (tmp_path / "front.yml").write_text(FRONT)
    found = run_workload(lab, load_workload(str(tmp_path / "front.yml")).workload, Silent())
    assert [job.wrong for job in found.jobs] == [0, 0]
    flows = proven(lab, found.jobs[1].id).flows  # of both jobs
    ends = {proof.flow.dst for proof in flows if proof.flow.job == "save"}
    assert ends == {"host1", "host2", "storage1", "preprocess1"}
    crossed = {(proof.flow.job, port[:3]) for proof in flows for port in proof.measured}
    assert crossed == {("train", "rts"), ("train", "cts"), ("save", "rsw"), ("save", "fsw")}
    in_node(lab, "host1", "ip link set eth2 mtu 1400")
    try:
        assert "the MTU is 1400, not 1500" in (why := failed(lab, {"mtu"})["mtu"]) and "data packets need 1500" in why
    finally:
        in_node(lab, "host1", "ip link set eth2 mtu 1500")


@pytest.mark.long("waits for the kernel's timers")
def test_a_lost_link_is_survived_and_a_dead_host_is_named(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ran(tiny, options(size="8M", iters=4, fault=["rtsw1:eth1,down,from=200ms,to=900ms"]))
    assert total(result, "retransmitted") > 0
    monkeypatch.setattr(tcp, "_LEAST_S", 2.0)
    dark = options(size="8M", iters=8, fault=["host3:eth1,down,from=200ms"])
    with pytest.raises(CheckError, match=r"TCP \d+ (to|from) rank \d on host\d:eth1: no acknowledgement for \d+ s"):
        run(tiny, dark, Silent())


@pytest.mark.deep
def test_it_runs_over_ipv6(borrow: Callable[..., Lab]) -> None:
    six = borrow("tiny", "family=ipv6")
    result = ran(six, options(streams=2))
    assert {flow.counters["mss"] for flow in result.flows} == {result.transport.parameters["mss"]}
    proven(six)
