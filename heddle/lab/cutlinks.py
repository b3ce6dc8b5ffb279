"""The cut links of a lab in shards: what they carried, and what their tunnels lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.lab.spread import concat, spread
from heddle.runtimes.netns_topology import read_topology
from heddle.switch.links.cuts import CutCount, CutEnd, TunnelUse, read_counts, tunnel_uses

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


_READINGS: Final = 20


def cut_ends(lab: Lab) -> list[CutEnd]:
    """The ends of cut links in this shard; none on one machine."""
    return [
        CutEnd(each.end.node, each.end.interface, each.number, each.far, each.remote)
        for each in read_topology(lab.topology).cuts
    ]


@spread(concat)
def cut_counts(lab: Lab) -> list[CutCount]:
    """What has crossed each end of a cut link since the lab came up."""
    ends = cut_ends(lab)
    return read_counts(lab.fabric, ends) if ends else []


def tunnels(lab: Lab) -> list[TunnelUse]:
    """Both directions of each cut link: frames sent over the tunnel, and those that did not arrive.

    It reads until that is sure, a limited number of times.
    """
    readings = [cut_counts(lab)]
    while True:
        readings.append(cut_counts(lab))
        found = tunnel_uses(readings)
        if len(readings) == _READINGS or not any(each.unsure for each in found):
            return found
