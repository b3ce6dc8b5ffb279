"""A gate by itself: two namespaces, a port with queues as Heddle makes them, and nothing else of a lab."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator

import pytest

from heddle.base.ethernet import LARGEST_PFC_MTU
from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.switch.pfc.gates import Gates, LinkEvent
from tests.machine import patience, until
from tests.netns.port_pair import PortPair, class_id, first_in_line, port_lines, port_pair, realtime

LOSSLESS = 3
OTHER = 0


@pytest.fixture(scope="module")
def pair() -> Iterator[PortPair]:
    with first_in_line(), port_pair("100mbit") as found:
        yield found


@pytest.fixture
def gates(pair: PortPair) -> Iterator[Gates]:
    found = Gates(pair.a)
    try:
        yield found
    finally:
        found.open("pa", LOSSLESS)
        found.close_sockets()


def test_the_gates_of_a_namespace_are_found_in_its_qdiscs(gates: Gates) -> None:
    assert list(gates.gates) == [("pa", LOSSLESS)]
    assert gates.links()["pa"]
    assert len(gates.macs["pa"]) == 6


def test_a_closed_gate_passes_nothing_of_its_class_and_others_go_on(pair: PortPair, gates: Gates) -> None:
    with pair.listening() as got, pair.loading(LOSSLESS, OTHER):
        until(lambda: len(got.times(LOSSLESS)) > 20 and len(got.times(OTHER)) > 20)
        gates.close("pa", LOSSLESS)
        time.sleep(0.1)  # what has left already has come
        shut = realtime()
        until(lambda: len(got.times(OTHER, shut)) > 100)
        end = realtime()
    late = got.times(LOSSLESS, shut, end)
    assert not late, f"{len(late)} packets left by a closed gate"
    assert gates.notices() == []
    assert gates.errors == 0


def test_packets_that_wait_leave_when_their_gate_opens_though_nothing_else_is_sent(
    pair: PortPair, gates: Gates
) -> None:
    """How soon they leave is a figure of ./inv bench queues."""
    frame = b"\2" * 12 + b"\x88\xb6" + bytes([0, LOSSLESS]) + bytes(44)
    with inside(pair.a):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with wire, pair.listening() as got:
        wire.bind(("pa", 0))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, class_id(LOSSLESS))
        for turn in range(1, 21):
            gates.close("pa", LOSSLESS)
            wire.send(frame)
            until(lambda: gates.waiting()["pa", LOSSLESS] == 1)
            assert len(got.times(LOSSLESS)) == turn - 1
            gates.open("pa", LOSSLESS)
            until(lambda: len(got.times(LOSSLESS)) == turn)  # noqa: B023


def test_a_gate_that_was_closed_and_opened_has_its_original_settings(pair: PortPair, gates: Gates) -> None:
    def said() -> str:
        return run(["tc", "-n", pair.a.name, "qdisc", "show", "dev", "pa"]).out

    gates.open("pa", LOSSLESS)
    before = said()
    assert "tbf" in before and "rate 40Gbit" in before
    gates.close("pa", LOSSLESS)
    assert "rate 160Kbit" in said()
    gates.open("pa", LOSSLESS)
    assert said() == before


def test_a_control_frame_goes_before_all_that_waits() -> None:
    """At a rate that any sender exceeds: on a slow machine nothing would wait at 100 Mb/s, and nothing be overtaken."""
    frame = b"\2" * 12 + b"\x88\xb6" + bytes([0, 7]) + bytes(44)
    shares: list[float] = []
    with first_in_line(), port_pair("10mbit") as pair, pair.listening() as got, pair.loading(6) as sent:
        gates, turn = Gates(pair.a), 0
        while len(shares) < 15:
            until(lambda: sent[6] > len(got.times(6)) + 10)  # 40 KB and more wait
            before, moment = sent[6], realtime()
            assert gates.send("pa", frame)
            turn += 1
            until(lambda: len(got.times(7)) >= turn)  # noqa: B023
            waiting = before - len(got.times(6, 0, moment))
            if waiting > 10:  # on a busy machine the queue may have emptied before its arrivals were seen
                shares.append((before - len(got.times(6, 0, got.times(7)[-1]))) / waiting)
        gates.close_sockets()
    # The port sends a few frames before the control frame has reached its queue.
    assert statistics.median(shares) > 0.5, f"shares of the waiting frames that came after it: {shares}"


@pytest.mark.deep
@pytest.mark.parametrize("mtu", [1280, 9000, LARGEST_PFC_MTU])
def test_a_closed_gate_holds_frames_of_any_mtu_and_loses_none(mtu: int) -> None:
    with port_pair("100mbit", lambda dev, rate: port_lines(dev, rate, mtu)) as pair:
        for netns, dev in ((pair.a, "pa"), (pair.b, "pb")):
            run(["ip", "-n", netns.name, "link", "set", dev, "mtu", str(mtu)])
        with inside(pair.a):
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made = Gates(pair.a)
        with wire, pair.listening() as got:
            wire.bind(("pa", 0))
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, class_id(LOSSLESS))
            made.close("pa", LOSSLESS)
            for size in (60, mtu + 14, 60):
                wire.send(b"\2" * 12 + b"\x88\xb6" + bytes([0, LOSSLESS]) + bytes(size - 16))
            time.sleep(0.3)
            assert got.times(LOSSLESS) == [] and made.waiting()["pa", LOSSLESS] == 3
            made.open("pa", LOSSLESS)
            until(lambda: len(got.times(LOSSLESS)) == 3)
        assert made.errors == 0
        made.close_sockets()


def test_links_that_disappear_and_return_are_reported(pair: PortPair, gates: Gates) -> None:
    for word, up in (("down", False), ("up", True)):
        run(["nsenter", f"--net={pair.b}", "ip", "link", "set", "pb", word])
        end = time.monotonic() + patience(60)
        seen: list[LinkEvent] = []
        while not seen and time.monotonic() < end:
            seen = [event for event in gates.notices() if (event.port, event.up) == ("pa", up)]
        assert seen, f"{word}: nothing heard"
        assert gates.links()["pa"] is up
