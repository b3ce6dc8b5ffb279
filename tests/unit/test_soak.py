"""The sequence of `./inv soak`, and its verdict on growth."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from tests.soak.kinds import KINDS, schedule
from tests.soak.leaks import fit


def test_a_seed_gives_the_sequence_and_each_kind_comes_as_often_as_wanted() -> None:
    wanted = {name: often for name, (_, often) in KINDS.items()}
    one, same, other = (list(islice(schedule(seed, wanted), sum(wanted.values()))) for seed in (1, 1, 2))
    assert one == same != other
    assert Counter(one) == Counter(other) == wanted


@pytest.mark.parametrize(
    ("growth", "noise", "count", "verdict"),
    [(3.0, 0.1, 40, "LEAK"), (0.0, 0.1, 40, "ok"), (0.0, 50.0, 40, "open"), (3.0, 0.0, 6, "open")],
)
def test_growth_is_a_leak_only_beyond_its_error(growth: float, noise: float, count: int, verdict: str) -> None:
    dice = random.Random(1)
    points = [(0.05 * at, growth * 0.05 * at + dice.gauss(0, noise)) for at in range(count)]
    found = fit("x", "MB", points)
    assert found.verdict == verdict, found
    if noise < 1 and count > 8:
        assert abs(found.value - growth) < 3 * found.error < 1
