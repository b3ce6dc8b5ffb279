"""Copies between ranks of one host, as over NVLink: no packets, and a rate that every sending rank has for itself.

In:  messages of ranks of one worker. Out: the same messages at their peers, when they have passed the link.
A rank sends one message after the other, to all ranks of its host together at the given rate. Receivers and memory are
no limit, and there is no latency.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.addressing import announced, place_of
from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.ranks import Rank


class InsideHost:
    """All copies of one worker. rate_bps: emulated. ranks: by number; a peer is looked up when its message arrives."""

    def __init__(self, rate_bps: float, ranks: Mapping[int, Rank], clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_bps, self._ranks, self._clock = rate_bps, ranks, clock
        self._free: defaultdict[int, float] = defaultdict(float)  # sender -> when its link is free
        self._copying: list[tuple[float, int, int, NDArray[np.uint8], int, int]] = []  # a heap
        self._number = 0

    def link(self, sender: int, receiver: int) -> InsideLink:
        """The connection from one rank to another one of its host."""
        return InsideLink(self, sender, receiver)

    def copy(self, sender: int, receiver: int, data: NDArray[np.uint8], va: int, imm: int) -> None:
        """Begin a copy, or let it wait for the earlier ones of its sender."""
        ends = max(self._clock(), self._free[sender]) + 8 * len(data) / self._rate_bps
        self._free[sender], self._number = ends, self._number + 1
        heapq.heappush(self._copying, (ends, self._number, receiver, data, va, imm))

    @property
    def due(self) -> float:
        """When `advance` must be called; NEVER without copies."""
        return self._copying[0][0] if self._copying else NEVER

    def advance(self) -> None:
        """Deliver the messages that have passed by now."""
        while self._copying and self._copying[0][0] <= self._clock():
            _, _, receiver, data, va, imm = heapq.heappop(self._copying)
            self._ranks[receiver].delivered(place_of(va)[0], announced(imm)[1], data.copy(), lambda: None)


class InsideLink:
    """A `Connection` without queue pairs."""

    def __init__(self, host: InsideHost, sender: int, receiver: int) -> None:
        self._host, self._sender, self._receiver = host, sender, receiver

    def post(self, data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
        """Copy a message."""
        self._host.copy(self._sender, self._receiver, data, va, imm)
