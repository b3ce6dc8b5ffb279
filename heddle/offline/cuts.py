"""The cuts of a fabric that limit traffic: around each edge switch, and around each area.

In:  Wires, and which of its ports are in use.
Out: Cuts: the rate of all links that lead up and out of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle.base.arrays import F64, I64, Bools
from heddle.offline.wires import Wires


@dataclass(frozen=True)
class Cuts:
    """edge_bps: (edges,), bit/s. area_of: (edges,), the area of each edge, from 0. area_bps: (areas,), bit/s.

    above: the title of the switches above areas; empty if no link leaves an area.
    """

    edge_bps: F64
    area_of: I64
    area_bps: F64
    above: str

    def joined(self, between: F64) -> F64:
        """(areas, areas): of bytes between edges, those between areas; none on the diagonal."""
        areas = len(self.area_bps)
        found = np.zeros((areas, areas))
        np.add.at(found, (self.area_of[:, None], self.area_of[None, :]), between)
        np.fill_diagonal(found, 0)
        return found


def cuts_of(wires: Wires, live: Bools) -> Cuts:
    """All cuts. live: (ports,), whether a port is in use."""
    leaves = np.flatnonzero(wires.edge >= 0)
    rate = np.where(live, wires.rate, 0.0)
    up = np.flatnonzero(np.isin(wires.direction, wires.upward))
    by_switch = np.bincount(wires.owner[up], weights=rate[up], minlength=len(wires.switches))
    edge_bps = np.zeros(len(wires.fabric.edges))
    edge_bps[wires.edge[leaves]] = by_switch[leaves]
    area = wires.groups(wires.fabric.area)
    area_of = np.zeros(len(edge_bps), dtype=np.int64)
    area_of[wires.edge[leaves]] = np.maximum(area[leaves], 0)
    areas = int(area_of.max()) + 1
    # Traffic between areas uses the links that lead up and out of them.
    top = up[(area[wires.owner[up]] >= 0) & (area[wires.owner[up]] != area[wires.peer[up]])]
    upward = np.bincount(area[wires.owner[top]], weights=rate[top], minlength=areas).astype(np.float64)
    fabric = wires.fabric
    above = f"{fabric.level_of(fabric.by_name[wires.switches[wires.peer[top[0]]]]).title}s" if len(top) else ""
    return Cuts(edge_bps, area_of, upward, above)
