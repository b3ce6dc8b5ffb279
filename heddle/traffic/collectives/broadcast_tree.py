"""Binomial tree broadcast: a rank that has data sends it on to ranks that have none, message by message, as in MPICH.

log2(n) hops instead of the chain's n-1. The root sends its array to each of its log2(n) children, so a large broadcast
is faster by the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.traffic.collectives.bases import BroadcastPattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Step


@dataclass(frozen=True)
class TreeBroadcast(BroadcastPattern):
    """Places count from the root. The parent of a place is the place without its lowest bit."""

    algorithm = "tree"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """One receive, but at the root; sends to all children, the largest subtree first. Step: the parent's depth."""
        place = (rank - self.root) % ranks
        lowest = place & -place or 1 << (ranks - 1).bit_length()
        depth, whole = place.bit_count(), (0, count)
        steps: list[Step] = []
        if place:
            steps.append(ReceiveStep(depth - 1, (rank - lowest) % ranks, whole, "input"))
        for bit in reversed(range(lowest.bit_length() - 1)):
            if place + (1 << bit) < ranks:
                steps.append(SendStep(depth, (rank + (1 << bit)) % ranks, whole, 0))
        return steps
