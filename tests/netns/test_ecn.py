"""ECN on real queues: the curve over a held depth, at enqueue or at dequeue, and what others see of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from heddle.base.process import run
from tests.machine import rates
from tests.netns.queue_bench import CE, DATA, ECT0
from tests.netns.queue_traffic import SIZE, Arrivals, Rack, rack

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
