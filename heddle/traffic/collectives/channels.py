"""Several channels, as NCCL has them: rings or chains in different orders of the ranks, each with a part of the data.

In:  the operations of one ring by places (`lane`). Out: those of all channels.
In channel c a ring enters each host at its rank c and leaves it at rank c-1 (modulo ranks of a host), so each channel
has NICs of its own between hosts. When all ranks of a host have been first, or have one NIC, the next channels visit
the hosts with another stride: their connections take other paths. A single channel has the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Annotated, Self

from heddle.base.declared import Declared
from heddle.traffic.collectives.hosts import HostedPattern, ranks_of_hosts
from heddle.traffic.collectives.pattern import GROUP, MAX_STEPS, ReceiveStep, SendStep, Span, Step, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@lru_cache(maxsize=16)
def orders(hosts: tuple[int, ...], ranks: int, channels: int) -> tuple[tuple[int, ...], ...]:
    """The ranks in the order of each channel. hosts: as of `ranks_of_hosts`."""
    if channels == 1:
        return (tuple(range(ranks)),)
    found = ranks_of_hosts(hosts, ranks)
    strides = [stride for stride in range(1, len(found)) if gcd(stride, len(found)) == 1] or [1]
    deepest = max(map(len, found))
    lines = []
    for channel in range(channels):
        stride = strides[channel // deepest % len(strides)]
        visited = (found[at * stride % len(found)] for at in range(len(found)))
        lines.append(tuple(rank for host in visited for rank in _turned(host, channel % deepest)))
    return tuple(lines)


def _turned(host: Sequence[int], by: int) -> Sequence[int]:
    return [*host[by % len(host) :], *host[: by % len(host)]]


@dataclass(frozen=True, slots=True)
class Lane:
    """One of `channels` channels. order: the rank at each place. count: elements of a rank's array."""

    order: tuple[int, ...]
    number: int
    channels: int
    count: int

    def chunk(self, place: int) -> Span:
        """What the channel has of the chunk of the rank at a place (modulo their number)."""
        return self._part(chunk_range(self.order[place % len(self.order)], len(self.order), self.count))

    @property
    def array(self) -> Span:
        """What the channel has of an array."""
        return self._part((0, self.count))

    def _part(self, span: Span) -> Span:
        first, end = chunk_range(self.number, self.channels, span[1] - span[0])
        return span[0] + first, span[0] + end


@dataclass(frozen=True)
class ChannelPattern(HostedPattern):
    """A pattern of rings or chains."""

    channels: Annotated[int, Declared(
        "rings through all ranks in different orders, with a part of the data each, as NCCL's channels", GROUP,
        value="N", least=1, most=32, hint="the default is 1",
    )] = 1  # fmt: skip

    @property
    def typed(self) -> str:
        return f"--channels {self.channels}" if self.channels > 1 else super().typed

    def hosted(self, hosts: Sequence[str]) -> Self:
        return super().hosted(hosts) if self.channels > 1 else self

    def lane(self, lane: Lane, place: int) -> Iterator[SendStep | ReceiveStep]:
        """The operations of the rank at a place of one channel; ranks are places, and steps begin with 0."""
        raise NotImplementedError

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        found: list[SendStep | ReceiveStep] = []
        for number, order in enumerate(orders(self.hosts, ranks, self.channels)):
            for each in self.lane(Lane(order, number, self.channels, count), order.index(rank)):
                step = each.step * self.channels + number
                if isinstance(each, SendStep):
                    to = order[each.to % ranks]
                    found.append(SendStep(step, to, each.span, each.put, each.buffer, each.after))
                else:
                    source = order[each.source % ranks]
                    found.append(ReceiveStep(step, source, each.span, each.buffer, each.reduce, each.divide))
        return [*(sorted(found, key=lambda each: each.step // self.channels) if self.channels > 1 else found)]

    def at_once(self, ranks: int) -> int:
        return self.channels

    def unfit(self, ranks: int) -> str:
        """More steps than there are numbers for."""
        if 2 * ranks * self.channels > MAX_STEPS:
            fit = MAX_STEPS // (2 * ranks)
            return f"has more than {MAX_STEPS} steps with {ranks} ranks; use --channels {fit} or fewer"
        return super().unfit(ranks)

    def links(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """The pairs of ranks of one channel: all of the ring."""
        return [*zip(order, [*order[1:], order[0]], strict=True)]

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        found = np.array([self.links(order) for order in orders(self.hosts, ranks, self.channels)], dtype=np.int64)
        return np.unique(found.reshape(-1, 2), axis=0)
