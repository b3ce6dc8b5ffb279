"""Where a scheduler puts the ranks of a job: some of the free NICs, in the order of the ranks.

In:  Ground, the NICs of a fabric with their racks and areas; which are free; the number of ranks.
Out: numbers of NICs. A placement is a function and a line in PLACERS; those of plugins have the kind `scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from heddle.base.arrays import I64
from heddle.base.plugins import Registry, having
from heddle.fabric.model import Fabric
from heddle.traffic.flow import Endpoint


@dataclass(frozen=True)
class Ground:
    """By NIC: the numbers, from 0, of its area, of its rack (switch, where the fabric has no racks), and of its host.

    box: the word for racks. most: the NICs of the largest rack.
    """

    area: I64
    rack: I64
    host: I64
    box: str

    @classmethod
    def of(cls, fabric: Fabric, slots: Sequence[Endpoint]) -> Ground:
        """The NICs of a fabric that can have ranks."""
        nodes = [fabric.by_name[end.host] for end in slots]
        switches = [end.first_hop.partition(":")[0] for end in slots]
        racks = [str(node.group(fabric.box) or at) for node, at in zip(nodes, switches, strict=True)]
        areas = [str(node.group(fabric.area) or 0) for node in nodes]
        return cls(_numbers(areas), _numbers(racks), _numbers([node.name for node in nodes]), fabric.box or "switch")

    @property
    def most(self) -> int:
        """NICs of the largest rack."""
        return int(np.bincount(self.rack).max())

    def racks_of(self, slots: I64) -> int:
        """In how many racks they are."""
        return len(np.unique(self.rack[slots]))


def _numbers(names: Sequence[str]) -> I64:
    """Each name's number, in the order in which names come first."""
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], dtype=np.int64)


# Takes the ground, the free NICs, at least as many as ranks, and random numbers.
Placer = Callable[[Ground, I64, int, np.random.Generator], I64]


def _packed(ground: Ground, free: I64, ranks: int, _: np.random.Generator) -> I64:
    """The fewest areas and racks: the smallest that has room for all that is left, else the largest."""
    found: list[I64] = []
    for area in _fewest(ground.area[free], ranks):
        here = free[ground.area[free] == area]
        left = ranks - sum(map(len, found))
        for rack in _fewest(ground.rack[here], min(left, len(here))):
            found.append(here[ground.rack[here] == rack])
    return np.concatenate(found)[:ranks]


def _fewest(groups: I64, ranks: int) -> list[int]:
    """The groups to use, in order, for so many ranks."""
    sizes = np.bincount(groups)
    found = []
    while ranks > 0:
        enough = np.flatnonzero(sizes >= ranks)
        chosen = int(enough[sizes[enough].argmin()] if len(enough) else sizes.argmax())
        found.append(chosen)
        ranks -= int(sizes[chosen])
        sizes[chosen] = 0
    return found


def _spread(ground: Ground, free: I64, ranks: int, _: np.random.Generator) -> I64:
    """A NIC of each rack in turn; ranks are in the order of the file."""
    by_rack = np.argsort(ground.rack[free], kind="stable")
    rack = ground.rack[free][by_rack]
    turn = np.arange(len(rack)) - np.searchsorted(rack, rack)
    return np.sort(free[by_rack[np.lexsort((rack, turn))[:ranks]]])


def _random(ground: Ground, free: I64, ranks: int, random: np.random.Generator) -> I64:
    """Hosts in random order, each with all its free NICs."""
    place = random.permutation(int(ground.host.max()) + 1)
    return free[np.argsort(place[ground.host[free]], kind="stable")[:ranks]]


PLACERS: Final[Registry[Placer]] = Registry(
    "scheduler", {"packed": _packed, "spread": _spread, "random": _random}, having("__call__")
)
