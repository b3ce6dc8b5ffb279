"""Constrained shortest path first (CSPF): a path for each flow, so that the busiest link carries as little as possible.

In:  Forwarding (the live next hops of each switch), the rate of each port, flows as columns (Demands).
Out: Routes: exact-match entries for the switches that have a choice, each with a backup port; the bytes of each port.
Paths are those that BGP allows: a switch sends to a next hop of its route, so every path is a shortest one, and entries
cannot make a loop that BGP does not have. Link use is the constraint: the largest flow is placed first, and each flow
takes the path whose busiest link is least used afterwards. Greedy placement alone leaves collisions that a better order
would avoid. So flows of the busiest link then move, and displace others, while its use falls (König's edge colouring of
bipartite graphs, 1916, moves the same chains). At most FEW keys are then searched completely, within a budget. With
more, a better placement may exist (docs/te.md). No packet is split: a flow has one path.

An entry has the key of Meta's switches, <source port, destination prefix> (Gangidi et al., SIGCOMM 2024, section 4.3):
all flows of a switch with one key take one port, so they are placed as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I32, I64, U32
from heddle.predict.forwarding import NOWHERE, Forwarding
from heddle.predict.walk import MAX_HOPS

_CHAINS: Final = 200_000  # placements that all chains of moves may examine together: seconds in the largest fabrics
_LONGEST: Final = 20_000  # of one chain
_DISPLACED: Final = 4  # flows of a full link that a placement may displace, one at a time
FEW: Final = 32  # keys that are searched completely
_SEARCHED: Final = 20_000  # placements of that search: less than a second
_EXACT: Final = 1e-9  # relative difference of two uses that count as equal

Ports = tuple[int, ...]
_Best = tuple[float, float, Ports]  # of a path: use of its busiest link, sum of uses, ports


@dataclass(frozen=True, slots=True)
class Demands:
    """Flows as columns, one row per flow. bytes: on the wire, in the interval that the plan is for.

    first, home: ids of the switches of the sender and of the receiver, -1 for none; destination: class of the receiver
    in the Forwarding, one for each destination prefix; sport: UDP source port.
    """

    first: I32
    home: I32
    destination: I32
    sport: U32
    bytes: F64

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Entries:
    """Exact-match entries as columns, by switch, destination and source port. port, backup: ids of ports.

    backup: NOWHERE if the switch has no other next hop.
    """

    switch: I32
    destination: I32
    sport: I32
    port: I32
    backup: I32

    def __len__(self) -> int:
        return len(self.switch)


@dataclass(frozen=True)
class Routes:
    """The placement. path (flows, hops): egress ports between switches, -1 after the end and for flows without a path.

    bytes (ports,): of these flows. keys: number of distinct keys of first switches. shared: number of flows that share
    a key with another one, and so its path. moved: flows that were placed again to relieve a busier link.
    """

    entries: Entries
    path: I32
    bytes: F64
    keys: int
    shared: int
    moved: int


def cspf(forwarding: Forwarding, rate: F64, demands: Demands) -> Routes:
    """Place all flows. rate (ports,): bit/s of each port of the Forwarding, more than 0.

    Time is linear in flows x paths; the result depends on nothing but the input.
    """
    between = np.flatnonzero((demands.first >= 0) & (demands.home >= 0) & (demands.first != demands.home))
    key = (demands.first[between].astype(np.int64) * forwarding.group.shape[1] + demands.destination[between]) << 16
    key |= demands.sport[between].astype(np.int64)
    _, at, which, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    rows, which = between[at], which.ravel()
    sums = np.bincount(which, weights=demands.bytes[between], minlength=len(rows)).astype(np.float64)
    placement = _Placement(forwarding, rate, demands, rows, sums)
    placement.place(np.argsort(-sums, kind="stable"))
    placement.relieve()
    if len(rows) <= FEW:
        placement.search(np.argsort(-sums, kind="stable").tolist())
    longest = max((len(path) for path in placement.path), default=0)
    table = np.full((len(rows), longest), NOWHERE, dtype=np.int32)
    for row, path in enumerate(placement.path):
        table[row, : len(path)] = path
    paths = np.full((len(demands), longest), NOWHERE, dtype=np.int32)
    paths[between] = table[which]
    loads = np.array(placement.load, dtype=np.float64)
    shared = int(count[count > 1].sum())
    return Routes(placement.entries(), paths, loads, len(rows), shared, placement.moved)


class _Placement:
    """Keys and their paths while they are placed. load: bytes by port; on: the keys over each port."""

    def __init__(self, forwarding: Forwarding, rate: F64, demands: Demands, rows: I64, sums: F64) -> None:
        self._group = forwarding.group
        starts, members = forwarding.start.tolist(), forwarding.member.tolist()
        self._members: list[list[int]] = [members[a:b] for a, b in pairwise(starts)]
        self._peer: list[int] = forwarding.peer.tolist()
        self._scale: list[float] = (8 / rate).tolist()  # seconds for a byte
        self._first: list[int] = demands.first[rows].tolist()
        self._home: list[int] = demands.home[rows].tolist()
        self._destination: list[int] = demands.destination[rows].tolist()
        self._sport: list[int] = demands.sport[rows].tolist()
        self._bytes: list[float] = sums.tolist()
        self._hops: dict[tuple[int, int], list[int]] = {}  # (switch, destination) -> next hops
        self._fixed: dict[tuple[int, int, int], list[int]] = {}  # key of a switch -> its port, number of keys over it
        self.load = [0.0] * len(self._peer)
        self.on: list[dict[int, None]] = [{} for _ in self._peer]
        self.path: list[Ports] = [()] * len(rows)
        self.moved = 0

    def _next_hops(self, here: int, destination: int) -> list[int]:
        found = self._hops.get((here, destination))
        if found is None:
            group = int(self._group[here, destination])
            found = self._hops[here, destination] = self._members[group] if group >= 0 else []
        return found

    def _allowed(self, here: int, key: int) -> list[int]:
        """The next hops at a switch; only one where another flow with this source port and prefix has set the entry."""
        destination = self._destination[key]
        fixed = self._fixed.get((here, destination, self._sport[key]))
        return fixed[:1] if fixed is not None and fixed[1] else self._next_hops(here, destination)

    def _use(self, port: int, more: float = 0.0) -> float:
        """Seconds that a port needs for its bytes."""
        return (self.load[port] + more) * self._scale[port]

    def place(self, order: I64) -> None:
        """Place keys one by one; keys without a path to their destination get none."""
        for key in order.tolist():
            found = self._search(self._first[key], key, {})
            if found is not None:
                self._put(key, found[2])

    def _search(self, here: int, key: int, known: dict[int, _Best | None]) -> _Best | None:
        """The best path from a switch. known: the best ones from switches that were seen, None in a loop."""
        load, scale, peer, more, home = self.load, self._scale, self._peer, self._bytes[key], self._home[key]
        best, least, first, rest = float("inf"), float("inf"), NOWHERE, Ports()
        known[here] = None
        for port in self._allowed(here, key):
            use = total = (load[port] + more) * scale[port]
            if use > best:
                continue
            there, after = peer[port], Ports()
            if there != home:
                if there < 0:
                    continue
                further = known[there] if there in known else self._search(there, key, known)
                if further is None:
                    continue
                worst, more_total, after = further
                total += more_total
                use = max(use, worst)
            if use < best or (use == best and total < least):
                best, least, first, rest = use, total, port, after
        known[here] = found = None if first == NOWHERE else (best, least, (first, *rest))
        return found

    def _switches(self, key: int, path: Ports) -> Iterator[tuple[int, int]]:
        """(switch, egress port) along a path."""
        here = self._first[key]
        for port in path:
            yield here, port
            here = self._peer[port]

    def _put(self, key: int, path: Ports) -> None:
        self.path[key] = path
        for here, port in self._switches(key, path):
            self.load[port] += self._bytes[key]
            self.on[port][key] = None
            fixed = self._fixed.setdefault((here, self._destination[key], self._sport[key]), [port, 0])
            fixed[0], fixed[1] = port, fixed[1] + 1

    def _take(self, key: int) -> None:
        for here, port in self._switches(key, self.path[key]):
            self.load[port] -= self._bytes[key]
            del self.on[port][key]
            self._fixed[here, self._destination[key], self._sport[key]][1] -= 1
        self.path[key] = ()

    def _paths(self, here: int, key: int, seen: Ports) -> Iterator[Ports]:
        """Every path from a switch."""
        for port in self._allowed(here, key):
            there = self._peer[port]
            if there == self._home[key]:
                yield (port,)
            elif there >= 0 and there not in seen and len(seen) <= MAX_HOPS:
                for rest in self._paths(there, key, (*seen, here)):
                    yield port, *rest

    def relieve(self) -> None:
        """Move flows while the use of the busiest link falls; then of the busiest among the others, and so on."""
        least, budget = self._least(), _CHAINS
        stuck: set[int] = set()  # links from which no flow can move
        while budget > 0:
            uses = {port: self._use(port) for port in range(len(self.load)) if port not in stuck}
            top = max(uses.values(), default=0.0)
            if top <= least * (1 + _EXACT):
                return
            limit = top * (1 - _EXACT)
            full = [port for port, use in uses.items() if use >= limit]
            relieved = False
            for port in full:
                for deep in (False, True):
                    if self._use(port) >= limit and len(self.on[port]) > 1 and budget > 0:
                        spent, done = self._relieve(port, limit, min(budget, _LONGEST), deep=deep)
                        budget, relieved = budget - spent, relieved or done
            if not relieved:
                stuck.update(full)

    def search(self, order: list[int]) -> None:
        """Look for the placement with the smallest use of the busiest link, by branch and bound."""
        least, left, before = self._least(), _SEARCHED, [*self.path]
        best, keys = before, [key for key in order if before[key]]
        limit = max(map(self._use, range(len(self.load))))
        for key in keys:
            self._take(key)

        def below(at: int) -> None:
            nonlocal best, limit, left
            if at == len(keys):
                best, limit = [*self.path], max(map(self._use, range(len(self.load))))
                return
            for path in [*self._paths(self._first[key := keys[at]], key, ())]:
                left -= 1
                if left < 0 or limit <= least * (1 + _EXACT):
                    return
                if all(self._use(port, self._bytes[key]) < limit * (1 - _EXACT) for port in path):
                    self._put(key, path)
                    below(at + 1)
                    self._take(key)

        below(0)
        for key in keys:
            self._put(key, best[key])
            self.moved += best[key] != before[key]

    def _least(self) -> float:
        """A bound that no placement is below: what a switch sends, divided over all its links."""
        sends: dict[int, float] = {}
        links: dict[int, set[int]] = {}
        for key, path in enumerate(self.path):
            if path:
                here = self._first[key]
                sends[here] = sends.get(here, 0.0) + self._bytes[key]
                links.setdefault(here, set()).update(self._next_hops(here, self._destination[key]))
        return max(
            (sends[here] / sum(1 / self._scale[port] for port in ports) for here, ports in links.items()), default=0.0
        )

    def _relieve(self, full: int, limit: float, budget: int, *, deep: bool) -> tuple[int, bool]:
        """Move flows until a link's use is below limit, no other one's is at or above it: breadth first, so few move.

        A placement that exceeds the limit at one link displaces a flow there, which is placed next. Returns the number
        of placements examined, and whether it was possible.
        """
        chains: list[tuple[int, Ports, int]] = []  # key, its new path, index of the move that displaced it
        waiting = deque((key, full, -1) for key in self.on[full])
        known, spent = set(self.on[full]), 0
        while waiting and spent < budget:
            key, leaves, before = waiting.pop() if deep else waiting.popleft()
            more, change = self._bytes[key], self._change(chains, before)
            for port in self.path[key]:
                change[port] = change.get(port, 0.0) - more
            for path in self._without(key):
                spent += 1
                if leaves in path:
                    continue
                tight = [port for port in path if self._use(port, change.get(port, 0.0) + more) >= limit]
                if len(tight) > 1:
                    continue
                if not tight:
                    chains.append((key, path, before))
                    if self._moved(chains, limit):
                        return spent, True
                    continue
                (port,) = tight
                room = change.get(port, 0.0) + more
                fits = [
                    other
                    for other in self.on[port]
                    if other not in known and self._use(port, room - self._bytes[other]) < limit
                ][:_DISPLACED]
                if fits:
                    chains.append((key, path, before))
                known.update(fits)
                waiting.extend((other, port, len(chains) - 1) for other in fits)
        return spent, False

    def _change(self, chains: list[tuple[int, Ports, int]], last: int) -> dict[int, float]:
        """The bytes that the moves up to `last` add to ports."""
        change: dict[int, float] = {}
        while last >= 0:
            key, path, last = chains[last]
            for ports, more in ((path, self._bytes[key]), (self.path[key], -self._bytes[key])):
                for port in ports:
                    change[port] = change.get(port, 0.0) + more
        return change

    def _without(self, key: int) -> list[Ports]:
        """Every path of a key, if it had no path now: its own entries do not bind it."""
        old = self.path[key]
        self._take(key)
        found = [*self._paths(self._first[key], key, ())]
        self._put(key, old)
        return found

    def _moved(self, chains: list[tuple[int, Ports, int]], limit: float) -> bool:
        """Make the last move and all that it needs; undo them where together they exceed the limit."""
        moves: list[tuple[int, Ports]] = []
        at = len(chains) - 1
        while at >= 0:
            key, path, at = chains[at]
            moves.append((key, path))
        before = [(key, self.path[key]) for key, _ in moves]
        for key, _ in moves:
            self._take(key)
        good = True
        for key, path in moves:
            good = good and all(port in self._allowed(here, key) for here, port in self._switches(key, path))
            self._put(key, path)
        if good and all(self._use(port) < limit for _, path in moves for port in path):
            self.moved += len(moves)
            return True
        for key, _ in moves:
            self._take(key)
        for key, path in before:
            self._put(key, path)
        return False

    def entries(self) -> Entries:
        """The entries of all switches with a choice, and their backups.

        The flows of one port share the other next hops: each backup is the one that is least used, as if that port had
        just failed and the backups of its larger flows were in use.
        """
        chosen: dict[tuple[int, int, int], tuple[int, list[int]]] = {}
        for key, path in enumerate(self.path):
            for here, port in self._switches(key, path):
                if len(self._next_hops(here, self._destination[key])) > 1:
                    chosen.setdefault((here, self._destination[key], self._sport[key]), (port, []))[1].append(key)
        backup: dict[tuple[int, int, int], int] = {}
        extra: dict[tuple[int, int], float] = {}  # (failed port, other port) -> bytes that would be added
        sizes = {which: sum(self._bytes[key] for key in keys) for which, (_, keys) in chosen.items()}
        for which in sorted(chosen, key=lambda each: (-sizes[each], each)):
            here, destination, _ = which
            failed, keys = chosen[which]
            best, found = float("inf"), NOWHERE
            for port in self._next_hops(here, destination):
                more = extra.get((failed, port), 0.0)
                use = self._use(port, more + sizes[which])
                if port != failed and use < best:
                    further = self._beyond(port, keys[0])
                    if further is not None and max(use, further) < best:
                        best, found = max(use, further), port
            backup[which] = found
            if found != NOWHERE:
                extra[failed, found] = extra.get((failed, found), 0.0) + sizes[which]
        every = sorted(chosen)
        columns = [[*which, chosen[which][0], backup[which]] for which in every]
        table = np.array(columns, dtype=np.int32).reshape(-1, 5)
        return Entries(*(np.ascontiguousarray(table[:, at]) for at in range(5)))

    def _beyond(self, port: int, key: int) -> float | None:
        """The use of the busiest link behind a port on the best path of a key; None if none leads there."""
        there = self._peer[port]
        if there == self._home[key]:
            return 0.0
        found = self._search(there, key, {}) if there >= 0 else None
        return None if found is None else found[0]
