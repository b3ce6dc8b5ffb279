"""Which flows of a workload take another path when one fabric becomes another.

In:  two fabrics, each with the traffic of one workload. Out: PathChange: flows that both have, and those that moved.
A flow is the same in both if its NICs have the same names and it is the same queue pair between them. A path is the
list of its links, each known by the nodes at its ends and its number between them: names of ports may change. Memory is
limited to one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.base.arrays import I32, I64, Bools
from heddle.fabric.hashmodes import SPREADING
from heddle.host.preflight import frr_release
from heddle.offline.columns import BATCH
from heddle.offline.loads import FlowBatch, Loads, Nics, Scenario, Traffic, nics_of
from heddle.offline.wires import Wires, compared, forwarding_of, rule_of, rules_of, steering_of


@dataclass(frozen=True, slots=True)
class PathChange:
    """Flows of both fabrics. common: in both; moved: of these, on another path; added, removed: in one only.

    lost: flows of the common ones that have a path in the first fabric alone.
    """

    common: int = 0
    moved: int = 0
    added: int = 0
    removed: int = 0
    lost: int = 0

    @property
    def share(self) -> float:
        """The share of common flows that moved."""
        return self.moved / self.common if self.common else 0.0


@dataclass(frozen=True)
class FabricSide:
    """One of the fabrics, as its prediction has it."""

    wires: Wires
    jobs: Sequence[Traffic]

    @property
    def mode(self) -> str:
        """Its hashing mode."""
        return self.wires.fabric.policy.routing.ecmp

    def scenario(self) -> Scenario:
        """Its next hops and its hashing."""
        release = frr_release() if self.wires.fabric.policy.routing.ucmp else None
        forwarding = forwarding_of(self.wires, None, release)
        rule = rule_of(self.wires.fabric.policy, compared(self.mode)[0])
        rules = rules_of(self.wires, rule, steering_of(self.wires, forwarding), self.wires.seeds)
        return Scenario("", forwarding, rules)


def path_change(base: FabricSide, head: FabricSide) -> PathChange | None:
    """Compare all flows. None where a fabric spreads packets of one flow: then no flow has one path."""
    if {base.mode, head.mode} & SPREADING:
        return None
    known = {link: number for number, link in enumerate(_links(base.wires))}
    to_base = np.array([known.get(link, -2) for link in _links(head.wires)], dtype=np.int32)
    scenarios, totals = (base.scenario(), head.scenario()), [0, 0, 0, 0, 0]
    for old, new in zip(base.jobs, head.jobs, strict=True):
        for number, count in enumerate(_of_job((base, old), (head, new), scenarios, to_base)):
            totals[number] += count
    return PathChange(*totals)


def _links(wires: Wires) -> Iterator[tuple[str, str, int]]:
    """The link of each port: this node, the other one, the number of the link between them."""
    seen: Counter[tuple[str, str]] = Counter()
    nodes = [name.partition(":")[0] for name in wires.ports]
    for node, other in zip(nodes, wires.other.tolist(), strict=True):
        ends = node, nodes[other]
        yield (*ends, seen[ends])
        seen[ends] += 1


def _of_job(
    one: tuple[FabricSide, Traffic], other: tuple[FabricSide, Traffic], scenarios: tuple[Scenario, Scenario],
    to_base: I32,
) -> Sequence[int]:  # fmt: skip
    old, new = one[1].connections, other[1].connections
    rows = _common(one[1], other[1])
    found = [0, 0, (len(new) - len(rows[0])) * new.each, (len(old) - len(rows[0])) * old.each, 0]
    step = max(1, BATCH // old.each)
    nics = [nics_of(side.wires, traffic) for side, traffic in (one, other)]
    for start in range(0, len(rows[0]), step):
        before, there = _paths(*one, nics[0], scenarios[0], rows[0][start : start + step])
        after, here = _paths(*other, nics[1], scenarios[1], rows[1][start : start + step])
        after = np.where(after >= 0, to_base[after], after)
        width = max(before.shape[1], after.shape[1])
        same = (_wide(before, width) == _wide(after, width)).all(axis=1)
        both = there & here
        found[0] += int(both.sum())
        found[1] += int((both & ~same).sum())
        found[4] += int((there & ~here).sum())
    return found


def _common(old: Traffic, new: Traffic) -> tuple[I64, I64]:
    """The rows of connections between the same NICs, in both."""
    names = {(end.nic, end.seat): number for number, end in enumerate(old.endpoints)}
    ids = np.array([names.get((end.nic, end.seat), -1) for end in new.endpoints], dtype=np.int64)
    many = len(names)
    mine = old.connections.src.astype(np.int64) * many + old.connections.dst
    src, dst = ids[new.connections.src], ids[new.connections.dst]
    theirs = np.where((src >= 0) & (dst >= 0), src * many + dst, -1 - np.arange(len(src)))
    _, first, second = np.intersect1d(mine, theirs, return_indices=True)
    return first.astype(np.int64), second.astype(np.int64)


def _paths(side: FabricSide, traffic: Traffic, nics: Nics, scenario: Scenario, rows: I64) -> tuple[I32, Bools]:
    """(flows, hops): egress ports of each flow with the last one to its NIC; and whether it arrives."""
    count = len(side.wires.ports)
    batch = FlowBatch(side.wires, traffic, nics, rows)
    hops, arrived = batch.go(scenario, Loads(np.zeros(count), np.zeros(count), np.zeros(count)))
    ports = np.concatenate([nics.down[batch.dst][:, None], hops.ports], axis=1)
    return ports.astype(np.int32), arrived


def _wide(ports: I32, width: int) -> I32:
    return np.pad(ports, ((0, 0), (0, width - ports.shape[1])), constant_values=-1)
