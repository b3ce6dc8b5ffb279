"""Ports that are attached to devices of a user: the fabric carries and proves their traffic, and gives them back."""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.base.process import run
from heddle.lab import attached
from heddle.lab.lab import Lab
from heddle.lab.queues import read_queues
from heddle.runs.run import run as measure
from heddle.runs.store import History, paths_of
from heddle.traffic.options import RunOptions
from heddle_plugins.attach.attaching import attach, detach
from heddle_plugins.attach.recording import counts_of
from heddle_plugins.attach.targets import HERE
from heddle_plugins.attach.wires import APART
from tests.conftest import Up
from tests.machine import until
from tests.netns.attach import endpoints as ends
from tests.netns.live import document, failed, refused
from tests.typed import ROOT, typed

MTU = 4200
QPNS = range(0x200, 0x214)
SENDS = """
import sys
from pathlib import Path
from tests.netns.attach import endpoints as ends
ends.send_roce(Path(sys.argv[1]), sys.argv[2], sys.argv[3], range(0x200, 0x214), int(sys.argv[4]))
"""


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    names = ("heddleblue", "heddlered")
    with ends.namespaces(*names):
        yield names


@pytest.fixture
def lab(tiny: Lab) -> Iterator[Lab]:
    """Nothing is attached after the test."""
    yield tiny
    with suppress(InputError):
        detach(tiny, [])


def address(lab: Lab, host: str) -> str:
    return str(lab.fabric.by_name[host].ports[0].address).partition("/")[0]


def test_ten_thousand_packets_of_a_foreign_endpoint_are_each_on_their_path(lab: Lab, spaces: tuple[str, str]) -> None:
    blue, red = spaces
    here, there = address(lab, "host1"), address(lab, "host3")
    document("attach", "host1,host3", "--netns", f"{blue},{red}", lab=lab)
    device = ends.seen(ends.path(blue))["hd-host1"]
    assert (device.mtu, device.addresses, device.up) == (MTU, (f"{here}/31",), True)
    assert ends.ping(blue, there, MTU - 28) and ends.ping(blue, address(lab, "host2"))
    assert failed(lab) == {}
    assert "host1:eth1 is attached to netns" in typed("status", lab.name).stdout
    assert "needs host1" in refused("run", "--ranks", "4", lab=lab)
    with ends.udp(ends.path(red), there, ends.ROCE), ends.udp(ends.path(red), there, ends.UET):
        words = [sys.executable, "-c", SENDS, str(ends.path(blue)), here, there, "10000"]
        done = typed("record", "--lab", lab.name, "--format", "json", "--", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    paths = paths_of(lab, found["run_id"])
    assert paths.agree and found["agree"], [proof.why for proof in paths.flows]
    counted = Counter[int]()
    for proof in paths.flows:
        if (proof.flow.src, proof.flow.dst) == ("host1", "host3"):
            counted[proof.flow.qpn] += proof.sent.packets
            assert proof.predicted == proof.measured and set(proof.counted) == {proof.sent.packets}
    assert counted == dict.fromkeys(QPNS, 500)
    assert found["devices"]["host3:eth1"]["out_packets"] >= 10_000
    document("detach", lab=lab)
    assert [*ends.seen(ends.path(blue))] == ["lo"]


FLOWS = """
import socket, sys, time
from pathlib import Path
from tests.netns.attach import endpoints as ends
space, source, target = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sends = [ends.udp(space, source, 50000 + at) for at in range(4)]
while True:
    for at, each in enumerate(sends):
        each.sendto(ends.bth(0x300 + at, 1) + bytes(3000), (target, ends.ROCE if at < 3 else ends.UET))
"""


@pytest.mark.long("endpoints that send before, during and after the run")
def test_flows_that_go_on_are_proven_too_and_are_marked_and_paused(
    lab: Lab, spaces: tuple[str, str], tmp_path: Path
) -> None:
    """Two foreign hosts fill the port of a third: the same queue, marks and pauses as with our own endpoints."""
    blue, red = spaces
    attach(lab, ["host1", "host2"], "netns", [blue, red])
    there = address(lab, "host3")
    hosts = ((blue, "host1"), (red, "host2"))
    busy = [
        subprocess.Popen([sys.executable, "-c", FLOWS, str(ends.path(space)), address(lab, host), there], cwd=ROOT)
        for space, host in hosts
    ]
    try:
        time.sleep(1)
        found = document("record", "--for", "3s", lab=lab)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    paths = paths_of(lab, found["run_id"])
    assert paths.agree, [proof.why for proof in paths.flows if proof.why]
    flows = [proof.flow for proof in paths.flows if proof.flow.dst == "host3"]
    assert {flow.src for flow in flows} == {"host1", "host2"} and len(flows) == 8
    assert {flow.dport for flow in flows} == {ends.ROCE, ends.UET}
    run_ = History.of(lab).open(found["run_id"])
    marks, pauses = (sum(each) for each in zip(*marks_and_pauses(lab), strict=True))
    assert run_.record.recorded and marks > 0 and pauses > 0
    run_id = found["run_id"]
    page = tmp_path / "page.html"
    for words in (("report", run_id, "--out", str(page)), ("diagnose", "--run", run_id)):
        done = typed(words[0], "--lab", lab.name, *words[1:])
        assert done.returncode in (0, 1), done.stderr
    assert "foreign endpoints" in page.read_text()
    again = document("record", "--for", "100ms", lab=lab)["run_id"]
    ratios = {row["figure"]: row for row in document("compare", run_id, again, lab=lab)["ratios"]}
    assert ratios["marks"]["a"] > 0 and ratios["marks"]["b"] == 0 and ratios["pause frames"]["a"] > 0


def marks_and_pauses(lab: Lab) -> list[tuple[int, int]]:
    return [(row.marks, row.pfc_sent) for row in read_queues(lab).rows]


def frame(lab: Lab, *, source: str = "", kind: int = 0x0800, body: bytes = b"", target: bytes = b"") -> bytes:
    """A frame from host1's device to its switch."""
    port = lab.fabric.by_name["host1"].ports[0]
    gateway = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    macs = (target or mac(gateway.mac)) + mac(source or port.mac)
    return macs + struct.pack("!H", kind) + body


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ipv4(source: str, target: str, payload: bytes, protocol: int = 17, length: int | None = None) -> bytes:
    """Switches check the header's sum; the edge drops these before."""
    total = 20 + len(payload) if length is None else length
    head = struct.pack("!BBHHHBBH", 0x45, 0, total, 0, 0, 64, protocol, 0)
    return head + socket.inet_aton(source) + socket.inet_aton(target) + payload


@pytest.mark.long("each kind of frame that a port refuses, and the lab is as before")
def test_frames_that_no_nic_sends_are_dropped_at_the_edge_and_counted_apart(lab: Lab, spaces: tuple[str, str]) -> None:
    blue, _ = spaces
    here, there = address(lab, "host1"), address(lab, "host3")
    rows = attach(lab, ["host1"], "netns", [blue])
    udp = struct.pack("!HHHH", 1, 2, 16, 0) + bytes(8)
    roce = struct.pack("!HHHH", 1, 4791, 12, 0) + bytes(4)
    wrong = {
        "spoofed": [frame(lab, body=ipv4("10.9.9.9", there, udp))] * 2,
        "jumbo": [frame(lab, body=ipv4(here, there, udp + bytes(MTU)))],
        "vlan": [frame(lab, kind=0x8100, body=struct.pack("!HH", 5, 0x0800) + ipv4(here, there, udp))] * 3,
        "multicast": [frame(lab, target=mac("01:00:5e:00:00:05"), body=ipv4(here, "224.0.0.5", udp))] * 4,
        "malformed": [
            frame(lab, body=ipv4(here, there, udp, length=900)),
            frame(lab, body=ipv4(here, there, b"")),
            frame(lab, body=ipv4(here, there, roce)),
            frame(lab, body=b"E"),
            frame(lab, body=b"\x65" + ipv4(here, there, udp)[1:]),
        ],
        "other": [frame(lab, kind=0x88CC, body=bytes(40))],
    }
    ends.ip(blue, "link set hd-host1 mtu 9000")  # as of a guest that ignores the MTU
    before = counts_of(lab, rows)["host1:eth1"]
    for frames in wrong.values():
        ends.raw(blue, "hd-host1", frames)
    time.sleep(0.2)
    counts = counts_of(lab, rows)["host1:eth1"].since(before)
    few = {word: len(wrong[word]) for word in APART}
    few["multicast"] = counts.apart["multicast"]
    assert counts.apart == few and counts.apart["multicast"] >= 4, "the kernel itself sends some to all routers"
    assert counts.in_bytes == 86 * counts.in_packets, "at most the kernel's own neighbour solicitations pass"
    assert "MTU 9000" in "".join(line for line in document("status", lab.name)["labs"][0]["faults"])
    ends.ip(blue, "link set hd-host1 mtu 4200")
    assert ends.ping(blue, there) and failed(lab) == {}


@pytest.mark.long("devices that stay where they are, with what they had before")
def test_a_device_that_stays_gets_the_port_and_is_restored(lab: Lab, spaces: tuple[str, str]) -> None:
    here, there = address(lab, "host1"), address(lab, "host4")
    run(["ip", "link", "add", "hdveth0", "mtu", "1400", "type", "veth", "peer", "name", "hdveth1"])
    try:
        run(["ip", "addr", "add", "192.0.2.7/24", "dev", "hdveth0"])
        run(["ip", "link", "set", "hdveth1", "up"])
        before = ends.seen(HERE)["hdveth0"]
        document("attach", "host1", "--netdev", "hdveth0", lab=lab)
        document("attach", "host4", "--tap", lab=lab)
        now = ends.seen(HERE)
        assert now["hdveth0"].mtu == MTU and {f"{here}/31", "192.0.2.7/24"} == {*now["hdveth0"].addresses}
        assert now["hd-host4"].kind == "tun" and now["hd-host4"].up
        assert run(["ping", "-c", "1", "-W", "3", "-I", "hdveth0", address(lab, "host2")], check=False).code == 0
        assert tapped(lab, there)
        assert "has programs of its own" in refused("attach", "host2", "--netdev", "hdveth0", lab=lab)
        document("detach", lab=lab)
        assert ends.seen(HERE)["hdveth0"] == before and "hd-host4" not in ends.seen(HERE)
    finally:
        run(["ip", "link", "del", "hdveth0"], check=False)


def tapped(lab: Lab, there: str) -> bool:
    """Whether a guest behind the TAP, with a MAC of its own, gets an answer to its ARP request for the gateway."""
    port = lab.fabric.by_name["host4"].ports[0]
    gateway = str(lab.fabric.by_name[port.peer_node].port(port.peer_port).address).partition("/")[0]
    own = mac("52:54:00:12:34:56")
    fd = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", b"hd-host4", 0x1002))
        ask = b"\xff" * 6 + own + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
        ask += own + socket.inet_aton(there) + bytes(6) + socket.inet_aton(gateway)
        for _ in range(40):  # the kernel notices within a second that a program has opened it
            os.write(fd, ask)
            if not select.select([fd], [], [], 0.2)[0]:
                continue
            got = os.read(fd, 2048)
            if got[12:14] == b"\x08\x06" and got[20:22] == b"\0\2":
                return got[:6] == own and got[32:38] == own
        return False
    finally:
        os.close(fd)


@pytest.mark.long("what a user can do to a device while it is attached")
def test_a_device_that_is_changed_under_the_lab_is_named_and_nothing_breaks(lab: Lab, spaces: tuple[str, str]) -> None:
    blue, red = spaces
    here = address(lab, "host1")

    def faults() -> str:
        return " ".join(document("status", lab.name)["labs"][0].get("faults", []))

    document("attach", "host1", "--netns", blue, lab=lab)
    for words, undo, said in (
        ("link set hd-host1 down", "link set hd-host1 up", "is down"),
        ("link set hd-host1 mtu 1500", "link set hd-host1 mtu 4200", "has the MTU 1500"),
        (f"addr del {here}/31 dev hd-host1", f"addr add {here}/31 dev hd-host1", "has lost the address"),
        (f"link set hd-host1 netns {red}", "", "is gone from netns"),
    ):
        ends.ip(blue, words)
        assert said in faults()
        if undo:
            ends.ip(blue, undo)
            assert faults() == ""
    document("attach", "host1", "--netns", blue, lab=lab)  # the one that is gone is forgotten
    assert "is attached to netns" in refused("attach", "host1", "--netns", red, lab=lab)
    assert "named twice" in refused("attach", "host2,host2", "--netns", f"{red},{red}", lab=lab)
    assert "has the address" in addressed(lab, red, address(lab, "host2"))
    wrong: list[tuple[tuple[str, ...], str]] = [
        (("host9", "--netns", red), "is not a host"),
        (("host2", "--netns", "nowhere"), "is neither a namespace nor a process"),
        (("host2", "--netns", f"heddle-{lab.name}-host3"), "is a node of a lab"),
        (("host2", "--netdev", "lo"), "is a NIC of this machine"),
        (("host2", "--netdev", "nothing"), "is not a device"),
        (("host2",), "needs one kind of device"),
        (("host2", "--netns", red, "--tap"), "needs one kind of device"),
    ]
    for line, said in wrong:
        assert said in refused("attach", *line, lab=lab)
    run(["ip", "netns", "del", blue])
    assert "is gone with its namespace" in faults()
    document("detach", lab=lab)
    assert faults() == "" and failed(lab) == {}


def addressed(lab: Lab, space: str, taken: str) -> str:
    ends.ip(space, "link add hdtaken type veth peer name hdother")
    ends.ip(space, f"addr add {taken}/32 dev hdtaken")
    said = refused("attach", "host2", "--netns", space, lab=lab)
    ends.ip(space, "link del hdtaken")
    return said


@pytest.mark.long("a flood, and a run of others beside it")
def test_a_foreign_flood_makes_no_verdict_wrong(lab: Lab, spaces: tuple[str, str]) -> None:
    blue, _ = spaces
    here, there = address(lab, "host1"), address(lab, "host4")
    attach(lab, ["host1"], "netns", [blue])
    code = (
        "import sys; from pathlib import Path; from tests.netns.attach import endpoints as ends\n"
        "s = ends.udp(Path(sys.argv[1]), sys.argv[2])\n"
        "while True: s.sendto(bytes(18), (sys.argv[3], 9))"
    )
    flood = subprocess.Popen([sys.executable, "-c", code, str(ends.path(blue)), here, there], cwd=ROOT)
    try:
        time.sleep(1)
        done = measure(lab, RunOptions(ranks=2, placement="host2,host4", sizes=(1 << 20,)), Silent())
    finally:
        flood.kill()
        flood.wait()
    assert done.wrong == 0 and done.proof is not None
    assert done.proof.agree or done.limited, done.proof


@pytest.mark.long("sixteen devices at once, and the key of a fabric file")
def test_a_fabric_file_attaches_sixteen_devices(up: Up, lab_name: Callable[[], str]) -> None:
    name = lab_name()
    wanted = [f"attach.host{number}=tap" for number in range(1, 17)]
    made = up(name, "racks=4", "hosts_per_rack=4", *wanted)
    try:
        assert len(attached.read(made.lab.dir)) == 16
        assert {f"hd-host{number}" for number in range(1, 17)} <= ends.seen(HERE).keys()
        print("attached in", made.seconds["attach"], "s")
        assert failed(made.lab) == {}
    finally:
        assert typed("down", name).returncode == 0
    assert not [each for each in ends.seen(HERE) if each.startswith("hd-")]
    with pytest.raises(InputError, match="names no device"):
        up(name, "attach.host1=netns")
    with pytest.raises(InputError, match="is not a host"):
        up(name, "attach.host77=tap")


KILLS = 20


@pytest.mark.long("twenty kills at random instants")
def test_down_restores_devices_after_a_kill_at_any_instant(up: Up, lab_name: Callable[[], str]) -> None:
    name, rng = lab_name(), random.Random(57)
    made = [f"hdkill{number}" for number in range(2)]
    for _ in range(KILLS):
        for each in made:
            run(["ip", "link", "add", each, "mtu", "1300", "type", "veth", "peer", "name", f"p{each}"])
            run(["ip", "addr", "add", "192.0.2.9/24", "dev", each])
        try:
            before = {each: ends.seen(HERE)[each] for each in made}
            killed_while_attaching(up(name).lab, made, rng.random() * 0.12)
            assert typed("down", name).returncode == 0
            after = ends.seen(HERE)
            assert {each: after[each] for each in made} == before
            assert not [each for each in after if each.startswith(("w", "hd-")) and "-host" in each]
        finally:
            for each in made:
                run(["ip", "link", "del", each], check=False)


def killed_while_attaching(lab: Lab, devices: Sequence[str], seconds: float) -> None:
    """SIGKILL so long after the record is there."""
    argv = [str(ROOT / "inv"), "attach", "--lab", lab.name, "host1,host2", "--netdev", ",".join(devices)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until(lambda: attached.read(lab.dir) or process.poll() is not None)
        time.sleep(seconds)
        process.kill()
