"""Next hops once BGP has converged; with unequal-cost multipath (UCMP) also their bandwidths and kernel weights.

In:  a Wiring; with `routing.ucmp`, its groups of next hops (nexthops.py) are divided where bandwidths differ.
Out: groups of next hops; the announcements of a switch's BGP; the weights that FRR sets.
Bandwidths travel in BGP's link-bandwidth extended community (draft-ietf-idr-link-bandwidth). An edge announces its
prefix with the rate of the link that it announces it over. A switch with several paths announces their sum: FRR does
so by itself (bgp_route.c, subgroup_announce_check), and the sum follows failures further on. A link that is slower than
usual for its level may be narrower than the paths behind it. Then a fixed number replaces the sum: the same fraction
of the number that a link with the usual rate would announce.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from heddle.fabric.nexthops import groups_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from heddle.fabric.nexthops import Group
    from heddle.fabric.wiring import Node, Port, Wiring

    Bits = npt.NDArray[np.bool_]
    Parts = npt.NDArray[np.int64]

_MOST: Final = 25_600  # the limit of FRR's `set extcommunity bandwidth`, in Mbit/s
_PERCENT: Final = 100
# The largest weight of a route since a release of FRR, newest first. FRR 35718a2aea (10.0): 255; db87ab3d86 (10.2):
# 254, since a kernel of that time refused 255; 9bf55de0a6 (10.5): 255 again. Later patches of these releases did not
# change it. (zebra's option for 16-bit weights, of 10.5, stays off.)
_LARGEST: Final = (((10, 5), 255), ((10, 2), 254), ((10, 0), 255))
# One FRR release for each formula from bandwidths to weights.
RELEASES: Final = ((8, 4), (10, 0), (10, 3))


@dataclass(frozen=True, slots=True)
class Announcement:
    """A fixed number for one port: these edges (a bit set) are announced with `mbit` Mbit/s instead of the sum."""

    edges: int
    mbit: int


def next_hop_groups(
    fabric: Wiring, announced: Mapping[str, tuple[Announcement, ...]], dead: Collection[str], drained: Collection[str]
) -> dict[str, tuple[Group, ...]]:
    """Switch -> its groups, those with the lowest port first. An edge that a switch cannot reach is in none of them.

    announced: `announcements`. dead: ports (`rtsw1:eth3`), either end of a link. drained: switches under graceful
    shutdown; not their hosts.
    """
    groups = groups_of(fabric, dead, drained)
    if not fabric.policy.routing.ucmp:
        return groups
    return _Announced(fabric, groups, announced).cut()


def weights_of(bandwidths: Sequence[int], release: tuple[int, ...]) -> tuple[int, ...]:
    """The weights of next hops in the kernel, for FRR of that release.

    Before 10.0, bgpd uses whole percents of the sum (bgp_zebra_use_nhop_weighted). Since 10.0, zebra scales all weights
    so that the largest bandwidth gets the largest weight (zapi_read_nexthops); equal bandwidths all get it. A weight of
    0 is raised to 1. A single next hop has no weight.
    """
    if len(bandwidths) < 2:
        return (1,) * len(bandwidths)
    for since, largest in _LARGEST:
        if release >= since:
            return tuple(max(1, each * largest // max(bandwidths)) for each in bandwidths)
    return tuple(max(1, each * _PERCENT // sum(bandwidths)) for each in bandwidths)


def expected_weights(group: Group, release: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Weights of a group's ports for a release of FRR; without a release, the bandwidths in lowest terms."""
    if not group.bandwidths:
        return (1,) * len(group.ports)
    if release is not None:
        return weights_of(group.bandwidths, release)
    from math import gcd

    step = gcd(*group.bandwidths)
    return tuple(each // step for each in group.bandwidths)


def announcements(fabric: Wiring) -> dict[str, tuple[Announcement, ...]]:
    """Port (`ctsw1:eth3`) -> its announcements with a fixed number; ports without any are omitted.

    Each edge announces its own prefix this way over each of its uplinks.
    """
    groups = groups_of(fabric)
    sums = _Announced(fabric, groups, {})
    usual = _Announced(fabric, groups, {}, usual=True) if sums.uneven else sums
    found: dict[str, tuple[Announcement, ...]] = {}
    for node in fabric.switches:
        for port in node.ports:
            rules = () if fabric.leads_to_host(port) else sums.rules(node, port, usual)
            if rules:
                found[port.ref] = rules
    return found


class _Announced:
    """The sums that every switch announces: the bandwidth of its paths to every edge.

    usual: compute as if every link had the usual rate between its levels.
    """

    def __init__(
        self,
        fabric: Wiring,
        groups: Mapping[str, tuple[Group, ...]],
        fixed: Mapping[str, Sequence[Announcement]],
        *,
        usual: bool = False,
    ) -> None:
        import numpy as np

        self._np = np
        self._fabric, self._groups = fabric, groups
        self._edges = len(fabric.edges)
        self._all_usual = usual
        self._scale = _scale(fabric)
        self._known: dict[int, int] = {}  # rate -> Mbit/s
        self._fixed = {
            ref: [(self._bits(each.edges), each.mbit) for each in rules] for ref, rules in fixed.items() if rules
        }
        self._sums: dict[str, Parts] = {n.name: np.zeros(self._edges, dtype=np.int64) for n in fabric.switches}
        self._ports = {node.name: {port.name: port for port in node.ports} for node in fabric.switches}
        order = sorted(fabric.switches, key=lambda node: node.level)
        for upwards, nodes in ((True, order), (False, order[::-1])):
            for node in nodes:
                self._add(node, upwards=upwards)

    def cut(self) -> dict[str, tuple[Group, ...]]:
        """Every switch's groups with bandwidths, in Mbit/s as announced; divided where edges of a group differ."""
        np = self._np
        found: dict[str, tuple[Group, ...]] = {}
        for node in self._fabric.switches:
            parts: list[Group] = []
            for group in self._groups[node.name]:
                if len(group.ports) < 2:
                    parts.append(group)
                    continue
                where = np.flatnonzero(self._bits(group.edges))
                table = self._received(node, group, where)
                which = self._kinds(table)
                for kind in range(int(which.max()) + 1):
                    same = np.flatnonzero(which == kind)
                    bandwidths = tuple(int(each) for each in table[:, same[0]])
                    parts.append(replace(group, edges=self._set(where[same]), bandwidths=bandwidths))
            found[node.name] = tuple(parts)
        return found

    @property
    def uneven(self) -> bool:
        """Whether a link between switches has a rate different from the usual one of its level."""
        nodes = self._fabric.switches
        return any(
            port.rate_bps != self._usual(port)
            for node in nodes
            for port in node.ports
            if not self._fabric.leads_to_host(port)
        )

    def rules(self, node: Node, port: Port, usual: _Announced) -> tuple[Announcement, ...]:
        """The announcements over a port that replace the sums. usual: the sums if all links had their usual rate."""
        np = self._np
        own = self._fabric.edge_of.get(node.name)
        if own is not None:
            return (Announcement(1 << (own - 1), self._mbit(port.rate_bps)),)
        if usual is self:
            return ()
        part = Fraction(port.rate_bps, self._usual(port))
        wholes = usual._sums[node.name]
        below = self._below(node)
        down = self._fabric.by_name[port.peer_node].level < node.level
        found: dict[int, int] = {}
        # Routes from above are not announced upwards.
        for edges in (below, ~below) if down else (below,):
            for whole in np.unique(wholes[edges]):
                number = int(whole) if part == 1 else max(1, round(int(whole) * part))
                narrow = edges & (wholes == whole) & (self._sums[node.name] > number)
                if narrow.any():
                    found[number] = found.get(number, 0) | self._set(np.flatnonzero(narrow))
        return tuple(Announcement(edges, number) for number, edges in found.items())

    def _add(self, node: Node, *, upwards: bool) -> None:
        """Sum up the announcements that the switch received from below (upwards), or from above."""
        np = self._np
        for group in self._groups[node.name]:
            peer = self._fabric.by_name[self._ports[node.name][group.ports[0]].peer_node]
            if (peer.level < node.level) == upwards:
                where = np.flatnonzero(self._bits(group.edges))
                self._sums[node.name][where] = self._received(node, group, where).sum(axis=0)

    def _received(self, node: Node, group: Group, where: Any) -> Parts:
        """The announcements of the peers of a group's ports: (ports, edges) Mbit/s."""
        np = self._np
        rows = []
        for name in group.ports:
            port = self._ports[node.name][name]
            row = self._sums[port.peer_node][where].copy()
            own = self._fabric.edge_of.get(port.peer_node)
            if own is not None:  # its own prefix is announced with the rate of this link
                row[where == own - 1] = self._mbit(self._usual(port) if self._all_usual else port.rate_bps)
            for edges, mbit in self._fixed.get(port.peer_ref, ()):
                row[edges[where]] = mbit
            rows.append(row)
        table: Parts = np.stack(rows)
        return table

    def _kinds(self, table: Parts) -> Any:
        """A number from 0 for each column of a table: equal columns have the same one, in the order of the values."""
        np = self._np
        if (table == table[:, :1]).all():
            return np.zeros(table.shape[1], dtype=np.int64)
        # Sorting columns is slow. Weighted sums nearly always tell columns apart; the line below checks for collisions.
        factors = np.arange(1, table.shape[0] + 1, dtype=np.int64) * 2 + (1 << 40) + 1
        _, first, which = np.unique(factors**2 @ table, return_index=True, return_inverse=True)
        if (table == table[:, first][:, which]).all():
            return which
        return np.unique(table, axis=1, return_inverse=True)[1].reshape(-1)

    def _set(self, edges: Any) -> int:
        """Edge indices, from 0, as a bit set."""
        np = self._np
        bits = np.zeros(self._edges, dtype=np.uint8)
        bits[edges] = 1
        return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")

    def _bits(self, edges: int) -> Bits:
        np = self._np
        raw = np.frombuffer(edges.to_bytes(self._edges // 8 + 1, "little"), dtype=np.uint8)
        bits: Bits = np.unpackbits(raw, bitorder="little")[: self._edges].astype(bool)
        return bits

    def _below(self, node: Node) -> Bits:
        """Edges to which the switch has next hops downwards."""
        found = 0
        for group in self._groups[node.name]:
            peer = self._fabric.by_name[self._ports[node.name][group.ports[0]].peer_node]
            found |= group.edges if peer.level < node.level else 0
        return self._bits(found)

    def _usual(self, port: Port) -> int:
        """The usual rate, in bit/s, of links between the levels of a port's ends."""
        ends = (self._fabric.by_name[name] for name in (port.node, port.peer_node))
        return self._fabric.level_of(min(ends, key=lambda node: node.level)).uplink_bps

    def _mbit(self, rate: int) -> int:
        found = self._known.get(rate)
        if found is None:
            found = self._known[rate] = max(1, round(rate / self._scale))
        return found


def _scale(fabric: Wiring) -> Fraction:
    """Bit/s per announced Mbit/s: 10^6, unless rates are not whole Mbit/s or sums exceed BGP's limit.

    Only the proportions matter.
    """
    hosts = {node.name for node in fabric.hosts}
    rates = {link.rate_bps for link in fabric.links if link.a[0] not in hosts}
    rates |= {level.uplink_bps for level in fabric.switch_levels if level.is_edge}
    paths = 1  # at most, from any switch to any edge
    for level in range(1, len(fabric.levels)):
        paths *= max(1, *(fabric.uplinks_of(node) for node in fabric.switches if node.level == level), 1)
    if all(rate % 10**6 == 0 for rate in rates) and max(rates) * paths <= _MOST * 10**6:
        return Fraction(10**6)
    return Fraction(max(rates), _MOST // paths)
