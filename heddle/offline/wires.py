"""A fabric file as arrays: its ports, the forwarding of each switch's kernel once BGP has converged, hashing rules.

In:  Fabric; ports and nodes that are down, switches that are drained.
Out: Wires (ports with rates and directions, also those that are down), and Forwarding for the engine of live labs; the
modes that a prediction compares, as FabricRules with the file's seeds or with others.
Next hops are in the kernel's order: FRR sorts by weight, then by gateway (nexthop_cmp). The gateway is the link-local
address that Linux derives from the peer's MAC (RFC 4291, appendix A). A test compares with FIBs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import F64, I32, I64, U32, Bools
from heddle.base.problems import Problems, did_you_mean
from heddle.fabric.hashmodes import MODES, POLICY_CUSTOM, SPREADING, TE, kernel_policy
from heddle.fabric.model import Fabric, Role
from heddle.fabric.nexthops import Group
from heddle.fabric.policy import Policy
from heddle.fabric.ucmp import expected_weights
from heddle.fabric.wiring import BACKEND
from heddle.predict.forwarding import NOWHERE, Forwarding
from heddle.predict.rules import FabricRules, HashingRule, SteeringTables, steering_like
from heddle.spec.routingpolicy import FIELDS_5_TUPLE


def _directions(fabric: Fabric, joined: Bools) -> tuple[tuple[int, int], ...]:
    """Pairs (from level, to level), from the hosts up and down again; a direction's number is its index here.

    Those of links that skip a level, or are within one, come last: then the local and the global ones are two.
    joined: (levels, levels), whether links join two levels.
    """
    up = range(len(fabric.levels))
    ends = [(low, high) for low, high in np.argwhere(joined).tolist() if low <= high]
    found = dict.fromkeys((*pairwise(up), *pairwise(up[::-1]), *ends, *((high, low) for low, high in ends)))
    return (*found, *(pair for pair in found if pair[0] == pair[1] and fabric.sideways))


@dataclass(frozen=True)
class Wires:
    """Every port of a fabric, switches' first; a port means the sending direction. All arrays are by port id.

    rate: bit/s; direction: index into `directions`; owner, peer: id of its switch and of the peer switch, or -1.
    other: the port at the other end. directions: (from level, to level), by a direction's number.
    """

    fabric: Fabric
    switches: tuple[str, ...]
    ports: tuple[str, ...]
    rate: F64
    direction: I32
    owner: I32
    peer: I32
    other: I32
    directions: tuple[tuple[int, int], ...]

    @cached_property
    def id_of(self) -> Mapping[str, int]:
        """`rtsw1:eth3` -> id."""
        return {name: number for number, name in enumerate(self.ports)}

    @cached_property
    def switch_id(self) -> Mapping[str, int]:
        """`rtsw1` -> id."""
        return {name: number for number, name in enumerate(self.switches)}

    @cached_property
    def edge(self) -> I32:
        """(switches,): the switch's edge number from 0, its id as a destination; -1 for other switches."""
        return np.array([self.fabric.edge_of.get(name, 0) - 1 for name in self.switches], dtype=np.int32)

    @cached_property
    def above_edge(self) -> npt.NDArray[np.bool_]:
        """(switches,): whether the switch's level is directly above one of edge switches."""
        return np.array([self.fabric.level_of(node).above_edge for node in self.fabric.switches], dtype=np.bool_)

    def groups(self, word: str) -> I32:
        """(switches,): the number of the switch's group of that word, from 0; -1 if it is in none."""
        return np.array([(node.group(word) or 0) - 1 for node in self.fabric.switches], dtype=np.int32)

    @cached_property
    def outward(self) -> tuple[int, ...]:
        """The directions upwards and sideways between switches, where switches choose."""
        pairs = enumerate(self.directions)
        return tuple(number for number, (low, high) in pairs if low <= high and not self.at_hosts(number))

    @cached_property
    def upward(self) -> tuple[int, ...]:
        """The same, of the links whose spread is measured: not local ones."""
        first = self.directions.index
        return tuple(n for n in self.outward if len({*self.directions[n]}) == 2 or first(self.directions[n]) < n)

    def direction_name(self, number: int) -> str:
        """`RTSW to CTSW`; sideways as of Wiring.direction."""
        hosts, pair = self.fabric.host_level, self.directions[number]
        ends = (self.fabric.levels[level] for level in pair)
        name = " to ".join("NIC" if level == hosts else level.title for level in ends)
        if not self.fabric.sideways or pair[0] != pair[1]:
            return name
        return f"{name} ({'global' if self.directions.index(pair) < number else 'local'})"

    def at_hosts(self, number: int) -> bool:
        """Whether hosts are at one end of a direction."""
        return any(self.fabric.levels[level] == self.fabric.host_level for level in self.directions[number])

    @cached_property
    def seeds(self) -> npt.NDArray[np.uint32]:
        """(switches,): hash seeds."""
        return np.array([n.hash_seed or 0 for n in self.fabric.switches], dtype=np.uint32)

    def above(self, nics: I32) -> Bools:
        """(ports,): the ports of wiring.ports_above. nics: ids of hosts' ports."""
        found = np.zeros(len(self.ports), dtype=bool)
        level = np.array([node.level for node in self.fabric.switches], dtype=np.int32)
        low = nics
        for _ in self.fabric.levels:
            found[low] = found[self.other[low]] = True
            reached = np.zeros(len(self.switches) + 1, dtype=bool)  # hosts are the last: none is reached
            reached[self.peer[low]] = True
            up = np.flatnonzero(reached[self.owner] & (self.owner >= 0) & (self.peer >= 0))
            low = up[level[self.peer[up]] > level[self.owner[up]]].astype(np.int32)
        if self.fabric.sideways:
            box = self.groups(self.fabric.box)
            prepends = np.array(
                [self.fabric.level_of(node).prepends > 0 for node in self.fabric.switches], dtype=np.bool_
            )
            leaves = np.unique(self.peer[nics])  # RSWs are in the same boxes, but lead nowhere sideways
            used = np.isin(box, box[leaves[prepends[leaves]]])
            flat = [number for number, pair in enumerate(self.directions) if pair[0] == pair[1]]
            found |= np.isin(self.direction, flat) & used[self.owner] & used[self.peer]
        return found

    def of_directions(self) -> list[int]:
        """The directions that the fabric has."""
        return [int(each) for each in np.unique(self.direction)]


def wires_of(fabric: Fabric) -> Wires:
    """All ports of a fabric, those of switches first, in the order of nodes."""
    nodes, switches = [*fabric.switches, *fabric.hosts], len(fabric.switches)
    every = [port for node in nodes for port in node.ports]
    start, ids = 0, dict[str, dict[str, int]]()  # of each node, the ids of its ports by name
    for node in nodes:
        ids[node.name] = {port.name: at for at, port in enumerate(node.ports, start)}
        start += len(node.ports)
    owner = np.repeat(np.arange(len(nodes), dtype=np.int32), [len(node.ports) for node in nodes])
    other = np.array([ids[port.peer_node][port.peer_port] for port in every], dtype=np.int32)
    peer = owner[other]
    level = np.array([node.level for node in nodes])
    pairs = level[owner], level[peer]
    joined = np.zeros((len(fabric.levels),) * 2, dtype=bool)
    joined[pairs] = True
    every_way = _directions(fabric, joined)
    number_of = np.full(joined.shape, NOWHERE, dtype=np.int32)
    for number, pair in reversed([*enumerate(every_way)]):
        number_of[pair] = number
    direction = number_of[pairs]
    if fabric.sideways:
        apart = np.array([fabric.is_global(port) for port in every])
        direction = np.where(apart, len(every_way) - 1, direction).astype(np.int32)
    return Wires(
        fabric,
        tuple(node.name for node in fabric.switches),
        tuple([f"{port.node}:{port.name}" for port in every]),
        np.array([port.rate_bps for port in every], dtype=np.float64),
        direction,
        np.where(owner < switches, owner, NOWHERE),
        np.where(peer < switches, peer, NOWHERE),
        other,
        every_way,
    )


@dataclass(frozen=True)
class Trouble:
    """Names that are down or drained, as typed; and all ports that are dead because of them, at both ends of a link."""

    down: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    dead: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.down or self.drained)


def trouble_of(fabric: Fabric, down: Sequence[str], drained: Sequence[str]) -> Trouble:
    """`--down` and `--drain` as typed. InputError for unknown names."""
    problems = Problems()
    dead: set[str] = set()
    names = {node.name: node for node in fabric.nodes}
    for word in down:
        node_name, colon, port_name = word.partition(":")
        node = names.get(node_name)
        if node is None:
            hint = did_you_mean(node_name, names)
            problems.add(where="", what=f"--down {word}", why="is not a node of this fabric", hint=hint)
            continue
        ports = [port for port in node.ports if not colon or port.name == port_name]
        if not ports:
            hint = f"use {node.ports[0].name} to {node.ports[-1].name}" if node.ports else ""
            problems.add(where="", what=f"--down {word}", why=f"is not a port of {node_name}", hint=hint)
        for port in ports:
            dead |= {port.ref, port.peer_ref}
    for word in drained:
        node = names.get(word)
        if node is None or node.role is Role.HOST:
            hint = did_you_mean(word, [n.name for n in fabric.switches])
            problems.add(where="", what=f"--drain {word}", why="is not a switch of this fabric", hint=hint)
    problems.raise_if_any()
    return Trouble(tuple(down), tuple(drained), frozenset(dead))


def forwarding_of(wires: Wires, trouble: Trouble | None = None, release: tuple[int, ...] | None = None) -> Forwarding:
    """Next hops of all switches. A destination is an edge. The edge itself has no group for it, so walks end there.

    release: of FRR, for the weights of `routing.ucmp`; without one, weights are bandwidths in lowest terms.
    """
    fabric = wires.fabric
    found: Mapping[str, tuple[Group, ...]] = (
        fabric.groups_without(trouble.dead, trouble.drained) if trouble else fabric.next_hop_groups
    )
    edges = len(fabric.edges)
    mac = [port.mac for node in (*fabric.switches, *fabric.hosts) for port in node.ports]
    other, first = wires.other.tolist(), 0
    table = np.full((len(wires.switches), edges), -1, dtype=np.int32)
    members: list[int] = []
    weights: list[int] = []
    start = [0]
    for row, node in enumerate(fabric.switches):
        id_of = {port.name: at for at, port in enumerate(node.ports, first)}
        first += len(node.ports)
        for group in found[node.name]:
            table[row, _rows(group.edges, edges)] = len(start) - 1
            if len(group.ports) == 1:
                members.append(id_of[group.ports[0]])
                weights.append(1)
            else:
                ids = [id_of[port] for port in group.ports]
                # MACs sort as the link-local addresses made from them, since the octets that differ keep their order.
                gateway = [mac[other[at]] for at in ids]
                hops = sorted(zip(expected_weights(group, release), gateway, ids, strict=True))
                members += [at for _, _, at in hops]
                weights += [weight for weight, _, _ in hops]
            start.append(len(members))
    return Forwarding(
        wires.switches,
        wires.ports,
        wires.peer,
        table,
        np.array(start, dtype=np.int64),
        np.array(members, dtype=np.int32),
        np.array(weights, dtype=np.int32),
        np.zeros(len(start) - 1, dtype=bool),
    )


def _rows(bits: int, edges: int) -> I64 | int:
    if bits & (bits - 1) == 0:
        return bits.bit_length() - 1
    octets = np.frombuffer(bits.to_bytes(-(-edges // 8), "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little"))


EVEN_SPLIT: Final = "even split"
_LIKE: Final = {"exact-match": "e-ecmp"}  # offline there is no controller to write entries: all use the fall-back
# Modes in which each flow has one path by what its switches know. `compared` adds `te`, and the even split at the end.
HASHED: Final = tuple(mode for mode in MODES if mode not in SPREADING and mode not in _LIKE)


def compared(own: str) -> list[str]:
    """The modes of a comparison; the file's own, or the requested one, comes first."""
    first = EVEN_SPLIT if own in SPREADING else _LIKE.get(own, own)
    return [first, *(mode for mode in (*HASHED, TE, EVEN_SPLIT) if mode != first)]


def mode_note(own: str) -> str:
    """A remark on how a mode is predicted offline; empty for most modes."""
    if own in SPREADING:
        return f"{own} has no fixed path for a flow; even split is its best case"
    if own in _LIKE:
        return f"{own} has no entries offline, so every flow uses the fall-back, {_LIKE[own]}; {TE} makes entries"
    return ""


def rule_of(policy: Policy, mode: str, *, resilient: bool | None = None) -> HashingRule:
    """The rule of a mode, with the options of the fabric file. resilient: instead of the file's."""
    options = policy.routing.hash
    options = options if resilient is None else replace(options, resilient=resilient)
    number = kernel_policy(mode, options, policy.ip_version)
    fields = options.fields if number == POLICY_CUSTOM else FIELDS_5_TUPLE
    return HashingRule(mode, number, fields, options.udf, options.resilient, options.buckets)


def steering_of(wires: Wires, forwarding: Forwarding) -> SteeringTables:
    """The tables that programs steer by, as in heddle/switch/hashing/maps.py. forwarding: without failures.

    Switches directly above the edge add the number of the destination's edge, from 0, to a slice.
    """
    turn = np.where(wires.above_edge[:, None], np.arange(forwarding.group.shape[1], dtype=np.int32), np.int32(0))
    return steering_like(forwarding, turn)


def rules_of(wires: Wires, rule: HashingRule, steering: SteeringTables, seeds: U32) -> FabricRules:
    """The same rule for every switch."""
    kind = np.zeros(len(wires.switches), dtype=np.int32)
    return FabricRules(wires.switches, (rule,), kind, seeds, steering, seeds)


def other_seeds(seeds: U32, trial: int) -> U32:
    """Seeds of a trial. Switches with the same seed still have the same one, so shared seeds stay shared; never 0."""
    if trial == 0:
        return seeds
    unique, where = np.unique(seeds, return_inverse=True)
    drawn = [zlib.crc32(f"trial {trial}/{int(seed)}".encode()) or 1 for seed in unique]
    table: npt.NDArray[np.uint32] = np.array(drawn, dtype=np.uint32)
    return table[where.ravel()]


@dataclass(frozen=True)
class Cuts:
    """The rate of all links that lead out of each edge switch, and of each area, up or sideways: they limit traffic.

    edge_bps: (edges,), bit/s. area_of: (edges,), the area of each edge, from 0; -1 if it is in none, as every one of
    other networks than the ranks'. area_bps: (areas,), bit/s.

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
        at = np.flatnonzero(between)
        low, high = (self.area_of[edge] for edge in np.divmod(at, len(between)))
        inside = (low >= 0) & (high >= 0)
        np.add.at(found, (low[inside], high[inside]), between.ravel()[at[inside]])
        np.fill_diagonal(found, 0)
        return found


def cuts_of(wires: Wires, live: Bools) -> Cuts:
    """All cuts. live: (ports,), whether a port is in use."""
    leaves = np.flatnonzero(wires.edge >= 0)
    rate = np.where(live, wires.rate, 0.0)
    up = np.flatnonzero(np.isin(wires.direction, wires.outward))
    by_switch = np.bincount(wires.owner[up], weights=rate[up], minlength=len(wires.switches))
    edge_bps = np.zeros(len(wires.fabric.edges))
    edge_bps[wires.edge[leaves]] = by_switch[leaves]
    # Racks of another network have the numbers of areas, too, but carry nothing of ranks. Their own cuts are those
    # around edges: a cut around several of them limits no more than the tightest of theirs.
    ranked = np.array([wires.fabric.level_of(node).network == BACKEND for node in wires.fabric.switches])
    area = np.where(ranked, wires.groups(wires.fabric.area), NOWHERE)
    area_of = np.zeros(len(edge_bps), dtype=np.int64)
    area_of[wires.edge[leaves]] = area[leaves]
    areas = int(area_of.max()) + 1
    # Traffic between areas uses the links that lead up and out of them.
    top = up[(area[wires.owner[up]] >= 0) & (area[wires.owner[up]] != area[wires.peer[up]])]
    upward = np.bincount(area[wires.owner[top]], weights=rate[top], minlength=areas).astype(np.float64)
    fabric = wires.fabric
    above = f"{fabric.level_of(fabric.by_name[wires.switches[wires.peer[top[0]]]]).title}s" if len(top) else ""
    above = f"other {fabric.area}s" if above and fabric.sideways else above
    return Cuts(edge_bps, area_of, upward, above)
