"""Collectives against brute force: who sends what to whom, by the definition of each, and nothing else."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heddle.traffic.collectives import Pattern, patterns
from heddle.traffic.collectives.all_to_all import deltas
from heddle.traffic.collectives.pattern import chunk_range
from heddle.traffic.schedule import build_schedule

ALL = [pytest.param(pattern, id=pattern.collective) for pattern in patterns().values()]
SIZES = [(2, 2), (3, 10), (5, 13), (8, 64), (16, 100), (16, 16)]


def played(pattern: Pattern, ranks: int, count: int) -> list[list[set[tuple[int, int]]]]:
    """What each element of each rank is the sum of, as (rank, element of its input): messages one at a time.

    A message is delivered when what it waits for has been; in an order that depends on nothing else.
    """
    chunk = 16  # four elements a message
    plans = [build_schedule(pattern, ranks, rank, count, chunk) for rank in range(ranks)]
    source = [[{(rank, i)} for i in range(count)] for rank in range(ranks)]
    room = [max(piece.hi for piece in pattern.result(ranks, rank, count)) for rank in range(ranks)]
    arrays = source if pattern.in_place else [[set() for _ in range(n)] for n in room]
    for rank in range(ranks) if not pattern.in_place else ():
        for piece in pattern.result(ranks, rank, count):
            if piece.source == rank:
                arrays[rank][piece.lo : piece.hi] = source[rank][piece.start : piece.start + piece.hi - piece.lo]
    done: list[set[tuple[int, int]]] = [set() for _ in range(ranks)]
    left = [list(plan.sends) for plan in plans]
    while any(left):
        ready = [(r, s) for r in range(ranks) for s in left[r] if done[r].issuperset(s.needs)]
        assert ready, "no rank can send: they wait for each other"
        for rank, send in ready:
            left[rank].remove(send)
            receive = plans[send.peer].receives[send.key]
            assert (receive.peer, receive.lo, receive.hi - receive.lo) == (rank, send.put, send.hi - send.lo)
            for i in range(send.hi - send.lo):
                what, at = source[rank][send.lo + i], receive.lo + i
                arrays[send.peer][at] = arrays[send.peer][at] | what if receive.reduce else set(what)
            done[send.peer].add(send.key)
    assert all(len(done[r]) == len(plans[r].receives) for r in range(ranks)), "everything that is awaited was sent"
    return arrays


@pytest.mark.parametrize("pattern", ALL)
@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_arrays_end_as_the_pattern_says(pattern: Pattern, ranks: int, count: int) -> None:
    arrays = played(pattern, ranks, count)
    for rank in range(ranks):
        at = 0
        for piece in pattern.result(ranks, rank, count):
            assert piece.lo == at
            at = piece.hi
            for i in range(piece.hi - piece.lo):
                sources = range(ranks) if piece.source is None else [piece.source]
                assert arrays[rank][piece.lo + i] == {(source, piece.start + i) for source in sources}


def test_an_all_to_all_transposes_a_matrix_and_an_incast_gathers() -> None:
    (pattern,) = (p for p in patterns().values() if p.collective == "all-to-all")
    n, width = 6, 3
    arrays = played(pattern, n, n * width)
    for rank in range(n):
        for source in range(n):
            assert arrays[rank][source * width : (source + 1) * width] == [
                {(source, rank * width + i)} for i in range(width)
            ]
    # An incast gathers at rank 0.
    (pattern,) = (p for p in patterns().values() if p.collective == "incast")
    arrays = played(pattern, 5, 13)
    assert arrays[0] == [{(r, i)} for r in range(5) for i in range(*chunk_range(r, 5, 13))]


@pytest.mark.parametrize("pattern", ALL)
@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_peers_and_labels_are_those_of_the_programs(pattern: Pattern, ranks: int, count: int) -> None:
    sent: dict[tuple[int, int], Counter[int]] = {}
    for rank in range(ranks):
        for transfer in pattern.program(ranks, rank, count):
            if length := transfer.send[1] - transfer.send[0]:
                sent.setdefault((rank, transfer.send_to), Counter())[length] += 1
    pairs = pattern.peers(ranks)
    assert [tuple(pair) for pair in pairs.tolist()] == sorted(sent)
    assert len(pairs) == pattern.connections(ranks)
    by_label: dict[int, Counter[int]] = {}
    for pair, label in zip(pairs.tolist(), pattern.pair_labels(ranks, count, pairs).tolist(), strict=True):
        assert by_label.setdefault(label, sent[tuple(pair)]) == sent[tuple(pair)]


@pytest.mark.parametrize("pattern", ALL)
def test_a_receiver_takes_in_what_the_factor_says(pattern: Pattern) -> None:
    ranks, count = 8, 800
    taken = np.zeros(ranks)
    for rank in range(ranks):
        for transfer in pattern.program(ranks, rank, count):
            taken[rank] += transfer.recv[1] - transfer.recv[0]
    busy = np.sort(taken)[-pattern.receivers(ranks) :]
    assert busy == pytest.approx(pattern.busbw_factor(ranks) * count)
    assert taken.sum() - busy.sum() <= ranks, "others take in no more than an element"


def test_rounds_are_those_of_nccl_and_wait_for_what_they_need() -> None:
    assert deltas(16) == [1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8]
    for ranks in range(2, 40):
        assert sorted(deltas(ranks)) == list(range(1, ranks))
    (pattern,) = (p for p in patterns().values() if p.collective == "all-to-all")
    programs = [pattern.program(11, rank, 110) for rank in range(11)]
    for together in zip(*programs, strict=True):
        assert sorted(t.send_to for t in together) == list(range(11))
    # A rank has two rounds under way and a gather waits for everything.
    by_name = {p.collective: p for p in patterns().values()}
    rounds = build_schedule(by_name["all-to-all"], 4, 1, 400, 200)  # two messages a chunk
    assert {s.key[0]: s.needs for s in rounds.sends} == {0: (), 1: (), 2: ((0, 0), (0, 1))}
    root = build_schedule(by_name["incast"], 4, 0, 400, 200)
    assert all(set(s.needs) == {(r, i) for r in (1, 2, 3) for i in (0, 1)} for s in root.sends)
    assert [s.needs for s in build_schedule(by_name["incast"], 4, 2, 400, 200).sends] == [(), ()]
