"""What exact queues cost a packet: the programs of all ports against none of them, on the same fabric."""

from __future__ import annotations

import pytest

from heddle.base.events import Silent
from tests.bench.queuecost import LIMIT, lost, seconds_a_packet_of

pytestmark = pytest.mark.root

LEAST, MOST = 3, 16  # rounds; on a busy machine it takes more until nobody else had the processor


def test_exact_queues_cost_at_most_15_percent_of_the_forwarding_rate() -> None:
    def enough(rounds: int, without: float, counted: float) -> bool:
        return rounds >= LEAST and lost(without, counted) <= LIMIT

    found = seconds_a_packet_of(Silent(), MOST, enough)
    shares = {name: lost(*each) for name, each in found.items()}
    print(f"forwarding rate lost: {', '.join(f'{name} {share:.1%}' for name, share in shares.items())}")
    assert max(shares.values()) <= LIMIT, f"of the rate: {shares}"
