"""Measured paths: the counters of every switch port for every QP.

In:  the counters of all switches (a difference over a run), the flows of that run, and which of them are spread.
Out: for each flow the ordered egress ports that counted it, the packets of each, and counts at other ports; and between
     two steps, the ingress and egress counts of each switch.
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
    """The count of one flow at one port."""

    port: str  # rtsw1:eth1
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One flow. steps: the ports that counted it, one per step unless it is spread; stray: other ports, with packets.

    received: packets that the receiving NIC took; None if it did not report.
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
        """The packets counted at each step."""
        return tuple(sum(count.packets for count in step) for step in self.steps)

    @property
    def bytes(self) -> tuple[int, ...]:
        """The same in bytes."""
        return tuple(sum(count.bytes for count in step) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Passage:
    """One flow at one switch: the ports that lead to it, their counts, and the counts of the switch's own ports.

    Or at its destination: packets_out is the count of the NIC, and bytes_out is None, since NICs report no bytes.
    """

    ports: tuple[str, ...]
    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int | None

    @property
    def name(self) -> str:
        """The ports in words."""
        return element(self.ports)

    @property
    def lost(self) -> int:
        """Packets that were lost in between."""
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

    received: packets of each flow that the receiving NIC took; empty if NICs did not report.
    spread: whether each flow may leave a switch at several ports; empty: none may. If two ports of a switch counted
    another flow (its path moved during the run), the busier port is followed, and the other is a stray.
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
    """A sort key that puts eth10 after eth9."""
    return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D+)(\d*)", ref)]


def passages(seen: Measured, peers: Mapping[str, str]) -> Iterator[Passage]:
    """The passages at each switch on the path, and at the NIC after the last step."""
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
