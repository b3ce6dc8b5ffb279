"""Next hops once BGP has converged, with the bandwidths that UCMP gives them."""

from __future__ import annotations

from collections.abc import Collection

from heddle.fabric.nexthops import Group, groups_of
from heddle.fabric.wiring import Wiring


def next_hop_groups(
    fabric: Wiring, dead: Collection[str] = (), drained: Collection[str] = ()
) -> dict[str, tuple[Group, ...]]:
    """Switch -> its groups, those with the lowest port first. An edge that a switch cannot reach is in none of them.

    dead: ports (`rtsw1:eth3`), either end of a link. drained: switches under graceful shutdown; not their hosts.
    """
    groups = groups_of(fabric, dead, drained)
    if not fabric.policy.routing.ucmp:
        return groups
    from heddle.fabric.ucmp import with_bandwidths

    return with_bandwidths(fabric, groups)
