"""Places that a scheduler could give a job: hosts packed, spread, interleaved, or in random order.

In:  the NICs that are free, the number of ranks.
Out: for each name the NICs by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from heddle.fabric.model import Fabric, Port
from heddle.traffic.placement import in_turn, shuffled

_RANDOM: Final = 3


@dataclass(frozen=True, slots=True)
class FreeHost:
    """A host with free NICs, and the numbers of its box and area; 0 where there is none."""

    name: str
    nics: tuple[Port, ...]
    box: int
    area: int


def free_hosts(fabric: Fabric, free: Sequence[Port]) -> list[FreeHost]:
    """The hosts of free NICs, in file order."""
    found: dict[str, list[Port]] = {}
    for port in free:
        found.setdefault(port.node, []).append(port)
    node = fabric.by_name
    return [
        FreeHost(name, tuple(nics), node[name].group(fabric.box) or 0, node[name].group(fabric.area) or 0)
        for name, nics in found.items()
    ]


def candidates(hosts: Sequence[FreeHost], ranks: int, seed: int) -> dict[str, list[Port]]:
    """Name -> NICs by rank. hosts: with as many NICs as ranks, or more. seed: the first one of the random orders."""
    turns = in_turn([[*in_turn(_split(area, _box))] for area in _split(hosts, _area)])
    interleaved = _nics(turns)[:ranks]
    chosen = {nic.ref for nic in interleaved}
    return {
        "packed": packed(hosts, ranks)[:ranks],
        "spread": [nic for nic in _nics(hosts) if nic.ref in chosen],
        "interleaved": interleaved,
        **{f"random:{n}": _nics(shuffled(hosts, n))[:ranks] for n in range(seed, seed + _RANDOM)},
    }


def packed(hosts: Sequence[FreeHost], ranks: int) -> list[Port]:
    """All NICs, in the order of `packed_hosts`."""
    return _nics(packed_hosts(hosts, ranks))


def packed_hosts(hosts: Sequence[FreeHost], ranks: int) -> list[FreeHost]:
    """All hosts, those first that fill the fewest areas and boxes, and leave the largest ones free."""
    found: list[FreeHost] = []
    for area in _fewest(_split(hosts, _area), ranks):
        missing = ranks - sum(len(host.nics) for host in found)
        for box in _fewest(_split(area, _box), missing):
            found += box
    return found


def _fewest(groups: Sequence[Sequence[FreeHost]], ranks: int) -> list[Sequence[FreeHost]]:
    """All groups in the order of use: the smallest one that has enough for all ranks left, else the largest one."""
    left, found = [*groups], []
    while left:
        enough = [group for group in left if _size(group) >= ranks > 0]
        chosen = min(enough, key=_size) if enough else max(left, key=_size)
        left.remove(chosen)
        found.append(chosen)
        ranks -= _size(chosen)
    return found


def _split(hosts: Sequence[FreeHost], key: Callable[[FreeHost], int]) -> list[list[FreeHost]]:
    found: dict[int, list[FreeHost]] = {}
    for host in hosts:
        found.setdefault(key(host), []).append(host)
    return [*found.values()]


def _box(host: FreeHost) -> int:
    return host.box


def _area(host: FreeHost) -> int:
    return host.area


def _size(hosts: Sequence[FreeHost]) -> int:
    return sum(len(host.nics) for host in hosts)


def _nics(hosts: Iterable[FreeHost]) -> list[Port]:
    return [*chain.from_iterable(host.nics for host in hosts)]
