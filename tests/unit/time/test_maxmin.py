"""Max-min fair rates against cases with known results, and against naive progressive filling."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.base.arrays import F64
from heddle_plugins.time.maxmin import Incidence, max_min


def paths(*flows: dict[int, float] | list[int], links: int) -> Incidence:
    rows = [
        (number, link, 1.0 if isinstance(each, list) else each[link])
        for number, each in enumerate(flows)
        for link in each
    ]
    flow, link, share = zip(*rows, strict=True)
    return Incidence.of(np.array(flow, np.int32), np.array(link, np.int32), np.array(share), len(flows), links)


def naive(found: Incidence, capacity: F64, limit: F64 | None = None) -> F64:
    """Raise all rates together; stop the flows of the first link that is full, or those at their limits."""
    matrix = np.zeros((found.links, found.flows))
    matrix[found.link, found.flow] = found.share
    rates, free = np.zeros(found.flows), np.ones(found.flows, dtype=bool)
    limit = np.full(found.flows, np.inf) if limit is None else limit
    while free.any():
        weight = matrix[:, free].sum(axis=1)
        left = capacity - matrix @ rates
        steps = np.where(weight > 0, left / np.where(weight > 0, weight, 1), np.inf)
        step = max(0.0, min(steps.min(), (limit[free] - rates[free]).min()))
        if not np.isfinite(step):
            rates[free] = np.inf
            return rates
        rates[free] += step
        full = (steps <= step * (1 + 1e-12) + 1e-15) & (weight > 0)
        free &= ~(matrix[full] > 0).any(axis=0) & (rates < limit * (1 - 1e-12))
    return rates


def test_links_are_shared_and_what_others_leave_is_used() -> None:
    # A chain of two links: the long flow gets a half of the narrow link, the others the rest.
    rates = max_min(paths([0, 1], [0], [1], [1], links=2), np.array([10.0, 9.0]))
    assert rates == pytest.approx([3, 7, 3, 3], rel=1e-12)
    # Incast of 8, and a flow beside it from one of the senders (link 8: its NIC).
    rates = max_min(paths(*[[n, 9] for n in range(8)], [0, 8], links=10), np.full(10, 8.0))
    assert rates == pytest.approx([1.0] * 8 + [7.0], rel=1e-12)
    # A sprayed flow needs half of its rate on each link.
    rates = max_min(paths({0: 0.5, 1: 0.5}, [0], links=2), np.array([9.0, 100.0]))
    assert rates == pytest.approx([6, 6], rel=1e-12)


def test_limits_links_without_capacity_and_flows_without_links() -> None:
    found = paths([0], [0], [1], links=3)
    assert max_min(found, np.array([10.0, 0.0, 1.0]), np.array([2.0, np.inf, 5.0])) == pytest.approx([2, 8, 0])
    empty = Incidence(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0), 2, 1)
    assert max_min(empty, np.array([1.0]), np.array([3.0, np.inf])).tolist() == [3.0, np.inf]
    assert found.only(np.array([1, 2])).link.tolist() == [0, 1]
    assert found.load(np.array([1.0, 2.0, 4.0])).tolist() == [3, 4, 0]


def test_a_thousand_random_cases_equal_naive_filling() -> None:
    random = np.random.default_rng(7)
    worst = 0.0
    for case in range(1000):
        links, flows = int(random.integers(1, 12)), int(random.integers(1, 25))
        several = case % 2 == 1
        rows: list[dict[int, float] | list[int]] = []
        for _ in range(flows):
            on = random.choice(links, random.integers(1, min(links, 5) + 1), replace=False)
            shares = random.dirichlet(np.ones(len(on))) if several else np.ones(len(on))
            rows.append(dict(zip(on.tolist(), shares.tolist(), strict=True)))
        capacity = random.choice([1.0, 2.0, 10.0], links) if case % 3 else random.uniform(0.1, 10, links)
        limit = random.uniform(0.05, 5, flows) if case % 5 == 0 else None
        found = paths(*rows, links=int(links))
        rates, expected = max_min(found, capacity, limit), naive(found, capacity, limit)
        assert (found.load(rates) <= capacity * (1 + 1e-9)).all()
        worst = max(worst, float(np.abs(rates / expected - 1).max()))
    assert worst < 1e-9
