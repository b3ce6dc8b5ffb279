"""Captures at ports of running labs: what they see is what passed, and they end as they should."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.capture import Bounds, Captured, capture, read_filter
from heddle.lab.lab import Lab
from heddle.lab.tapped import Tapped, find_ports
from heddle.runs.store import paths_of
from heddle.wire.dissect import dissect
from heddle.wire.pcapng import Frame, PcapngFile
from tests.conftest import FabricLab
from tests.machine import patience
from tests.netns.claimed import claimed, namespace_of

pytestmark = pytest.mark.needs("tcpdump", "tshark")

ROOT = Path(__file__).resolve().parents[2]
INV = (sys.executable, str(ROOT / "tasks.py"))


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
def inv(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A verb in a process of its own; it is over at the end of the with block."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    proc = subprocess.Popen([*INV, *words], cwd=ROOT, env={**os.environ, "CI": "true"}, **pipes)
    try:
        yield proc
    finally:
        proc.kill()
        proc.communicate()


@contextmanager
def inv_capture(lab: Lab, port: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`./inv capture`, once it listens."""
    with inv("capture", port, "--lab", lab.name, *words) as proc:
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
    path, ended = tmp_path / "all reduce.pcap", threading.Event()

    def reduce() -> None:
        words = ["run", "--lab", tiny.name, "--size", "256K", "--qps", "4", "--iters", "2", "--warmup", "0"]
        with inv(*words) as proc:
            assert proc.communicate(timeout=patience(60)) and proc.returncode == 0
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
    assert {frame["kind"] for frame in data["frames"]} <= {"ND", "BGP", "ICMPv6"}

    with inv_capture(tiny, "host1", "--seconds", "0.5", "--filter", "roce") as proc:
        text = proc.communicate(timeout=patience(60))[0]
    assert "0 packets, 0 bytes at host1:eth1 in 0.5 s (the time is up); the kernel dropped 0" in text


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
        deadline = time.monotonic() + patience(60)
        while tcpdumps(tiny) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert tcpdumps(tiny) == []


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("rtws1:eth1", r"rtws1 is not a node of \w+\n.*did you mean rtsw1\?"),
        ("rtsw1:et2", r"rtsw1:et2 is not a port of rtsw1\n.*did you mean rtsw1:eth2\?"),
        ("rtsw1:", r"rtsw1: is not a port of rtsw1\n.*did you mean rtsw1:eth\d\?"),
        ("rtsw1:bond7", r"is not a port of rtsw1\n.*rtsw1:eth"),
        (":eth1", "is not a port\n.*write "),
        ("rtsw1,,host9", r"'' is not a port[\s\S]*host9 is not a node"),
    ],
)
def test_a_port_that_is_none_is_named(tiny: Lab, port: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_ports(tiny, port)


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


@pytest.fixture
def pair() -> Iterator[tuple[Tapped, Tapped]]:
    """Two namespaces and a link, without a lab: captures need no more."""
    with claimed() as lab:
        names = [namespace_of(lab, side).name for side in "ab"]
        try:
            for name in names:
                run(["ip", "netns", "add", name])
                with inside(Path("/run/netns", name)):  # no packets of the kernel's own, which take places in queues
                    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
            run(["ip", "link", "add", "eth1", "netns", names[0], "type", "veth", "peer", "eth1", "netns", names[1]])
            for number, name in enumerate(names, 1):
                mac = f"02:00:00:00:00:0{number}"
                run(["ip", "-n", name, "link", "set", "eth1", "address", mac, "up"])
                run(["ip", "-n", name, "address", "add", f"10.99.0.{number}/24", "dev", "eth1"])
            peer = ["10.99.0.2", "lladdr", "02:00:00:00:00:02", "dev", "eth1"]
            run(["ip", "-n", names[0], "neighbour", "replace", *peer])
            left, right = (
                Tapped(f"{name}:eth1", Path("/run/netns", name), "eth1", bytes([2, 0, 0, 0, 0, number]), 1500)
                for number, name in enumerate(names, 1)
            )
            yield left, right
        finally:
            for name in names:
                run(["ip", "netns", "delete", name], check=False)


SEND = "import socket; s = socket.socket(2, 2); [s.sendto(b'x' * 900, ('10.99.0.2', 4791)) for _ in range(9)]"
DROP = ("bpf", "bytecode", "1,6 0 0 2", "da")  # return TC_ACT_SHOT


def seen_at(pair: tuple[Tapped, Tapped]) -> list[int]:
    """How many of nine packets captures see at the port that they leave by, and at the one that they come to."""
    seen = Counter[tuple[str, bool]]()

    def send() -> None:
        run(["nsenter", f"--net={pair[0].netns}", sys.executable, "-I", "-S", "-c", SEND])

    def count(frames: Sequence[Frame]) -> None:
        seen.update((frame.port, frame.outgoing) for frame in frames)

    done: Captured = capture(pair, read_filter("roce"), Bounds(99, 2.0), count, listening=send)
    assert sum(seen.values()) == done.packets
    return [seen[pair[0].ref, True], seen[pair[1].ref, False]]


@pytest.mark.deep
def test_a_capture_sees_arriving_packets_but_not_queued_or_dropped_ones(pair: tuple[Tapped, Tapped]) -> None:
    left, right = (tap.netns.name for tap in pair)
    assert seen_at(pair) == [9, 9]
    # A bucket of one packet, and two minutes until it holds the next. (At 8 bit/s the newest tc refuses its burst.)
    bucket = ["rate", "64bit", "burst", "1000", "limit", "100000"]
    run(["tc", "-n", left, "qdisc", "add", "dev", "eth1", "root", "tbf", *bucket])
    assert seen_at(pair) == [1, 1]
    run(["tc", "-n", left, "qdisc", "delete", "dev", "eth1", "root"])

    run(["tc", "-n", right, "qdisc", "add", "dev", "eth1", "clsact"])
    run(["tc", "-n", right, "filter", "add", "dev", "eth1", "ingress", *DROP])
    assert seen_at(pair) == [9, 9]
    run(["tc", "-n", left, "qdisc", "add", "dev", "eth1", "clsact"])
    run(["tc", "-n", left, "filter", "add", "dev", "eth1", "egress", *DROP])
    assert seen_at(pair) == [0, 0]


@pytest.mark.deep
def test_packets_of_a_delay_line_are_seen_once_when_they_leave_it(pair: tuple[Tapped, Tapped]) -> None:
    """A line without netem: this shows where the capture listens. test_link_faults.py has a real one."""
    left, right = pair
    space = right.netns.name
    peer = ["name", "back7", "address", right.mac.hex(":")]
    run(["ip", "-n", space, "link", "add", "line7", "type", "veth", "peer", *peer])
    try:
        run(["ip", "-n", space, "link", "set", "line7", "up"])
        run(["ip", "-n", space, "link", "set", "back7", "up"])
        behind = replace(right, outlet="back7")
        assert seen_at((left, behind)) == [9, 0]  # what has not yet passed the line has not arrived

        pause = "01 80 c2 00 00 01 02 00 00 00 00 01 88 08 01 01 00 08"
        frames: list[Frame] = []

        def send() -> None:
            for netns, port, words in (
                (left.netns, "eth1", pause),
                (right.netns, "line7", "02 00 00 00 00 02 02 00 00 00 00 01 88 b5 01"),
                (right.netns, "eth1", "02 00 00 00 00 01 02 00 00 00 00 02 88 b5 02"),
            ):
                with inside(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
                    wire.bind((port, 0))
                    wire.send(bytes.fromhex(words).ljust(60, b"\0"))

        capture([behind], "ether proto 0x8808 or ether proto 0x88b5", Bounds(99, 2.0), frames.extend, listening=send)
        assert [(frame.port, frame.outgoing, frame.data[12:15].hex()) for frame in frames] == [
            (right.ref, False, "880801"), (right.ref, False, "88b501"), (right.ref, True, "88b502"),
        ]  # fmt: skip

        def end() -> None:
            run(["ip", "-n", space, "link", "delete", "line7"])

        done = capture([behind], "", Bounds(99, 20.0), frames.extend, listening=end)
        assert done.ended == "lost" and "its link is gone" in str(done.problems[0])
    finally:
        run(["ip", "-n", space, "link", "delete", "line7"], check=False)
