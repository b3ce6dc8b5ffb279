"""ECN on real queues: the curve over a held depth, at enqueue or at dequeue, and what others see of it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from heddle.base.process import run
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.portids import row
from heddle.wire import layout as wire
from tests.machine import rates
from tests.netns.blaster import Blast, blast
from tests.netns.queue_bench import CE, DATA, ECT0
from tests.netns.queue_traffic import SIZE, Arrivals, Rack, rack
from tests.netns.static_fabric import static_fabric

pytestmark = pytest.mark.root

STEP = {"kmin": 20 * SIZE, "kmax": 20 * SIZE, "pmax": 1.0}  # everything from 20 packets on, nothing below
BURST = 150


def burst(made: Rack, count: int, tos: int = DATA) -> list[int]:
    """ECN bits, by number, of packets that come faster than they leave."""
    with made.listening() as found:
        made.burst(count, tos)
        found.wait(count)
    assert found.numbers == list(range(count))
    return found.ecn


def test_at_enqueue_the_first_of_a_burst_go_unmarked_and_at_dequeue_the_last() -> None:
    slow = rates(10_000_000)
    with rack(link=slow, queues={"ecn": {**STEP, "at": "enqueue"}}) as made:
        ecn = burst(made, BURST)
        first = ecn.index(CE)
        assert ecn[:20] == [ECT0] * 20 and first < BURST - 30 and ecn[-1] == CE
        assert made.cell()["marks"] == ecn.count(CE)
        made.at_rest()
    with rack(link=slow, queues={"ecn": {**STEP, "at": "dequeue"}}) as made:
        ecn = burst(made, BURST)
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
