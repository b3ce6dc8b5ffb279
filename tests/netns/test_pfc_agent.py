"""Pause frames in a lab: sent when an ingress port holds too much, obeyed for as long as they say, for their class.

And a gate by itself: two namespaces, a port with queues as Heddle makes them, and nothing else of a lab.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator

import pytest

from heddle.base.ethernet import LARGEST_PFC_MTU, PFC_ADDRESS, QUANTUM_BITS, pfc_frame, read_pfc_frame
from heddle.base.process import run
from heddle.switch.pfc.gates import Gates
from tests.machine import until
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab
from tests.netns.port_pair import PortPair, first_in_line, frame_of, port_lines, port_pair, realtime
from tests.netns.sockets import ETH_P_ALL, packet_socket

RATE_BPS = 25_000_000
QUANTUM_S = QUANTUM_BITS / RATE_BPS


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PfcLab]:
    # The machine may be busy, and the amount of headroom is not tested here; for long pauses see test_pfc_trouble.py.
    roomy = {"pfc": {"reaction": "300ms", "watchdog": {"enabled": False}}}
    with pfc_lab(tmp_path_factory.mktemp("pfc"), queues=roomy) as found:
        yield found


@pytest.fixture(autouse=True)
def rested(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves nothing behind in the lab: no byte in the counters, no gate closed."""
    yield
    if "net" not in request.fixturenames:
        return
    net: PfcLab = request.getfixturevalue("net")
    until(net.at_rest)
    assert net.overdue_ms() == 0


def test_an_incast_of_a_lossless_class_loses_nothing_and_pauses_reach_the_senders(net: PfcLab) -> None:
    *senders, sink = [host.name for host in net.lab.fabric.hosts]
    drops = net.drops()
    received = net.queues.gates["pfc_received"]
    before = {name: int(received[net.row(f"{name}:eth1")]) for name in senders}
    port = net.down_port(sink)
    with net.loading([(name, sink, LOSSLESS) for name in senders]):
        until(lambda: all(received[net.row(f"{name}:eth1")] > before[name] for name in senders))
        out = net.out(port)
        until(lambda: net.out(port) > out + 1000)
    until(net.at_rest)
    assert net.drops() == drops
    for name in senders:
        row = net.row(f"{name}:eth1")
        assert received[row] > before[name], f"{name} was not paused"
        assert net.queues.agent["paused_ns"][row] > 0
    assert net.queues.agent["pfc_sent"].sum() == received.sum()


def test_a_pause_closes_its_gate_for_its_time_and_no_longer(net: PfcLab) -> None:
    """Expiry without Xon: quanta of 512 bit times of the emulated rate."""
    source, sink, *_ = [host.name for host in net.lab.fabric.hosts]
    port, quanta = net.down_port(sink), 25_000  # 0.5 s
    with net.loading([(source, sink, LOSSLESS), (source, sink, 0)]):
        until(lambda: net.out(port) > 20)
        start = time.monotonic()
        net.pause(sink, quanta)
        until(lambda: net.closed(port))
        time.sleep(0.2)  # what has left the gate is counted where it arrives
        stopped, others = net.out(port), net.out(port, 0)

        def opens() -> bool:
            last = net.out(port)
            if is_open := not net.closed(port):
                return is_open
            assert last <= stopped + 1  # the gate opens a moment before the table says so
            return False

        until(opens, every=0.001)
        assert time.monotonic() - start >= quanta * QUANTUM_S  # how much longer: ./inv bench queues
        assert net.out(port, 0) > others + 10, "other classes go on"
        until(lambda: net.out(port) > stopped + 20)


def test_a_repeated_pause_continues_and_xon_ends_it(net: PfcLab) -> None:
    source, sink, *_ = [host.name for host in net.lab.fabric.hosts]
    port, quanta = net.down_port(sink), 65_535  # 1.34 s
    since = net.queues.agent["closed_since_ns"]
    with net.loading([(source, sink, LOSSLESS)]):
        until(lambda: net.out(port) > 20)
        net.pause(sink, quanta)
        until(lambda: net.closed(port))
        time.sleep(0.1)
        stopped, closed_at = net.out(port), int(since[net.row(port)])
        for _ in range(6):  # longer in all than one pause
            time.sleep(0.25)
            net.pause(sink, quanta)
        assert net.closed(port) and since[net.row(port)] == closed_at, "the gate did not open between two pauses"
        assert net.out(port) == stopped
        net.pause(sink, 0)
        until(lambda: not net.closed(port) and net.out(port) > stopped)


def test_hosts_obey_and_their_switch_asks_with_frames_as_the_standard_has_them(net: PfcLab) -> None:
    source, sink, *_ = [host.name for host in net.lab.fabric.hosts]
    port = net.lab.fabric.by_name[source].ports[0]
    with packet_socket(net.lab.handle(source).netns, port.name, ETH_P_ALL, seconds=0.2) as wire:
        heard: list[bytes] = []

        def hears(quanta: int, count: int) -> bool:
            """Whether so many frames with that time have come; takes what comes meanwhile."""
            with contextlib.suppress(TimeoutError):
                if (data := wire.recv(128)).startswith(PFC_ADDRESS):
                    heard.append(data)
            return sum(frame.quanta.get(LOSSLESS) == quanta for frame in map(read_pfc_frame, heard) if frame) >= count

        policy = int(net.queues.policies()["quanta"][net.row(port.peer_ref)])
        with net.loading([(source, sink, LOSSLESS)]):
            until(lambda: net.out(net.down_port(sink)) > 20)
            with net.pausing(sink):  # its switch's buffer fills, and the source is asked to wait, again and again
                until(lambda: hears(policy, 3), seconds=30, every=0)
            assert not hears(0, 1), "as long as there is no room, no pause is ended"
            net.pause(sink, 0)
            until(lambda: hears(0, 1), seconds=30, every=0)
            until(lambda: not net.closed(f"{source}:eth1"))
    said = [frame for data in heard if (frame := read_pfc_frame(data)) is not None]
    assert len(said) == len(heard) > 0
    switch = net.lab.fabric.by_name[port.peer_node].port(port.peer_port)
    assert {frame.source for frame in said} == {bytes.fromhex(switch.mac.replace(":", ""))}
    assert {tuple(frame.quanta) for frame in said} == {(LOSSLESS,)}
    assert {frame.quanta[LOSSLESS] for frame in said} == {policy, 0}
    # Byte by byte what tests/unit/test_pfc_parts.py has tshark read.
    assert set(heard) == {pfc_frame(said[0].source, {LOSSLESS: quanta}) for quanta in (policy, 0)}


def test_reactions_are_measured(net: PfcLab) -> None:
    table = net.queues.agent
    count, total, most = (table[f"reaction{word}"] for word in ("s", "_sum_ns", "_max_ns"))
    assert count.sum() > 0
    bins = table["spare"].view("<u4")
    assert bins.sum() == count.sum()
    assert 0 < most.max() <= total.sum()  # how long they are: ./inv bench queues


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
    with pair.sender(LOSSLESS) as wire, pair.listening() as got:
        for turn in range(1, 21):
            gates.close("pa", LOSSLESS)
            wire.send(frame_of(LOSSLESS, 60))
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
    frame = frame_of(7, 60)
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
        made = Gates(pair.a)
        with pair.sender(LOSSLESS) as wire, pair.listening() as got:
            made.close("pa", LOSSLESS)
            for size in (60, mtu + 14, 60):
                wire.send(frame_of(LOSSLESS, size))
            time.sleep(0.3)
            assert got.times(LOSSLESS) == [] and made.waiting()["pa", LOSSLESS] == 3
            made.open("pa", LOSSLESS)
            until(lambda: len(got.times(LOSSLESS)) == 3)
        assert made.errors == 0
        made.close_sockets()


def test_links_that_disappear_and_return_are_reported(pair: PortPair, gates: Gates) -> None:
    for word, up in (("down", False), ("up", True)):
        run(["ip", "-n", pair.b.name, "link", "set", "pb", word])
        until(lambda: ("pa", up) in {(event.port, event.up) for event in gates.notices()})  # noqa: B023
        assert gates.links()["pa"] is up
