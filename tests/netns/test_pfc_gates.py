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
from tests.netns.pfc_lab import until
from tests.netns.port_pair import PortPair, class_id, first_in_line, port_lines, port_pair, realtime

LOSSLESS = 3
OTHER = 0
_ROUNDS = 5  # others may have the processor for a while; one round without them is enough


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


def test_a_closed_gate_passes_nothing_of_its_class_and_others_keep_their_share(pair: PortPair, gates: Gates) -> None:
    with pair.listening() as got, pair.loading(LOSSLESS, OTHER):
        time.sleep(0.3)
        start = realtime()
        time.sleep(0.4)
        share = len(got.times(OTHER, start)) / 0.4
        assert len(got.times(LOSSLESS, start)) / 0.4 > 0.9 * share  # the two have equal weights
        gates.close("pa", LOSSLESS)
        shut = realtime()
        time.sleep(0.4)
        end = realtime()
    late = got.times(LOSSLESS, shut + 2_000_000, end)
    assert not late, f"{len(late)} packets left by a closed gate"
    assert len(got.times(OTHER, shut, end)) / 0.4 >= 0.9 * share
    assert gates.notices() == []
    assert gates.errors == 0


def test_the_first_packet_leaves_at_once_when_a_gate_opens(pair: PortPair, gates: Gates) -> None:
    waits: list[float] = []
    with pair.listening() as got, pair.loading(LOSSLESS):
        time.sleep(0.1)
        for _ in range(_ROUNDS):
            waits.clear()
            for _ in range(20):
                gates.close("pa", LOSSLESS)
                time.sleep(0.03)
                start = realtime()
                gates.open("pa", LOSSLESS)
                until(lambda: got.times(LOSSLESS, start))  # noqa: B023
                waits.append((got.times(LOSSLESS, start)[0] - start) / 1e6)
            print(f"first packet after Xon: median {statistics.median(waits):.3f} ms, worst {max(waits):.3f} ms")
            if max(waits) <= 2.0:
                break
    assert max(waits) <= 2.0
    assert statistics.median(waits) <= 0.5


def test_what_waited_behind_a_gate_is_all_there_when_it_opens(pair: PortPair, gates: Gates) -> None:
    with pair.listening() as got:
        gates.close("pa", LOSSLESS)
        with pair.loading(LOSSLESS) as sent:
            time.sleep(0.1)
        assert got.times(LOSSLESS) == []
        gates.open("pa", LOSSLESS)
        time.sleep(0.2)
    assert len(got.times(LOSSLESS)) == sent[LOSSLESS] > 0


def test_a_gate_that_was_closed_and_opened_is_as_it_was_made(pair: PortPair, gates: Gates) -> None:
    def said() -> str:
        return run(["tc", "-n", pair.a.name, "qdisc", "show", "dev", "pa"]).out

    gates.open("pa", LOSSLESS)
    before = said()
    assert "tbf" in before and "rate 40Gbit" in before
    gates.close("pa", LOSSLESS)
    assert "rate 160Kbit" in said()
    gates.open("pa", LOSSLESS)
    assert said() == before


def test_a_control_frame_goes_before_all_that_waits(pair: PortPair, gates: Gates) -> None:
    frame = b"\2" * 12 + b"\x88\xb6" + bytes([0, 7]) + bytes(44)
    waits: list[float] = []
    with pair.listening() as got, pair.loading(6):
        time.sleep(0.1)  # 100 KB and more: 8 ms
        for _ in range(15):  # a queue lets some small frames go before their turn: not so many
            start = realtime()
            assert gates.send("pa", frame)
            until(lambda: got.times(7, start))  # noqa: B023
            waits.append((got.times(7, start)[0] - start) / 1e6)
    assert statistics.median(waits) < 2, waits


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


def test_links_that_go_and_come_back_are_told_of(pair: PortPair, gates: Gates) -> None:
    for word, up in (("down", False), ("up", True)):
        run(["nsenter", f"--net={pair.b}", "ip", "link", "set", "pb", word])
        end = time.monotonic() + 3
        seen: list[LinkEvent] = []
        while not seen and time.monotonic() < end:
            seen = [event for event in gates.notices() if (event.port, event.up) == ("pa", up)]
        assert seen, f"{word}: nothing heard"
        assert gates.links()["pa"] is up
