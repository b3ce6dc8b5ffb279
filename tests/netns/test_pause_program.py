"""When a lossless class asks its peer to pause, and which pause frames count: by BPF_PROG_TEST_RUN."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from heddle.switch.queues.classes import row
from tests.netns.queue_bench import DATA, LOSSLESS, LOSSY, PAUSING, SHOT, UNSPEC, Bench, bench, drops, ipv4, ipv6
from tests.pfcreference import Event, waiting_events

BY = 2  # came in by the node's second port, whose id is 1 here
ADDRESS = bytes.fromhex("0180c2000001")


@pytest.fixture
def port() -> Iterator[Bench]:
    with bench() as made:
        for number in (0, 1):
            made.policy(PAUSING, number)
        waiting_events(made.queues.ring)
        yield made


def kinds(port: Bench) -> list[tuple[str, int, int]]:
    return [(event.kind, event.port, event.number) for event in waiting_events(port.queues.ring)]


def test_xoff_is_sent_once_at_its_threshold_and_xon_once_below_its_own(port: Bench) -> None:
    held = port.queues.ingress[row(1, LOSSLESS)]
    for turn in range(1, 4):
        for _ in range(60):
            port.enqueue(ipv4(DATA, 1000), BY)
        assert (held["occupancy"], held["state"], kinds(port)) == (60_000, 0, [])
        before = time.monotonic_ns()
        port.enqueue(ipv4(DATA, 1000), BY)
        assert (held["state"], held["xoffs"]) == (1, turn) and before <= held["since_ns"] <= time.monotonic_ns()
        assert kinds(port) == [("xoff", 1, LOSSLESS)]
        port.enqueue(ipv4(DATA, 1000), BY)
        for _ in range(21):
            port.leave(LOSSLESS, 1000, BY)
        assert (held["occupancy"], held["state"], kinds(port)) == (41_000, 1, [])
        port.leave(LOSSLESS, 1000, BY)
        assert (held["occupancy"], held["state"], kinds(port)) == (40_000, 0, [("xon", 1, LOSSLESS)])
        for _ in range(40):
            port.leave(LOSSLESS, 1000, BY)


def test_other_classes_and_ports_have_separate_counters(port: Bench) -> None:
    for _ in range(50):
        port.enqueue(ipv4(DATA, 1000), BY)
        port.enqueue(ipv6(0, 1000), BY)
        port.enqueue(ipv4(DATA, 1000), 1)
    assert kinds(port) == []
    held = port.queues.ingress["occupancy"]
    assert (held[row(1, 3)], held[row(1, 0)], held[row(0, 3)]) == (50_000, 50_000, 50_000)


def test_xoff_is_sent_earlier_when_the_shared_buffer_is_nearly_full_and_xon_at_the_last_frame(port: Bench) -> None:
    node, held = port.queues.switches, port.queues.ingress[row(1, LOSSLESS)]
    node["used"][0] = 1_000_000
    node["shared_used"][0] = PAUSING.shared - 12_000
    for _ in range(11):
        port.enqueue(ipv4(DATA, 1000), BY)
    assert kinds(port) == []  # free: 11,000, as what is held is reserve but for 1,000
    port.enqueue(ipv4(DATA, 1000), BY)
    assert kinds(port) == [("xoff", 1, LOSSLESS)]
    for _ in range(10):
        port.leave(LOSSLESS, 1000, BY)
    assert (held["occupancy"], held["state"]) == (2_000, 1)
    port.leave(LOSSLESS, 1000, BY)
    assert (held["occupancy"], kinds(port)) == (1_000, [("xon", 1, LOSSLESS)])


def test_headroom_admits_packets_after_xoff_and_counts_its_shortage(port: Bench) -> None:
    held, node = port.queues.ingress[row(1, LOSSLESS)], port.queues.switches
    for _ in range(90):
        assert port.enqueue(ipv4(DATA, 1000), BY).retval == UNSPEC
    assert (node["headroom_used"][0], node["shared_used"][0], held["headroom_high"]) == (30_000, 50_000, 30_000)
    for _ in range(7):
        assert port.enqueue(ipv4(DATA, 1000), BY).retval == SHOT
    assert drops(port, LOSSLESS) == {"headroom": 7}
    assert (held["drops"], held["drop_bytes"], held["lost"], held["lost_high"]) == (7, 7000, 7000, 7000)
    assert held["headroom_high"] == 31_000
    for _ in range(90):
        port.leave(LOSSLESS, 1000, BY)
    for _ in range(61):
        port.enqueue(ipv4(DATA, 1000), BY)
    assert (held["lost"], held["lost_high"]) == (0, 7000)  # another pause has begun


def test_without_pfc_a_lossless_class_is_dropped_like_any_other_and_never_paused(port: Bench) -> None:
    for number in (0, 1):
        port.policy(replace(PAUSING, pfc=False), number)
    while port.enqueue(ipv4(DATA, 1000), BY).retval == UNSPEC:
        pass
    assert drops(port, LOSSLESS) == {"threshold": 1} and kinds(port) == []


def test_a_pause_that_was_asked_for_ends_when_pfc_is_switched_off(port: Bench) -> None:
    for _ in range(70):
        port.enqueue(ipv4(DATA, 1000), BY)
    assert kinds(port) == [("xoff", 1, LOSSLESS)]
    for number in (0, 1):
        port.policy(replace(PAUSING, pfc=False), number)
    port.leave(LOSSLESS, 1000, BY)
    assert kinds(port) == [("xon", 1, LOSSLESS)]


def pause_frame(vector: int, quanta: tuple[int, ...], to: bytes = ADDRESS, opcode: int = 0x0101) -> bytes:
    return to + bytes(6) + struct.pack("!HHH8H", 0x8808, opcode, vector, *quanta) + bytes(26)


def test_a_pause_frame_is_reported_with_its_classes_and_times_and_not_forwarded(port: Bench) -> None:
    gates, quanta = port.queues.gates, tuple(range(1000, 1008))
    before = time.monotonic_ns()
    assert port.dequeue(pause_frame(0b1001, quanta)).retval == SHOT
    (event,) = waiting_events(port.queues.ring)
    assert event == Event(event.ns, 0, "pfc", 0b1001, (1000, 0, 0, 1003, 0, 0, 0, 0))
    assert before <= event.ns <= time.monotonic_ns()
    assert list(gates["pfc_received"][:8]) == [1, 0, 0, 1, 0, 0, 0, 0]
    assert gates["since_ns"][3] == gates["last_ns"][3] == event.ns
    assert port.dequeue(pause_frame(1 << 3, quanta)).retval == SHOT  # a refresh
    assert gates["since_ns"][3] == event.ns < gates["last_ns"][3] and gates["since_ns"][0] == event.ns
    assert port.dequeue(pause_frame(1 << 3, (0,) * 8)).retval == SHOT  # go on
    assert gates["since_ns"][3] == 0 < gates["since_ns"][0]
    assert [event.quanta[3] for event in waiting_events(port.queues.ring)] == [1003, 0]


def test_a_class_that_is_not_lossless_here_is_removed_from_the_frame(port: Bench) -> None:
    port.policy(LOSSY)
    assert port.dequeue(pause_frame(0xFF, (9,) * 8)).retval == SHOT
    assert kinds(port) == [] and not port.queues.gates["pfc_received"].any()


@pytest.mark.parametrize("size", [14, 16, 17, 18, 33])
def test_a_frame_cut_short_is_dropped_and_means_nothing(port: Bench, size: int) -> None:
    assert port.dequeue(pause_frame(0xFF, (9,) * 8)[:size]).retval == SHOT
    assert kinds(port) == []


def test_the_shortest_frame_that_has_all_times_counts(port: Bench) -> None:
    assert port.dequeue(pause_frame(1, (9,) * 8)[:34]).retval == SHOT
    assert kinds(port) == [("pfc", 0, 1)]


def test_other_mac_control_is_kept_from_the_host_and_means_nothing(port: Bench) -> None:
    for frame in (
        pause_frame(1, (9,) * 8, to=bytes.fromhex("0180c2000002")),
        pause_frame(1, (9,) * 8, to=bytes(6)),
        pause_frame(1, (9,) * 8, opcode=0x0001),  # a pause of the whole link (802.3x)
        pause_frame(0, (9,) * 8),
        pause_frame(0xFF00, (9,) * 8),  # reserved bits alone
    ):
        assert port.dequeue(frame).retval == SHOT
    assert kinds(port) == []


def test_packets_without_a_stamp_pass_unchanged(port: Bench) -> None:
    frame = ipv4(DATA)
    done = port.dequeue(frame)
    assert (done.retval, done.frame) == (UNSPEC, frame)
    assert not port.queues.cells["out_packets"].any() and not port.queues.cells["strays"].any()


def test_charged_bytes_are_corrected_when_thresholds_change(port: Bench) -> None:
    """A packet that was charged to where it leaves is credited to where it came in, and the other way round."""
    without = replace(PAUSING, pfc=False)
    for before, after in ((without, PAUSING), (PAUSING, without), (PAUSING, replace(PAUSING, xoff=20_000, xon=9_000))):
        for number in (0, 1):
            port.policy(before, number)
        for _ in range(80):
            port.enqueue(ipv4(DATA, 1000), BY)
        for number in (0, 1):
            port.policy(after, number)
        for _ in range(40):
            port.leave(LOSSLESS, 1000, BY)
        port.queues.settle()
        node, (shared, headroom) = port.queues.switches[0], port.queues.charged()
        assert (node["shared_used"], node["headroom_used"]) == (shared[0], headroom[0]) and shared[0] > 0
        for _ in range(40):
            port.leave(LOSSLESS, 1000, BY)
        assert (node["shared_used"], node["headroom_used"], node["used"]) == (0, 0, 0)
