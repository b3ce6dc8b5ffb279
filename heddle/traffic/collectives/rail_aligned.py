"""Rail-aligned all-to-all: data for rank i of a host goes first to rank i of the sender's host, then along their rail.

This is NCCL's PXN: the fabric carries only traffic between NICs of the same number, which share a leaf in a fabric of
rails. Rounds are those of an all-to-all, among hosts. In a round a rank sends to its rail's rank of one host what all
ranks of its own host have for it; NCCL joins these chunks into one message, here each is a transfer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from heddle.traffic.collectives.all_to_all import deltas, exchanged
from heddle.traffic.collectives.hosts import RailPattern
from heddle.traffic.collectives.pattern import Piece, ReceiveStep, SendStep, Step, chunk_range

UNDER_WAY: Final = 2  # rounds of one rank at once


@dataclass(frozen=True)
class RailAlignedAllToAll(RailPattern):
    """Chunks and results are those of the staggered all-to-all. A rank keeps the data of others in `scratch`."""

    collective = "all-to-all"
    algorithm = "rail-aligned"
    by_chunk = True
    replaces = False

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """For each round of hosts: chunks to the ranks of this host, which pass them on, and chunks along the rail."""
        hosts, at, own = self.place(ranks, rank)
        here, many = hosts[at], len(hosts[at])
        rounds = deltas(len(hosts))
        first = -(-len(rounds) // UNDER_WAY) * UNDER_WAY * many  # of the steps along the rail
        inside = first + len(rounds) * many  # of the steps that end in this host
        widest = -(-count // ranks)
        lo, hi = chunk_range(rank, ranks, count)
        steps: list[Step] = []
        for number, delta in enumerate(rounds):
            there = hosts[(at + delta) % len(hosts)]
            for peer in (each for each in range(many) if each != own):
                step = number * many + own
                steps.append(SendStep(step, here[peer], chunk_range(there[peer], ranks, count), step * widest))
            to_lo, to_hi = chunk_range(there[own], ranks, count)
            for peer in (each for each in range(many) if each != own):
                step = number * many + peer
                kept = step * widest, step * widest + to_hi - to_lo
                steps.append(ReceiveStep(step, here[peer], kept, "scratch"))
        for number, delta in enumerate(rounds):
            there, source = hosts[(at + delta) % len(hosts)], hosts[(at - delta) % len(hosts)]
            to_lo, to_hi = chunk_range(there[own], ranks, count)
            before = first + (number - UNDER_WAY) * many
            after = tuple(range(before, before + many)) if number >= UNDER_WAY else ()
            for peer in range(many):
                put, step = here[peer] * (to_hi - to_lo), number * many + peer
                if peer == own:
                    steps.append(SendStep(first + step, there[own], (to_lo, to_hi), put, after=after))
                else:
                    kept = step * widest, step * widest + to_hi - to_lo
                    steps.append(SendStep(first + step, there[own], kept, put, "scratch", after))
                into = source[peer] * (hi - lo)
                steps.append(ReceiveStep(first + step, source[own], (into, into + hi - lo)))
        for peer in (each for each in range(many) if each != own):
            out = chunk_range(here[peer], ranks, count)
            steps.append(SendStep(inside + own, here[peer], out, rank * (out[1] - out[0])))
            into = here[peer] * (hi - lo)
            steps.append(ReceiveStep(inside + peer, here[peer], (into, into + hi - lo)))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """One chunk from each rank, in their order."""
        return exchanged(ranks, rank, count)

    def at_once(self, ranks: int) -> int:
        """Two rounds: the chunks of all ranks of two hosts."""
        return UNDER_WAY * len(self.place(ranks, 0)[0][0])

    def along(self, hosts: int) -> Sequence[tuple[int, int]]:
        return [(src, dst) for src in range(hosts) for dst in range(hosts) if src != dst]
