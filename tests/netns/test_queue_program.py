"""What the programs of the queues decide, packet by packet, by BPF_PROG_TEST_RUN: no traffic, no namespace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from heddle.kernel.libbpf import run_on
from heddle.switch.queues.cells import LINK_DOWN, LINK_HOST
from heddle.switch.queues.classes import row
from tests.netns.queue_bench import (
    BEST_EFFORT,
    CE,
    CONTROL,
    DATA,
    ECT0,
    ECT1,
    LOSSLESS,
    LOSSY,
    PAUSING,
    SHOT,
    UNSPEC,
    Bench,
    bench,
    drops,
    ipv4,
    ipv6,
)  # fmt: skip
from tests.netns.sockets import checksum

RUNS = 5_000  # packets a depth
SIZE = 100


@pytest.fixture
def port() -> Iterator[Bench]:
    with bench() as made:
        yield made


def priority(number: int) -> int:
    return 0x10000 | number + 1 << 4


def test_the_class_is_that_of_the_dscp_in_both_versions_of_ip(port: Bench) -> None:
    port.policy(LOSSY)
    for dscp in range(64):
        want = 3 if dscp // 8 == 3 else 6 if dscp >= 48 else 0
        for frame in (ipv4(dscp << 2), ipv6(dscp << 2)):
            assert port.enqueue(frame).priority == priority(want), dscp


def test_neighbour_discovery_is_control_and_other_icmp_is_classed_by_dscp(port: Bench) -> None:
    port.policy(LOSSY)
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    assert port.enqueue(arp).priority == priority(CONTROL)
    for kind in (128, 132, 133, 135, 137, 138):
        want = CONTROL if 133 <= kind <= 137 else BEST_EFFORT
        assert port.enqueue(ipv6(0, next_header=58, start=bytes((kind,)))).priority == priority(want), kind
    assert port.enqueue(ipv6(0, next_header=17, start=bytes((135,)))).priority == priority(BEST_EFFORT)


def test_a_kick_gets_the_queue_that_takes_nothing_and_is_not_counted(port: Bench) -> None:
    port.policy(LOSSY)
    assert port.enqueue(bytes(12) + b"\x88\xb5" + bytes(46)).priority == 0x10000
    assert not any(port.cell(number)["in_packets"] for number in range(8))


@pytest.mark.parametrize("depth", [99_999, 160_000, 340_000, 399_999, 400_000])
def test_the_marked_fraction_is_on_the_curve(port: Bench, depth: int) -> None:
    port.policy(LOSSY)
    want = 0.0 if depth <= LOSSY.kmin else 1.0 if depth >= LOSSY.kmax else 0.2 * (depth - 100_000) / 300_000
    cell, frame, marked = port.cell(LOSSLESS), ipv4(DATA, SIZE), 0
    for _ in range(RUNS):
        port.hold(LOSSLESS, depth)
        marked += port.enqueue(frame).frame[15] & CE == CE
    assert cell["marks"] == marked
    assert marked == want * RUNS if want in (0.0, 1.0) else abs(marked / RUNS - want) <= 0.03


def test_a_mark_leaves_a_right_header_and_changes_nothing_else(port: Bench) -> None:
    port.policy(LOSSY)
    for dscp in range(64):
        for ecn in (ECT0, ECT1):
            for number in (0, 3, 6):
                port.hold(number, 450_000)
            before, after = ipv4(dscp << 2 | ecn), port.enqueue(ipv4(dscp << 2 | ecn)).frame
            assert after[15] == dscp << 2 | CE and checksum(after[14:34]) == 0
            assert (after[:15], after[16:24], after[26:]) == (before[:15], before[16:24], before[26:])
            before, after = ipv6(dscp << 2 | ecn), port.enqueue(ipv6(dscp << 2 | ecn)).frame
            assert after == ipv6(dscp << 2 | CE) and after != before


def test_a_checksum_that_comes_round_to_its_start_stays_right(port: Bench) -> None:
    port.policy(LOSSY)
    for was in (0x0000, 0x0001, 0x0002, 0xFFFE):
        for ecn in (ECT0, ECT1):
            frame = bytearray(ipv4(DATA & ~3 | ecn))
            frame[18:20] = frame[24:26] = bytes(2)  # identification, checksum
            frame[18:20] = (checksum(bytes(frame[14:34])) - was & 0xFFFF).to_bytes(2)
            frame[24:26] = checksum(bytes(frame[14:34])).to_bytes(2)
            port.hold(3, 450_000)
            after = port.enqueue(bytes(frame)).frame
            assert after[15] & CE == CE and checksum(after[14:34]) == 0, hex(was)


def test_packets_that_come_with_ce_are_counted_beside_those_that_turn_ce_here(port: Bench) -> None:
    """Both together are all that leave with CE, wherever the mark was set."""
    port.policy(LOSSY)
    cell = port.cell(LOSSLESS)
    for build in (ipv4, ipv6):
        cell["marks"] = cell["ce_in"] = 0
        for depth, ecn, count in ((450_000, ECT0, 7), (450_000, CE, 5), (0, CE, 3), (0, ECT1, 11), (450_000, 0, 13)):
            for _ in range(count):
                port.hold(LOSSLESS, depth)
                port.enqueue(build(DATA & ~3 | ecn))
        assert (cell["marks"], cell["ce_in"]) == (7, 5 + 3)
        port.hold(LOSSLESS, LOSSY.buffer)
        assert port.enqueue(build(DATA & ~3 | CE)).retval == SHOT
        assert cell["ce_in"] == 5 + 3  # what is dropped does not leave


def test_packets_without_ecn_are_never_marked_and_ce_is_not_counted_again(port: Bench) -> None:
    port.policy(LOSSY)
    for build in (ipv4, ipv6):
        for ecn in (0, CE):
            for _ in range(100):
                port.hold(3, 450_000)
                assert port.enqueue(build(26 << 2 | ecn)).frame == build(26 << 2 | ecn)
    arp = bytes(12) + b"\x08\x06" + bytes([255]) * 28
    port.hold(6, 450_000)
    assert port.enqueue(arp).frame == arp
    for policy in (replace(LOSSY, ecn=False), replace(LOSSY, at_dequeue=True)):
        port.policy(policy)
        port.hold(3, 450_000)
        assert port.enqueue(ipv4(DATA)).frame == ipv4(DATA)
    assert port.cell(3)["marks"] == port.cell(6)["marks"] == 0


def fill(port: Bench, frame: bytes, came_in_by: int = 0) -> int:
    """Packets that are admitted before the first one is dropped."""
    for taken in range(100_000):
        if port.enqueue(frame, came_in_by).retval == SHOT:
            return taken
    raise AssertionError("nothing is ever dropped")


@pytest.mark.parametrize("alpha", [0.5, 1.0, 8.0])
def test_a_single_queue_grows_to_alpha_times_the_free_buffer(port: Bench, alpha: float) -> None:
    port.policy(replace(LOSSY, alpha=alpha, ecn=False))
    taken = fill(port, ipv4(0, 1000))
    held = taken * 1000
    free = LOSSY.shared - (held - LOSSY.reserve)
    assert held <= alpha * (free + 1000) and held + 1000 > alpha * free  # the last one, and the one that was dropped
    assert drops(port, 0) == {"threshold": 1} and port.cell(0)["drop_bytes"] == 1000
    assert port.queues.switches["drops"][0] == 1


def test_a_reserve_is_available_when_others_use_the_whole_shared_buffer(port: Bench) -> None:
    port.policy(replace(LOSSY, ecn=False))
    port.queues.switches["shared_used"][0] = LOSSY.shared
    port.queues.switches["used"][0] = LOSSY.shared
    assert fill(port, ipv4(0, 1000)) == LOSSY.reserve // 1000


def test_the_whole_buffer_is_never_exceeded(port: Bench) -> None:
    port.policy(replace(LOSSY, ecn=False, alpha=100.0, buffer=50_000))
    assert fill(port, ipv4(0, 1000)) == 50
    assert drops(port, 0) == {"buffer": 1} and port.queues.switches["used"][0] == 50_000


def test_a_host_has_a_limit_and_nothing_else(port: Bench) -> None:
    port.policy(replace(LOSSY, ecn=False, reserve=0, shared=0, buffer=20_000))
    port.queues.links["flags"][0] = LINK_HOST
    assert fill(port, ipv4(0, 1000)) == 20
    assert drops(port, 0) == {"buffer": 1} and port.queues.switches["used"][0] == 0


def test_a_port_without_a_link_drops_everything(port: Bench) -> None:
    port.policy(LOSSY)
    port.queues.links["flags"][0] = LINK_DOWN
    assert port.enqueue(ipv4(0)).retval == SHOT
    assert drops(port, 0) == {"down": 1} and port.cell(0)["depth"] == 0


def test_a_storm_drops_the_class_it_is_of_where_the_agent_says_drop(port: Bench) -> None:
    port.policy(PAUSING)
    watchdog = port.queues.agent["watchdog"]
    watchdog[row(0, 3)], port.queues.agent["storm_since_ns"][row(0, 3)] = 1, time.monotonic_ns()
    assert port.enqueue(ipv4(DATA)).retval == SHOT and port.enqueue(ipv4(0)).retval == UNSPEC
    assert drops(port, 3) == {"watchdog": 1} and not drops(port, 0)
    watchdog[row(0, 3)] = 2
    assert port.enqueue(ipv4(DATA)).retval == UNSPEC


@pytest.mark.parametrize(("storm_ms", "pause_ms", "drops_it"), [(60, 0, True), (450, 0, False), (450, 60, True)])
def test_a_storm_whose_end_is_overdue_drops_nothing(port: Bench, storm_ms: int, pause_ms: int, drops_it: bool) -> None:
    """Its end is 50 ms after the last pause frame here, and 300 ms after that it is overdue."""
    port.policy(replace(PAUSING, restore_ns=5 * 10**7))
    agent, now = port.queues.agent[row(0, 3)], time.monotonic_ns()
    agent["watchdog"], agent["storm_since_ns"] = 1, now - storm_ms * 10**6
    port.queues.gates["last_ns"][row(0, 3)] = now - pause_ms * 10**6 if pause_ms else 0
    assert (port.enqueue(ipv4(DATA)).retval == SHOT) is drops_it


def test_packets_bypass_a_gate_that_is_overdue(port: Bench) -> None:
    port.policy(PAUSING)
    until = port.queues.agent["until_ns"]
    for late, want in ((-(10**9), priority(3)), (10**8, priority(3)), (4 * 10**8, priority(BEST_EFFORT))):
        until[row(0, 3)] = time.monotonic_ns() - late
        assert port.enqueue(ipv4(DATA)).priority == want
    assert port.cell(3)["in_packets"] == 3


def test_shared_and_headroom_bytes_are_the_sums_over_a_switchs_queues(port: Bench) -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    for policy in (replace(LOSSY, ecn=False), PAUSING):
        for number in (0, 1):
            port.policy(policy, number)
        port.queues.links[0]["node"] = 0
        waiting: list[tuple[int, int, int]] = []
        most = 0
        for _ in range(3000):
            if waiting and rng.random() < 0.45:
                port.leave(*waiting.pop(int(rng.integers(len(waiting)))))
            else:
                size, by, number = int(rng.integers(60, 3000)), int(rng.integers(0, 3)), int(rng.choice([0, 3]))
                if port.enqueue(ipv4(DATA if number == 3 else 0, size), by).retval == UNSPEC:
                    waiting.append((number, size, by))
            shared, headroom = port.queues.charged()
            node = port.queues.switches[0]
            assert node["used"] == sum(size for _, size, _ in waiting)
            if policy is not PAUSING:  # what a switch makes itself, in a class that pauses, is in neither share
                assert (node["shared_used"], node["headroom_used"]) == (shared[0], headroom[0])
            most = max(most, int(node["shared_used"]))
        assert most > 10_000
        for each in waiting:
            port.leave(*each)
        node = port.queues.switches[0]
        assert (node["used"], node["shared_used"], node["headroom_used"]) == (0, 0, 0)
        assert not port.queues.cells["depth"].any() and not port.queues.ingress["occupancy"].any()
        assert not port.queues.transit.any() and not port.queues.cells["strays"].any()


def test_an_empty_switch_resets_remaining_charges(port: Bench) -> None:
    port.policy(LOSSY)
    node = port.queues.switches
    for drift in (70_000, 2**64 - 70_000):
        node["shared_used"][0] = node["headroom_used"][0] = drift
        port.enqueue(ipv4(0, 100))
        assert (node["shared_used"][0], node["headroom_used"][0], node["used"][0]) == (0, 0, 100)
        port.leave(0, 100)
    port.enqueue(ipv4(0, 100))
    node["shared_used"][0] = 5
    port.enqueue(ipv4(0, 100))
    assert node["shared_used"][0] == 5  # it is not empty


def test_a_packet_that_was_never_counted_in_is_a_stray_and_changes_no_depth(port: Bench) -> None:
    port.policy(LOSSY)
    port.enqueue(ipv4(0, 100))
    assert run_on(port.queues.program("credit"), bytes(14), cb=(0, 0, 101, 0, 0)).retval == SHOT
    assert (port.cell(0)["strays"], port.cell(0)["depth"], port.queues.switches["used"][0]) == (1, 100, 100)


def test_a_class_without_a_policy_passes_untouched(port: Bench) -> None:
    port.policy(replace(LOSSY, kind="unused"))
    done = port.enqueue(ipv4(DATA))
    assert (done.retval, done.priority, port.cell(3)["in_packets"]) == (UNSPEC, 0, 0)


def test_losses_after_a_queue_are_found_only_without_traffic(port: Bench) -> None:
    def reconcile(*, waits: bool = False) -> list[tuple[int, int, int]]:
        return port.queues.reconcile(lambda port_id, number: waits)

    port.policy(PAUSING)
    port.policy(PAUSING, 1)
    reconcile()
    for by in (0, 2, 2):
        port.enqueue(ipv4(DATA, 1000), by)
    assert reconcile() == []  # it has just come
    port.enqueue(ipv4(DATA, 1000), 2)
    assert reconcile() == []  # it grew
    port.queues.agent["until_ns"][row(0, 3)] = 1
    assert reconcile() == []  # it waits for its gate
    port.queues.agent["until_ns"][row(0, 3)] = 0
    assert reconcile(waits=True) == []  # others go before it, or its gate has just been opened
    assert reconcile() == [(0, 3, 4000)]
    assert not port.cell(3)["depth"] and not port.queues.ingress["occupancy"].any() and not port.queues.transit.any()
    assert port.cell(3)["out_packets"] == 4 and not port.cell(3)["drops"].any()
    assert port.queues.switches["used"][0] == 0 and reconcile() == []


def test_a_packet_that_moves_while_the_kernel_is_asked_is_not_lost(port: Bench) -> None:
    port.policy(LOSSY)
    port.queues.reconcile(lambda port_id, number: False)
    port.enqueue(ipv4(0, 100))
    port.queues.reconcile(lambda port_id, number: False)

    def leaves(port_id: int, number: int) -> bool:
        port.leave(0, 100)
        return False

    assert port.queues.reconcile(leaves) == [] and not port.cell(0)["strays"]


def test_a_mark_of_other_software_is_no_port_of_this_switch(port: Bench) -> None:
    port.policy(PAUSING)
    port.enqueue(ipv4(DATA, 1000), came_in_by=5)  # of four
    assert port.queues.transit.nonzero()[0].tolist() == [3] and port.queues.transit[3] == 1000
    assert not port.queues.ingress["occupancy"].any() and port.cell(3)["depth"] == 1000
    foreign = run_on(port.queues.program("enqueue"), ipv4(DATA, 1000), mark=0x10001)
    assert foreign.retval == UNSPEC and not port.queues.ingress["occupancy"].any()


def test_a_share_below_0_counts_as_0(port: Bench) -> None:
    port.policy(replace(LOSSY, ecn=False))
    port.queues.switches["used"][0] = 1000  # not empty: nothing is forgotten
    port.queues.switches["shared_used"][0] = 2**64 - 1000
    assert fill(port, ipv4(0, 1000)) > LOSSY.reserve // 1000 + 100
