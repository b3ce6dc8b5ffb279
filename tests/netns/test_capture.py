"""Captures at ports of running labs: what they see is what passed, and they end as they should.

The notes of `capture --live` are those of `paths` and `queues`, and tshark agrees with `--read`.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.process import run
from heddle.cli.capture_live import LiveNotes
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.capture import Bounds, capture, find_ports, read_filter
from heddle.lab.lab import Lab
from heddle.lab.rehash import set_hashing
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import paths_of
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import row
from heddle.wire import layout as wire
from heddle.wire.dissect import dissect
from heddle.wire.pcapng import Frame, PcapngFile
from tests.conftest import FabricLab
from tests.machine import links, patience, until
from tests.netns.collectives import ran
from tests.netns.live import started
from tests.typed import typed
from tests.unit.roce_samples import SAMPLES

pytestmark = pytest.mark.needs("tcpdump", "tshark")


def tshark(path: Path, *fields: str) -> list[list[str]]:
    """What tshark says of each packet of a file: its fields."""
    wanted = [word for field in fields for word in ("-e", field)]
    done = run(["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "separator=|", *wanted])
    return [line.split("|") for line in done.out.splitlines()]


def tcpdumps(lab: Lab) -> list[str]:
    """Processes that capture in a lab: they stand in one of its namespaces."""
    here = {handle.netns.stat().st_ino for handle in lab.handles().values()}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/net").stat().st_ino in here:
                found.append((entry / "comm").read_text().strip())
        except OSError:
            continue
    return [name for name in found if name == "tcpdump"]


@contextmanager
def inv_capture(lab: Lab, port: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`./inv capture`, once it listens; it is over at the end of the with block."""
    with started("capture", port, *words, lab=lab, errors=subprocess.PIPE) as proc:
        assert proc.stderr is not None
        line = proc.stderr.readline()
        assert line.startswith("capturing at"), line + proc.stderr.read()
        yield proc


def udp_of(lab: Lab, node: str) -> socket.socket:
    """A socket of a node; only its creation needs the namespace."""
    with inside(lab.handle(node).netns):
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


@pytest.mark.containers
def test_a_capture_sees_just_the_packets_that_the_counters_count(tiny: Lab, tmp_path: Path) -> None:
    taps = find_ports(tiny, "rtsw1:eth1,rtsw1:eth2")
    refs, frames = [tap.ref for tap in taps], list[Frame]()
    path, ended, results = tmp_path / "all reduce.pcap", threading.Event(), list[RunRecord]()

    def reduce() -> None:
        try:
            results.append(ran(tiny, qps=4, warmup=0))
        finally:
            ended.set()

    with PcapngFile(path, refs) as file:

        def keep(some: Sequence[Frame]) -> None:
            frames.extend(some)
            file.write(some)

        worker = threading.Thread(target=reduce)
        done = capture(
            taps,
            read_filter("roce"),
            Bounds(10**6, patience(60)),
            keep,
            whole=True,
            stop=ended.is_set,
            listening=worker.start,
        )
        worker.join()
        assert results, "the run failed"
        file.keep(done.ended_ns, done.dropped)
    assert (done.ended, done.packets) == ("asked", len(frames))
    assert done.dropped == dict.fromkeys(refs, 0)
    for ref in refs:  # of both ports together only as far as a busy machine hands them over within 50 ms
        times = [frame.time_ns for frame in frames if frame.port == ref]
        assert times == sorted(times)

    seen = Counter[tuple[str, str, str, int]]()
    for frame in frames:
        what = dissect(frame.data)
        assert what.kind in ("RoCE data", "RoCE ACK", "RoCE NAK")  # a busy machine loses a packet at times
        if frame.outgoing and what.kind == "RoCE data":
            seen[frame.port, what.src, what.dst, int(what.fields["qpn"])] += 1
    counted = {
        (port, proof.flow.src_ip, proof.flow.dst_ip, proof.flow.qpn): count
        for proof in paths_of(tiny).flows
        for port, count in zip(proof.measured, proof.counted, strict=True)
        if port in refs
    }
    assert seen == counted
    assert counted

    said = tshark(path, "frame.interface_name", "infiniband.bth.destqp", "frame.packet_flags_direction", "frame.len")
    assert [(row[0], int(row[1], 16), int(row[2], 16) == 2, int(row[3])) for row in said] == [
        (f.port, dissect(f.data).fields["qpn"], f.outgoing, f.wire_bytes) for f in frames
    ]


def test_count_and_time_end_it_whichever_is_first(tiny: Lab) -> None:
    with inv_capture(tiny, "rtsw1", "--count", "3", "--format", "json") as proc:
        data = json.loads(proc.communicate(timeout=patience(60))[0])
    assert proc.returncode == 0
    assert (data["ended"], data["packets"], len(data["frames"]), data["dropped"]) == ("count", 3, 3, 0)
    assert data["ports"] == ["rtsw1:eth1", "rtsw1:eth2", "rtsw1:eth3", "rtsw1:eth4"]
    assert {frame["kind"] for frame in data["frames"]} <= {"ND", "ARP", "BGP", "ICMPv6"}

    with inv_capture(tiny, "host1", "--seconds", "0.5", "--filter", "roce") as proc:
        text = proc.communicate(timeout=patience(60))[0]
    assert "0 packets, 0 bytes at host1:eth1 in 0.5 s (the time is up); the kernel dropped 0" in text


@pytest.mark.deep
def test_a_file_has_all_packets_and_every_byte_of_the_longest(tiny: Lab, tmp_path: Path) -> None:
    """Packets of 9 bytes in one burst: the ring must hold them until tcpdump has a processor."""
    path = tmp_path / "all.pcapng"
    words = ["--count", "1501", "--seconds", "60", "--out", str(path), "--filter", "udp port 9", "--format", "json"]
    with udp_of(tiny, "host1") as udp, inv_capture(tiny, "host1", *words) as proc:
        udp.sendto(b"x" * (4200 - 28), ("10.0.0.3", 9))
        for _ in range(1500):
            udp.sendto(b"x" * 9, ("10.0.0.3", 9))
        data = json.loads(proc.communicate(timeout=patience(60))[0])
    assert (data["ended"], data["packets"], data["dropped"]) == ("count", 1501, 0), data
    said = tshark(path, "frame.len", "frame.cap_len")
    assert (len(said), said[0]) == (1501, ["4214", "4214"])


def test_ctrl_c_ends_it_well_and_keeps_the_file(tiny: Lab, tmp_path: Path) -> None:
    path = tmp_path / "kept.pcapng"
    with inv_capture(tiny, "rtsw2:eth1", "--seconds", "60", "--out", str(path)) as proc:
        time.sleep(1.2)  # zebra advertises itself every second
        assert not path.exists()
        proc.send_signal(signal.SIGINT)
        text, errors = proc.communicate(timeout=patience(60))
    assert (proc.returncode, errors) == (0, "")
    packets = int(re.findall(r"(\d+) packets, .*ended by hand", text)[0])
    assert 0 < packets == len(tshark(path, "frame.len"))
    assert list(tmp_path.iterdir()) == [path]
    assert tcpdumps(tiny) == []


@pytest.mark.deep
def test_tcpdump_does_not_outlive_a_capture_that_is_killed(tiny: Lab, tmp_path: Path) -> None:
    with inv_capture(tiny, "rtsw1", "--seconds", "60") as proc:
        assert tcpdumps(tiny) == ["tcpdump"] * 4
        proc.kill()
        proc.wait()
        until(lambda: not tcpdumps(tiny))
    assert tcpdumps(tiny) == []


def test_ports_are_taken_once_and_loopback_is_one(tiny: Lab) -> None:
    refs = [tap.ref for tap in find_ports(tiny, "host1:eth1, host1,rtsw1:lo")]
    assert refs == ["host1:eth1", "rtsw1:lo"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("rocee", "did you mean roce"), ("udp prt 4", "syntax error"), ("-h", "is no filter"), ("port 1 \n", "")],
)
def test_an_invalid_filter_is_reported_with_tcpdumps_reason(text: str, said: str) -> None:
    if not said:
        assert read_filter(text) == text
        return
    with pytest.raises(InputError, match=said):
        read_filter(text)


@pytest.mark.deep
def test_a_capture_sees_a_packet_when_it_leaves_its_queue_also_one_that_is_then_dropped(tiny: Lab) -> None:
    taps = find_ports(tiny, "host1:eth1,rtsw1:eth3")
    gates = Gates(tiny.handle("host1").netns)
    switch = tiny.handle("rtsw1").netns.name
    index = json.loads(run(["ip", "-n", switch, "-j", "link", "show", "eth3"]).out)[0]["ifindex"]
    # Ports share a block of filters: drop what has come in by this one, and leave the rest to the next filter.
    (block,) = re.findall(r"ingress_block (\d+)", run(["tc", "-n", switch, "qdisc", "show", "dev", "eth3"]).out)
    drop, by_port = ["block", block, "pref", "1"], f"4,32 0 0 {0xFFFFF008},21 0 1 {index},6 0 0 2,6 0 0 {0xFFFFFFFF}"

    def seen(listening: Callable[[], None], count: int, seconds: float) -> Counter[str]:
        found = Counter[str]()

        def keep(frames: Sequence[Frame]) -> None:
            found.update(frame.port for frame in frames)

        capture(taps, "udp port 9", Bounds(count, seconds), keep, listening=listening)
        return found

    def send() -> None:
        for _ in range(9):
            udp.sendto(b"x" * 900, ("10.0.0.3", 9))

    with udp_of(tiny, "host1") as udp:
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, wire.TOS_DATA)
        gates.close("eth1", 3)
        try:
            assert seen(send, 99, 1.0) == {}
            run(["tc", "-n", switch, "filter", "add", *drop, "bpf", "bytecode", by_port, "da"])
        finally:
            both = seen(lambda: gates.open("eth1", 3), 18, patience(20))
            gates.close_sockets()
            run(["tc", "-n", switch, "filter", "del", *drop])
    assert both == {"host1:eth1": 9, "rtsw1:eth3": 9}


@pytest.mark.deep
def test_a_lab_that_goes_down_and_a_port_that_is_removed_end_it(fabric_lab: FabricLab, tmp_path: Path) -> None:
    lab = fabric_lab(racks=2, ctsw=1, hosts_per_rack=1)
    host1, rtsw2 = find_ports(lab, "host1,rtsw2:eth1")

    def remove() -> None:
        run(["ip", "-n", host1.netns.name, "link", "del", "eth1"])

    done = capture([host1], "", Bounds(10**6, 30), lambda _: None, listening=remove)
    assert (done.ended, len(done.problems)) == ("lost", 1)
    assert "host1:eth1 ended early: the port is gone" in str(done.problems[0])
    with pytest.raises(MachineError, match="host1:eth1 is not there any more"):
        find_ports(lab, "host1")

    path = tmp_path / "down.pcapng"
    with inv_capture(lab, rtsw2.ref, "--seconds", "60", "--out", str(path)) as proc:
        time.sleep(1.2)
        life.down(lab.name)
        text, errors = proc.communicate(timeout=patience(60))
    assert proc.returncode == 1
    assert "rtsw2:eth1 ended early: its node is gone, most likely with its lab" in errors
    assert "Traceback" not in errors
    assert f"{len(tshark(path, 'frame.len'))} packets, " in text


KEYS = ("src", "dst", "qpn", "sport")


@pytest.fixture(scope="module")
def tiny_overrides() -> Sequence[str]:
    """Rates at which the queue of an incast lasts until it is read, on a busy machine too."""
    return links(20_000_000)


@pytest.mark.deep
def test_notes_are_those_of_paths_and_the_file_is_read_as_tshark_reads_it(tiny: Lab, tmp_path: Path) -> None:
    path, live = tmp_path / "two switches.pcapng", dict[str, Any]()
    words = ["--live", "--out", str(path), "--seconds", f"{patience(60):g}", "--format", "json"]

    def waits() -> bool:
        """A busy machine may read a packet's queue when it is empty again: then another incast."""
        with inv_capture(tiny, "rtsw1,ctsw1", *words) as proc:
            ran(tiny, collective="incast", qps=2)
            proc.send_signal(2)
            live.update(json.loads(proc.communicate(timeout=patience(60))[0]))
        data = (each for each in live["frames"] if each["kind"] == "RoCE data" and each["port"] == "rtsw1:eth3")
        return any(each["queue_bytes"] for each in data)

    until(waits, 120)
    proven = {(p.flow.src_ip, p.flow.dst_ip, p.flow.qpn, p.flow.sport): p.measured for p in paths_of(tiny).flows}
    roce = [frame for frame in live["frames"] if frame["kind"].startswith("RoCE")]
    frames = [frame for frame in roce if frame["kind"] == "RoCE data"]
    noted = {tuple(frame[key] for key in KEYS): tuple(frame["path"]) for frame in frames}
    assert noted == {key: path for key, path in proven.items() if key in noted} and len(noted) > 1
    assert all(frame["on_path"] for frame in roce)
    assert {(frame["kind"], frame["class"]) for frame in roce} >= {("RoCE data", 3), ("RoCE ACK", 6)}

    done = typed("capture", "--read", str(path), "--format", "json")
    data = json.loads(done.stdout)
    names = ("frame.interface_name", "ip.src", "ip.dst", "infiniband.bth.destqp", "infiniband.bth.opcode",
             "ip.dsfield.ecn", "udp.dstport", "infiniband.bth.psn", "_ws.malformed")  # fmt: skip
    wanted = [word for name in names for word in ("-e", name)]
    said = run(["tshark", "-n", "-r", str(path), "--disable-heuristic", "rpcrdma_infiniband", "-T", "fields",
                "-E", "separator=|", *wanted])  # fmt: skip
    rows = [line.split("|") for line in said.out.splitlines()]
    theirs = [each for each in rows if each[6] == "4791"]
    assert data["packets"] == live["packets"] == len(rows) and not any(each[8] for each in theirs)
    assert data["opcodes"] == Counter(wire.OPCODE_NAMES[int(each[4])] for each in theirs)
    assert data["ecn"].get("ce", 0) == sum(each[5] == "3" for each in theirs)
    assert data["icrc"]["right"] == len(theirs), data["icrc"]
    psns: dict[tuple[str, ...], list[int]] = {}
    for each in theirs:
        if int(each[4]) != wire.ACK:
            psns.setdefault((each[0], each[1], each[2], each[3]), []).append(int(each[7]))
    assert all((b - a) % (1 << 24) == 1 for some in psns.values() for a, b in pairwise(some)), "no PSN is missing"
    ours = Counter({(qp["port"], qp["src"], qp["dst"], qp["qpn"]): qp["packets"] for qp in data["qps"]})
    assert ours == Counter((each[0], each[1], each[2], int(each[3], 0)) for each in theirs)


def frame_of(lab: Lab, port: str, src: str, dst: str, *, outgoing: bool) -> Frame:
    """A frame of a sample with the addresses of two hosts of the lab."""
    data = bytearray(SAMPLES[0].frame())
    for at, name in ((26, src), (30, dst)):
        address = lab.fabric.by_name[name].ports[0].address
        assert address is not None
        data[at : at + 4] = address.ip.packed
    return Frame(port, 0, 0.0, outgoing, len(data), bytes(data))


def test_a_packet_off_its_path_and_a_paused_queue_are_said(tiny: Lab) -> None:
    with LiveNotes(tiny) as notes, LabQueues.pinned(tiny.fabric) as queues:
        frame = frame_of(tiny, "rtsw1:eth1", "host1", "host3", outgoing=True)
        what = dissect(frame.data)
        notes.arrived(frame, what)
        path = notes.of(frame, what).path
        assert path[0] in ("rtsw1:eth1", "rtsw1:eth2") and len(path) == 3
        wrong = "rtsw1:eth2" if path[0] == "rtsw1:eth1" else "rtsw1:eth1"
        stray = frame_of(tiny, wrong, "host1", "host3", outgoing=True)
        cell = queues.agent[row(queues.ids["rtsw1", wrong.partition(":")[2]], 3)]
        before = int(cell["closed_since_ns"])
        cell["closed_since_ns"] = 1
        try:
            notes.arrived(stray, what)
        finally:
            cell["closed_since_ns"] = before
        found = notes.of(stray, what)
        assert (found.path, found.on_path, found.paused) == (path, False, True)
        assert found.text() == f"queue[3] 0  PAUSED  path {' '.join(path)}  OFF ITS PATH"
        assert notes.of(stray, what).text() == "", "a frame is asked about once"
        assert notes.troubles == []


def test_notes_follow_a_change_of_hashing(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.cli.capture_live._REFRESH_S", 0.0)
    monkeypatch.setattr("heddle.cli.capture_live._SHARE", 0)
    frame = frame_of(tiny, "rtsw1:eth1", "host1", "host3", outgoing=True)
    what = dissect(frame.data)
    mode = tiny.fabric.policy.routing.ecmp
    with LiveNotes(tiny) as notes:
        notes.arrived(frame, what)
        before = notes.of(frame, what).path
        try:
            set_hashing(tiny, "spray")
            notes.arrived(frame, what)
            after = notes.of(frame, what)
        finally:
            set_hashing(tiny, mode)
    assert len(before) == 3 and "{" not in before[0]
    assert after.path[0] == "rtsw1:{eth1,eth2}" and after.on_path
