"""Inputs of ranks: a contribution that is missing, added twice, of another rank or of another iteration is seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest

from heddle.endpoints.elements import Elements, Expected, Numbers
from heddle.traffic.collectives import Piece, find_pattern
from heddle.traffic.collectives.pattern import Buffer, DType, Pattern, Reduction
from heddle.traffic.sequence import Part, PartSequence, parts_text

RANKS = (2, 3, 5, 8, 17, 64, 128, 521, 1024, 2048)
OPERATIONS: tuple[Reduction, ...] = get_args(Reduction)
TYPES: tuple[DType, ...] = get_args(DType)
LIMITS = {"bfloat16": 256, "float16": 2048, "float32": 1 << 24, "int32": (1 << 31) - 1}


def cases() -> Iterator[object]:
    for dtype, operation, ranks in product(TYPES, OPERATIONS, (*RANKS, 85, 682)):
        pattern = find_pattern("all-reduce", "ring", operation=operation, dtype=dtype)
        if not pattern.unfit(ranks) and (ranks in RANKS or dtype in ("bfloat16", "float16")):
            yield pytest.param(Elements.of(pattern, ranks), id=f"{dtype}-{operation}-{ranks}")


def inputs_of(elements: Elements, count: int, start: int = 0) -> Numbers:
    return np.stack([elements.input(rank, count, start) for rank in range(elements.ranks)])


def without(elements: Elements, inputs: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The reduction without one rank, for every rank."""
    if elements.operation in ("sum", "avg"):
        total = inputs.sum(axis=0, dtype=inputs.dtype)
        yield from ((rank, total - each) for rank, each in enumerate(inputs))
        return
    combine = np.maximum if elements.operation == "max" else np.minimum
    after = combine.accumulate(inputs[::-1])[::-1]
    before = combine.accumulate(inputs)
    for rank in range(len(inputs)):
        rest = [*before[rank - 1 : rank], *after[rank + 1 : rank + 2]]
        yield rank, combine.reduce(rest)


CASES = list(cases())


@pytest.mark.parametrize("elements", CASES)
def test_no_contribution_can_be_missing_doubled_stale_or_of_another_rank(elements: Elements) -> None:
    start, ranks, adds = 12_345, elements.ranks, elements.operation in ("sum", "avg")
    inputs = inputs_of(elements, ranks, start)
    total = elements.total(ranks, start)
    piece = [Piece(0, ranks, None, start, buffer="input")]
    expected = Expected(piece, elements, np.concatenate([np.zeros(start, total.dtype), total]))

    def wrong(found: Numbers, epoch: int) -> int:
        return expected.wrong_elements({"input": elements.reduced(found, epoch)}, epoch)

    for epoch in (0, elements.epochs - 1):
        assert not wrong(total, epoch)
        for rank, rest in without(elements, inputs):
            # Of many ranks, all in one iteration and some in the other: each takes a pass over all elements.
            if epoch and ranks > 500 and rank % 7 and rank != ranks - 1:
                continue
            # What an iteration adds is missing, too; a maximum and a minimum have it from all others.
            assert wrong(rest - elements.more(epoch) * adds, epoch), f"rank {rank} is missing"
            if adds:
                assert wrong(total + inputs[rank] + elements.more(epoch), epoch), f"rank {rank} is there twice"
            if ranks > 500 and rank % 7 and rank != ranks - 1:  # of many, the rest for some only: it takes seconds
                continue
            for other in {(rank + 1) % ranks, (rank + 521) % ranks} - {rank}:
                if adds:
                    assert wrong(rest + inputs[other], epoch), f"rank {rank} is replaced by {other}"
            for behind in (1, 2):  # an array of another iteration
                stale = elements.more(epoch - behind) - elements.more(epoch)
                old = rest + inputs[rank] + stale if adds else _combined(elements, rest, inputs[rank] + stale)
                assert wrong(old, epoch), f"rank {rank} is {behind} iterations behind"
    assert len(np.unique(inputs, axis=0)) == ranks


def _combined(elements: Elements, one: Numbers, other: Numbers) -> Numbers:
    return np.maximum(one, other) if elements.operation == "max" else np.minimum(one, other)


@pytest.mark.parametrize("elements", CASES)
def test_in_each_element_one_rank_alone_has_the_largest_and_one_the_smallest(elements: Elements) -> None:
    inputs, ranks = inputs_of(elements, 2 * elements.ranks, 7), elements.ranks
    index = (np.arange(2 * ranks) + 7) % ranks
    assert (inputs.argmax(axis=0) == index).all() and ((inputs == inputs.max(axis=0)).sum(axis=0) == 1).all()
    assert (inputs.argmin(axis=0) == (index + ranks // 2) % ranks).all()
    assert ((inputs == inputs.min(axis=0)).sum(axis=0) == 1).all()


@pytest.mark.parametrize("elements", CASES)
def test_all_sums_are_exact_in_their_type_in_any_order(elements: Elements) -> None:
    inputs = inputs_of(elements, 64).astype(np.float64)
    most = [np.abs(inputs[inputs > 0].max(initial=0)), np.abs(inputs.min())]
    many = elements.ranks if elements.operation in ("sum", "avg") else 1
    assert many * max(most[0] + elements.more(elements.epochs - 1), most[1]) <= LIMITS[elements.dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", RANKS)
def test_two_elements_in_a_row_tell_all_ranks_apart_where_nothing_is_reduced(dtype: DType, ranks: int) -> None:
    elements = Elements.of(find_pattern("all-gather", dtype=dtype), ranks)
    for start in (0, 3, 1_000_003, 1 << 29):
        inputs = inputs_of(elements, 40, start).astype(np.int64)
        if dtype in ("float32", "int32"):
            assert all(len(np.unique(column)) == ranks for column in inputs.T)
        for at in range(39):
            assert len(np.unique(inputs[:, at] * 100_000 + inputs[:, at + 1])) == ranks
        # No rank's block is that of another rank at another place.
        blocks = np.concatenate([inputs[:, at : at + 4] for at in range(36)])
        assert len(np.unique(blocks, axis=0)) >= 0.999 * len(blocks)


def of_groups(operation: Reduction, dtype: DType) -> Iterator[tuple[Pattern, int, int]]:
    """A pattern, its ranks, its elements: a job of one group, and jobs of groups with other orders and sizes."""
    pattern = find_pattern("all-reduce", "ring", operation=operation, dtype=dtype)
    yield from ((pattern, 16, count) for count in (1, 16, 255, 256))
    groups = [(0, 1), (9, 8, 7, 6, 5, 4), (3, 12, 30), tuple(range(31, 9, -2)), (0, 4, 8, 12)]
    for count in (1, 4, 11, 31, 32, 200, 384):
        parts = [Part("", ranks, pattern, count * pattern.element_bytes) for ranks in groups]
        yield PartSequence(dtype, parts_text(parts)), 32, 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_contribution_that_is_missing_in_a_group_changes_an_element_or_is_counted(
    operation: Reduction, dtype: DType
) -> None:
    counts = []
    for pattern, ranks, count in of_groups(operation, dtype):
        elements, reductions, unseen = Elements.of(pattern, ranks), pattern.reductions(ranks, count), set[int]()
        for part in reductions:  # the whole, and the smallest that one message brings
            many, size = len(part.ranks), part.hi - part.lo
            inputs = {rank: elements.input(rank, size, part.start) for rank in part.ranks}
            right = elements.reduced(elements.total(size, part.start, part.ranks, operation), 0, many, operation)
            combine = {"max": np.maximum, "min": np.minimum}.get(operation, np.add)
            for left in (None, *part.ranks):
                found = combine.reduce([each for rank, each in inputs.items() if rank != left])
                array = elements.reduced(found.astype(inputs[part.ranks[0]].dtype), 0, many, operation)
                if array.tobytes() == right.tobytes():
                    unseen |= {-1 if left is None else left}
        counts.append(elements.unseen(reductions))
        assert counts[-1] == len(unseen - {-1}) and -1 in unseen
    if operation in ("max", "min"):
        assert counts[:4] == [15, 15, 1, 0], "of one group: those beyond the elements of a chunk"
        assert counts[4] > counts[6] and counts[-1] == 0, (
            "of groups: none, with as many in a chunk as the job has ranks"
        )
    else:
        assert any(counts) == (dtype == "bfloat16"), "an input can be 0, and quotients are rounded"


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_that_are_exact_in_a_type_are_coded_as_numpy_does(dtype: DType) -> None:
    """bfloat16 is the upper half of float32."""
    elements, most = Elements.of(find_pattern("all-gather", dtype=dtype), 2), min(LIMITS[dtype], 1 << 16)
    numbers = np.arange(-most, most + 1).astype(np.int32 if dtype == "int32" else np.float32)
    coded = elements.coded(numbers)
    assert coded.dtype == elements.stored
    if dtype == "bfloat16":
        assert ((coded.astype(np.uint32) << 16).view(np.float32) == numbers).all()
    else:
        assert coded.tobytes() == numbers.astype(elements.stored).tobytes()


def test_a_changed_element_and_two_that_change_places_are_wrong_in_every_type() -> None:
    for dtype in TYPES:
        elements = Elements.of(find_pattern("all-reduce", dtype=dtype), 4)
        count = 100_000
        total = elements.total(count)
        expected = Expected([Piece(0, count, None, 0)], elements, total)
        right = elements.reduced(total, 3)
        for places in ((0, 1), (99_998, 99_999), (32_767, 32_768)):
            found = right.copy()
            found[[*places]] = found[[*reversed(places)]]
            assert expected.wrong_elements({"input": found}, 3) == 2 * (right[places[0]] != right[places[1]])
        for place in (0, 32_767, 32_768, 99_999):
            found = right.copy()
            found[place] = found[place - 1] if found[place - 1] != found[place] else found[place - 2]
            results: Mapping[Buffer, Numbers] = {"input": found}
            assert expected.wrong_elements(results, 3) == 1


def test_a_group_of_ranks_reduces_with_an_operation_of_its_own() -> None:
    elements = Elements.of(find_pattern("all-gather"), 64)
    for operation in OPERATIONS:
        ranks = (3, 17, 40)
        piece = Piece(10, 210, None, 500, ranks, operation, "output")
        expected = Expected([piece], elements, None)
        inputs = [elements.input(rank, 200, 500) for rank in ranks]
        combine = {"max": np.maximum, "min": np.minimum}.get(operation, np.add)
        for left in (None, 0, 1, 2):
            found = combine.reduce([each + elements.more(4) for at, each in enumerate(inputs) if at != left])
            array = np.zeros(210, np.float32)
            array[10:] = found / np.float32(3) if operation == "avg" else found
            assert (expected.wrong_elements({"output": array}, 4) > 0) == (left is not None)
    assert replace(elements, operation="min").total(5, 0, (2,)).tolist() == elements.input(2, 5).tolist()
