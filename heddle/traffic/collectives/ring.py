"""Ring all-reduce, and what all rings have in common: rank r sends to r+1 and receives from r-1.

n-1 steps of reduce-scatter, then n-1 of all-gather. Each sends 1/n of the array to a neighbour. Every rank sends
2(n-1)/n of the array in total; this is busbw's factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import AllReducePattern
from heddle.traffic.collectives.hosts import ChannelPattern, Lane, orders
from heddle.traffic.collectives.pattern import Pattern, ReceiveStep, SendStep, chunk_lengths

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Ring(ChannelPattern):
    """Data of every rank passes all ranks in each iteration, so no rank can be more than one ahead."""

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        """The chunk that a rank sends in each step."""
        raise NotImplementedError

    def sent_by(self, ranks: int, rank: int, count: int) -> Iterator[tuple[int, int]]:
        """All to the neighbour of each channel."""
        if self.channels > 1:
            return Pattern.sent_by(self, ranks, rank, count)
        import numpy as np

        lengths = chunk_lengths(ranks, count)[np.fromiter(self.sent_chunks(ranks, rank), dtype=np.int64) % ranks]
        to = (rank + 1) % ranks
        return ((to, length) for length in lengths[lengths > 0].tolist())

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of several channels: by the number of transfers and their elements, since lengths differ by one at most."""
        import numpy as np

        chunk = chunk_lengths(ranks, count)
        sent = np.array([[each % ranks for each in self.sent_chunks(ranks, place)] for place in range(ranks)])
        found = np.zeros((ranks, ranks), dtype=np.int64)
        for number, order in enumerate(orders(self.hosts, ranks, self.channels)):
            own = (number + 1) * chunk // self.channels - number * chunk // self.channels
            by_place = own[list(order)][sent].sum(axis=1)
            found[order, np.roll(order, -1)] += by_place * (self.channels + 1) + 1
        return found[pairs[:, 0], pairs[:, 1]]


@dataclass(frozen=True)
class RingAllReduce(Ring, AllReducePattern):
    """At step s rank r sends chunk r-s and receives chunk r-s-1 (all modulo n)."""

    algorithm = "ring"

    def lane(self, lane: Lane, place: int) -> Iterator[SendStep | ReceiveStep]:
        ranks = len(lane.order)
        for s, at in enumerate(self.sent_chunks(ranks, place)):
            out, into = lane.chunk(at), lane.chunk(at - 1)
            yield SendStep(s, place + 1, out, out[0])
            if s < ranks - 1:
                yield self.reduced(s, place - 1, into, ranks, last=s == ranks - 2)
            else:
                yield ReceiveStep(s, place - 1, into, "input")

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        return ((rank - s) % ranks for s in range(2 * (ranks - 1)))

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunks that a rank does not send in one of the two phases: r+1 and r+2."""
        if self.channels > 1:
            return super().pair_labels(ranks, count, pairs)
        chunk = chunk_lengths(ranks, count)
        return chunk[(pairs[:, 0] + 1) % ranks] + chunk[(pairs[:, 0] + 2) % ranks]
