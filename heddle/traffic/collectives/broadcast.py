"""Broadcast. Chain: the root's array passes one rank after the other, message by message, as in NCCL's ring.

The chain is root, root+1, ..., root-1 (modulo n). All its links work at the same time, on different messages.
Binomial tree: a rank that has data sends it on to ranks that have none, message by message, as in MPICH. It has log2(n)
hops. The root sends its array to each of its log2(n) children, so a large broadcast is faster by the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import BroadcastPattern
from heddle.traffic.collectives.hosts import ChannelPattern, Lane
from heddle.traffic.collectives.pattern import Pattern, ReceiveStep, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ChainBroadcast(ChannelPattern, BroadcastPattern):
    """Every rank but the last of the chain sends on what it has received."""

    algorithm = "chain"

    def lane(self, lane: Lane, place: int) -> Iterator[SendStep | ReceiveStep]:
        """One receive, but at the root; one send, but at the end of the chain. Step p: the p-th link of the chain."""
        ranks, span = len(lane.order), lane.array
        at = (place - lane.order.index(self.root)) % ranks
        if at:
            yield ReceiveStep(at - 1, place - 1, span, "input")
        if at < ranks - 1:
            yield SendStep(at, place + 1, span, span[0])

    def whole(self, ranks: int, count: int) -> int:
        """All, if each channel has some: its credits need data."""
        return count if count >= self.channels else 0

    def links(self, order: Sequence[int]) -> list[tuple[int, int]]:
        return [(src, dst) for src, dst in super().links(order) if dst != self.root]

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """From every receiver of a single chain."""
        return self.back(ranks) if self.channels == 1 else Pattern.credits(self, ranks)


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
