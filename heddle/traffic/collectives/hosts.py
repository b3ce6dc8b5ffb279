"""Patterns whose operations depend on which ranks share a host.

In:  the host of each rank, as the job has them. Out: the ranks of each host; a rail has one rank of every host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

from heddle.traffic.collectives.pattern import Pattern

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
