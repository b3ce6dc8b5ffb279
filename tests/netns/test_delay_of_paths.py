"""`link.delay` on a live lab: every step of a collective waits for the path, and the proof of paths does not change.

Bounds are from below only: a busy machine makes a run slower, never faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab(lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    try:
        yield life.up(load_fabric("tiny", name=name, overrides=["link.delay=shape"])).lab
    finally:
        life.down(name)


def test_a_small_ring_takes_the_delays_of_its_steps(lab: Lab) -> None:
    """6 steps of 4 ranks: a chunk passes 3 paths in a rack (4 ms each) and 3 between racks (12 ms)."""
    result = run(lab, RunOptions(sizes=(16,), iters=2, warmup=0), Silent())
    assert result.wrong == 0
    assert result.rows[0].time_us >= 6 * 8_000
    assert result.propagation is not None and result.propagation.bdp_packets == 73
    assert sum(flow.counters["retransmitted"] for flow in result.flows) == 0
    assert paths_of(lab).agree

    # Larger messages keep their order and come whole.
    result = run(lab, RunOptions(sizes=(1 << 20,), iters=1, warmup=0, qps=4), Silent())
    assert result.wrong == 0
    assert {(flow.counters["out_of_order"], flow.counters["retransmitted"]) for flow in result.flows} == {(0, 0)}
    assert paths_of(lab).agree
