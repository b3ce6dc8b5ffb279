"""Waves of every pattern: their bytes, their order, closed forms against operations, and many ranks."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.offline.ideal import NicLimits, Simulation
from heddle.traffic.collectives import COLLECTIVES, Pattern, find_pattern, patterns
from heddle.traffic.collectives import matrix as matrices
from heddle.traffic.collectives.all_reduce import HierarchicalAllReduce
from heddle.traffic.collectives.hosts import ChannelPattern
from heddle.traffic.collectives.pattern import CREDIT_BYTES, ComputeStep, ReceiveStep, SendStep, Step
from heddle.traffic.collectives.ring import Ring
from heddle.traffic.schedule import Action, Key, Receive, Send, build_schedule
from heddle.traffic.sequence import Part, PartSequence, parts_text
from heddle_plugins.time.order import MOST_OPERATIONS
from heddle_plugins.time.runs import FORMS, PACED
from heddle_plugins.time.waves import MOST_BYTES, Wave, memory_of, waves_of
from tests.unit.readers.test_msccl import PROGRAMS, loaded
from tests.unit.test_collectives import variants

MANY = 32_256
ALL = [pytest.param(pattern, id="-".join(name)) for name, pattern in patterns().items()]
OF_CORE = [
    p for p in ALL if type(p.values[0]).__module__.startswith("heddle.traffic.")
]  # those of plugins have no form
CHUNK = 64  # bytes of a message: transfers have several
RANKS = [2, 3, 5, 8, 12, 16]
ROUNDED = (Ring, HierarchicalAllReduce)  # whose chunks all count as the longest one


def sizes(pattern: Pattern, ranks: int) -> list[int]:
    """Elements: those that all ranks and channels divide, and others."""
    counts = {pattern.whole(ranks, ranks * 3 * 24), 7 * ranks + 5}
    return sorted(counts - {0})


def divided(pattern: Pattern, ranks: int, count: int) -> bool:
    """Whether no chunk is longer than another."""
    return not isinstance(pattern, ROUNDED) or count % (ranks * getattr(pattern, "channels", 1)) == 0


def pairs_of(waves: Sequence[Wave]) -> Counter[tuple[int, int]]:
    """Bytes by pair."""
    found = Counter[tuple[int, int]]()
    for wave in waves:
        for src, dst, size in zip(wave.src.tolist(), wave.dst.tolist(), wave.bytes.tolist(), strict=True):
            found[src, dst] += size * wave.times
    return found


def sent(pattern: Pattern, ranks: int, count: int) -> Counter[tuple[int, int]]:
    """Bytes by pair, without credits."""
    found = Counter[tuple[int, int]]()
    for rank in range(ranks):
        for to, length in pattern.sent_by(ranks, rank, count):
            found[rank, to] += length * pattern.element_bytes
    found.subtract(dict.fromkeys(map(tuple, pattern.credits(ranks).tolist()), CREDIT_BYTES))
    return Counter({pair: size for pair, size in found.items() if size})


def carry_out(pattern: Pattern, ranks: int, count: int, waves: Sequence[Wave], chunk: int = CHUNK) -> None:
    """Carry out the schedules of all ranks wave by wave. Each row must be messages that are ready before its wave."""
    schedules = [build_schedule(pattern, ranks, rank, count, chunk) for rank in range(ranks)]
    done: list[set[Key]] = [set() for _ in schedules]
    left = [[each for each in schedule.actions if getattr(each, "buffer", "") != "credit"] for schedule in schedules]

    def ready(rank: int, each: Action) -> bool:
        needs: Sequence[Key] = each.needs
        if pattern.streams and isinstance(each, Send):
            return True  # its messages arrive within the wave
        if isinstance(pattern, PACED) and isinstance(each, Send):
            needs = [need for need in needs if overlap(each, schedules[rank].receives[need])]
        return done[rank].issuperset(needs)

    def others() -> None:
        for rank, actions in enumerate(left):
            moved = True
            while moved:
                now = [each for each in actions if not isinstance(each, Send) and ready(rank, each)]
                done[rank].update(each.key for each in now)
                actions[:] = [each for each in actions if each not in now]
                moved = bool(now)

    others()
    for number, wave in enumerate(each for each in waves for _ in range(each.times)):
        by_pair: defaultdict[tuple[int, int], list[Send]] = defaultdict(list)
        for rank, actions in enumerate(left):
            for each in actions:
                if isinstance(each, Send) and ready(rank, each):
                    by_pair[rank, each.peer].append(each)
        most = 0
        for src, dst, size in zip(wave.src.tolist(), wave.dst.tolist(), wave.bytes.tolist(), strict=True):
            rest, messages = size, 0
            for each in sorted(by_pair[src, dst], key=lambda each: (each.key[1], each.key[0])):
                if each.hi - each.lo <= rest:
                    rest -= each.hi - each.lo
                    messages += 1
                    left[src].remove(each)
                    done[dst].add(each.key)
            assert rest == 0, f"wave {number}: {rest} of {size} bytes from {src} to {dst} are not ready"
            most = max(most, messages)
        assert wave.messages == most
        others()
    assert not any(left), "not all is sent"


def overlap(send: Send, receive: Receive) -> bool:
    buffer, lo, hi = receive.range
    return send.buffer == buffer and max(send.lo, lo) < min(send.hi, hi)


def equal(some: Sequence[Wave], others: Sequence[Wave]) -> bool:
    return len(some) == len(others) and all(
        a.equals(b) and a.times == b.times and np.array_equal(a.inside, b.inside)
        for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("pattern", ALL)
def test_all_bytes_are_there_in_an_order_that_can_be_carried_out(pattern: Pattern, ranks: int) -> None:
    for variant in variants(pattern, ranks):
        for count in sizes(variant, ranks):
            waves, exact = waves_of(variant, ranks, count, CHUNK), sent(variant, ranks, count)
            if divided(variant, ranks, count):
                assert pairs_of(waves) == exact
                carry_out(variant, ranks, count, waves)
            else:
                found, transfers = pairs_of(waves), 2 * ranks * getattr(variant, "channels", 1)
                assert all(0 <= found[pair] - size <= 4 * transfers for pair, size in exact.items())
                assert set(exact) <= set(found)
            for wave in waves:
                assert [str(each.dtype) for each in (wave.src, wave.dst, wave.bytes)] == ["int32", "int32", "int64"]
                assert not wave.inside.any() and not wave.compute_s


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("pattern", OF_CORE)
def test_a_closed_form_is_what_follows_from_operations(pattern: Pattern, ranks: int) -> None:
    assert type(pattern) in FORMS
    for variant in variants(pattern, ranks):
        hosts = [rank // 2 for rank in range(ranks)]
        for count in sizes(variant, ranks):
            derived = waves_of(variant, ranks, count, CHUNK, hosts, derive=True)
            assert pairs_of(derived) == sent(variant, ranks, count)
            carry_out(variant, ranks, count, derived)
            closed = waves_of(variant, ranks, count, CHUNK, hosts)
            assert equal(closed, derived) or not divided(variant, ranks, count)
            for wave in closed:
                assert wave.inside.tolist() == (wave.src // 2 == wave.dst // 2).tolist()


def test_a_ring_is_one_wave_many_times_and_a_hierarchy_copies_inside_hosts() -> None:
    first, ring = waves_of(find_pattern("all-reduce"), 4, 4096, 1 << 10)
    assert (first.times, ring.times, ring.messages) == (1, 5, 4)
    assert ring.follows and not first.follows, "latency counts once"
    (slow,) = waves_of(find_pattern("all-reduce"), 4, 4096, 1 << 12)
    assert (slow.times, slow.messages, slow.follows) == (6, 1, False), "no message goes on before the whole transfer"
    assert (ring.src.tolist(), ring.dst.tolist(), ring.bytes.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 0], [4096] * 4)
    assert not any(wave.follows for wave in waves_of(find_pattern("all-reduce", "halving-doubling"), 8, 4096, 64))
    one, rails, last = waves_of(find_pattern("all-reduce", "hierarchical"), 6, 600, 1 << 10, [0, 0, 1, 1, 2, 2])
    assert one.inside.all() and last.inside.all() and not rails.inside.any()
    assert (one.bytes.tolist(), rails.bytes.tolist(), last.bytes.tolist()) == ([1200] * 6, [400] * 6, [1200] * 6)
    assert (one.times, rails.times, last.times) == (1, 4, 1)
    assert (one.messages, rails.messages, last.messages) == (3, 1, 2)


def test_a_chain_fills_moves_on_together_and_empties() -> None:
    waves = waves_of(find_pattern("broadcast"), 4, 90, 80)  # messages of 20 elements, the last one of 10
    shown = [(wave.times, wave.src.tolist(), wave.bytes.tolist(), wave.follows) for wave in waves]
    assert shown == [
        (1, [0], [80], False), (1, [0, 1], [80, 80], False), (1, [0, 1, 2], [80, 80, 80], False),
        (1, [0, 1, 2], [80, 80, 80], True), (1, [0, 1, 2], [40, 80, 80], True), (1, [1, 2], [40, 80], True),
        (1, [2], [40], True),
    ]  # fmt: skip
    long = waves_of(find_pattern("broadcast"), 4, 2000, 80)
    assert [wave.times for wave in long] == [1, 1, 1, 97, 1, 1] and sum(wave.times for wave in long) == 100 + 2


# Left out: where a NIC of the simulation serves one rank after the other and those of waves all at once, and where
# rounds have different lengths.
ALIKE = [
    each for each in ALL
    if each.values[0].algorithm not in ("tree", "hierarchical") and each.values[0].collective != "all-to-all-v"  # type: ignore[union-attr]
]  # fmt: skip


@pytest.mark.parametrize("latency_s", [0.0, 2e-6])
@pytest.mark.parametrize("pattern", ALIKE)
def test_on_one_switch_waves_take_the_time_of_the_event_simulation(pattern: Pattern, latency_s: float) -> None:
    ranks, chunk, rate_bps = 16, 4096, 1e10
    hosts = [rank // 4 for rank in range(ranks)] if pattern.inside_gbps else []
    pattern = pattern.hosted([str(host) for host in hosts]) if hosts else pattern
    count = pattern.whole(ranks, 1 << 16)
    schedules = [build_schedule(pattern, ranks, rank, count, chunk) for rank in range(ranks)]
    pairs = ((src, dst) for src in range(ranks) for dst in range(ranks) if src != dst)
    delays = {(src, dst): latency_s for src, dst in pairs if not hosts or hosts[src] != hosts[dst]}
    limits = NicLimits([str(rank) for rank in range(ranks)], [rate_bps] * ranks, lambda size: size, delays, 1e15)
    ideal_s = max(end[0] for end in Simulation(schedules, limits, 1).ends)
    found_s = 0.0
    for wave in waves_of(pattern, ranks, count, chunk, hosts):
        out = ~wave.inside
        busiest = max(np.bincount(end[out], wave.bytes[out], 1).max() for end in (wave.src, wave.dst))
        found_s += wave.times * (8 * busiest / rate_bps + (0.0 if wave.follows else latency_s))
    credits = len(pattern.credits(ranks)) > 0  # are no payload, and last
    assert found_s == pytest.approx(ideal_s - latency_s * credits, rel=2e-3 if credits else 1e-6)


@pytest.mark.parametrize("pattern", ALL)
def test_many_ranks_are_few_rows_or_are_refused(pattern: Pattern) -> None:
    ranks = 1 << 15 if pattern.algorithm == "halving-doubling" else MANY
    hosts = [rank // 8 for rank in range(ranks)]
    pattern = pattern.hosted(list(map(str, hosts)))
    if memory_of(pattern, ranks) > MOST_BYTES:
        assert pattern.collective.startswith("all-to-all") or pattern.algorithm == "direct"
        with pytest.raises(InputError, match=r"needs [0-9.]+ GiB of memory for its transfers between 32,256 ranks"):
            waves_of(pattern, ranks, ranks * 100, 1 << 20)
        return
    count = pattern.whole(ranks, ranks * 3200)
    waves = waves_of(pattern, ranks, count, 1 << 18, hosts)
    rows = sum(len(wave.src) for wave in waves)
    if isinstance(pattern, Ring):
        assert (len(waves), rows) == (1, MANY)
        assert waves[0].times == (2 if pattern.collective == "all-reduce" else 1) * (MANY - 1)
    elif pattern.algorithm == "hierarchical":
        assert [len(wave.src) for wave in waves] == [7 * MANY, MANY, 7 * MANY]
        assert waves[1].times == 2 * (MANY // 8 - 1) and [wave.inside.all() for wave in waves] == [True, False, True]
    elif waves[0].follows or any(wave.follows for wave in waves):  # forwarded
        messages = -(-count * 4 // (2 if pattern.collective == "all-reduce" else 1) // (1 << 18))
        first = sum(wave.times for wave in waves if not wave.follows)
        assert sum(wave.times for wave in waves) == first - 1 + messages
        assert first == MANY - 1 if pattern.algorithm == "chain" else first <= 2 * MANY.bit_length()
        assert len(waves) <= 3 * 65 and rows <= 140 * MANY
    else:
        assert len(waves) <= 2 * MANY.bit_length() and rows <= len(waves) * ranks
    if isinstance(pattern, ROUNDED) or pattern.collective in ("broadcast", "reduce", "all-reduce"):
        volume = sum(int(wave.bytes.sum()) * wave.times for wave in waves)
        each = {"all-gather": 1, "reduce-scatter": 1, "broadcast": 1, "reduce": 1, "all-reduce": 2}[pattern.collective]
        assert volume == each * 4 * count * (ranks - 1)


@pytest.mark.parametrize("pattern", OF_CORE)
def test_the_memory_that_is_predicted_is_enough(pattern: Pattern) -> None:
    ranks = 1 << 10
    pattern = pattern.hosted([str(rank // 8) for rank in range(ranks)])
    for each in [pattern, *([replace(pattern, channels=16)] if isinstance(pattern, ChannelPattern) else [])]:
        count = each.whole(ranks, ranks * 3200)
        for cached in (matrices._shares, matrices._laid_out, matrices._cells_of):
            cached.cache_clear()
        tracemalloc.start()
        waves_of(each, ranks, count, 64)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < memory_of(each, ranks) < 3 * peak + (16 << 20)


@dataclass(frozen=True)
class Relay(Pattern):
    """Rank 0's array passes all ranks; each works on it first. No closed form: a pattern of a plugin."""

    collective = "relay"
    algorithm = "own"
    circle: bool = False

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        steps: list[Step] = []
        if rank or self.circle:
            steps.append(ReceiveStep(rank, (rank - 1) % ranks, (0, count), "input"))
        steps.append(ComputeStep(ranks + rank, 0.25, (rank,)))
        if rank < ranks - 1 or self.circle:
            steps.append(SendStep((rank + 1) % ranks, (rank + 1) % ranks, (0, count), 0, after=(ranks + rank,)))
        return steps


def test_a_pattern_without_a_closed_form_has_the_order_of_its_operations(tmp_path: Path) -> None:
    waves = waves_of(Relay(), 4, 100, 1000)
    shown = [(wave.src.tolist(), wave.compute_s, wave.times) for wave in waves]
    assert shown == [([0], 0.25, 1), ([1], 0.25, 1), ([2], 0.25, 1), ([], 0.25, 1)]
    for name, text in PROGRAMS.items():
        pattern = loaded(tmp_path, text(4))
        assert COLLECTIVES["msccl/xml"] not in FORMS
        count = pattern.whole(4, 1000)
        found = waves_of(pattern, 4, count, CHUNK)
        assert pairs_of(found) == sent(pattern, 4, count), name
        carry_out(pattern, 4, count, found)


def test_too_many_operations_and_circles_are_refused() -> None:
    with pytest.raises(InputError, match=f"has more than {MOST_OPERATIONS:,} operations with 200,000 ranks"):
        waves_of(Relay(), 200_000, 1000, CHUNK)
    with pytest.raises(InputError, match="has 6 operations that wait for each other"):
        waves_of(Relay(circle=True), 3, 100, CHUNK)


def sequence(*parts: Part) -> PartSequence:
    return PartSequence(steps=parts_text(parts))


def test_a_sequence_has_its_parts_in_order_and_together_where_they_do_not_wait() -> None:
    parts = (
        Part("tp", (0, 1), find_pattern("all-reduce"), 400),
        Part("tp", (3, 2), find_pattern("all-reduce", "tree"), 800),
        Part("pp", (0, 2), find_pattern("send-recv"), 160, after=(0, 1)),
        Part("shards", (3, 2, 1, 0), find_pattern("reduce-scatter", "direct"), 1024, after=(0, 1, 2)),
        Part("free", (1, 2), find_pattern("all-gather"), 960),
        Part("weights", (3, 1, 0), find_pattern("broadcast", "tree", root=1), 96, after=(3, 4)),
    )
    pattern = sequence(*parts)
    for waves in (waves_of(pattern, 4, 0, CHUNK), waves_of(pattern, 4, 0, CHUNK, derive=True)):
        assert pairs_of(waves) == sent(pattern, 4, 0)
        carry_out(pattern, 4, 0, waves)
    first = waves_of(pattern, 4, 0, CHUNK)[0]
    assert set(zip(first.src.tolist(), first.dst.tolist(), strict=True)) == {
        (0, 1),
        (1, 0),
        (1, 2),
        (3, 2),
        (2, 1),
        (2, 3),
    }
    ring = Part("", tuple(range(1000)), find_pattern("all-reduce"), 1 << 20)
    (same,) = waves_of(sequence(ring, replace(ring, after=(0,))), 1000, 0, 4096)
    assert same.times == 2 * 2 * 999, "equal waves of both parts are one"


def test_computations_of_stages_overlap_each_other_and_no_transfer() -> None:
    parts: list[Part] = []
    for batch in range(3):  # two stages, three batches, the second stage takes twice as long
        parts.append(Part("f0", (0,), seconds=0.1))
        parts.append(Part("pp", (0, 1), find_pattern("broadcast"), 400, after=(3 * batch,)))
        parts.append(Part("f1", (1,), seconds=0.2, after=(3 * batch + 1,)))
    pattern = sequence(*parts)
    for waves in (waves_of(pattern, 2, 0, 4096), waves_of(pattern, 2, 0, 4096, derive=True)):
        assert [(len(wave.src), wave.compute_s, wave.times) for wave in waves] == [(1, 0.1, 3), (0, 0.4, 1)]
        assert sum(wave.compute_s * wave.times for wave in waves) == pytest.approx(0.1 + 3 * 0.2)
