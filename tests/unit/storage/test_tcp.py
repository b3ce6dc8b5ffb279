"""tcp without a fabric: numbers and ports of a plan, its options, and what it refuses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints import worker
from heddle.endpoints.runoptions import run_options, typed_options
from heddle.endpoints.worker import Task
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.columns import cutting_of
from heddle.offline.forecast import Ask, forecast
from heddle.offline.ideal import ideal_seconds
from heddle.runs.run import payload_bytes, plan_run
from heddle.traffic.plan import Plan
from heddle.traffic.workload import Workload
from heddle.wire.sport import SPORTS
from heddle_plugins.storage.tcp import Tcp, refused, usual_control
from heddle_plugins.storage.tcpinfo import TcpInfo
from heddle_plugins.storage.tcpparams import LEAD, TcpParams

TINY = load_fabric("tiny").fabric


def plan_of(**typed: Any) -> tuple[Plan, TcpParams]:
    plan, transport = plan_run(TINY, run_options(**{"transport": "tcp", **typed}))
    assert isinstance(transport, Tcp)
    return plan, transport.params


def test_each_stream_has_its_own_port_below_the_source_ports() -> None:
    plan, _ = plan_of(streams=8, collective="all-to-all")
    ports = Counter((qp.flow.dst_ip, qp.flow.dport) for qp in plan.qps)
    assert max(ports.values()) == 1 and len(ports) == 8 * 12
    assert all(qp.flow.dport < SPORTS[0] <= qp.flow.sport for qp in plan.qps)


def test_streams_are_queue_pairs_and_the_defaults_of_tcp_are_typed_again() -> None:
    chosen = run_options(transport="tcp", streams=4)
    assert (chosen.qps, chosen.dscp, chosen.own["tcp_control"]) == (4, 0, usual_control())
    again = typed_options(chosen)
    words: dict[str, Any] = {word: int(text) if text.isdecimal() else text for word, (text, *_) in again.items()}
    assert run_options(**words) == chosen
    assert run_options(transport="tcp", dscp=24).dscp == 24 and run_options().dscp == 24


def test_the_segment_size_follows_the_mtu() -> None:
    assert {plan_of()[1].mss} == {TINY.policy.mtu - 52}


@pytest.mark.parametrize("changes", [[], ["roce.ib_mtu=256", "frontend.mtu=9000"], ["family=ipv6"]])
def test_the_ideal_and_the_packets_of_a_run_are_those_of_segments(changes: list[str]) -> None:
    fabric = load_fabric("frontend", overrides=changes).fabric
    plan, transport = plan_run(fabric, run_options(collective="checkpoint", size="256K"))
    headers, message = 14 + (40 if plan.ip_version == 6 else 20) + 32, plan.options.chunk + LEAD.size
    segments = -(-message // transport.params.mss)
    cut = cutting_of(plan)
    assert (cut.ib_mtu, cut.overhead) == (transport.params.mss, headers)
    assert plan.propagation.frame == transport.params.mss + headers
    assert payload_bytes(plan) == message // segments
    seconds = 8 * 8 * (segments * headers + message) / plan.endpoints[0].rate_bps  # 8 trainers have 2 storage hosts
    assert ideal_seconds(plan, 256 << 10) == pytest.approx(seconds, rel=0.001)
    assert forecast(fabric, Workload.of(plan.options), Ask(), Silent()).roofline.nic_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("typed", "what", "why"),
    [
        ({"window": 8}, "--window 8", "the kernel decides when segments leave"),
        ({"cc": "dcqcn"}, "--cc dcqcn", "the kernel decides when segments leave"),
        ({"admission": "on"}, "--admission on", "the kernel decides when segments leave"),
        ({"local_ack_timeout": 14}, "--local-ack-timeout 14", "the kernel decides when segments leave"),
        ({"tcp_control": "swift"}, "--tcp-control swift", "is not a congestion control of this kernel"),
        ({"sport": "fixed:4000"}, "--sport", "streams have source ports from 49152 to 65535"),
        ({"streams": 2, "qps": 4}, "--streams 2", "does not go together with --qps 4"),
        ({"streams": 128, "collective": "all-to-all", "ranks": 16}, "--qps 128 on 16 ranks", "has 2,560 ports"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_in_a_sentence(typed: dict[str, Any], what: str, why: str) -> None:
    fabric = load_fabric("zone").fabric if "ranks" in typed else TINY
    with pytest.raises(InputError) as caught:
        plan_run(fabric, run_options(**{"transport": "tcp", **typed}))
    (problem,) = caught.value.problems
    assert problem.what == what and why in problem.why and problem.hint
    if "ranks" not in typed:  # a prediction needs no ports
        with pytest.raises(InputError) as offline:
            forecast(fabric, Workload.of(run_options(**{"transport": "tcp", **typed})), Ask(), Silent())
        assert offline.value.problems == (problem,)


def test_ranks_of_one_host_would_not_use_the_fabric() -> None:
    fabric = load_fabric("rail").fabric
    with pytest.raises(InputError, match="delivers between its own addresses"):
        plan_run(fabric, run_options(transport="tcp"))
    plan_run(fabric, run_options(transport="tcp", nvlink_rate=3600))


def test_a_prediction_says_that_kernels_cut_the_streams() -> None:
    found = forecast(TINY, Workload.of(run_options(transport="tcp")), Ask(), Silent())
    assert any("kernels cut streams into segments" in note for note in found.notes)


def test_a_worker_without_a_parent_ends_without_a_traceback() -> None:
    plan, transport = plan_run(TINY, run_options(transport="tcp"))
    task = Task(plan, (0,), {plan.endpoints[0].host: "/no-namespace"}, transport.parameters())
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", worker.__name__]
    line = TypeAdapter(Task).dump_json(task) + b"\n"
    done = subprocess.run(
        argv, cwd=Path(__file__).parents[3], input=line, stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_tcp_info_of_a_stream_counts_its_segments() -> None:
    assert refused("no-such") and not refused(usual_control())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            near.sendall(b"x" * 1000)
            assert far.recv(1000, socket.MSG_WAITALL)
            info = TcpInfo.of(near)
    assert (info.segments_out, info.bytes_sent, info.retransmitted) == (3, 1000, 0)
    assert info.frames(20, syns=1) == 1000 + 3 * 66 + 8


@pytest.mark.parametrize("share", ["false", "true"])
def test_a_job_on_the_front_end_has_ranks_at_hosts_that_serve(share: str) -> None:
    fabric = load_fabric("frontend", overrides=[f"frontend.share_nics={share}"]).fabric
    chosen = run_options(transport="tcp", network="frontend", placement="storage1,host2,preprocess1")
    plan, transport = plan_run(fabric, chosen)
    port = "eth1" if share == "true" else "eth2"
    assert [end.nic for end in plan.endpoints] == ["storage1:eth1", f"host2:{port}", "preprocess1:eth1"]
    assert transport.params.mss == (fabric.policy.mtu if share == "true" else 1500) - 52
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"network": "frontend"}, "does not carry RoCEv2"),
        ({"placement": "host1,storage1"}, "has no port in the network of this job"),
        ({"network": "front", "transport": "tcp"}, "is not a network"),
    ]
    for typed, why in wrong:
        with pytest.raises(InputError, match=why):
            plan_run(fabric, run_options(**typed))
    with pytest.raises(InputError, match="is not a network of tiny"):
        plan_run(TINY, run_options(transport="tcp", network="frontend"))
