"""Rates where pauses of PFC stop links: a packet that waits for a full link keeps those behind it waiting, too.

In:  flows on links in the order of their paths, with the bits that each may have in flight; Xoff.
Out: rates, and whether they settle; whether flows that wait at different links share a paused one.
A flow waits at the first full link that has no flow with a higher rate. All that it has in flight waits there, in the
ingress buffer of the link before. Where such bits of a link exceed Xoff, the link is paused, and is a queue in order of
arrival: no flow that crosses it is faster than the slowest that waits behind it. What waits beyond Xoff is before that
link, so pauses travel towards the senders. This is done again with the new rates until they no longer change. It is the
steady state: how long a queue takes to reach Xoff, and dynamic thresholds, are left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from heddle.base.arrays import F64
from heddle_plugins.time.maxmin import Incidence, changes, max_min

_FREE: Final = 6  # rounds in which rates may also rise
_ROUNDS: Final = 20
_SAME: Final = 1e-9  # relative difference of two rates that count as equal


class Paused(NamedTuple):
    """rates: (flows,) bit/s. settled: they do not swing.

    mixed: flows that wait at different links share one that is paused.
    """

    rates: F64
    settled: bool
    mixed: bool


def paused_rates(paths: Incidence, capacity: F64, limit: F64, xoff: float, flight: F64) -> Paused:
    """The rates; of those that swing, the lower ones.

    xoff: bits; flight: (flows,) bits, 0 for flows that cannot pause.
    """
    rates = max_min(paths, capacity, limit)
    before, mixed = limit, False
    for turn in range(_ROUNDS):
        found, several = _caps(paths, capacity, rates, xoff, flight)
        caps, mixed = np.minimum(limit, found), mixed or several
        if _same(caps, before):
            return Paused(rates, True, mixed)
        if turn >= _FREE:  # they swing: from now on a flow only becomes slower
            caps = np.minimum(caps, before)
            if _same(caps, before):
                break
        rates, before = max_min(paths, capacity, caps), caps
    return Paused(rates, False, mixed)


def _same(caps: F64, before: F64) -> bool:
    moved = np.flatnonzero(caps != before)
    close = np.isfinite(before[moved]) & (np.abs(caps[moved] - before[moved]) <= _SAME * before[moved])
    return bool(close.all())


def _caps(paths: Incidence, capacity: F64, rates: F64, xoff: float, flight: F64) -> tuple[F64, bool]:
    """(flows,): the most that each flow gets because of paused links; infinite without one. And Paused.mixed."""
    flow, link, many = paths.flow, paths.link, paths.links
    found = np.full(paths.flows, np.inf)
    if not len(flow):
        return found, False
    begins = np.flatnonzero(changes(flow))
    start = np.zeros(paths.flows, dtype=np.int64)
    start[flow[begins]] = begins
    finite = np.where(np.isfinite(rates), rates, 0.0)
    full = paths.load(finite) >= capacity * (1 - _SAME)
    top = np.zeros(many)
    np.maximum.at(top, link, finite[flow])
    stops = full[link] & (finite[flow] >= top[link] * (1 - _SAME))
    first = np.minimum.reduceat(np.where(stops, np.arange(len(flow)), len(flow)), begins)
    place = np.full(paths.flows, -1)  # the row of the link before that at which a flow waits
    place[flow[begins]] = np.where(first < len(flow), first - 1, -1)
    held = flight.copy()  # of each flow, what waits there
    stop = np.full(paths.flows, -1)
    stop[flow[begins]] = np.where(first < len(flow), link[np.minimum(first, len(flow) - 1)], -1)
    paused, mixed = np.zeros(many, dtype=bool), False
    while len(waits := np.flatnonzero((place >= start) & (held > 0))):
        at = link[place[waits]]
        amount = np.bincount(at, held[waits], many)
        new = (amount > xoff) & ~paused
        if not new.any():
            break
        paused |= new
        slowest = np.full(many, np.inf)
        np.minimum.at(slowest, at, np.minimum(rates, found)[waits])
        held[waits] *= np.where(new[at], 1 - xoff / np.maximum(amount[at], xoff), 1.0)
        crossing = np.flatnonzero(new[link])
        least, most = np.full(many, many), np.full(many, -2)
        np.minimum.at(least, link[crossing], stop[flow[crossing]])
        np.maximum.at(most, link[crossing], stop[flow[crossing]])
        mixed |= bool((least < most).any())
        np.minimum.at(found, flow[crossing], slowest[link[crossing]])
        place = np.full(paths.flows, len(flow))
        np.minimum.at(place, flow[crossing], crossing - 1)
        place[place == len(flow)] = -1
    return found, mixed
