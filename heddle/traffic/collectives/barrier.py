"""Barrier: no rank leaves before all have entered. Dissemination (Hensgen, Finkel and Manber 1988), log2(n) rounds.

A rank begins with a token of 16 bytes. In round k it sends the tokens that it has to rank r + 2^k, so that it has
those of 2^(k+1) ranks afterwards, and in the end those of all: the check proves that no rank was missing. NCCL has no
barrier; PyTorch runs an all-reduce of one element in its place, which is `--collective all-reduce --size 4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from heddle.traffic.collectives.pattern import Pattern, Piece, ReceiveStep, SendStep, Step

_TOKEN_BYTES: Final = 16


@dataclass(frozen=True)
class DisseminationBarrier(Pattern):
    """Part d of rank r's result is the token of rank r - d (modulo n)."""

    collective = "barrier"
    algorithm = "dissemination"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        steps: list[Step] = []
        each = count // ranks
        for k in range((ranks - 1).bit_length()):
            far = 1 << k
            first, many = far * each, min(far, ranks - far) * each
            steps.append(SendStep(k, (rank + far) % ranks, (0, many), first, "output"))
            steps.append(ReceiveStep(k, (rank - far) % ranks, (first, first + many)))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        each = count // ranks
        return [Piece(far * each, (far + 1) * each, (rank - far) % ranks, 0) for far in range(ranks)]

    def whole(self, ranks: int, count: int) -> int:
        """A token of each rank, whatever the requested size."""
        return ranks * _TOKEN_BYTES // self.element_bytes
