"""Hierarchical all-reduce: reduce-scatter inside each host, a ring across hosts for each rail, all-gather inside.

Rank i of g ranks of a host reduces part i of the array, so a NIC sends 2(h-1)/h of S/g for h hosts: the fabric carries
1/g of what it would with one rank for each host. Inside a host every rank sends to each other one directly, as over
NVLink through a switch of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heddle.traffic.collectives.bases import AllReducePattern
from heddle.traffic.collectives.hosts import RailPattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Span, Step, chunk_range


@dataclass(frozen=True)
class HierarchicalAllReduce(RailPattern, AllReducePattern):
    """A part of the array has a chunk for each host; the ring is that of an all-reduce, on the chunks of a part."""

    algorithm = "hierarchical"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """g-1 receives of each chunk inside the host; 2(h-1) steps of the ring; g-1 parts inside."""
        hosts, at, own = self.place(ranks, rank)
        many, here = len(hosts), hosts[at]
        peers = [(own + delta) % len(here) for delta in range(1, len(here))]
        ring, gather = ranks, ranks + 2 * (many - 1)

        def chunk(part: int, index: int) -> Span:
            lo, hi = chunk_range(part, len(here), count)
            first, end = chunk_range(index % many, many, hi - lo)
            return lo + first, lo + end

        steps: list[Step] = []
        for peer in peers:
            for index in range(many):
                out = chunk(peer, index)
                steps.append(SendStep(own * many + index, here[peer], out, out[0]))
        for peer in peers:
            for index in range(many):
                # The ring reduces this chunk here last, too: Divisors finds which of the receives is the last one.
                last = index == (at + 1) % many
                steps.append(self.reduced(peer * many + index, here[peer], chunk(own, index), ranks, last=last))
        there, back = hosts[(at + 1) % many][own], hosts[at - 1][own]
        for s in range(2 * (many - 1)):
            out, into = chunk(own, at - s), chunk(own, at - s - 1)
            receive = self.reduced(ring + s, back, into, ranks, last=s == many - 2)
            if s >= many - 1:
                receive = ReceiveStep(ring + s, back, into, "input")
            steps += SendStep(ring + s, there, out, out[0]), receive
        part = chunk_range(own, len(here), count)
        steps += (SendStep(gather + own, here[peer], part, part[0]) for peer in peers)
        parts = ((peer, chunk_range(peer, len(here), count)) for peer in peers)
        steps += (ReceiveStep(gather + peer, here[peer], span, "input") for peer, span in parts)
        return steps

    def along(self, hosts: int) -> Sequence[tuple[int, int]]:
        return [(src, (src + 1) % hosts) for src in range(hosts)]
