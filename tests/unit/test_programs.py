"""Programs on ranks: their places, environment and names; flows without a QP; how such a run is stored and shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.base.problems import CheckError, InputError
from heddle.cli.argv import parse
from heddle.cli.exec_verb import launch
from heddle.endpoints.programruns import ProgramEnd, ProgramOptions, check_command, environment, hosts_file, seats
from heddle.fabric.fabricfile import load_fabric
from heddle.predict.forwarding import FlowArrays, forwarding_of
from heddle.predict.hashes import kernel_hash
from heddle.predict.rules import FabricRules, HashingRule
from heddle.proof.collect import counted_flows
from heddle.runs.compare import compare
from heddle.runs.runrecord import read_record, write_record
from heddle.runs.store import limits
from heddle.runs.stored import StoredRun
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.traffic.flow import Flow
from heddle.views.linkloads import describe_run
from heddle.views.report.page import report_html
from heddle.views.runpicture import draw
from heddle.views.runstext import runs_json, runs_text
from heddle_plugins.dashboard.news import run_json
from tests.answers import Answers
from tests.unit import run_samples as samples

TINY, RAIL = load_fabric("tiny").fabric, load_fabric("rail").fabric
TCP, UDP = 6 << 24 | 5201, 17 << 24 | 5201


def test_ranks_are_placed_as_in_a_run_or_some_on_each_host() -> None:
    assert [(s.rank, s.end.nic, s.local, s.locals, s.node) for s in seats(RAIL, ProgramOptions(5))] == [
        (0, "host1:eth1", 0, 4, 0), (1, "host1:eth2", 1, 4, 0), (2, "host1:eth3", 2, 4, 0), (3, "host1:eth4", 3, 4, 0),
        (4, "host2:eth1", 0, 1, 1),
    ]  # fmt: skip
    found = seats(TINY, ProgramOptions(4, per_host=2, placement="host4,host2"))
    assert [(s.rank, s.end.nic, s.local, s.locals, s.node) for s in found] == [
        (0, "host4:eth1", 0, 2, 0), (1, "host4:eth1", 1, 2, 0), (2, "host2:eth1", 0, 2, 1), (3, "host2:eth1", 1, 2, 1),
    ]  # fmt: skip
    assert [s.end.nic for s in seats(RAIL, ProgramOptions(12, per_host=6))][4:7] == [
        "host1:eth1", "host1:eth2", "host2:eth1"
    ]  # fmt: skip


def test_ranks_that_have_no_place_are_refused(answers: Answers) -> None:
    answers(lambda options: seats(TINY, ProgramOptions(**options)))


def test_each_rank_has_the_environment_of_torchrun_and_mpirun_and_knows_all_hosts() -> None:
    every = seats(RAIL, ProgramOptions(8, placement="cyclic"))
    found = environment(every[5], every)
    assert {name: found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": str(every[5].local), "LOCAL_WORLD_SIZE": str(every[5].locals),
    }  # fmt: skip
    assert found["GROUP_RANK"] == str(every[5].node) and found["MASTER_ADDR"] == every[0].end.ip
    assert (found["OMPI_COMM_WORLD_RANK"], found["OMPI_COMM_WORLD_SIZE"]) == ("5", "8")
    assert found["GLOO_SOCKET_IFNAME"] == found["NCCL_SOCKET_IFNAME"] == every[5].end.port
    assert all(isinstance(value, str) for value in found.values())
    lines = hosts_file(RAIL, every).splitlines()
    assert lines[0] == "127.0.0.1 localhost"
    assert (
        "10.0.0.1 host1 host1-eth1 rank0" in lines
        and f" {every[5].end.host}-{every[5].end.port} rank5" in "\n".join(lines)
    )


def test_a_command_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    check_command(["sh"])
    text = tmp_path / "train.py"
    text.write_text("print()\n")
    for word, why in (
        ("", "is an empty word"),
        ("nosuch", "is not in PATH"),
        (str(text), f"python3 {text}"),
        ("./nosuch", "does not exist"),
    ):
        with pytest.raises(InputError, match=why):
            check_command([word])


def test_a_command_is_ended_by_a_closed_pipe_as_in_a_shell() -> None:
    code = "from heddle.runtimes.enter import become; become(['sh', '-c', 'yes | head -n 1'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_the_end_of_a_program_names_ranks_and_hosts(answers: Answers) -> None:
    every = seats(TINY, ProgramOptions(4))
    ends = {
        "failed": (ProgramEnd(7, (0, None, 7, None), every[2], (), {"host1": 1}, 1.0), None),
        "signal": (ProgramEnd(139, (139, None), every[0], (), {}, 1.0), None),
        "limit": (ProgramEnd(124, (0, None), None, every[1:3], {}, 2.0), 2.0),
    }
    answers({name: "\n".join(end.sentences("train", limit)) for name, (end, limit) in ends.items()})


@pytest.mark.parametrize(
    ("qpn", "label", "protocol", "number", "dport"),
    [(17, "17", 17, 17, 4791), (TCP, "TCP 5201", 6, 5201, 5201), (UDP, "UDP 5201", 17, 5201, 5201),
     (17 << 24, "UDP 0", 17, 0, 0)],
)  # fmt: skip
def test_a_flow_without_a_qp_has_its_protocol_and_port(
    qpn: int, label: str, protocol: int, number: int, dport: int
) -> None:
    flow = Flow.counted(("10.0.0.1", "10.0.1.1", 40000, qpn), "host1", "host3", "rtsw1:eth3")
    assert (flow.label, flow.protocol, flow.number, flow.dport) == (label, protocol, number, dport)
    assert flow.has_qp == (qpn == 17) and flow.key == ("10.0.0.1", "10.0.1.1", 40000, qpn)
    assert FlowArrays.of([flow]).protocol.tolist() == [protocol]


def test_tcp_is_hashed_with_its_own_protocol_and_seed_and_never_by_the_program() -> None:
    ends = "host1", "host3", "10.0.0.1", "10.0.1.1"
    flows = [Flow(*ends, 50000 + i, TCP if i % 2 else i, "rtsw1:eth3", 5201 if i % 2 else 4791) for i in range(64)]
    arrays = FlowArrays.of(flows)
    assert kernel_hash(arrays, 7, 1)[1] != kernel_hash(replace(arrays, qpn=arrays.qpn & np.uint32(0xFFFF)), 7, 1)[1]
    group = np.zeros((1, 1), dtype=np.int32)
    forwarding = forwarding_of(["rtsw1"], ["rtsw1:eth1", "rtsw1:eth2"], [-1, -1], group, [((0, 1), (1, 1), False)])
    zeros = np.zeros(len(flows), dtype=np.int32)
    rules = FabricRules.of(["rtsw1"], HashingRule("spray", 1), {"rtsw1": 5})
    rules = replace(rules, kernel_seed=np.array([7], dtype=np.uint32))
    found = rules.choose(forwarding, arrays, zeros, zeros, zeros, None)
    wanted = (kernel_hash(arrays, 7, 1) >> 1 >= 1 << 30).astype(np.int32)
    assert (found[1::2] == wanted[1::2]).all() and (found[::2] == -2).all()
    with pytest.raises(CheckError, match="fib_multipath_hash_seed is 0"):
        replace(rules, kernel_seed=np.array([0], np.uint32)).choose(forwarding, arrays, zeros, zeros, zeros, None)
    six = FlowArrays.of([replace(flows[1], src_ip="fd00::1", dst_ip="fd00::2")])
    labels = FabricRules.of(["rtsw1"], HashingRule("flow", 0), {"rtsw1": 5})
    labels = replace(labels, kernel_seed=rules.kernel_seed)
    with pytest.raises(CheckError, match="IPv6 flow label"):
        labels.choose(forwarding, six, zeros[:1], zeros[:1], zeros[:1], None)


def test_the_flows_of_a_program_are_those_that_switches_counted_in_the_meantime() -> None:
    one, other, three = (str(nic.address.ip) for nic in TINY.nics[:3] if nic.address)
    rows = (FlowCount("eth1", one, three, 40000, TCP, 5, 500), FlowCount("eth1", one, "192.0.2.1", 1, TCP, 1, 60))
    back = FlowCount("eth3", three, one, 5201, 6 << 24 | 40000, 4, 400)
    old = FlowCount("eth4", one, other, 3, TCP, 7, 700)
    nothing = {node.name: SwitchCounters(node.name, (), (), 0) for node in TINY.switches}
    before = nothing | {"rtsw1": SwitchCounters("rtsw1", (old,), (), 0)}
    now = nothing | {"rtsw1": SwitchCounters("rtsw1", (*rows, back, old), (), 0)}
    found = counted_flows(TINY, now, before)
    assert [(f.src, f.dst, f.sport, f.label, f.first_hop) for f in found] == [
        ("host1", "host3", 40000, "TCP 5201", "rtsw1:eth3"), ("host3", "host1", 5201, "TCP 40000", "rtsw2:eth3"),
    ]  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., StoredRun]:
    """A stored run of a program."""

    def keep(code: int = 0) -> StoredRun:
        options = replace(samples.OPTIONS, ranks=4, sizes=())
        launch = ("--ranks", "4", "--", "python3", "train.py", "-x")
        warnings = ("rank 2 on host3: python3 ended with exit code 7",) if code else ()
        record = replace(
            samples.record(), id="0001", options=options, qps=12, launch=launch, rows=(), parts={}, icrc_errors=None,
            stray=None, exit_code=code, warnings=warnings,
        )  # fmt: skip
        write_record(tmp_path, record)
        return StoredRun("0001", "zone", tmp_path)

    return keep


def test_a_program_is_stored_as_a_run_without_sizes(kept: Callable[..., StoredRun]) -> None:
    run = kept()
    data = json.loads((run.path / "run.json").read_text())
    assert data["header"]["options"] == {"ranks": 4, "placement": "block", "sizes": []}
    record = read_record(run.path)
    assert record.work == "train.py" and record.done and record.exit_code == 0
    assert replace(record, launch=("--ranks", "2", "--", "/bin/sh", "-c", "exit")).work == "sh"
    assert describe_run(record) == "train.py on 4 ranks, ECMP e-ecmp"
    (line,) = [line for line in runs_text({"zone": [run]}, limits(), []).splitlines() if line.startswith("0001")]
    assert line.split()[3:10] == ["train.py", "4", "-", "-", "e-ecmp", "-", "-"]
    (row,) = runs_json({"zone": [run]}, limits(), [])["runs"]
    assert row["launch"][-1] == "-x" and row["exit_code"] == 0 and "collective" not in row
    assert run_json(run)["what"] == "train.py, 4 ranks" and run_json(run)["ok"]
    page = report_html([run])
    assert "./inv launch --lab zone --ranks 4 -- python3 train.py -x" in page and "flows proven" in page


def test_a_program_that_failed_says_so_and_is_not_compared(kept: Callable[..., StoredRun]) -> None:
    run = kept(7)
    assert "0001 exit code 7: rank 2 on host3: python3 ended with exit code 7" in runs_text(
        {"zone": [run]}, limits(), []
    )
    assert not run_json(run)["ok"]
    with pytest.raises(InputError, match="is a program's: it has no sizes"):
        compare(run, StoredRun("0002", "zone", run.path / "other"))
    with pytest.raises(InputError, match="is a program's: it has no sizes"):  # export, and the table of a run
        _ = run.result
    with pytest.raises(InputError, match="is a program's: it has no sizes"):
        draw("svg", [run])


def test_a_program_that_sent_nothing_has_no_proof(kept: Callable[..., StoredRun]) -> None:
    run = kept()
    record = read_record(run.path)
    assert record.proof is not None
    write_record(run.path, replace(record, proof=replace(record.proof, qps=0)))
    run = StoredRun(run.id, run.lab, run.path)
    (line,) = [line for line in runs_text({"zone": [run]}, limits(), []).splitlines() if line.startswith("0001")]
    assert line.split()[9] == "-"
    assert runs_json({"zone": [run]}, limits(), [])["runs"][0]["agree"] is None


def test_launch_says_what_is_missing(answers: Answers) -> None:
    answers(lambda line: launch.run(**parse(launch.verb, line.split())))
