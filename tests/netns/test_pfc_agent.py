"""Pause frames in a lab: sent when an ingress port holds too much, obeyed for as long as they say, for their class."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from heddle.base.ethernet import QUANTUM_BITS
from heddle.kernel.namespace import inside
from heddle.switch.pfc.frame import ADDRESS, build, parse
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab, until

RATE_BPS = 25_000_000
QUANTUM_S = QUANTUM_BITS / RATE_BPS
ETH_P_ALL = 3


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PfcLab]:
    # The machine may be busy, and the amount of headroom is not tested here; for long pauses see test_pfc_storm.py.
    roomy = {"pfc": {"reaction": "300ms", "watchdog": {"enabled": False}}}
    with pfc_lab(tmp_path_factory.mktemp("pfc"), queues=roomy) as found:
        yield found


@pytest.fixture(autouse=True)
def rested(net: PfcLab) -> Iterator[None]:
    """Every test leaves nothing behind: no byte in the counters, no gate closed."""
    yield
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
        until(lambda: net.out(port) > out + 1000, seconds=30)
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


def test_a_class_whose_bit_is_clear_is_not_paused_whatever_its_time_says(net: PfcLab) -> None:
    sink = net.lab.fabric.hosts[0]
    mac = bytes.fromhex(sink.ports[0].mac.replace(":", ""))
    frame = bytearray(build(mac, {2: 100}))
    frame[18 + 2 * LOSSLESS : 20 + 2 * LOSSLESS] = b"\xff\xff"
    row = net.row(net.down_port(sink.name))
    pauses = int(net.queues.agent["reactions"][row])
    other = int(net.queues.gates["pfc_received"][row - LOSSLESS + 2])
    net.put(sink.name, bytes(frame))
    net.pause(sink.name, 65535, vector=(0, 6))
    time.sleep(0.1)
    assert not net.closed(net.down_port(sink.name))
    assert net.queues.agent["reactions"][row] == pauses
    assert net.queues.gates["pfc_received"][row - LOSSLESS + 2] == other  # and class 2 never pauses here


def test_hosts_obey_and_their_switch_asks_with_frames_as_the_standard_has_them(net: PfcLab) -> None:
    source, sink, *_ = [host.name for host in net.lab.fabric.hosts]
    port = net.lab.fabric.by_name[source].ports[0]
    with inside(net.lab.handle(source).netns):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with wire:
        wire.bind((port.name, ETH_P_ALL))
        wire.settimeout(0.2)
        heard: list[bytes] = []

        def hears(quanta: int, count: int) -> bool:
            """Whether so many frames with that time have come; takes what comes meanwhile."""
            with contextlib.suppress(TimeoutError):
                if (data := wire.recv(128)).startswith(ADDRESS):
                    heard.append(data)
            return sum(frame.quanta.get(LOSSLESS) == quanta for frame in map(parse, heard) if frame) >= count

        policy = int(net.queues.policies()["quanta"][net.row(port.peer_ref)])
        with net.loading([(source, sink, LOSSLESS)]):
            until(lambda: net.out(net.down_port(sink)) > 20)
            with net.pausing(sink):  # its switch's buffer fills, and the source is asked to wait, again and again
                until(lambda: hears(policy, 3), seconds=30, every=0)
            assert not hears(0, 1), "as long as there is no room, no pause is ended"
            net.pause(sink, 0)
            until(lambda: hears(0, 1), seconds=30, every=0)
            until(lambda: not net.closed(f"{source}:eth1"))
    said = [frame for data in heard if (frame := parse(data)) is not None]
    assert len(said) == len(heard) > 0
    switch = net.lab.fabric.by_name[port.peer_node].port(port.peer_port)
    assert {frame.source for frame in said} == {bytes.fromhex(switch.mac.replace(":", ""))}
    assert {tuple(frame.quanta) for frame in said} == {(LOSSLESS,)}
    assert {frame.quanta[LOSSLESS] for frame in said} == {policy, 0}
    # Byte by byte what tests/unit/test_pfc_frame.py has tshark read.
    assert set(heard) == {build(said[0].source, {LOSSLESS: quanta}) for quanta in (policy, 0)}


def test_reactions_are_measured(net: PfcLab) -> None:
    table = net.queues.agent
    count, total, most = (table[f"reaction{word}"] for word in ("s", "_sum_ns", "_max_ns"))
    assert count.sum() > 0
    bins = table["spare"].view("<u4")
    assert bins.sum() == count.sum()
    assert 0 < most.max() <= total.sum()  # how long they are: ./inv bench queues
