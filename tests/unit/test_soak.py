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
    ("growth", "noise", "minutes", "verdict"),
    [(3.0, 0.1, 60, "LEAK"), (0.0, 0.1, 60, "ok"), (0.0, 50.0, 60, "open"), (300.0, 0.0, 12, "too short")],
)
def test_growth_is_a_leak_only_beyond_its_error(growth: float, noise: float, minutes: int, verdict: str) -> None:
    """A sample each 10 s, of which one in ten is taken while other labs are up."""
    dice = random.Random(1)
    points = [(at / 360, growth * at / 360 + dice.gauss(0, noise) + 100 * (at % 10 == 3)) for at in range(minutes * 6)]
    found = fit("x", "MB", points)
    assert found.verdict == verdict, found
    if verdict in ("LEAK", "ok"):
        assert found.value is not None and abs(found.value - growth) < 3 * found.error < 1
    if verdict == "too short":
        assert found.row()[1] == "-"
