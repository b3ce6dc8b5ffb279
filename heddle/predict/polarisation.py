"""Polarisation: the choice at one tier determines the choice at the next, so that the next tier uses fewer next hops.

In:  the current next hops of a fabric and the current rules of its switches; some thousand synthetic flows.
Out: for each switch that chooses after another one, the mutual information of the two choices, and how many of its next
hops it uses for the flows that reach it.
The test of independence needs independent observations. Flows that agree in all that both switches hash are one.
Polarisation is not imbalance: few flows are uneven by chance, and independent hashes are not polarised, however uneven
they are. So both choices are computed for the same flows, also those that the first choice sends elsewhere: two
functions of a packet, independent or not. Why the same hash twice is not a second choice: Cao, Wang, Zegura,
"Performance of hashing-based schemes for Internet load balancing", INFOCOM 2000.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32, I64, Bools
from heddle.fabric.model import Fabric, Role
from heddle.kernel.fib import Fib
from heddle.predict.forwarding import FlowArrays, FlowTable, Forwarding
from heddle.predict.predict import forwarding_for, rules_for
from heddle.predict.rules import FabricRules
from heddle.predict.statistics import DEPENDENT, TOO_FEW, Dependence, dependence, entropy_bits
from heddle.predict.walk import walk
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow

FLOWS: Final = 4096  # at least
_A_CELL: Final = 12  # flows of each zone per pair of choices: the G-test needs five in four pairs of five
_MOST_FLOWS: Final = 1 << 17
_SEED: Final = 326  # of the synthetic flows, which are always the same
_PORTS: Final = (49152, 65536)  # UDP source ports
_QPNS: Final = (2, 1 << 24)
# As a share of the smaller entropy of the two choices. A smaller share is harmless: hash.udf may share a bit or two.
_HARMFUL: Final = 0.1


@dataclass(frozen=True, slots=True)
class Pair:
    """A switch that chooses after others. before: the first of these. next_hops: their number; used: by arriving flows.

    share: mutual information minus that by chance, divided by the smaller entropy of the two choices: 0 to 1.
    """

    switch: str
    before: str
    next_hops: int
    used: int
    arrived: int
    share: float
    dependence: Dependence

    @property
    def polarised(self) -> bool:
        """The choices depend on each other, more than by chance and more than a harmless share."""
        return self.dependence.verdict == DEPENDENT and self.share >= _HARMFUL

    @property
    def too_few(self) -> bool:
        """No verdict: too few flows for the number of next hops."""
        return self.dependence.verdict == TOO_FEW

    def text(self) -> str:
        """`ctsw1 uses 1 of its 2 next hops: ...`."""
        over = f"{self.dependence.flows} distinct hash inputs"
        bits = f"{self.dependence.bits:.2f} bits of mutual information over {over}"
        return (
            f"{self.switch} uses {self.used} of its {self.next_hops} next hops: {self.before} and switches like it "
            f"have already sorted the flows by the same rule ({bits}, {self.dependence.by_chance:.4f} by chance)"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "switch": self.switch, "before": self.before, "next_hops": self.next_hops, "ways": self.next_hops,
            "used": self.used, "arrived": self.arrived, "share": round(self.share, 6), "polarised": self.polarised,
            "dependence": self.dependence.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Polarisation:
    """All pairs of switches that choose one after the other. reason: why there are none, or none was checked."""

    pairs: tuple[Pair, ...]
    reason: str = ""


def polarisation(
    fabric: Fabric, fibs: Mapping[str, Fib], hashing: Mapping[str, SwitchHashing], count: int | None = None
) -> Polarisation:
    """The polarisation of a running fabric, from its FIBs and hashing. CheckError if a switch's hash is not modelled.

    count: of synthetic flows; by default as many as a verdict needs.
    """
    flows = synthetic_flows(fabric, flows_needed(fabric) if count is None else count)
    if not flows:
        return Polarisation((), f"fewer than two {fabric.box}s with hosts: no flow passes two switches that choose")
    table = FlowTable.of(fabric, flows)
    forwarding = forwarding_for(fabric, fibs, table.addresses)
    rules = rules_for(forwarding, hashing, table.addresses)
    return polarisation_of(forwarding, rules, table.arrays, table.destination, table.first)


def polarisation_of(
    forwarding: Forwarding, rules: FabricRules, flows: FlowArrays, destination: I32, first: I32
) -> Polarisation:
    """The polarisation of a fabric as arrays, offline or live; arguments as of `walk`."""
    hops = walk(forwarding, rules, flows, destination, first)
    ports = hops.ports
    here = first
    pairs: list[Pair] = []
    spread = False
    for step in range(ports.shape[1] - 1):
        group = np.where(here >= 0, forwarding.group[np.maximum(here, 0), destination], -1)
        choosing = (ports[:, step] >= 0) & (forwarding.width[group] > 1)
        if hops.fan[choosing, step].any():
            spread = True
            choosing &= ~hops.fan[:, step]
        before = here, ports[:, step], group, rules.inputs(flows, np.maximum(here, 0), destination)
        for switch, rows in _behind(forwarding, group, choosing):
            pair = _pair(forwarding, rules, flows, destination, before, switch, rows)
            if pair is None:
                continue
            if isinstance(pair, bool):
                spread = True
            else:
                pairs.append(pair)
        port = ports[:, step]
        here = np.where(port >= 0, forwarding.peer[np.maximum(port, 0)], -1).astype(np.int32)
    if pairs:
        return Polarisation(tuple(pairs))
    if spread:
        return Polarisation((), "packets of one flow are spread, so that no choice is fixed")
    return Polarisation((), "no flow passes two switches that choose: two tiers, or only one next hop further on")


def _behind(forwarding: Forwarding, group: I32, choosing: Bools) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Each switch that some of the choosing flows could reach next, and those flows."""
    reach: dict[int, list[int]] = {}
    for each in np.unique(group[choosing]):
        for peer in np.unique(forwarding.peer[_members(forwarding, each)]):
            if peer >= 0:
                reach.setdefault(int(peer), []).append(int(each))
    for switch in sorted(reach):
        yield switch, np.flatnonzero(choosing & np.isin(group, reach[switch]))


def _pair(
    forwarding: Forwarding,
    rules: FabricRules,
    flows: FlowArrays,
    destination: I32,
    before: tuple[I32, I32, I32, I64],
    switch: int,
    rows: npt.NDArray[np.intp],
) -> Pair | bool | None:
    """The choices of some flows before a switch, and its own choices for them; None if it has no choice.

    before: switch, port, group and hash input of each flow at the step before. True if the switch spreads packets.
    """
    here, port, group, inputs = before
    next_group = forwarding.group[switch, destination[rows]]
    rows = rows[forwarding.width[next_group] > 1]
    if not len(rows):
        return None
    asked = np.full(len(destination), -1, dtype=np.int32)
    asked[rows] = switch
    would = walk(forwarding, rules, flows, destination, asked, max_hops=1)
    if would.fan[rows, 0].any():
        return True
    chosen = would.ports[rows, 0]
    next_groups = forwarding.group[switch, destination[rows]]
    index = _place(forwarding, group[rows], port[rows])
    next_index = _place(forwarding, next_groups, chosen)
    comes = forwarding.peer[port[rows]] == switch
    second = rules.inputs(flows.take(rows), asked[rows], destination[rows])
    one = np.unique(inputs[rows] << 32 | second, return_index=True)[1]
    found = dependence(index[one], next_index[one])
    could = min(entropy_bits(np.bincount(index[one])), entropy_bits(np.bincount(next_index[one])))
    share = max(0.0, found.bits - found.by_chance) / could if could else 0.0
    return Pair(
        switch=forwarding.switches[switch],
        before=forwarding.switches[int(here[rows[comes][0]] if comes.any() else here[rows[0]])],
        next_hops=len(np.unique(np.concatenate([_members(forwarding, each) for each in np.unique(next_groups)]))),
        used=len(np.unique(chosen[comes])),
        arrived=int(comes.sum()),
        share=share,
        dependence=found,
    )


def _members(forwarding: Forwarding, group: int) -> I32:
    return forwarding.member[forwarding.start[group] : forwarding.start[group + 1]]


def _place(forwarding: Forwarding, group: I32, port: I32) -> I32:
    """The index of each port in its group."""
    place = np.zeros(len(group), dtype=np.int32)
    start, size = forwarding.start[group], forwarding.size[group]
    for at in range(int(size.max())):
        inside = at < size
        place[inside & (forwarding.member[np.where(inside, start + at, start)] == port)] = at
    return place


def flows_needed(fabric: Fabric) -> int:
    """The number of flows for a verdict on every switch. Switches directly above the edge see the flows of one area."""
    middle = [node for node in fabric.switches if fabric.level_of(node).above_edge]
    ports = [fabric.uplinks_of(node) for node in fabric.switches]
    return min(_MOST_FLOWS, max(FLOWS, _A_CELL * len(middle) * max(ports, default=0)))


def synthetic_flows(fabric: Fabric, count: int) -> list[Flow]:
    """Flows between random NICs of different areas, or of different leaves if there is one area; always the same ones.

    Both ends of a flow are in the same connected part of the fabric.
    """
    ends = [
        (fabric.by_name[port.node], port)
        for port in fabric.nics
        if port.address is not None and fabric.by_name[port.peer_node].role is Role.SWITCH
    ]
    areas = len({host.group(fabric.area) for host, _ in ends}) > 1
    number = {name: place for place, name in enumerate(fabric.by_name)}
    kind = np.array([(host.group(fabric.area) or 0) if areas else number[port.peer_node] for host, port in ends])
    part = np.array([fabric.part_of.get(port.peer_node, -1) for _, port in ends])
    both = set(zip(part.tolist(), kind.tolist(), strict=True))
    if len(both) == len({each for each, _ in both}):
        return []
    random = np.random.default_rng(_SEED)
    pairs = random.integers(0, len(ends), (0, 2))
    while len(pairs) < count:
        more = random.integers(0, len(ends), (2 * count, 2))
        a, b = more.T
        pairs = np.concatenate([pairs, more[(kind[a] != kind[b]) & (part[a] == part[b])]])[:count]
    sports = random.integers(*_PORTS, count)
    qpns = random.integers(*_QPNS, count)
    flows = []
    for (a, b), sport, qpn in zip(pairs.tolist(), sports.tolist(), qpns.tolist(), strict=True):
        (src, out), (dst, back) = ends[a], ends[b]
        addresses = [str(each.address.ip) for each in (out, back) if each.address is not None]
        flows.append(Flow(src.name, dst.name, addresses[0], addresses[1], sport, qpn, out.peer_ref))
    return flows
