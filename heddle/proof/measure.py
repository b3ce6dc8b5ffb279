"""Measured paths: what the counters of every switch port saw of every QP.

In:  the counters of all switches (a difference over a run), the flows of that run, and which of them are spread.
Out: for each flow the ordered egress ports that counted it, how many packets each counted, and what was seen elsewhere;
     and between two steps, what went in at each switch and what came out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from heddle.fabric.model import Fabric
from heddle.predict.spread import element
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.traffic.flow import Flow, FlowKey


@dataclass(frozen=True, slots=True)
class Count:
    """What one port counted of one flow."""

    port: str  # rtsw1:eth1
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One flow. steps: the ports that counted it, one a step unless it is spread; stray: other ports, with packets.

    received: packets that the receiving NIC took; None where it did not report.
    """

    steps: tuple[tuple[Count, ...], ...]
    stray: tuple[tuple[str, int], ...] = ()
    received: int | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """The steps in words."""
        return tuple(element([count.port for count in step]) for step in self.steps)

    @property
    def packets(self) -> tuple[int, ...]:
        """What was counted at each step."""
        return tuple(sum(count.packets for count in step) for step in self.steps)

    @property
    def bytes(self) -> tuple[int, ...]:
        """The same in bytes."""
        return tuple(sum(count.bytes for count in step) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Passage:
    """One flow at one switch: the ports that led it there, what they counted, and what the switch's own ports did.

    Or at its destination: packets_out is what the NIC took, and bytes_out None, as NICs report no bytes.
    """

    ports: tuple[str, ...]
    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int | None

    @property
    def said(self) -> str:
        """The ports in words."""
        return element(self.ports)

    @property
    def lost(self) -> int:
        """Packets that came no further."""
        return max(0, self.packets_in - self.packets_out)


def peers_of(fabric: Fabric) -> dict[str, str]:
    """Port of a switch -> the node behind it."""
    return {port.ref: port.peer_node for node in fabric.switches for port in node.ports}


def measure(
    fabric: Fabric,
    counters: Mapping[str, SwitchCounters],
    flows: Sequence[Flow],
    spread: Sequence[bool] = (),
    received: Sequence[int] = (),
) -> list[Measured]:
    """Follow every flow from its first switch along the ports that counted it.

    received: packets that the receiving NIC took of each flow; none where NICs did not report.
    spread: which flows may leave a switch by several ports, none when it is left out. Of others, where two ports of a
    switch counted one (a path that moved during the run), the busier is followed and the other is a stray.
    """
    seen: dict[FlowKey, dict[str, list[FlowCount]]] = {}
    for switch, table in counters.items():
        for row in table.flows:
            seen.setdefault(row.key, {}).setdefault(switch, []).append(row)
    peers = peers_of(fabric)
    wide = spread or [False] * len(flows)
    taken: Sequence[int | None] = received or [None] * len(flows)
    return [
        replace(_follow(flow, dict(seen.get(flow.key, {})), peers, wide=each), received=count)
        for flow, each, count in zip(flows, wide, taken, strict=True)
    ]


def _follow(flow: Flow, seen: dict[str, list[FlowCount]], peers: Mapping[str, str], *, wide: bool) -> Measured:
    steps: list[tuple[Count, ...]] = []
    stray: list[tuple[str, int]] = []
    here = [flow.first_hop.partition(":")[0]]
    while any(switch in seen for switch in here):
        step: list[Count] = []
        for switch in here:
            rows = sorted(seen.pop(switch, []), key=lambda row: -row.packets)
            taken = rows if wide else rows[:1]
            step += [Count(f"{switch}:{row.port}", row.packets, row.bytes) for row in taken]
            stray += [(f"{switch}:{row.port}", row.packets) for row in rows[len(taken) :]]
        steps.append(tuple(sorted(step, key=lambda count: _natural(count.port))))
        here = list(dict.fromkeys(peers.get(count.port, "") for count in steps[-1]))
    stray += [(f"{name}:{row.port}", row.packets) for name, rows in seen.items() for row in rows]
    return Measured(tuple(steps), tuple(sorted(stray)))


def _natural(ref: str) -> list[tuple[str, int]]:
    """eth10 comes after eth9."""
    return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D+)(\d*)", ref)]


def passages(seen: Measured, peers: Mapping[str, str]) -> Iterator[Passage]:
    """What went into each switch on the path and what came out, and what the NIC behind the last step took."""
    for before, after in zip(seen.steps, seen.steps[1:], strict=False):
        into: dict[str, list[Count]] = {}
        for count in before:
            into.setdefault(peers.get(count.port, ""), []).append(count)
        for switch, counts in into.items():
            out = [count for count in after if count.port.partition(":")[0] == switch]
            yield Passage(
                tuple(count.port for count in counts),
                sum(count.packets for count in counts), sum(count.bytes for count in counts),
                sum(count.packets for count in out), sum(count.bytes for count in out),
            )  # fmt: skip
    if seen.steps and seen.received is not None:
        ports = tuple(count.port for count in seen.steps[-1])
        yield Passage(ports, seen.packets[-1], seen.bytes[-1], seen.received, None)
