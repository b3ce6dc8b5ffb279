"""The contract of every collective: a new pattern is tested by being registered.

Ranks exchange messages in memory, without a network, in any order that their schedules allow.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from heddle.base.declared import options_of
from heddle.base.problems import InputError
from heddle.endpoints.elements import Elements
from heddle.endpoints.ranks import Rank
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic import collectives
from heddle.traffic.collectives import Pattern, Piece, find_pattern, patterns
from heddle.traffic.collectives.all_reduce import double_tree
from heddle.traffic.collectives.all_to_all import deltas
from heddle.traffic.collectives.bases import ReducingPattern
from heddle.traffic.collectives.pattern import (
    CREDIT_BYTES,
    MAX_STEPS,
    NEARLY_BYTES,
    ComputeStep,
    DType,
    InPlace,
    ReceiveStep,
    Reduction,
    SendStep,
    Step,
)
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.schedule import Divisors, Receive, build_schedule
from heddle.traffic.sequence import Part, steps_text

ALL = [pytest.param(pattern, id="-".join(name)) for name, pattern in patterns().items()]
REDUCING = [name for name, pattern in patterns().items() if isinstance(pattern, ReducingPattern)]
SIZES = [(2, 2), (3, 10), (5, 13), (8, 64), (16, 100), (16, 16)]


def variants(pattern: Pattern, ranks: int) -> list[Pattern]:
    """The pattern, and with other values of its parameters that change its messages; none if it is unfit."""
    if pattern.unfit(ranks):
        return []
    cells = [f"{(r * 7) % ranks},{(r * 7 + 1 + r % 3) % ranks},{40 * r + 40}" for r in range(ranks)]
    counts = ";".join(f"{r},{(r + 1 + r % 2) % ranks},{r + 1}" for r in range(ranks - 1))
    values = {
        "root": ranks - 1,
        "seed": 7,
        "channels": 3,
        "counts": counts,
        "matrix": ";".join(cells if ranks in (5, 8) else ["1,0,52", "0,1,7"]),
    }
    more: dict[str, Any] = {each.name: values[each.name] for each in fields(pattern) if each.name in values}
    found = [pattern, replace(pattern, **more)] if more else [pattern]
    turns = [f"host{rank % max(2, ranks // 4)}" for rank in range(ranks)]  # as placement cyclic, four ranks a host
    return [*found, *(other for other in [found[-1].hosted(turns)] if other != found[-1] and not other.unfit(ranks))]


class Exchange:
    """All ranks of a communicator, and the messages between them.

    now: the clock of all ranks. lost: the number of the message that arrives as zeros, without credits.
    """

    def __init__(self, options: RunOptions, pattern: Pattern, ranks: int, lost: int) -> None:
        self.now, self.data, self.lost = 0.0, 0, lost
        elements = Elements.of(pattern, ranks)
        totals = {s: elements.total(s // pattern.element_bytes) for s in options.sizes if pattern.redop != "none"}
        keys = {rank: rank for rank in range(ranks)}
        self.under_way: list[tuple[int, Callable[[], None]]] = []  # receiver, delivery
        self.ranks: list[Rank] = []
        for rank in range(ranks):
            links = {peer: self._link(peer) for peer in range(ranks)}
            self.ranks.append(Rank(options, pattern, ranks, rank, rank, links, keys, totals, clock=lambda: self.now))

    def _link(self, peer: int) -> Any:
        def post(data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
            self.under_way.append((peer, partial(self._deliver, peer, data, va, rkey, imm)))

        return type("Link", (), {"post": staticmethod(post)})()

    def _deliver(self, peer: int, data: NDArray[np.uint8], va: int, rkey: int, imm: int) -> None:
        """The bytes are read as late as a retransmission would read them."""
        target = self.ranks[peer].resolve(va, rkey, len(data))
        assert target is not None, f"rank {peer} refused a message: its sender was two iterations ahead"
        self.data += len(data) > CREDIT_BYTES
        target[:] = bytes(len(data)) if len(data) > CREDIT_BYTES and self.data == self.lost else data.data
        self.ranks[peer].arrived(imm)

    def run(self, choose: Callable[[Sequence[int]], int]) -> None:
        """One size after the other. choose: the index of the next delivery, from the receivers of all messages."""
        while True:
            for rank in self.ranks:
                rank.next_size()
            if self.ranks[0].finished:
                return
            for rank in self.ranks:
                rank.begin()
            while not all(rank.size_done for rank in self.ranks):
                if self.under_way:
                    self.under_way.pop(choose([to for to, _ in self.under_way]))[1]()
                else:
                    self.now = min(rank.due for rank in self.ranks)
                    for rank in self.ranks:
                        rank.advance()
            assert not self.under_way
            for rank in self.ranks:
                rank.check()

    def wrong(self) -> list[int]:
        return [sum(result.wrong for result in rank.results) for rank in self.ranks]


def exchanged(
    pattern: Pattern, ranks: int, choose: Callable[[Sequence[int]], int], lost: int = 0, in_place: InPlace = "auto"
) -> Exchange:
    given = tuple((each.name, getattr(pattern, each.name)) for each in options_of(type(pattern)))
    size = pattern.whole(ranks, 40 * ranks) * pattern.element_bytes
    chosen = {"collective": pattern.collective, "algorithm": pattern.algorithm, "parameters": given}
    measured = {"sizes": (size, size), "iters": 4, "warmup": 1, "chunk": 128, "in_place": in_place}
    options = RunOptions(**chosen, **measured)  # type: ignore[arg-type]
    exchange = Exchange(options, pattern, ranks, lost)
    exchange.run(choose)
    return exchange


@pytest.mark.parametrize("pattern", ALL)
@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_results_are_right_whichever_rank_runs_ahead(pattern: Pattern, ranks: int) -> None:
    def starve(slow: int, to: Sequence[int]) -> int:
        """The newest message for another rank."""
        return max(range(len(to)), key=lambda at: (to[at] != slow, at))

    def at_random(dice: random.Random, to: Sequence[int]) -> int:
        return dice.randrange(len(to))

    orders = [partial(starve, slow) for slow in range(ranks)]
    orders += [partial(at_random, random.Random(seed)) for seed in range(4)]
    for each in variants(pattern, ranks):
        for order in orders:
            assert exchanged(each, ranks, order).wrong() == [0] * ranks


@pytest.mark.parametrize("pattern", ALL)
def test_results_are_right_in_place_and_out_of_place_where_the_input_stays(pattern: Pattern) -> None:
    for each in variants(pattern, 4):
        exchange = exchanged(each, 4, lambda to: len(to) // 2, in_place="both")
        assert exchange.wrong() == [0] * 4
        assert len(exchange.ranks[0].results) == (4 if each.replaces else 2)
    for placed in pattern.placed("both"):
        for rank in exchanged(pattern, 4, lambda to: 0, in_place="on" if placed else "off").ranks:
            arrays, epoch = rank._arrays, rank._epoch
            given, (found, *_) = arrays.numbers("input", epoch, unchanged=True), [*rank._results().values(), ()]
            if len(given) and len(found) and (pieces := rank._expected._pieces):
                own = pattern.in_place or any(piece.source == rank.rank for piece in pieces)
                assert np.shares_memory(given, found) == (placed and own)
            if not placed:
                began = np.empty_like(given)
                rank._elements.begin(rank._input, epoch, began)
                assert (given == began).all(), "no message is written into the input"


@pytest.mark.parametrize("operation", get_args(Reduction))
@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("name", REDUCING, ids="-".join)
def test_every_reduction_of_every_type_is_exact(name: tuple[str, str], dtype: DType, operation: Reduction) -> None:
    pattern = find_pattern(*name, dtype=dtype, operation=operation)
    for ranks in (ranks for ranks in (2, 3, 7, 8) if not pattern.unfit(ranks)):
        exchange = exchanged(pattern, ranks, lambda to: 0)
        assert exchange.wrong() == [0] * ranks
        values = exchange.ranks[0]._elements.total(1000)
        assert len(np.unique(values)) > 2


@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("pattern", ALL)
def test_data_that_is_lost_in_the_first_or_the_last_iteration_is_wrong(pattern: Pattern, dtype: DType) -> None:
    typed = replace(pattern, dtype=dtype)
    all_data = exchanged(typed, 4, lambda to: 0).data
    for lost in (1, all_data):
        assert sum(exchanged(typed, 4, lambda to: 0, lost).wrong()) > 0


@pytest.mark.parametrize("pattern", ALL)
@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_what_is_sent_is_what_is_received(pattern: Pattern, ranks: int, count: int) -> None:
    for each in variants(pattern, ranks):
        schedules = [build_schedule(each, ranks, rank, count, 16) for rank in range(ranks)]
        came = set()
        for rank, schedule in enumerate(schedules):
            for send in schedule.sends:
                receive = schedules[send.peer].receives[send.key]
                assert (receive.peer, receive.lo, receive.hi - receive.lo) == (rank, send.put, send.hi - send.lo)
                came.add((send.peer, send.key))
        assert came == {(rank, key) for rank, schedule in enumerate(schedules) for key in schedule.receives}
        for rank in range(ranks):
            at = None
            for piece in each.result(ranks, rank, count):
                assert at in (None, piece.lo)
                at = piece.hi


@pytest.mark.parametrize("pattern", ALL)
@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_closed_forms_are_what_the_operations_give(pattern: Pattern, ranks: int, count: int) -> None:
    for each in variants(pattern, ranks):
        count *= getattr(each, "channels", 1)  # so that no channel is empty
        for name in ("routes", "credits", "peers"):
            found = getattr(each, name)(ranks).tolist()
            assert found == sorted(found) == getattr(Pattern, name)(each, ranks).tolist()
        pairs = each.peers(ranks)
        assert each.connections(ranks) == len(pairs)
        assert each.receivers(ranks) == Pattern.receivers(each, ranks)
        sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank in range(ranks):
            assert list(each.sent_by(ranks, rank, count)) == list(Pattern.sent_by(each, ranks, rank, count))
            for to, length in each.sent_by(ranks, rank, count):
                sent[rank, to].append(length)
        assert set(sent) == {(src, dst) for src, dst in pairs.tolist()}
        by_label: dict[int, Counter[int]] = {}
        for pair, label in zip(pairs.tolist(), each.pair_labels(ranks, count, pairs).tolist(), strict=True):
            lengths = Counter(sent[tuple(pair)])
            assert by_label.setdefault(label, lengths) == lengths
        assert each.volume(ranks, count) == sum(map(sum, sent.values()))
        assert each.longest(ranks, count) == max(max(lengths) for lengths in sent.values())


@pytest.mark.parametrize("pattern", ALL)
def test_steps_that_may_be_received_at_once_do_not_wait_for_each_other(pattern: Pattern) -> None:
    ranks = 8
    for rank in range(ranks):
        schedule = build_schedule(pattern, ranks, rank, pattern.whole(ranks, 800), 128)
        at_once = pattern.at_once(ranks)
        for send in schedule.sends:
            assert all(need[0] // at_once < send.key[0] // at_once or send.key[0] < at_once for need in send.needs)
        assert all(key[0] < MAX_STEPS for key in schedule.receives)


def test_ranks_of_a_ring_and_an_all_to_all_need_no_credits_and_others_one_a_connection() -> None:
    needed = {name: len(find_pattern(name).credits(8)) for name in dict.fromkeys(name for name, _ in patterns())}
    assert {name for name, many in needed.items() if not many} == {
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "all-to-all-v", "barrier",
    }  # fmt: skip
    assert {needed[name] for name in ("incast", "gather", "scatter", "broadcast", "reduce")} == {7}
    assert needed["send-recv"] == needed["permutation"] == 8 and needed["matrix"] == 1
    assert not len(find_pattern("matrix", matrix="0,1,4;1,0,4").credits(2)), "each waits for the other"


def test_rounds_are_those_of_nccl_and_wait_for_what_they_need() -> None:
    assert deltas(16) == [1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8]
    for ranks in range(2, 40):
        assert sorted(deltas(ranks)) == list(range(1, ranks))
    programs = [find_pattern("all-to-all").program(11, rank, 110) for rank in range(11)]
    for together in zip(*programs, strict=True):
        to = [each.to for each in together if isinstance(each, SendStep)]
        assert not to or sorted(to) == list(range(11))
    count, message = NEARLY_BYTES * 2, NEARLY_BYTES  # two messages a chunk
    rounds = build_schedule(find_pattern("all-to-all"), 4, 1, count, message)
    needs = {0: (), 1: ((0, 0),), 2: ((0, 0), (0, 1), (1, 0))}
    assert {s.key[0]: s.needs for s in rounds.sends} == needs, "all of the round before but its last message"
    parts = steps_text([Part("", (3, 2, 1, 0), find_pattern("all-to-all"), 4 * count)])
    listed = build_plan(load_fabric("tiny").fabric, RunOptions("steps", "list", steps=parts)).pattern
    rounds = build_schedule(listed, 4, 2, count, message)
    assert {s.key[0]: s.needs for s in rounds.sends} == needs, "also as a part of other steps"
    halves = build_schedule(find_pattern("all-reduce", "halving-doubling"), 4, 1, 400, 200)
    for send in halves.sends:
        assert {key for key in halves.receives if key[0] == send.key[0] - 1} <= {*send.needs}, "all of the step before"
    root = build_schedule(find_pattern("incast"), 4, 0, 400, 200)
    assert all(set(s.needs) == {(r, i) for r in (1, 2, 3) for i in (0, 1)} for s in root.sends), "a credit of all data"
    assert [s.needs for s in build_schedule(find_pattern("incast"), 4, 2, 400, 200).sends] == [(), ()]


def test_trees_are_those_of_nccl_and_messages_pass_them_without_waiting_for_each_other() -> None:
    first, second = double_tree(14)
    assert [node.parent for node in first] == [None, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    assert [node.parent for node in second] == [13 - p if p is not None else p for p in (n.parent for n in first[::-1])]
    assert [node.parent for node in double_tree(13)[1]] == [9, None, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11]
    for ranks in range(2, 40):
        trees = double_tree(ranks)
        assert all(sum(node.parent is None for node in tree) == 1 for tree in trees)
        inner = [rank for rank in range(ranks) if all(tree[rank].children for tree in trees)]
        assert inner == ([0] if ranks % 2 else [])
    schedule = build_schedule(find_pattern("all-reduce", "tree"), 8, 4, 400, 100)
    assert all(len({index for _, index in send.needs}) == 1 for send in schedule.sends if send.needs)


@dataclass(frozen=True)
class Relay(Pattern):
    """Rank 0 sends to rank 1, which works 2 s on it and sends it on to rank 2. Rank 3 has nothing to do."""

    collective = "relay"
    algorithm = "slow"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        whole = (0, count)
        programs: list[list[Step]] = [
            [SendStep(0, 1, whole, 0)],
            [
                ReceiveStep(0, 0, whole, "scratch"),
                ComputeStep(1, 2.0, after=(0,)),
                SendStep(0, 2, whole, 0, "scratch", after=(1,)),
            ],
            [ReceiveStep(0, 1, whole)],
            [],
        ]
        return programs[rank]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, 0, 0),) if rank == 2 else ()


def test_ranks_forward_from_scratch_compute_and_end_without_receiving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "patterns", lambda **_: {("relay", "slow"): Relay()})
    exchange = exchanged(Relay(), 4, lambda to: 0)
    assert exchange.wrong() == [0] * 4
    assert [rank.results[0].seconds for rank in exchange.ranks] == [pytest.approx(s, abs=4) for s in (8, 8, 8, 0)]
    assert exchange.ranks[2].results[1].seconds == pytest.approx(8.0)
    assert exchange.ranks[3].results[0].iterations == (0.0,) * 4


def test_parameters_are_checked_together_and_fields_of_the_pattern() -> None:
    pattern: Any = find_pattern("reduce", root=3, operation="max", dtype="int32")
    assert (pattern.root, pattern.redop, pattern.printed_root, pattern.printed_type) == (3, "max", 3, "int32")
    assert [each.name for each in options_of(type(pattern))] == ["dtype", "operation", "root"]
    with pytest.raises(InputError) as caught:
        find_pattern("broadcast", root=-1, operation="max", dtype="float8")
    assert [str(each).partition("\n")[0] for each in caught.value.problems] == [
        "--root -1 is outside 0 to 1048575",
        "--operation max is not a parameter of broadcast",
        "--datatype float8 is not a type of elements here",
    ]


def test_a_parameter_is_a_flag_of_its_collectives() -> None:
    assert run_options(collective="reduce", op="max", root=2).parameters == (("operation", "max"), ("root", 2))
    with pytest.raises(InputError, match="--root 2 is not for --collective all-reduce"):
        run_options(root=2)


def test_patterns_that_would_overwrite_data_before_it_is_sent_are_not_run_in_place() -> None:
    tiny = load_fabric("tiny").fabric
    for collective in ("all-to-all", "send-recv", "permutation", "matrix"):
        with pytest.raises(InputError, match=rf"--in-place on is not possible for {collective}"):
            build_plan(tiny, run_options(collective=collective, in_place="on"))
        both = build_plan(tiny, run_options(collective=collective, in_place="both"))
        assert [placed for _, placed in both.passes] == [False]
    assert build_plan(tiny, run_options(size="64K:128K:x2", in_place="both")).passes == (
        (65536, False), (65536, True), (131072, False), (131072, True),
    )  # fmt: skip
    assert [run_options().passes(find_pattern(each))[0][1] for each in ("reduce", "gather")] == [True, False]


def test_a_root_that_is_no_rank_and_an_inexact_sum_are_refused() -> None:
    tiny = load_fabric("tiny").fabric
    with pytest.raises(InputError, match="has root 4: ranks are 0 to 3"):
        build_plan(tiny, RunOptions("broadcast", parameters=(("root", 4),)))
    assert "not exact in bfloat16" in find_pattern("all-reduce", dtype="bfloat16").unfit(86)
    assert not find_pattern("all-reduce", dtype="bfloat16", operation="max").unfit(86)
    assert not find_pattern("all-reduce", dtype="half").unfit(682)
    assert "not exact in float16: 682 are" in find_pattern("all-reduce", dtype="float16").unfit(683)
    assert find_pattern("all-reduce", dtype="float16").printed_type == "half"
    for dtype, exact in (("bfloat16", 256), ("float16", 2048)):
        for ranks in (2, 3, 33, 64, exact // 3):
            elements = Elements.of(find_pattern("all-reduce", dtype=dtype), ranks)
            assert elements.values > 1 and elements.epochs > 2, "an array of two epochs ago is wrong"
    plan = build_plan(tiny, RunOptions("all-gather", parameters=(("dtype", "bfloat16"),), sizes=(1000,)))
    assert plan.options.sizes == (960,), "chunks are multiples of 16 bytes"


@pytest.mark.parametrize("name", REDUCING)
def test_receives_that_average_have_equal_ranges_or_none_in_common(name: tuple[str, str]) -> None:
    """So the last one of a range is known by the range."""
    averaging = find_pattern(*name, operation="avg")
    for ranks, count in ((2, 6), (3, 100), (4, 4000), (5, 333), (8, 4096), (16, 5000)):
        for pattern in variants(averaging, ranks):
            for rank in range(ranks):
                schedule = build_schedule(pattern, ranks, rank, pattern.whole(ranks, count), 512)
                ranges = {each.range for each in schedule.receives.values() if each.divide > 1}
                for buffer, lo, hi in ranges:
                    assert not any(b == buffer and lo < h and o < hi and (o, h) != (lo, hi) for b, o, h in ranges)


def test_two_buffers_are_averaged_apart() -> None:
    one = Receive((0, 0), 1, 0, 64, "sum", "input", 4)
    two, again = replace(one, key=(1, 0), buffer="output"), replace(one, key=(2, 0))
    divisors = Divisors({each.key: each for each in (one, two, again)})
    assert [divisors.of(each) for each in (one, two, again)] == [1, 4, 4]
