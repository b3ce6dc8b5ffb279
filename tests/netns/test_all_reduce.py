"""All-reduces with real data over a live fabric, and the proof of where every queue pair went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.lab.lab import Lab
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions, parse_source_ports
from heddle.views.pathstext import paths_text
from tests.conftest import FabricLab
from tests.machine import patience
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
    paths = paths_of(tiny)
    assert paths.agree, paths_text(paths)
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
    assert paths_of(tiny).agree


def test_the_table_has_the_size_that_was_sent(tiny: Lab) -> None:
    """Of 300,001 bytes, chunks of four ranks with whole 16 bytes: 18,748 of 18,750 elements."""
    sent = 4 * 74_992
    result = all_reduce(tiny, collective="all-to-all", sizes=(300_001,))
    (row,) = result.rows
    assert (row.size, row.wrong) == (sent, 0)
    assert f"{sent:12d}  {sent // 4:12d}     float" in result.table()
    assert paths_of(tiny).agree


@pytest.mark.deep
def test_e_ecmp_spreads_the_queue_pairs_that_one_five_tuple_keeps_together(fabric_lab: FabricLab) -> None:
    used = {}
    for ecmp in ("flow", "e-ecmp"):
        lab = fabric_lab(racks=2, ctsw=4, hosts_per_rack=1, routing={"ecmp": ecmp})
        all_reduce(lab, qps=16, source_ports=parse_source_ports("fixed"))
        paths = paths_of(lab)
        assert paths.agree, paths_text(paths)
        used[ecmp] = {proof.measured[0] for proof in paths.flows if proof.measured[0].startswith("rtsw1:")}
    assert len(used["flow"]) == 1
    assert len(used["e-ecmp"]) > 1


@pytest.mark.deep
@pytest.mark.parametrize(("racks", "ctsw", "hosts", "ecmp"), [(3, 5, 3, "e-ecmp"), (2, 1, 1, "flow")])
def test_other_shapes_than_the_presets(fabric_lab: FabricLab, racks: int, ctsw: int, hosts: int, ecmp: str) -> None:
    link = {"host": "50mbit", "fabric": "50mbit"}
    lab = fabric_lab(racks=racks, ctsw=ctsw, hosts_per_rack=hosts, link=link, routing={"ecmp": ecmp})
    result = all_reduce(lab, qps=4, placement="cyclic")
    assert result.wrong == 0
    assert paths_of(lab).agree, paths_text(paths_of(lab))


def test_two_nics_a_host_are_two_ranks(fabric_lab: FabricLab) -> None:
    lab = fabric_lab(racks=2, ctsw=2, hosts_per_rack=1, nics_per_host=2)
    result = all_reduce(lab, qps=2)
    assert [(e.host, e.port) for e in result.endpoints] == [
        ("host1", "eth1"), ("host1", "eth2"), ("host2", "eth1"), ("host2", "eth2"),
    ]  # fmt: skip
    assert result.wrong == 0
    assert paths_of(lab).agree, paths_text(paths_of(lab))


def test_drops_of_a_small_buffer_are_retransmitted_and_named(fabric_lab: FabricLab) -> None:
    keys = {"link": {"host": "100mbit", "fabric": "20mbit"}, "queues": dropping("20KB")}
    lab = fabric_lab(racks=2, ctsw=1, hosts_per_rack=2, **keys)
    result = all_reduce(lab, placement="cyclic", sizes=(1 << 17,), timeout=15, retries=100)
    assert sum(flow.counters["retransmitted"] for flow in result.flows) > 0
    assert result.wrong == 0
    paths = paths_of(lab)
    assert paths.lost
    assert paths.agree, paths_text(paths)
    for flow, proof in zip(result.flows, paths.flows, strict=True):
        assert proof.counted[0] == flow.sent.packets


@pytest.mark.deep
def test_a_link_that_goes_down_ends_the_run_with_the_rank_that_noticed(fabric_lab: FabricLab) -> None:
    lab = fabric_lab(racks=2, ctsw=1, hosts_per_rack=1)
    lab.output("ctsw1", ["ip", "link", "set", "eth2", "down"])
    with pytest.raises(CheckError, match=r"rank \d on host\d:eth1: .*no acknowledgement after 2 retries"):
        all_reduce(lab, timeout=14, retries=2)
    with pytest.raises(InputError, match=r"run 0001 .* failed, so it has no paths"):
        paths_of(lab)  # the run before must not be taken for the one that failed


@pytest.mark.needs("tshark")
def test_tshark_reads_what_the_nics_send(tiny: Lab, tmp_path: Path) -> None:
    """An independent reader of a capture from a live run: same QPs, PSNs without gaps, no malformed packet."""
    pcap = tmp_path / "host1.pcap"
    where = ["nsenter", f"--net={tiny.handle('host1').netns}"]
    argv = [*where, "dumpcap", "-i", "eth1", "-f", "udp port 4791 and src 10.0.0.1", "-w", str(pcap)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as dump:
        assert dump.stderr is not None
        while "File:" not in dump.stderr.readline():
            assert dump.poll() is None
        result = all_reduce(tiny, qps=2)
        time.sleep(1.5)  # dumpcap hands blocks over once a second
        dump.send_signal(signal.SIGINT)
        dump.communicate(timeout=patience(10))
    fields = ["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "udp.srcport", "_ws.malformed"]
    words = [word for field in fields for word in ("-e", field)]
    out = subprocess.run(
        ["tshark", "-r", str(pcap), "-T", "fields", *words, "--disable-heuristic", "rpcrdma_infiniband"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = [line.split("\t") for line in out.splitlines()]
    assert not any(row[4] for row in rows)
    data = [row for row in rows if row[0] != "17"]
    for sent in (f.sent for f in result.flows if f.sent.flow.src == "host1"):
        flow = sent.flow
        mine = [int(row[2]) for row in data if int(row[1], 0) == flow.qpn]
        assert len(mine) == sent.packets
        assert all((b - a) % (1 << 24) == 1 for a, b in pairwise(mine))
        assert {int(row[3]) for row in data if int(row[1], 0) == flow.qpn} == {flow.sport}


def _workers_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"heddle.endpoints.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.deep  # Ctrl-C in a run: tests/netns/test_runs_kept.py
@pytest.mark.parametrize("how", ["killed", "its worker killed"])
def test_a_run_that_is_stopped_leaves_no_worker_and_a_working_lab(tiny: Lab, how: str) -> None:
    argv = [sys.executable, "-m", "tasks", "run", "--lab", tiny.name, "--size", "16M", "--iters", "1000"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as proc:
        deadline = time.monotonic() + patience(60)
        while not (workers := _workers_of(proc.pid)):
            assert time.monotonic() < deadline and proc.poll() is None
            time.sleep(0.05)
        if how == "killed":
            proc.kill()
        else:
            os.kill(workers[0], signal.SIGKILL)
        out, err = proc.communicate(timeout=patience(60))
    assert "Traceback" not in out + err
    assert proc.returncode == {"killed": -signal.SIGKILL, "its worker killed": 3}[how], err
    deadline = time.monotonic() + patience(60)
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert all_reduce(tiny).wrong == 0


@pytest.mark.deep
def test_a_port_that_is_gone_is_named(fabric_lab: FabricLab) -> None:
    lab = fabric_lab(racks=2, ctsw=1, hosts_per_rack=1)
    lab.output("host2", ["ip", "link", "delete", "eth1"])
    with pytest.raises(CheckError, match="host2:eth1  the port is missing: it was removed"):
        all_reduce(lab)
