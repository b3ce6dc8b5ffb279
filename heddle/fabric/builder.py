"""Build a fabric node by node and link by link, for every shape: addresses, seeds and port numbers are set here.

In:  FabricSpec, the shape's levels; then nodes and links in the shape's order.
Out: Fabric.
MACs, loopbacks and seeds are functions of a node's level and index, so two builds of one spec are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from heddle.base.families import Interface, Network, interned
from heddle.base.plugins import function
from heddle.base.problems import InputError, Problem
from heddle.fabric.hashmodes import seed_for
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policy import NetworkPolicy
from heddle.fabric.policydata import policy_of
from heddle.fabric.wiring import BACKEND, Level, Link, Node, Port, refuse_level_links
from heddle.spec.schema import FabricSpec

Groups = tuple[tuple[str, int], ...]
_HOST_CODE: Final = 4  # in MACs
_SWITCH_CODES: Final = [code for code in range(256) if code != _HOST_CODE]  # by level


class FabricBuilder:
    """A fabric under construction. levels: hosts first, each with the rate of its links upwards."""

    def __init__(self, spec: FabricSpec, levels: Sequence[Level]) -> None:
        if not any(level.is_edge for level in levels):
            raise ValueError("a shape needs a level of edge switches: Level(..., is_edge=True)")
        self._spec, self._levels = spec, tuple(levels)
        self._exceptions, self._mtu = spec.link.exceptions, spec.link.mtu
        self._pool = spec.addressing.network
        self._nodes: dict[str, Callable[..., Node]] = {}  # made once its ports are known
        self._ends: dict[str, tuple[list[Port], str, int]] = {}  # node -> ports, part of their MACs, rate upwards
        self._links: list[Link] = []
        self._networks: dict[str, NetworkPolicy] = {}

    @property
    def spec(self) -> FabricSpec:
        """The keys of the file."""
        return self._spec

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels so far, hosts first."""
        return self._levels

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far, with their ports."""
        return tuple([made(ports=tuple(self._ends[name][0])) for name, made in self._nodes.items()])

    def above(self, *levels: Level) -> int:
        """Add levels above all others, before their nodes; the number of the first of them."""
        self._levels += levels
        return len(self._levels) - len(levels)

    def switch(self, level: int, index: int, asn: int, groups: Groups, prefix: Network | None = None) -> str:
        """Add a switch and return its name. prefix: of its host links."""
        spec, word, network = self._spec, self._levels[level].word, self._levels[level].network
        pool = self._pool if network == BACKEND else self._networks[network].pool
        loopback = spec.ip.loopback(pool, level, index)
        router_id = spec.ip.router_id(loopback, level, index)
        name = f"{word}{index}"
        seed = seed_for(spec.routing.seed, word, name)
        return self._add(
            name, Role.SWITCH, level, index, groups=groups, asn=asn, loopback=loopback, hash_seed=seed,
            prefix=None if prefix is None else interned(prefix), router_id=router_id,
        )  # fmt: skip

    def host(self, index: int, groups: Groups, name: str = "", serves: str = "") -> str:
        """Add a host and return its name: the word of its level and the index, if none is given."""
        return self._add(name or f"{self._levels[0].word}{index}", Role.HOST, 0, index, groups=groups, serves=serves)

    def network(self, name: str, policy: NetworkPolicy) -> None:
        """Add a network whose ports carry no ranks, before the links of it."""
        self._networks[name] = policy

    def join(
        self,
        low: str,
        high: str,
        addresses: tuple[Interface, Interface] | None = None,
        network: str = BACKEND,
        rate_bps: int = 0,
    ) -> None:
        """Add a link between the next port of one node and the next of another. addresses: of both ends, if routed.

        rate_bps: the usual one; 0: that of links from the lower node's level.
        """
        (below, low_mac, usual), (above, high_mac, _) = self._ends[low], self._ends[high]
        (one, one_mac), (two, two_mac) = _numbered(len(below) + 1), _numbered(len(above) + 1)
        a, b, rate = (low, one), (high, two), rate_bps or usual
        if self._exceptions:
            rate = _rate_of(self._exceptions, a, b, rate)
        mtu = self._mtu if network == BACKEND else self._networks[network].mtu
        here, there = addresses or (None, None)
        below.append(Port(low, one, low_mac + one_mac, high, two, rate, mtu, here, None, network))
        above.append(Port(high, two, high_mac + two_mac, low, one, rate, mtu, there, None, network))
        self._links.append(Link(a, b, rate, mtu))

    def fabric(self, *, box: str, area: str, sizes: tuple[str, ...]) -> Fabric:
        """The finished fabric; arguments as in Fabric. InputError for a link within one level."""
        if self._spec.frontend is not None:
            function("frontend-build", "frontend")(self, self._spec.frontend, box)
        policy = replace(policy_of(self._spec, self._levels), others=self._networks)
        found = Fabric(self._spec.name, policy, self.nodes, tuple(self._links), self._levels, box, area, sizes)
        refuse_level_links(found)
        return found

    def _add(self, name: str, role: Role, level: int, index: int, **more: Any) -> str:
        if name in self._nodes:
            hint = "give the level of the shape another word"
            raise InputError(Problem(self._spec.name, f"the name {name}", "is that of two nodes", hint))
        # MACs are locally administered: 02, level (4: a host), node index and port of 16 bits each.
        code = _HOST_CODE if role is Role.HOST else _SWITCH_CODES[level]
        mac = f"02:{code:02x}:{index >> 8:02x}:{index & 0xFF:02x}"
        self._nodes[name] = partial(Node, name, role, level, index, **more)
        self._ends[name] = [], mac, self._levels[level].uplink_bps
        return name


@cache
def _numbered(port: int) -> tuple[str, str]:
    """A port's name, and the end of its MAC."""
    return f"eth{port}", f":{port >> 8:02x}:{port & 0xFF:02x}"


def _rate_of(exceptions: Mapping[str, int], a: tuple[str, str], b: tuple[str, str], usual: int) -> int:
    """bit/s of the link between two ports (node and port name): the ports' exception, else the nodes', else `usual`.

    If both ends have an exception, the lower rate counts.
    """
    for names in ((f"{a[0]}:{a[1]}", f"{b[0]}:{b[1]}"), (a[0], b[0])):
        named = [exceptions[name] for name in names if name in exceptions]
        if named:
            return min(named)
    return usual
