"""Runs with --transport rxe: the kernel's packets take the predicted paths, and carry the right data.

The counts come from programs at the NICs, the prediction from the plan, the oracle from the kernel's own routes. And
programs of others over soft-RoCE: perftest, and UCX, on which MPI libraries and NIXL send.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from heddle.base.ethernet import CLASSES
from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.endpoints.rdma.launching import launch
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel import rdma
from heddle.lab import lifecycle, outages
from heddle.lab.faults import packets
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.switch import counters
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import SourcePorts
from tests.machine import patience, rc_timeout, slower, until
from tests.marks import deep
from tests.netns.collectives import proven, total
from tests.netns.live import started
from tests.typed import typed

_WHY = rdma.obstacle()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}")

LOSSLESS = 3
LOSSY = "rtsw2:eth3"  # to host3


@pytest.fixture(scope="module")
def tiny(borrow: Callable[..., Lab]) -> Lab:
    """Its links are slow enough to be filled by the processors."""
    return borrow("tiny", *slower(100_000_000))


def devices(lab: Lab) -> list[str]:
    """The RDMA devices of a lab, in whichever namespace."""
    spaces = [handle.netns for handle in lab.handles().values()]
    return [link.name for link in rdma.links(rdma.prefix_of(lab.name), spaces)]


@pytest.mark.parametrize(
    ("collective", "qps", "ports"),
    [
        ("all-reduce", 1, SourcePorts()),
        ("all-to-all", 4, SourcePorts()),
        ("incast", 2, SourcePorts("list", (50000, 50001))),
    ],
)
def test_the_data_are_right_and_every_path_is_proven(tiny: Lab, collective: str, qps: int, ports: SourcePorts) -> None:
    options = RunOptions(
        collective, sizes=(1 << 16,), iters=1, warmup=1, qps=qps, source_ports=ports, transport="rxe", timeout=20
    )
    result = run(tiny, options, Silent())
    assert (result.wrong, result.nic_loop) == (0, "verbs")
    assert (
        result.icrc_errors is result.stray is result[MachineUse].socket_drops is None
    )  # the kernel counts none of them
    proven(tiny)
    for flow in result.flows:
        again, behind, ahead = (flow.counters[key] for key in ("retransmitted", "duplicates", "out_of_order"))
        assert flow.received is not None and flow.received - behind - ahead == flow.sent.packets - again
    assert sum(flow.sent.packets > 0 for flow in result.flows) >= len(result.flows) / 2  # a small message has one part
    assert {flow.sent.flow.qpn for flow in result.flows} >= {rdma.QPS_BEFORE_FIRST + 1} or collective == "incast"
    assert not devices(tiny)
    assert not counters.attached(tiny.name)


def test_rxe_obeys_pauses_and_its_packets_are_marked(tiny: Lab) -> None:
    """An incast: the queue to the sink marks, and pauses the senders, so that nothing is lost and sent again."""
    options = RunOptions("incast", sizes=(1 << 20,), iters=2, warmup=0, transport="rxe", timeout=21)
    with closing(LabQueues.pinned(tiny.fabric)) as live:
        gates = [live.ids[host.name, "eth1"] * CLASSES + LOSSLESS for host in tiny.fabric.hosts]
        frames, closed = live.gates["pfc_received"][gates].copy(), live.agent["paused_ns"][gates].copy()
        result = run(tiny, options, Silent())
        paused = [
            host.name
            for host, more, longer in zip(
                tiny.fabric.hosts, live.gates["pfc_received"][gates] > frames, live.agent["paused_ns"][gates] > closed,
                strict=True,
            )
            if more and longer
        ]  # fmt: skip
    assert result.wrong == 0
    assert result[QueueUse].drops == {} and result[QueueUse].pauses > 0
    assert paused and result[QueueUse].paused_hosts == len(paused), (
        "hosts received pause frames, and their gates closed"
    )
    assert result[QueueUse].marks > 0 and sum(flow.ce for flow in result.flows) > 0
    assert total(result, "retransmitted") == total(result, "out_of_order") == 0
    proven(tiny)


def test_a_lossy_link_is_survived_by_the_kernels_retransmissions(tiny: Lab) -> None:
    """Proven, unless the port dropped other packets, too: then flows behind it, and no others, may be unproven."""
    try:
        assert typed("fault", LOSSY, "--loss", "1/32", "--lab", tiny.name).returncode == 0
        options = RunOptions(sizes=(1 << 19,), iters=2, warmup=0, transport="rxe", timeout=rc_timeout(14))
        result = run(tiny, options, Silent())
        (fault,) = packets.read_faults(tiny)
    finally:
        outages.clear_faults(tiny)
    assert result.wrong == 0
    assert fault.counts is not None and 0 < result[QueueUse].drops["fault"] <= fault.counts["lost"]
    assert result[QueueUse].drops.keys() == {"fault"}
    assert total(result, "retransmitted") > 0
    found, dropped = paths_of(tiny), result[QueueUse].drops["fault"]
    behind = [proof for proof in found.flows if proof.measured[-1:] == (LOSSY,)]
    lost = sum(proof.counted[-1] - (proof.seen.received or 0) for proof in behind)
    unproven = [proof for proof in found.flows if proof.why]
    shown = ([(proof.flow, proof.counted, proof.seen.received, proof.why) for proof in unproven], lost, dropped)
    assert behind and 0 < lost <= dropped, shown
    if lost == dropped:
        assert found.agree, shown
    assert all(proof in behind and proof.why.endswith("of other traffic: not attributable") for proof in unproven), (
        shown
    )


def test_trimmed_packets_are_dropped_by_the_kernel_whose_own_retransmissions_recover(
    lab_name: Callable[[], str],
) -> None:
    keys = (*slower(100_000_000), "queues.lossless=[]", "queues.buffer=200KB", "queues.trimming.queue=5")
    name = lab_name()
    lifecycle.up(load_fabric("tiny", name=name, overrides=keys))
    try:
        options = RunOptions("incast", sizes=(1 << 19,), iters=1, warmup=0, transport="rxe", timeout=rc_timeout(14))
        result = run(open_lab(name), options, Silent())
    finally:
        lifecycle.down(name)
    assert result.wrong == 0 and result[QueueUse].trims > 0 and total(result, "retransmitted") > 0


def test_what_a_killed_run_left_is_removed_by_the_next_one_and_by_down(tiny: Lab) -> None:
    handle = tiny.handles()["host1"]
    name = rdma.link_name(tiny.name, "host1", "eth1")
    rdma.add_links([(handle.netns, name, "eth1")])
    counters.attach(tiny.name, [(handle.netns, "eth1")], 1)
    result = run(tiny, RunOptions(sizes=(1 << 14,), iters=1, warmup=0, transport="rxe", timeout=20), Silent())
    assert result.wrong == 0
    assert not devices(tiny)
    rdma.add_links([(handle.netns, name, "eth1")])
    assert devices(tiny) == [name]
    rdma.remove_links(rdma.prefix_of(tiny.name), [handle.netns])
    assert not devices(tiny)


# (program, its title, data travel from the first to the second host)
PROGRAMS = [
    ("ib_write_bw", "RDMA_Write BW Test", True),
    deep("ib_send_bw", "Send BW Test", True),
    deep("ib_read_lat", "RDMA_Read Latency Test", False),
]


@pytest.mark.parametrize(("program", "title", "ahead"), PROGRAMS)
def test_launch_runs_programs_of_perftest_between_two_hosts(tiny: Lab, program: str, title: str, ahead: bool) -> None:
    with closing(LabQueues.pinned(tiny.fabric)) as live:
        # The lossless class at the ports to host1 and host3.
        rows = [live.ids[switch, "eth3"] * CLASSES + LOSSLESS for switch in ("rtsw1", "rtsw2")]
        before = live.cells["out_bytes"][rows].astype(int)
        size, count = 16384, 5
        words = ["-n", str(count), "-s", str(size), "--tclass=98"]
        done = typed("launch", "host1", "host3", "--lab", tiny.name, "--format", "json", "--", program, *words)
        assert done.returncode == 0, done.stderr
        to_first, to_second = live.cells["out_bytes"][rows].astype(int) - before
    document = json.loads(done.stdout)
    assert document["exit_code"] == 0 and title in document["stdout"]
    assert str(size) in document["stdout"].splitlines()[-2]
    much, little = (to_second, to_first) if ahead else (to_first, to_second)
    assert much > size * count > little, "the data are in the lossless class, and travel in one direction"
    assert not devices(tiny)


def test_launch_names_what_is_wrong(tiny: Lab) -> None:
    with pytest.raises(InputError, match="is not a host"):
        launch(tiny, "host1", "hots3", ["ib_write_bw"], Silent())
    with pytest.raises(InputError, match="is set by launch itself"):
        launch(tiny, "host1", "host3", ["ib_write_bw", "-d", "x"], Silent())
    with pytest.raises(CheckError, match="ended with exit code"):
        launch(tiny, "host1", "host3", ["ib_write_bw", "--no-such-flag"], Silent())


# As perftest when the fit of its clock is poor: each client so many times, then as usual.
NO_CLOCK = """\
#!{python}
import pathlib, socket, sys
if "." in sys.argv[-1]:  # the server's address, for the client only
    socket.create_connection((sys.argv[-1], 18515)).close()
    times = pathlib.Path({count!r})
    left = int(times.read_text())
    print("left", left)
    print("50 %", end="\\r", file=sys.stderr)
    if left:
        times.write_text(str(left - 1))
        print("Correlation coefficient r^2: 0.870801 < 0.9", file=sys.stderr)
        sys.exit({code})
else:
    with socket.create_server(("", 18515)) as server:
        server.accept()
"""


@pytest.mark.parametrize("code", [1, deep(0)], ids=["bandwidth", "latency"])
def test_launch_runs_again_what_could_not_measure_the_clock(
    tiny: Lab, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    count, program = tmp_path / "count", tmp_path / "ib_test"
    program.write_text(NO_CLOCK.format(python=sys.executable, count=str(count), code=code))
    program.chmod(0o755)
    count.write_text("2")
    done = typed("launch", "host1", "host3", "--lab", tiny.name, "--format", "json", "--", str(program))
    assert json.loads(done.stdout)["stdout"] == "left 0\n" and done.returncode == 0, done.stderr
    said = "could not measure the processor's clock: it runs again"
    assert done.stderr.count("r^2: 0.87") == done.stderr.count(said) == 2 and done.stderr.count("50 %\r") == 3
    count.write_text("3")
    done = typed("launch", "host1", "host3", "--lab", tiny.name, "--", str(program))
    assert done.returncode == 1 and "clock in 3 runs: do not trust its figures" in done.stderr
    assert capfd.readouterr().out == "left 3\nleft 2\nleft 1\n"
    assert not devices(tiny)


# Its client says its own number, and waits.
STAYS = """\
#!{python}
import os, pathlib, socket, sys, time
if "." in sys.argv[-1]:
    with socket.create_connection((sys.argv[-1], 18515)):
        pathlib.Path({file!r}).write_text(f"{{os.getpid()}}\\n")
        time.sleep(600)
else:
    with socket.create_server(("", 18515)) as server:
        server.accept()[0].recv(1)
"""


def test_a_launch_that_is_ended_leaves_no_program_and_no_device(tiny: Lab, tmp_path: Path) -> None:
    file, program = tmp_path / "pid", tmp_path / "ib_test"
    program.write_text(STAYS.format(python=sys.executable, file=str(file)))
    program.chmod(0o755)
    with started("launch", "host1", "host3", "--", str(program), lab=tiny) as process:
        until(lambda: file.exists() and file.read_text().endswith("\n"), process=process)
        assert Path("/proc", file.read_text().strip()).exists()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=patience(60))
    assert process.returncode != 0
    assert not Path("/proc", file.read_text().strip()).exists()
    assert not devices(tiny)


COUNT, SIZE = 40, 65536
# Rank 0 is the server. The client tries again until it listens. UCX connects its queue pairs over TCP: over soft-RoCE's
# datagrams, as with UCX_TLS=rc, its connections time out. -P 0: not as a program of MPI.
SCRIPT = f"""
test="ucx_perftest -P 0 -t tag_bw -s {SIZE} -n {COUNT} -w 1"
[ $RANK = 0 ] && exec $test
for try in $(seq 60); do $test $MASTER_ADDR && exit; sleep 1; done; exit 1
"""


@pytest.mark.skipif(shutil.which("ucx_perftest") is None, reason="needs ucx_perftest, of Debian's ucx-utils")
@pytest.mark.deep
def test_ucx_sends_on_reliable_connections_over_soft_roce(borrow: Callable[..., Lab]) -> None:
    lab = borrow("tiny", *slower(100_000_000))
    words = ["--ranks", "2", "--placement", "host1,host3", "--time-limit", "200s", "--lab", lab.name, "--rdma"]
    with closing(LabQueues.pinned(lab.fabric)) as live:
        # The lossless class at the ports to host1 and host3.
        rows = [live.ids[switch, "eth3"] * CLASSES + LOSSLESS for switch in ("rtsw1", "rtsw2")]
        before = live.cells["out_bytes"][rows].astype(int)
        done = typed("launch", *words, "--format", "json", "--", "sh", "-c", SCRIPT)
        to_server, to_client = live.cells["out_bytes"][rows].astype(int) - before
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["exit_codes"] == [0, 0]
    # Only its queue pairs have that traffic class: its TCP connections are best effort.
    assert to_server > SIZE * COUNT > to_client, (to_server, to_client, document)
    assert document["agree"], document
    assert not rdma.links(rdma.prefix_of(lab.name), [handle.netns for handle in lab.handles().values()])
