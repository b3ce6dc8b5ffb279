"""One Flow from plan to verdict; workers' reports, settings and snapshots are values as soon as they are read."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.base import state
from heddle.base.problems import InputError, MachineError, Problem
from heddle.endpoints.nic.nic import NicCounters
from heddle.endpoints.nic.qpend import PathUse
from heddle.endpoints.reports import NicReport, QpReport, SizeResult, WorkerMessage, WorkerReport
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.transports import find_transport
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import WorkerUse
from heddle.lab.rehash import LiveHashing, live_hashing
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot, take
from heddle.predict.forwarding import FlowTable
from heddle.proof.evidence import Evidence
from heddle.proof.evidence import _sent as read_sent
from heddle.proof.verdict import prove
from heddle.runs.measured import flow_rows
from heddle.runs.run import job_plan
from heddle.spec.routingpolicy import HashOptions
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.traffic.flow import NO_RANK, Flow, Sent
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from tests.answers import Answers
from tests.unit.test_paths_report import FABRIC, HASHING, SENT, evidence, fibs, snapshot


def test_a_flow_has_its_ranks_and_is_one_flat_row_and_a_proof_has_that_very_flow() -> None:
    plan = build_plan(load_fabric("tiny").fabric, RunOptions(qps=2))
    assert all(flow is qp.flow for flow, qp in zip(plan.flows(), plan.qps, strict=True))
    assert {(flow.src_rank, flow.dst_rank) for flow in plan.flows()} == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert SENT[0].flow.src_rank == SENT[0].flow.dst_rank == NO_RANK
    # A proof has the very flow that was sent.
    result = prove(FABRIC, evidence(SENT))
    assert result.flows[0].sent is SENT[0] and result.flows[0].flow is SENT[0].flow
    # A flow is one flat row.
    flow = Flow("host1", "host2", "10.0.0.1", "10.0.1.1", 50000, 7, "rtsw1:eth3", src_rank=0, dst_rank=1)
    assert Sent(flow, 10, 1000).to_json() == {
        "src": "host1", "dst": "host2", "src_rank": 0, "dst_rank": 1, "src_ip": "10.0.0.1", "dst_ip": "10.0.1.1",
        "sport": 50000, "dport": 4791, "qpn": 7, "first_hop": "rtsw1:eth3", "packets": 10, "bytes": 1000,
    }  # fmt: skip


def test_the_dscp_of_a_run_is_that_of_its_flows_packets_and_class_also_when_evidence_is_read_again() -> None:
    options = run_options(dscp=8)
    plan = job_plan(FABRIC, options)
    assert (options.dscp, options.tos, {flow.dscp for flow in plan.flows()}) == (8, 0x22, {8})
    assert {flow.dscp for flow in job_plan(FABRIC, run_options()).flows()} == {24}
    with pytest.raises(InputError, match="--dscp 64 is outside 0 to 63"):
        run_options(dscp=64)
    sent = Sent(plan.flows()[0], 3, 300)
    assert sent.to_json()["dscp"] == 8 and read_sent(sent.to_json()).flow == sent.flow
    assert plan.timeout_s != job_plan(FABRIC, run_options()).timeout_s, "of another class, which is never paused"
    assert job_plan(FABRIC, run_options(transport="rxe", dscp=8)).options.tos == 0x22


def test_flows_are_those_of_the_ends_and_source_ports_outside_the_plan_are_named() -> None:
    options = run_options(transport="srd", entropy=2, placement="host1,host2")
    plan = job_plan(load_fabric("tiny").fabric, options)
    transport = find_transport("srd").of(plan)
    counters = {column.key: 1 for column in transport.columns}
    reports = []
    for qp in plan.qps:
        first, second = qp.sports
        used = (PathUse(first, 3, 300), PathUse(5, 2, 200))
        taken = (PathUse(5, 1), PathUse(first, 1), PathUse(6, 1))
        sender = QpReport(qp.flow.src_rank, qp.src_qpn, used, (), 0, counters)
        receiver = QpReport(qp.flow.dst_rank, qp.flow.qpn, (), taken, 4, {}, damaged={5: 1, 9: 1, second: 1})
        reports.append(WorkerReport((sender, receiver), ()))
    rows = flow_rows(plan, transport, reports)
    for qp, found in zip(plan.qps, (rows[:4], rows[4:]), strict=True):
        assert [row.sent for row in found] == [
            Sent(qp.flow, 3, 300),
            Sent(qp.flows[1], 0, 0),
            Sent(replace(qp.flow, sport=5), 2, 200, planned=False),
            Sent(replace(qp.flow, sport=6), 0, 0, planned=False),
        ]
        assert found[0].sent.flow is qp.flow
        # The header of a damaged frame may be wrong: with a port that no end uses, it counts for the QP's own port.
        assert [row.received for row in found] == [2, 1, 2, 1]
        assert [row.ce for row in found] == [4, 0, 0, 0]
        assert [sum(row.counters.values()) for row in found] == [len(counters), 0, 0, 0]
    made = replace(evidence(SENT), sent=tuple(r.sent for r in rows), oracle=((),) * 8, received=(2, 1, 2, 1) * 2)
    assert made.unplanned == (
        "host1 sent 2 packets with source port 5, which the plan does not have",
        "host2 received 1 packet with source port 6, which the plan does not have",
        "host2 sent 2 packets with source port 5, which the plan does not have",
        "host1 received 1 packet with source port 6, which the plan does not have",
    )
    again = Evidence.from_json(json.loads(json.dumps(made.to_json())))
    assert again.sent == made.sent and again.unplanned == made.unplanned


def test_a_table_of_flows_has_each_destination_once_and_the_first_switch_of_each_flow() -> None:
    here = SENT[0].flow
    there = replace(here, src=here.dst, dst=here.src, src_ip=here.dst_ip, dst_ip=here.src_ip, first_hop="rtsw2:eth3")
    table = FlowTable.of(FABRIC, [here, there, replace(here, qpn=8)])
    assert table.addresses == (here.dst_ip, there.dst_ip)
    assert table.destination.tolist() == [0, 1, 0]
    names = [FABRIC.switches[number].name for number in table.first.tolist()]
    assert names == ["rtsw1", "rtsw2", "rtsw1"]
    rows = list(table.arrays.rows())
    assert rows[0] == (bytes(map(int, here.src_ip.split("."))), bytes(map(int, here.dst_ip.split("."))), 50_000, 4791)
    assert table.arrays.qpn.tolist() == [7, 7, 8]


@pytest.mark.parametrize(
    "message",
    [
        WorkerMessage(ready=True),
        WorkerMessage(use=WorkerUse(0.5, 0.25, 0.125)),
        WorkerMessage(done=True, results={0: SizeResult(8, 0.25, 0), 3: SizeResult(8, 0.5, 1)}),
        WorkerMessage(error=(Problem("", "rank 1", "has died", "look"), Problem("a", "b", "c"))),
        WorkerMessage(
            report=WorkerReport(
                (QpReport(0, 0x101, (PathUse(50_000, 7, 900),), (PathUse(50_001, 6),), 1, {"naks": 2}),),
                (NicReport(NicCounters(1, 2, 3), 4),),
            )
        ),
    ],
)
def test_a_workers_message_is_one_line_and_comes_back_as_it_was(message: WorkerMessage) -> None:
    line = message.line()
    assert "\n" not in line
    assert WorkerMessage.of_line(line.encode()) == message


def test_how_switches_were_set_comes_back_typed_and_a_strange_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    live = LiveHashing("exact-match", 7, HashOptions(gap_ns=5), {(50_000, ip_network("10.0.1.0/24")): ("eth2",)})
    assert LiveHashing.from_json(json.loads(json.dumps(live.to_json()))) == live
    lab: Any = SimpleNamespace(name="zone")
    assert live_hashing(lab) == {}
    record = state.Record("zone", "netns", "running", {"name": "zone"}, hashing={"rtsw1": live.to_json()})
    state.write_record(record)
    assert live_hashing(lab) == {"rtsw1": live}
    state.write_record(replace(record, hashing={"rtsw1": {"mode": "flow"}}))
    with pytest.raises(MachineError, match="the hashing of lab zone was set by another version of Heddle"):
        live_hashing(lab)


def test_a_part_that_was_not_read_raises_and_names_the_part(answers: Answers) -> None:
    def read(part: str, name: str) -> object:
        found = Snapshot("zone", ~LabPart(0) & ~LabPart[part], {"rtsw1": NodeSnapshot("rtsw1")})
        return getattr(found, name)

    answers(read)


def test_a_part_that_could_not_be_read_raises_its_own_error_each_time_it_is_used() -> None:
    error = MachineError(Problem("bpf", "the maps", "are gone"))
    found = Snapshot("zone", LabPart.FIBS | LabPart.HASHING, {}, failed={LabPart.HASHING: error})
    assert found.fibs == {}
    for _ in range(2):
        with pytest.raises(MachineError, match="the maps are gone"):
            _ = found.hashing


def test_a_snapshot_is_a_frozen_value_whose_counters_can_be_replaced() -> None:
    found = snapshot(fibs(), HASHING)
    assert found == snapshot(fibs(), HASHING)
    with pytest.raises(AttributeError):
        found.lab = "other"  # type: ignore[misc]
    # Other counters replace those of every node and nothing else.
    table = {
        s.name: SwitchCounters(s.name, (FlowCount("eth1", "a", "b", 7, 1, 5, 50),), (), 0) for s in FABRIC.switches
    }
    found = snapshot(fibs(), HASHING, drops={"rtsw1:eth1": 3}).with_counters(table)
    assert found.counters == table and found.drops == {"rtsw1:eth1": 3} and found.fibs == fibs()
    # A lab without daemons cannot be asked for their sessions.
    with pytest.raises(ValueError, match="no daemons to ask"):
        take(FABRIC, {}, LabPart.SESSIONS)
