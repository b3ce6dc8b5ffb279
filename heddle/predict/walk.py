"""The walk of flows over a fabric: from each flow's first switch along the next hops that the rules choose.

In:  Forwarding (the next hops of each switch), FabricRules (how it chooses), flows as columns.
Out: Hops: for every flow the egress ports, hop by hop, as port ids; a hop that is not determined (spray, flowlets) is
     a fan: all ports that it may take.
A hop in words, which prediction and kernel lookup write and proofs read: `rtsw1:eth1`; `rtsw1:{eth1,eth2}` if one
switch spreads packets of one flow; `{ctsw1:eth2,ctsw2:eth2}` if several switches forward it.
Running fabrics and offline predictions use the same code. There is no loop over flows; the time is linear in flows x
hops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I32, I64, Bools
from heddle.base.problems import CheckError, Problem
from heddle.predict.forwarding import NOWHERE, FlowArrays, Forwarding
from heddle.predict.rules import BLOCK, FAN, FabricRules

MAX_HOPS: Final = 16  # a packet that passes more switches than this is in a loop


@dataclass(frozen=True)
class WalkStep:
    """One step of all flows that have not ended, with a row for each port that a flow may take.

    flow, port: row of the flow, id of the port. peer: the switch behind the port, or -1.
    share: of the flow's packets, 1 if they are not spread.
    fan: whether this port is one of several over which this switch spreads the flow.
    whole: all flows have one row, in order, and no packets are spread: columns of flows are also columns of rows.
    """

    flow: I32
    port: I32
    peer: I32
    share: F64
    fan: Bools
    whole: bool

    def part(self, amount: F64) -> F64:
        """Of an amount of each flow, the part in each row."""
        return amount if self.whole else amount[self.flow] * self.share


@dataclass(frozen=True)
class Hops:
    """The walk of `count` flows."""

    count: int
    steps: tuple[WalkStep, ...]

    @cached_property
    def ports(self) -> I32:
        """(flows, hops): port ids, -1 after the end; for a fan the first one."""
        table = np.full((self.count, len(self.steps)), NOWHERE, dtype=np.int32)
        for at, step in enumerate(self.steps):
            table[step.flow[::-1], at] = step.port[::-1]  # the first of a flow's rows is written last
        return table

    @cached_property
    def fan(self) -> Bools:
        """(flows, hops): whether a flow may take several ports."""
        table = np.zeros((self.count, len(self.steps)), dtype=bool)
        for at, step in enumerate(self.steps):
            table[:, at] = np.bincount(step.flow, minlength=self.count) > 1
        return table

    def load(self, amount: F64, ports: int) -> F64:
        """(ports,): the sum of the flows' amounts over each port; a fan divides by its weights."""
        total = np.zeros(ports)
        for step in self.steps:
            total += np.bincount(step.port, weights=step.part(amount), minlength=ports)
        return total


def walk(
    forwarding: Forwarding,
    rules: FabricRules,
    flows: FlowArrays,
    destination: I32,
    first: I32,
    *,
    slices: I32 | None = None,
    max_hops: int = MAX_HOPS,
) -> Hops:
    """Take every flow from its first switch to its last one.

    destination, first (flows,): class of the destination and id of the first switch; -1: the flow has no path.
    slices (flows,): index of the destination's NIC at its edge, for `pinned` if the rules have no table of them.
    A flow ends early at a switch without a route or live next hop, and after max_hops. CheckError when a switch that
    must choose has a hash that is not modelled.
    """
    row = np.flatnonzero(first >= 0).astype(np.int32)
    here = first[row].astype(np.int32)
    share = np.ones(len(row))
    spread = False
    steps: list[WalkStep] = []
    for _ in range(max_hops):
        whole = len(row) == len(flows) and not spread
        group = forwarding.group[here, destination if whole else destination[row]]
        width = forwarding.width[group]
        alive = width > 0
        if not alive.any():
            break
        if not alive.all():
            row, here, share, group, width = row[alive], here[alive], share[alive], group[alive], width[alive]
            whole = False
        port = _choose(forwarding, rules, flows, destination, slices, row, here, group, width)
        step = _step(forwarding, row, group, port, share, whole=whole)
        spread |= bool(step.fan.any())
        steps.append(step)
        row, here, share = _merged(step, spread=spread)
    return Hops(len(flows), tuple(steps))


def _choose(
    forwarding: Forwarding,
    rules: FabricRules,
    flows: FlowArrays,
    destination: I32,
    slices: I32 | None,
    row: I32,
    here: I32,
    group: I32,
    width: I64,
) -> I32:
    """The port for each row, FAN if there are several. Rows with a single next hop are not hashed."""
    port = forwarding.member[forwarding.start[group]]
    several = np.flatnonzero(width > 1)
    for switch in np.flatnonzero(np.bincount(here[several])):
        if rules.problems[switch] is not None:
            raise CheckError(rules.problems[switch] or Problem("", forwarding.switches[switch], "is not modelled"))
    every = len(several) == len(row) == len(flows) and bool((row == several).all())  # then blocks need no copy
    for start in range(0, len(several), BLOCK):
        block = slice(start, start + BLOCK) if every else several[start : start + BLOCK]
        rows = block if every else row[block]
        port[block] = rules.choose(
            forwarding, flows.take(rows), here[block], group[block], destination[rows],
            None if slices is None else slices[rows],
        )  # fmt: skip
    return port


def _step(forwarding: Forwarding, row: I32, group: I32, port: I32, share: F64, *, whole: bool) -> WalkStep:
    """One step; a row with a fan becomes one row per member, with its share by weight."""
    fan = port == FAN
    if not fan.any():
        return WalkStep(row, port, forwarding.peer[port], share, fan, whole)
    one, many = np.flatnonzero(~fan), np.flatnonzero(fan)
    sizes = forwarding.size[group[many]]
    source = np.repeat(many, sizes)
    inner = np.arange(len(source)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    at = forwarding.start[group[source]] + inner
    running = np.concatenate([[0], np.cumsum(forwarding.weight, dtype=np.int64)])
    total = running[forwarding.start[group[source] + 1]] - running[forwarding.start[group[source]]]
    order = np.argsort(np.concatenate([one, source]), kind="stable")
    port = np.concatenate([port[one], forwarding.member[at]])[order]
    return WalkStep(
        np.concatenate([row[one], row[source]])[order],
        port,
        forwarding.peer[port],
        np.concatenate([share[one], share[source] * forwarding.weight[at] / total])[order],
        np.concatenate([np.zeros(len(one), bool), np.ones(len(source), bool)])[order],
        whole=False,
    )


def _merged(step: WalkStep, *, spread: bool) -> tuple[I32, I32, F64]:
    """The rows at the next switches. A flow that reaches one switch over several ports is one row there.

    spread: whether any flow was spread so far.
    """
    on = step.peer >= 0
    if on.all() and not spread:
        return step.flow, step.peer, step.share
    row, here, share = step.flow[on], step.peer[on], step.share[on]
    if not spread:
        return row, here, share
    key = row.astype(np.int64) << 32 | here
    unique, where = np.unique(key, return_inverse=True)
    summed: F64 = np.bincount(where, weights=share, minlength=len(unique)).astype(np.float64)
    return (unique >> 32).astype(np.int32), (unique & 0xFFFFFFFF).astype(np.int32), summed


def element(ports: Iterable[str]) -> str:
    """One step as a word. ports: `rtsw1:eth1`, at least one; their order is kept."""
    by_switch: dict[str, list[str]] = {}
    for ref in ports:
        switch, _, port = ref.partition(":")
        if port not in by_switch.setdefault(switch, []):
            by_switch[switch].append(port)
    if len(by_switch) == 1:
        ((switch, names),) = by_switch.items()
        return f"{switch}:{names[0]}" if len(names) == 1 else f"{switch}:{{{','.join(names)}}}"
    return "{" + ",".join(f"{switch}:{name}" for switch, names in by_switch.items() for name in names) + "}"


def ports_of(word: str) -> tuple[str, ...]:
    """The ports of a step."""
    if word.startswith("{"):
        return tuple(word[1:-1].split(","))
    switch, _, port = word.partition(":")
    if port.startswith("{"):
        return tuple(f"{switch}:{name}" for name in port[1:-1].split(","))
    return (word,)


def spreads(path: Iterable[str]) -> bool:
    """Whether any step of a path is more than one port."""
    return any("{" in word for word in path)
