"""Direct all-reduce: each rank reduces its chunk of all inputs, and sends the result to all. Two steps, any ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import AllReducePattern, DirectPattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Step, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DirectAllReduce(DirectPattern, AllReducePattern):
    """The volume of a ring, in two bursts of n-1 senders to each rank."""

    algorithm = "direct"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Steps 0 to n-1: reduce-scatter, numbered by sender. Steps n to 2n-1: all-gather."""
        own, others = chunk_range(rank, ranks, count), self.others(ranks, rank)
        chunks = {other: chunk_range(other, ranks, count) for other in others}
        return [
            *(SendStep(rank, to, chunks[to], chunks[to][0]) for to in others),
            *(self.reduced(source, source, own, ranks, last=True) for source in others),
            *(SendStep(ranks + rank, to, own, own[0]) for to in others),
            *(ReceiveStep(ranks + source, source, chunks[source], "input") for source in others),
        ]

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunks of both: their lengths differ by one element at most."""
        chunk = chunk_lengths(ranks, count)
        return chunk[pairs[:, 0]] + chunk[pairs[:, 1]]
