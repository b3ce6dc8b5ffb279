"""Patterns whose operations depend on which ranks share a host.

In:  the host of each rank, as the job has them. Out: the ranks of each host; a rail has one rank of every host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Annotated, Final, Self

from heddle.base.declared import Declared
from heddle.traffic.collectives.pattern import GROUP, MAX_STEPS, Pattern, ReceiveStep, SendStep, Span, Step, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NVLINK_GBPS: Final = 3600  # of a GPU of the Hopper generation: 450 GB/s in each direction
Hosts = tuple[tuple[int, ...], ...]  # ranks of each host, in order


@lru_cache(maxsize=16)
def ranks_of_hosts(hosts: tuple[int, ...], ranks: int) -> Hosts:
    """By host. hosts: of each rank, numbered in the order of their first ranks; empty: two neighbours share one."""
    found: dict[int, list[int]] = {}
    for rank in range(ranks):
        found.setdefault(hosts[rank] if hosts else rank // 2, []).append(rank)
    return tuple(map(tuple, found.values()))


@dataclass(frozen=True)
class HostedPattern(Pattern):
    """A pattern that knows the hosts. hosts: as of `ranks_of_hosts`."""

    hosts: tuple[int, ...] = ()

    def hosted(self, hosts: Sequence[str]) -> Self:
        numbers: dict[str, int] = {}
        return replace(self, hosts=tuple(numbers.setdefault(host, len(numbers)) for host in hosts))

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """None: each rank needs data of all others."""
        import numpy as np

        return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class RailPattern(HostedPattern):
    """Ranks send only inside their host, and to the ranks with the same place on other hosts: its rail."""

    inside_gbps = NVLINK_GBPS

    @property
    def typed(self) -> str:
        return f"--algorithm {self.algorithm}"

    def place(self, ranks: int, rank: int) -> tuple[Hosts, int, int]:
        """All hosts, and the number of the rank's host and its place there."""
        hosts = ranks_of_hosts(self.hosts, ranks)
        at = next(number for number, each in enumerate(hosts) if rank in each)
        return hosts, at, hosts[at].index(rank)

    def unfit(self, ranks: int) -> str:
        """Hosts with other numbers of ranks, or one rank each, or a single host."""
        hosts = ranks_of_hosts(self.hosts, ranks)
        each = sorted({len(host) for host in hosts})
        if len(hosts) < 2:
            return "needs ranks on several hosts; use more --ranks, or another --algorithm"
        if len(each) > 1:
            many = " and ".join(map(str, each))
            return f"needs the same number of ranks on every host, not {many}; use other --ranks, or a fabric of rails"
        if each == [1]:
            return "needs several ranks on a host; use a fabric with nics_per_host above 1, or another --algorithm"
        return super().unfit(ranks)

    def routes(self, ranks: int) -> NDArray[np.int64]:
        """Inside each host, and along each rail."""
        import numpy as np

        hosts = ranks_of_hosts(self.hosts, ranks)
        found = {(src, dst) for host in hosts for src in host for dst in host if src != dst}
        for rail in zip(*hosts, strict=True):
            found.update((rail[src], rail[dst]) for src, dst in self.along(len(rail)))
        return np.array(sorted(found), dtype=np.int64)

    def along(self, hosts: int) -> Sequence[tuple[int, int]]:
        """The pairs of hosts that a rail joins."""
        raise NotImplementedError


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
    """A pattern of rings or chains. Several channels, as NCCL has them, take the ranks in different orders.

    In channel c a ring enters each host at its rank c and leaves it at rank c-1 (modulo ranks of a host), so each
    channel has NICs of its own between hosts. When all ranks of a host have been first, or have one NIC, the next
    channels visit the hosts with another stride: their connections take other paths.
    """

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
        src, dst = found.reshape(-1, 2).T
        return np.stack(np.divmod(np.unique(src * ranks + dst), ranks), axis=1)
