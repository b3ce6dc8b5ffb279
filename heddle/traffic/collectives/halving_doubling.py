"""Halving-doubling all-reduce: reduce-scatter by recursive halving, then all-gather by recursive doubling.

2 log2(n) steps instead of the ring's 2(n-1), with the same volume (Rabenseifner 2004; Thakur, Rabenseifner and Gropp
2005). Partners are half of the communicator apart in the first step, and neighbours in the middle. As in MPICH, a rank
sends in a step when it has received all of the step before. If messages went on one by one, each rank would have
several senders at once; queues would fill, and a pause of one receiver would stop packets to others.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle.traffic.collectives.bases import AllReducePattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Span, Step


@dataclass(frozen=True)
class HalvingDoublingAllReduce(AllReducePattern):
    """Before a step of halving, the ranks that share a rank's upper bits reduce a common range. It halves."""

    algorithm = "halving-doubling"

    @property
    def typed(self) -> str:
        return f"--algorithm {self.algorithm}"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """log2(n) exchanges of halves, and the same ones backwards."""

        def half(of: int, distance: int) -> Span:
            """What a rank has reduced after the exchange at this distance: that of `distance` ranks."""
            first = of // distance * distance
            return first * count // ranks, (first + distance) * count // ranks

        distances = [1 << bit for bit in reversed(range(ranks.bit_length() - 1))]
        steps: list[Step] = []
        for s, distance in enumerate(distances):
            peer = rank ^ distance
            out = half(peer, distance)
            steps.append(SendStep(s, peer, out, out[0], after=tuple(range(s)[-1:])))
            steps.append(self.reduced(s, peer, half(rank, distance), ranks, last=distance == 1))
        for s, distance in enumerate(reversed(distances), len(distances)):
            peer = rank ^ distance
            out = half(rank, distance)
            steps.append(SendStep(s, peer, out, out[0], after=tuple(range(s)[-1:])))
            steps.append(ReceiveStep(s, peer, half(peer, distance), "input"))
        return steps

    def unfit(self, ranks: int) -> str:
        """Numbers that are no power of two."""
        if ranks & (ranks - 1):
            fewer = 1 << ranks.bit_length() - 1
            return f"needs a power of two of ranks, not {ranks}; use {fewer} or {2 * fewer} ranks, or --algorithm ring"
        return super().unfit(ranks)
