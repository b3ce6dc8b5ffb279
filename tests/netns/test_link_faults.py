"""Faults of links: counted exactly, behind the queue, and undone; the queue's own counters do not notice them.

Times are compared by order and by counters: on a slow machine packets come late, but not in another order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from heddle.base.problems import MachineError
from heddle.kernel.namespace import inside
from heddle.lab.capture import Bounds, capture, find_ports
from heddle.lab.lab import Lab
from heddle.spec.impairments import NO_FAULT, LinkFault
from heddle.switch.links import portfaults
from heddle.switch.links.portfaults import FaultCounts, LineSpaces
from heddle.wire.pcapng import Frame
from tests.machine import patience
from tests.netns.queue_traffic import Arrivals, Rack, rack

NO_NETEM: Final = portfaults.missing()
needs_netem = pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM)
COUNT: Final = 400
ROCE: Final = 4791
BTH_END: Final = 14 + 20 + 8 + 12


@pytest.fixture(scope="module")
def made() -> Iterator[Rack]:
    with rack(link={"host": "20mbit", "fabric": "20mbit"}, scale=1000, queues={"buffer": "8MB"}) as found:
        for port in (found.egress, found.target):  # the kernels' own ARP and IPv6 packets would meet the fault, too
            found.lab.ip(port.node, "link", "set", "dev", port.name, "arp", "off")
            with inside(found.lab.handle(port.node).netns):
                Path(f"/proc/sys/net/ipv6/conf/{port.name}/disable_ipv6").write_text("1")
        yield found


@pytest.fixture(autouse=True)
def left_as_found(made: Rack) -> Iterator[None]:
    yield
    give(made, NO_FAULT)
    assert portfaults.differences(made.lab.fabric, LineSpaces(made.lab.nodes), made.queues, {}) == {}


def give(made: Rack, fault: LinkFault) -> None:
    """Set the fault of the switch's port to the target."""
    portfaults.set_faults(made.lab.fabric, LineSpaces(made.lab.nodes), made.queues, {made.egress.ref: fault})
    wanted = {made.egress.ref: fault}
    assert portfaults.differences(made.lab.fabric, LineSpaces(made.lab.nodes), made.queues, wanted) == {}


def counts(made: Rack) -> FaultCounts:
    return portfaults.read_counts(made.lab.fabric, LineSpaces(made.lab.nodes), made.queues)[made.egress.ref]


def until_all_left(made: Rack, sent: int) -> FaultCounts:
    end = time.monotonic() + patience(60)
    while (found := counts(made))["packets"] < sent:
        assert time.monotonic() < end, found
        time.sleep(0.01)
    return found


def sent_through(made: Rack, fault: LinkFault, count: int = COUNT, port: int = 9) -> tuple[Arrivals, FaultCounts]:
    """Numbered packets over the link with this fault: what came, and what was counted."""
    give(made, fault)
    with made.listening() as found, made.at_switch() as wire:
        for number in range(count):
            frame = bytearray(made.frame(number))
            frame[36:38] = port.to_bytes(2, "big")
            wire.send(frame)
        seen = until_all_left(made, count)
        found.wait(count - seen["lost"] + seen["duplicated"])
        time.sleep(0.1)  # for packets that should not come
    made.at_rest()
    return found, seen


def test_every_lost_packet_is_counted_at_its_port_and_nothing_else_is_lost(made: Rack) -> None:
    before = made.cell().copy()
    found, seen = sent_through(made, LinkFault(loss=0.25))
    assert len(found.numbers) == COUNT - seen["lost"]
    assert COUNT / 8 < seen["lost"] < COUNT / 2
    assert found.numbers == sorted(found.numbers)
    after = made.cell()
    assert int(after["drops"][5] - before["drops"][5]) == seen["lost"]
    assert int(after["out_packets"] - before["out_packets"]) == COUNT
    assert int(after["drops"].sum() - before["drops"].sum()) == seen["lost"]


def test_a_link_that_loses_all_is_dark_until_it_is_cleared(made: Rack) -> None:
    found, seen = sent_through(made, LinkFault(loss=1.0), 20)
    assert (found.numbers, seen["lost"]) == ([], 20)
    give(made, NO_FAULT)
    with made.listening() as found, made.at_switch() as wire:
        wire.send(made.frame(7))
        found.wait(1)
    assert found.numbers == [7]


def test_a_duplicate_is_a_second_copy_of_one_packet(made: Rack) -> None:
    found, seen = sent_through(made, LinkFault(duplicate=0.25))
    copies = Counter(found.numbers)
    assert set(copies) == set(range(COUNT))
    assert sum(1 for count in copies.values() if count == 2) == seen["duplicated"] > COUNT / 8
    assert max(copies.values()) == 2


def test_a_corrupt_packet_differs_in_one_bit_behind_its_transport_header(made: Rack) -> None:
    found, seen = sent_through(made, LinkFault(corrupt=0.25), port=ROCE)
    changed = []
    for number, frame in enumerate(found.frames):
        wanted = bytearray(made.frame(number))
        wanted[36:38] = ROCE.to_bytes(2, "big")
        differs = [(at, a ^ b) for at, (a, b) in enumerate(zip(frame, wanted, strict=True)) if a != b and at >= 34]
        if differs:
            changed += differs
            assert len(differs) == 1
    assert len(changed) == seen["corrupted"] > COUNT / 8
    assert all(at >= BTH_END and bits & (bits - 1) == 0 for at, bits in changed)
    # Only RoCE is corrupted: a veth does not check checksums, so BGP would read what was.
    found, seen = sent_through(made, LinkFault(corrupt=1.0), 50)
    assert (seen["corrupted"], found.numbers) == (0, list(range(50)))


@pytest.mark.skipif(not NO_NETEM, reason="this kernel has sch_netem")
def test_without_netem_a_delay_is_refused_and_nothing_changes(made: Rack) -> None:
    give(made, LinkFault(loss=0.5))
    with pytest.raises(MachineError, match=r"a delay on a link is not possible: this kernel has no sch_netem\n.*vm"):
        give(made, LinkFault(delay_ns=1000))
    assert (
        portfaults.differences(
            made.lab.fabric, LineSpaces(made.lab.nodes), made.queues, {made.egress.ref: LinkFault(loss=0.5)}
        )
        == {}
    )


@needs_netem
def test_delayed_packets_have_left_their_queue_and_come_in_order(made: Rack) -> None:
    """10 s here: the queue is empty and its counters balance while all packets wait on the link."""
    give(made, LinkFault(delay_ns=10_000_000))
    with made.listening() as found, made.at_switch() as wire:
        start = time.monotonic()
        for number in range(50):
            wire.send(made.frame(number))
        until_all_left(made, 50)
        made.at_rest()
        waiting, arrived = counts(made)["waiting"], len(found.numbers)
        assert time.monotonic() - start < 10, "all were read before the first could arrive"
        assert (waiting, arrived) == (50, 0)
        found.wait(50)
        assert time.monotonic() - start >= 10
    assert found.numbers == list(range(50))
    assert counts(made)["waiting"] == 0


@needs_netem
@pytest.mark.needs("tcpdump")
def test_a_capture_sees_each_delayed_packet_once_and_after_its_delay(made: Rack) -> None:
    give(made, LinkFault(delay_ns=1_000_000))  # 1 s here
    ports = find_ports(cast(Lab, made.lab), f"{made.egress.ref},{made.target.ref}")
    frames: list[Frame] = []
    expression = f"udp dst port {int.from_bytes(made.frame(0)[36:38], 'big')}"

    def send() -> None:
        with made.at_switch() as wire:
            for number in range(9):
                wire.send(made.frame(number))

    capture(ports, expression, Bounds(99, 5.0), frames.extend, listening=send)
    left, came = ([frame.time_ns for frame in frames if frame.port == tap.ref] for tap in ports)
    assert (len(left), len(came)) == (9, 9)
    assert all(later - earlier >= 10**9 for earlier, later in zip(left, came, strict=True))


@needs_netem
def test_jitter_keeps_the_order(made: Rack) -> None:
    found, seen = sent_through(made, LinkFault(delay_ns=20_000, jitter_ns=20_000))
    assert found.numbers == list(range(COUNT))
    assert seen["delayed"] == COUNT


@needs_netem
def test_reordered_packets_overtake_the_others(made: Rack) -> None:
    found, _ = sent_through(made, LinkFault(delay_ns=20_000, reorder=0.1))
    assert sorted(found.numbers) == list(range(COUNT))
    assert found.numbers != sorted(found.numbers)


@needs_netem
def test_duplicates_are_delayed_too(made: Rack) -> None:
    found, seen = sent_through(made, LinkFault(delay_ns=10_000, duplicate=0.25, loss=0.1))
    assert len(found.numbers) == COUNT - seen["lost"] + seen["duplicated"]
    assert seen["delayed"] == COUNT - seen["lost"] + seen["duplicated"]
    assert found.numbers == sorted(found.numbers)


@needs_netem
def test_a_delay_changes_and_ends_without_loss(made: Rack) -> None:
    give(made, LinkFault(delay_ns=100_000))
    with made.listening() as found, made.at_switch() as wire:
        for number in range(60):
            if number == 20:
                give(made, LinkFault(delay_ns=50_000, jitter_ns=1_000))
            if number == 40:
                give(made, NO_FAULT)
            wire.send(made.frame(number))
        found.wait(60)
    assert sorted(found.numbers) == list(range(60))
    assert portfaults.read(made.lab.handle(made.target.node).netns) == {}


@needs_netem
def test_a_delay_line_that_was_removed_by_hand_is_noticed(made: Rack) -> None:
    fault = {made.egress.ref: LinkFault(delay_ns=1000)}
    give(made, fault[made.egress.ref])
    number = made.queues.ids[made.egress.node, made.egress.name]
    portfaults.remove(made.lab.handle(made.target.node).netns, {number: made.target.name})
    said = portfaults.differences(made.lab.fabric, LineSpaces(made.lab.nodes), made.queues, fault)
    assert said == {made.egress.ref: f"has lost its delay line, line{number} at the other end of the link"}
