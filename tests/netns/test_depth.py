"""Queues of a rack under load: depths are exact, marks are where they were set, and every drop is counted."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.lab.snapshot import LabPart
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import CAUSES, LINK_DOWN, LabQueues
from heddle.switch.queues.classes import policies_of, row
from heddle.wire import layout as wire
from tests.machine import rates
from tests.netns.blaster import Blast, blast
from tests.netns.queue_bench import CE, ECT0, LOSSLESS
from tests.netns.queue_traffic import SIZE, Arrivals, Rack, rack, send_from
from tests.netns.static_fabric import address, static_fabric

ON_ITS_WAY = (
    64 * SIZE
)  # out of the qdisc and not yet at the peer, on a machine that is busy; of more than 1,000 packets
SLOW = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"host3:eth1": "8mbit"}}


def test_depth_is_between_two_readings_of_tc_and_returns_to_0() -> None:
    with rack(link=SLOW, queues={"buffer": {"rtsw": "8MB"}}) as made:
        thread = threading.Thread(target=send_from, args=(made, (0, 1), 600))
        thread.start()
        made.reaches(True, lambda: made.backlog() > 50 * SIZE)
        readings = []
        while (after := made.backlog()) > 0:
            before, depth, after = after, int(made.cell()["depth"]), made.backlog()
            readings.append((before, depth, after))
        thread.join()
        off = [max(0, min(before, after) - depth, depth - max(before, after)) for before, depth, after in readings]
        deep = [each for each, (_, depth, _) in zip(off, readings, strict=True) if depth > 100 * SIZE]
        assert len(deep) >= 8 and max(off) <= ON_ITS_WAY, readings
        assert sorted(deep)[len(deep) // 2] <= 2 * SIZE, readings  # what is on its way is a packet or two
        made.at_rest()
        cell = made.cell()
        assert cell["in_packets"] == cell["out_packets"] == 1200 and cell["in_bytes"] == 1200 * SIZE
        assert max(depth for _, depth, _ in readings) <= cell["high_water"] <= 1200 * SIZE


@pytest.mark.deep
def test_depth_without_traffic_equals_that_of_tc_to_the_byte() -> None:
    """A gate is closed, and all that is on its way has come."""
    with rack(link={"host": "40mbit", "fabric": "40mbit"}, queues={"buffer": {"rtsw": "8MB"}}) as made:
        gates = Gates(made.lab.handle(made.egress.node).netns)
        gates.close(made.egress.name, LOSSLESS)
        send_from(made, (0, 1), 200)
        made.reaches(400)
        time.sleep(0.1)
        assert made.cell()["depth"] == made.backlog() == made.backlog_by_tc() >= 395 * SIZE
        gates.open(made.egress.name, LOSSLESS)
        made.at_rest()
        gates.close_sockets()


def test_a_link_that_takes_packets_with_it_is_settled_to_the_last_byte() -> None:
    with rack(link={"host": "20mbit", "exceptions": {"host3:eth1": "1mbit"}}) as made:
        q, port = made.queues, made.queues.ids[made.egress.node, made.egress.name]
        made.burst(100)
        send_from(made, (0,), 30)
        made.reaches(130)
        assert made.cell()["depth"] > 50 * SIZE
        made.lab.ip(made.target.node, "link", "set", made.target.name, "down")
        q.links["flags"][port] |= np.uint32(LINK_DOWN)
        made.reaches(0, made.backlog)
        time.sleep(0.05)
        q.reset_port(port)
        made.at_rest()
        lost = int(made.cell()["drops"][4])
        assert lost > 50 and made.cell()["in_packets"] == made.cell()["out_packets"] == 130


@pytest.mark.deep
def test_packets_lost_with_their_qdisc_are_noticed_and_removed_from_the_counters() -> None:
    with rack(link={"host": "20mbit", "exceptions": {"host3:eth1": "1mbit"}}) as made:
        send_from(made, (0,), 60)
        made.reaches(60)
        run(["tc", "-n", made.lab.handle(made.egress.node).netns.name, "qdisc", "del", "dev", made.egress.name, "root"])
        time.sleep(0.05)
        waits = int(made.cell()["depth"])
        assert waits > 30 * SIZE
        assert made.queues.reconcile(lambda port_id, number: False) == []
        arrived = int(made.cell()["out_packets"])
        (lost,) = made.queues.reconcile(lambda port_id, number: False)
        port = made.queues.ids[made.egress.node, made.egress.name]
        assert lost == (port, LOSSLESS, waits)
        made.at_rest()
        assert int(made.queues.gates["lost"][row(port, LOSSLESS)]) == 60 - arrived == waits // SIZE
        assert int(made.cell()["drop_bytes"]) == waits
        assert made.lab.snapshot(LabPart.DROPS).drops[made.egress.ref] == 60 - arrived


LINK = {"host": "100mbit", "fabric": "100mbit"}
_UDP_SEGMENT = 103
_IP_MTU_DISCOVER, _IP_PMTUDISC_DONT = 10, 0


def sockets(made: Rack, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """A socket on the first host, and one on the last that is bound to a port of its."""
    first, last = made.lab.fabric.hosts[0], made.lab.fabric.hosts[-1]
    with inside(made.lab.handle(first.name).netns):
        source = socket.socket(socket.AF_INET, kind)
    with inside(made.lab.handle(last.name).netns):
        sink = socket.socket(socket.AF_INET, kind)
    sink.bind((address(last), 0))
    source.settimeout(10)
    sink.settimeout(10)
    return source, sink


@pytest.mark.deep
def test_segmented_and_fragmented_udp_is_counted_to_the_byte() -> None:
    with rack(link=LINK) as made:
        source, sink = sockets(made, socket.SOCK_DGRAM)
        with source, sink:
            source.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DONT)
            for size in (0, 1000):
                before = int(made.cell(0)["in_packets"])
                source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
                with contextlib.suppress(OSError):  # EIO: this kernel cuts none for a port without checksums
                    for _ in range(10):
                        source.sendto(bytes(30_000), sink.getsockname())
                    time.sleep(0.05)
                    assert made.cell(0)["in_packets"] >= before + 10 * (30 if size else 7)
                made.at_rest()


@pytest.mark.deep
def test_tagged_frames_are_counted_to_the_byte() -> None:
    with rack(link=LINK) as made:
        before = int(made.queues.cells["in_packets"].sum())
        with made.wire() as wire:
            for number in range(50):
                tags = ((0x8100,), (0x88A8, 0x8100))[number % 2]
                tagged = b"".join(struct.pack("!HH", tag, 5) for tag in tags)
                wire.send(b"\xff" * 6 + b"\2" * 6 + tagged + b"\x08\x00" + bytes(100))
        made.at_rest()
        assert made.queues.cells["in_packets"].sum() >= before + 50


LINKS = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"host3:eth1": "8mbit"}}


def drops(cell: Any) -> dict[str, int]:
    return {cause: int(n) for cause, n in zip(CAUSES, cell["drops"], strict=True) if n}


def change(made: Rack, **words: Any) -> None:
    """Give every class of every switch port other numbers."""
    rules = policies_of(made.lab.fabric)
    switches = {node.name for node in made.lab.fabric.switches}
    made.queues.set_policies(
        {ref: tuple(replace(each, **words) for each in rows) for ref, rows in rules.items() if ref[0] in switches}
    )


def test_two_senders_into_one_port_lose_what_the_buffer_refuses_and_every_loss_is_counted() -> None:
    with rack(link=LINKS) as made:
        change(made, alpha=0.5, shared=60_000, reserve=10_000)
        with made.listening() as found:
            send_from(made, (0, 1), 500)
            made.at_rest()
            lost = drops(made.cell())
            assert set(lost) == {"threshold"} and lost["threshold"] > 50
            found.wait(1000 - lost["threshold"])
        assert len(found.frames) == 1000 - lost["threshold"]
        assert made.cell()["drop_bytes"] == lost["threshold"] * SIZE
        # alpha 1/2 of 60,000 beyond a reserve of 10,000: depth = 0.5 (60,000 - (depth - 10,000)).
        most = 70_000 / 3
        assert most - 2 * SIZE <= made.cell()["high_water"] <= most + 2 * SIZE


STEP = {"kmin": 20 * SIZE, "kmax": 20 * SIZE, "pmax": 1.0}  # everything from 20 packets on, nothing below
BURST = 150


def test_at_enqueue_the_first_of_a_burst_go_unmarked_and_at_dequeue_the_last() -> None:
    slow = rates(10_000_000)
    with rack(link=slow, queues={"ecn": {**STEP, "at": "enqueue"}}) as made:
        ecn = made.ecn_of_burst(BURST)
        first = ecn.index(CE)
        assert ecn[:20] == [ECT0] * 20 and first < BURST - 30 and ecn[-1] == CE
        assert made.cell()["marks"] == ecn.count(CE)
        made.at_rest()
    with rack(link=slow, queues={"ecn": {**STEP, "at": "dequeue"}}) as made:
        ecn = made.ecn_of_burst(BURST)
        # Twenty packets behind one are just enough: the last twenty leave less than that.
        assert ecn[-20:] == [ECT0] * 20 and ecn[-21] == CE and ecn.index(CE) < BURST - 50
        assert made.cell()["marks"] == ecn.count(CE)
        made.at_rest()


def pcap(found: Arrivals, path: Path) -> Path:
    """The frames as a capture file (the classic format, microseconds, Ethernet)."""
    rows = [struct.pack("=4I", 0, n, len(frame), len(frame)) + frame for n, frame in enumerate(found.frames)]
    path.write_bytes(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(rows))
    return path


@pytest.mark.needs("tshark")
def test_tshark_sees_ce_marks_as_such_and_right_checksums(tmp_path: Path) -> None:
    with rack(link=rates(20_000_000), queues={"ecn": STEP}) as made:
        with made.listening() as found:
            made.burst(100)
            found.wait(100)
        assert 0 < found.ecn.count(CE) < 100
        wanted = ["ip.dsfield.ecn", "ip.dsfield.dscp", "ip.checksum.status"]
        words = [word for name in wanted for word in ("-e", name)]
        capture = str(pcap(found, tmp_path / "marked.pcap"))
        said = run(["tshark", "-r", capture, "-o", "ip.check_checksum:TRUE", "-T", "fields", *words]).out
        rows = [line.split("\t") for line in said.splitlines()]
        assert rows == [[str(ecn), "26", "1"] for ecn in found.ecn]


COUNT = 200
ALWAYS: dict[str, Any] = {"kmin": 0, "kmax": 0, "pmax": 1.0}


def test_the_icrc_stays_right_when_switches_mark_over_three_hops() -> None:
    """IPv6: test_queue_program.py has its marks, tests/unit/test_roce_wire.py what its ICRC leaves out."""
    queues = {"ecn": ALWAYS | {"at": "dequeue"}, "weights": {"0": 1}}
    with static_fabric("flow", (1, 1), queues=queues) as lab:
        there, near, back = "host3", "host2", "host1"
        blasts = [
            Blast("host1", there, COUNT),
            Blast("host1", there, COUNT, tos=wire.DSCP_DATA << 2, sport=49153),  # not ECT: never marked
            Blast("host4", there, COUNT, sport=49154),  # one switch: what marks at dequeue writes at the host itself
            Blast(near, back, COUNT, payload=1),  # padded payload
        ]
        through, plain, beside, small = blast(lab, blasts)
        for heard in (through, plain, beside, small):
            assert (heard.packets, heard.bad) == (COUNT, 0)
        assert (through.marked, plain.marked) == (COUNT, 0)
        assert (beside.marked, small.marked) == (COUNT, COUNT)


def test_every_mark_is_counted_once_where_it_was_set_and_as_ce_in_at_every_queue_behind() -> None:
    """Two queues on one path that both mark: at the second one new marks alone are fewer than packets with CE."""
    link = rates(20_000_000)
    queues = {"ecn": {"kmin": "5KB", "kmax": "10KB", "pmax": 1.0}, "pfc": {"enabled": False}, "buffer": {"rtsw": "4MB"}}
    with static_fabric("flow", (1,), link=link, queues=queues) as lab, LabQueues.pinned(lab.fabric) as live:
        senders = ("host1", "host2", "host4")
        heard = blast(lab, [Blast(name, "host3", COUNT, sport=49152 + at) for at, name in enumerate(senders)])
        assert [each.packets for each in heard] == 3 * [COUNT]
        last = lab.fabric.by_name["host3"].ports[0]
        ports = ("rtsw1", "eth1"), ("ctsw1", "eth2"), (last.peer_node, last.peer_port)
        first, middle, final = (live.cells[row(live.ids[port], 3)] for port in ports)
        came = first["marks"] + middle["marks"]
        assert came > 0 and final["marks"] > 0
        assert (first["ce_in"], middle["ce_in"], final["ce_in"]) == (0, first["marks"], came)
        assert sum(each.marked for each in heard) == final["marks"] + final["ce_in"] == live.cells["marks"].sum()
