"""Max-min fair rates of flows over links: no flow can get more without taking from one that has no more.

In:  Incidence, the links of each flow; the capacity of each link; a limit of each flow, where it has one.
Out: the rate of each flow.
Definition: D. Bertsekas, R. Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2. Progressive filling raises all
rates together and stops the flows of the link that is full first. Here each round stops the flows of every link that
would be full first among the links of all its flows: they are independent of each other, so the result is the same, in
few rounds. A sprayed flow has a share of its packets on each of several links; its rate is that of the whole flow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I32, I64, Bools

_TIE: Final = 1e-12  # relative difference of shares that count as equal


@dataclass(frozen=True)
class Incidence:
    """A row for each link of each flow, sorted by flow. flow, link: numbers from 0; share: of the flow's bits."""

    flow: I32
    link: I32
    share: F64
    flows: int
    links: int

    @classmethod
    def of(cls, flow: I32, link: I32, share: F64, flows: int, links: int) -> Incidence:
        """Of rows in any order."""
        order = np.argsort(flow, kind="stable")
        return cls(flow[order], link[order], share[order], flows, links)

    @classmethod
    def joined(cls, parts: Iterable[Incidence]) -> Incidence:
        """The flows of several, one after the other, on the same links."""
        found = [*parts]
        starts = np.cumsum([0, *(each.flows for each in found)])
        return cls(
            np.concatenate([each.flow + start for each, start in zip(found, starts, strict=False)]).astype(np.int32),
            np.concatenate([each.link for each in found]), np.concatenate([each.share for each in found]),
            int(starts[-1]), found[0].links,
        )  # fmt: skip

    def only(self, flows: I64) -> Incidence:
        """Of some flows, which get new numbers. flows: sorted."""
        number = np.full(self.flows, -1, dtype=np.int32)
        number[flows] = np.arange(len(flows), dtype=np.int32)
        rows = np.flatnonzero(number[self.flow] >= 0)
        return Incidence(number[self.flow[rows]], self.link[rows], self.share[rows], len(flows), self.links)

    def load(self, amount: F64) -> F64:
        """(links,): the sum of the flows' amounts over each link."""
        return np.bincount(self.link, self.share * amount[self.flow], self.links).astype(np.float64)


def changes(column: I32) -> Bools:
    """Where a column has another value than in the row before; True in the first row."""
    found = np.empty(len(column), dtype=bool)
    found[:1] = True
    np.not_equal(column[1:], column[:-1], out=found[1:])
    return found


def max_min(paths: Incidence, capacity: F64, limit: F64 | None = None) -> F64:
    """(flows,): rates in bit/s. capacity: (links,) in bit/s; limit: (flows,), the most that a flow sends.

    A flow without links gets its limit, or infinity; one that crosses a link without capacity gets 0.
    """
    rates = np.full(paths.flows, np.inf) if limit is None else limit.astype(np.float64)
    flow, link, share = paths.flow, paths.link, paths.share
    by_link = np.argsort(link, kind="stable")
    residual = capacity.astype(np.float64)
    fair = np.zeros(paths.links)
    while len(flow):
        weight = np.bincount(link, share, paths.links)
        there = weight > 0
        fair[there] = residual[there] / weight[there]
        first = changes(flow)
        begins, number = np.flatnonzero(first), np.cumsum(first) - 1  # of each flow; of the flow of each row
        least = np.minimum.reduceat(fair[link], begins)  # of each flow that is left
        limits = rates[flow[begins]]
        own = np.minimum(least, limits)
        of_row = own[number]
        sorted_links = link[by_link]
        ends = np.flatnonzero(changes(sorted_links))
        lowest = np.full(paths.links, np.inf)
        lowest[sorted_links[ends]] = np.minimum.reduceat(of_row[by_link], ends)
        full = there & (lowest >= fair * (1 - _TIE))
        stops = np.logical_or.reduceat(full[link], begins) | (limits <= least * (1 + _TIE))
        done = stops[number]
        rates[flow[begins[stops]]] = own[stops]
        residual -= np.bincount(link[done], share[done] * of_row[done], paths.links)
        np.maximum(residual, 0.0, out=residual)
        left = ~done
        place = np.cumsum(left) - 1
        by_link = place[by_link[left[by_link]]]
        flow, link, share = flow[left], link[left], share[left]
    return rates
