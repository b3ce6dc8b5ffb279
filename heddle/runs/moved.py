"""Compare the paths of a run's queue pairs with their paths in the current state of the fabric.

In:  a running lab with a run; FIBs and hashing of that run from its evidence, and the current ones.
Out: Now: current paths by prediction and kernel lookup, and Moved: how many QPs have another path than in the run, how
     many had to move because their path no longer exists, and how many would have moved under hash-threshold and under
     resilient hashing (docs/hashing.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.arrays import I32, Bools
from heddle.fabric.model import Fabric
from heddle.lab import facts
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.predict.forwarding import NOWHERE, FlowTable
from heddle.predict.predict import forwarding_for, predict, rules_for
from heddle.predict.rules import steering_like
from heddle.predict.walk import spreads, walk
from heddle.proof.verdict import Path, PathsResult, lookup_paths
from heddle.runs.stored import StoredRun
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from heddle.traffic.flow import Flow

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

THRESHOLD: Final = "hash-threshold"
RESILIENT: Final = "resilient"


@dataclass(frozen=True, slots=True)
class Moved:
    """Numbers of QPs. spread: QPs without a single path; no other number includes them.

    moved: their path is now another one than in the run. gone: their path in the run no longer exists. by_rule: rule ->
    how many would have moved with every switch using that rule, and how many of these had to; empty where this kernel
    cannot be predicted. in_force: the current rule of the fabric, or `mixed`.
    """

    flows: int
    spread: int
    moved: int
    gone: int
    by_rule: Mapping[str, tuple[int, int]]
    in_force: str

    def share(self, count: int) -> float:
        """count as a share of the QPs that have a single path, 0 to 1."""
        return count / self.flows if self.flows else 0.0

    def to_json(self) -> dict[str, Any]:
        """`moved` of `paths --now`; shares are 0 to 1."""
        return {
            "flows": self.flows, "spread": self.spread, "moved": self.moved, "gone": self.gone,
            "share_moved": self.share(self.moved), "share_gone": self.share(self.gone),
            "by_rule": {
                name: {"moved": count, "gone": gone, "share": self.share(count)}
                for name, (count, gone) in self.by_rule.items()
            },
            "in_force": self.in_force,
        }  # fmt: skip

    def text(self) -> str:
        """The comparison as a few lines."""
        lines = [
            f"{self.moved} of {self.flows} QPs ({self.share(self.moved):.1%}) would take another path than in the run; "
            f"the path of {self.gone} ({self.share(self.gone):.1%}) no longer exists"
        ]
        if self.spread:
            lines.append(f"  {self.spread} more are spread and have no single path")
        for name, (count, gone) in self.by_rule.items():
            mark = f", {gone} had to{' (active)' if name == self.in_force else ''}"
            words = f"{name} hashing" if name == RESILIENT else name
            lines.append(f"  by {words:<18} {count:>6} {self.share(count):>6.1%}{mark}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Now:
    """The result of `./inv paths --now`. was: each QP's path in the run, in the order of result.flows."""

    result: PathsResult
    moved: Moved
    was: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """The keys of `paths`, `moved`, and in each row of `flows` the QP's path in the run."""
        data = self.result.to_json()
        for row, proof, was in zip(data["flows"], self.result.flows, self.was, strict=True):
            row |= {"was": list(was), "moved": not spreads(was) and not proof.spread and proof.expected != was}
        return {**data, "moved": self.moved.to_json()}


def now(lab: Lab, run: StoredRun) -> Now:
    """Look up the QPs of a run in the current state of the fabric."""
    evidence = run.evidence
    flows = [sent.flow for sent in evidence.sent]
    outages = LabPart.CARRIER | (facts.parts(lab) & LabPart.DRAINED)
    now = lab.snapshot(LabPart.FIBS | LabPart.HASHING | outages)
    result = lookup_paths(lab, flows, now)
    predicted = result.selftest is None or not result.selftest.differs
    then = evidence.before
    was = predict(lab.fabric, then.fibs, then.hashing, flows) if predicted else evidence.oracle
    return Now(result, moved_of(lab.fabric, then, now, flows, (was, result)), tuple(was))


def moved_of(
    fabric: Fabric, before: Snapshot, after: Snapshot, flows: Sequence[Flow], paths: tuple[Sequence[Path], PathsResult]
) -> Moved:
    """Compare two states of a fabric. paths: of the flows, before and after."""
    was, result = paths
    pairs = [(then, proof.expected) for then, proof in zip(was, result.flows, strict=True)]
    own = [not spreads(then) and not spreads(since) for then, since in pairs]
    moved = sum(then != since for (then, since), single in zip(pairs, own, strict=True) if single)
    kinds = {row.options.resilient for row in after.hashing.values()}
    in_force = "mixed" if len(kinds) > 1 else RESILIENT if kinds == {True} else THRESHOLD
    compared = _Compared(fabric, before, after, flows)
    singles = np.array(own, dtype=bool)
    gone = int((compared.gone(was) & singles).sum())
    by_rule: dict[str, tuple[int, int]] = {}
    if result.selftest is None or not result.selftest.differs:
        for name in (THRESHOLD, RESILIENT):
            changed, forced = compared.moved(resilient=name == RESILIENT)
            by_rule[name] = int((changed & singles).sum()), int((forced & singles).sum())
    return Moved(sum(own), len(own) - sum(own), moved, gone, by_rule, in_force)


class _Compared:
    """Two states of a fabric as arrays with the same ports and destinations."""

    def __init__(self, fabric: Fabric, before: Snapshot, after: Snapshot, flows: Sequence[Flow]) -> None:
        self._fabric = fabric
        self._before, self._after = before, after
        self._table = FlowTable.of(fabric, flows)
        self._then = forwarding_for(fabric, before.fibs, self._table.addresses)
        self._now = forwarding_for(fabric, after.fibs, self._table.addresses)

    def gone(self, was: Sequence[Path]) -> Bools:
        """Flows whose path had a port that is no live next hop to their destination any more."""
        ports = {ref: at for at, ref in enumerate(self._now.ports)}
        table = np.full((len(was), max([1, *map(len, was)])), NOWHERE, dtype=np.int32)
        unknown = np.zeros(len(was), dtype=bool)
        for row, path in enumerate(was):
            known = [ports.get(ref, NOWHERE) for ref in path]
            unknown[row] = NOWHERE in known
            table[row, : len(known)] = known
        return unknown | self._lost(table)

    def _lost(self, ports: I32) -> Bools:
        """The same for an array of port ids, shape (flows, hops), -1 after the last hop."""
        switches = {name: at for at, name in enumerate(self._now.switches)}
        owner = np.array([switches[ref.partition(":")[0]] for ref in self._now.ports], dtype=np.int32)
        group = self._now.group[owner[np.maximum(ports, 0)], self._table.destination[:, None]]
        held = (group >= 0) & self._now.holds(np.maximum(group, 0), ports)
        lost: Bools = np.any((ports >= 0) & ~held, axis=1)
        return lost

    def moved(self, *, resilient: bool) -> tuple[Bools, Bools]:
        """Flows that would move if every switch used this rule in both states, and those of them that had to."""
        homes = steering_like(self._then)  # for an imported topology, which does not define its next hops
        tables = []
        for forwarding, state in ((self._then, self._before), (self._now, self._after)):
            hashing = {name: self._with(row, resilient) for name, row in state.hashing.items()}
            rules = rules_for(forwarding, hashing, self._table.addresses)
            made = rules if rules.steering is not None else replace(rules, steering=homes)
            table = self._table
            tables.append(walk(forwarding, made, table.arrays, table.destination, table.first).ports)
        width = max(table.shape[1] for table in tables)
        then, since = (np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=NOWHERE) for t in tables)
        changed: Bools = (then != since).any(axis=1)
        return changed, self._lost(tables[0])

    def _with(self, row: SwitchHashing, resilient: bool) -> SwitchHashing:
        """A switch's hashing with or without resilient groups."""
        if row.options.resilient == resilient:
            return row
        options = replace(row.options, resilient=resilient)
        wanted = hashing_of(self._fabric, self._fabric.by_name[row.switch], row.mode, options, row.seed or 1)
        return replace(wanted, steering=replace(wanted.steering, exact=row.steering.exact))
