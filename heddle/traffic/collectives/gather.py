"""Gather: every rank sends its input to the root at once, as nccl-tests' gather_perf does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heddle.traffic.collectives.incast import DirectIncast
from heddle.traffic.collectives.pattern import Piece, SendStep, Step, chunk_range


@dataclass(frozen=True)
class DirectGather(DirectIncast):
    """An incast in which a rank's input is only its chunk."""

    collective = "gather"
    algorithm = "direct"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Step r: the input of rank r to the root."""
        if rank == self.root:
            return super().program(ranks, rank, count)
        lo, hi = chunk_range(rank, ranks, count)
        return [SendStep(rank, self.root, (0, hi - lo), lo)]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The inputs of all ranks in their order, at the root."""
        return [replace(piece, start=0) for piece in super().result(ranks, rank, count)]
