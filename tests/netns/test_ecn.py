"""ECN on real queues: the curve over a held depth, at enqueue or at dequeue, and what others see of it."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from heddle.base.process import run
from tests.machine import rates
from tests.netns.queue_bench import CE, DATA, ECT0
from tests.netns.queue_traffic import SIZE, Arrivals, Rack, rack

pytestmark = pytest.mark.root

STEP = {"kmin": 20 * SIZE, "kmax": 20 * SIZE, "pmax": 1.0}  # everything from 20 packets on, nothing below
BURST = 150
PACKETS = 3_000


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


@pytest.mark.deep
def test_packets_that_are_not_ecn_capable_pass_a_deep_queue_unmarked_and_are_not_dropped_for_it() -> None:
    with rack(link={"host": "20mbit", "fabric": "20mbit"}, queues={"ecn": STEP}) as made:
        assert burst(made, 100, DATA & ~3) == [0] * 100
        assert made.cell()["marks"] == 0 and not made.cell()["drops"].any()


@pytest.mark.deep
@pytest.mark.parametrize("window", [40, 150, 1000])
def test_a_queue_that_is_held_at_a_depth_marks_as_the_curve_has_it(window: int) -> None:
    """A window of packets: each that arrives lets the next one go, so as many wait as the window has.

    The link is slow enough for a slow machine to keep the window full. RED's curve: test_disciplines.py.
    """
    kmin, kmax, pmax = 50 * SIZE, 250 * SIZE, 0.4

    def curve(depth: int) -> float:
        return 0.0 if depth < kmin else 1.0 if depth >= kmax else pmax * (depth - kmin) / (kmax - kmin)

    queues = {"ecn": {"kmin": kmin, "kmax": kmax, "pmax": pmax}, "buffer": {"rtsw": "4MB"}}
    with rack(link=rates(20_000_000), queues=queues) as made:
        # Of these half, when the machine is busy and the queue runs low.
        count = 2 * PACKETS if window > 250 else PACKETS
        ecn, ahead = held(made, window, count)
        assert len(ecn) == count and max(most for _, most in ahead) <= window * SIZE
        marks = [each == CE for each in ecn]
        least, most = (sum(map(curve, depths)) / count for depths in zip(*ahead, strict=True))
        # Five standard errors of a share of 0.2.
        assert least - 0.04 <= sum(marks) / count <= most + 0.04, (least, most)
        assert most - least < 0.03, "the depth is not known well enough to tell"
        sure = [curve(low) for low, _ in ahead]
        never = [marked for marked, (_, high) in zip(marks, ahead, strict=True) if high < kmin]
        always = [marked for marked, chance in zip(marks, sure, strict=True) if chance == 1.0]
        assert not any(never) and all(always)
        assert len(never) == PACKETS or window > 50
        assert len(always) >= PACKETS or window <= 250
        assert made.cell()["marks"] >= sum(marks)
        made.at_rest()


def held(made: Rack, window: int, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """ECN bits of packets that came while the window was full, and between which depths lies what each of them met.

    Nothing else is sent, so the depth can only fall between a reading and the packet, and after the packet.
    """
    with made.listening() as found, made.at_switch() as wire:
        ahead: list[tuple[int, int]] = []
        while len(ahead) < count + window:
            while len(ahead) < min(len(found.frames) + window, count + window):
                most = int(made.cell()["depth"])
                wire.send(made.frame(len(ahead)))
                ahead.append((max(0, int(made.cell()["depth"]) - SIZE), most))
            time.sleep(0.0001)
        found.wait(len(ahead))
    by_number = sorted(zip(found.numbers, found.ecn, strict=True))  # two processors may have changed places
    assert [number for number, _ in by_number] == list(range(len(ahead)))
    return [ecn for _, ecn in by_number[window:]], ahead[window:]


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
