"""Link utilization: flows, packets, bytes and time of every switch port, and how even it is.

In:  a fabric, and Evidence of a run; or ports with flows that are only planned.
Out: LinkUse, a row for each egress port of each switch, at all levels; Mmr.
What a link carries is counted as a time: bytes * 8 / its rate. `predict` has the same rule (heddle/offline/result.py).
Divided by the seconds of the run this is its utilization, a mean over the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heddle.base.tables import some_of
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node, Port, ports_above
from heddle.lab.snapshot import Snapshot
from heddle.proof.evidence import Evidence
from heddle.traffic.flow import Flow


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A switch's egress port: the packets and bytes of the proven flows that left by it, and all other traffic.

    uplink: it leads up from a level that counts uplinks, in a network of these flows. ranked: ranks are below this link
    (fabric/wiring.py).
    rate_bps: 0 if not known.
    run_s: seconds of the run; None if not known, and before a run. state: why the link could not be used when
    the run began, for its own sake or that of a switch at one of its ends; '' if it could.
    """

    port: str
    uplink: bool
    packets: int
    bytes: int
    flows: int
    other_packets: int = 0
    other_bytes: int = 0
    direction: str = ""
    ranked: bool = True
    rate_bps: int = 0
    run_s: float | None = None
    state: Literal["", "down", "drained"] = ""

    @property
    def usable(self) -> bool:
        """Whether it counts for an MMR: it could be used, or was used all the same."""
        return not self.state or self.flows > 0

    @property
    def seconds(self) -> float:
        """The time that the bytes of these flows need at the port's rate."""
        return self.bytes * 8 / self.rate_bps if self.rate_bps else 0.0

    @property
    def utilisation(self) -> float | None:
        """The share of the run in which the port sent these flows, 0 to 1. A little more if it sent a burst above its
        rate, or its queue was not empty when the last rank had finished.
        """
        return self.seconds / self.run_s if self.run_s else None

    def to_json(self) -> dict[str, Any]:
        share = self.utilisation
        return {
            "port": self.port, "uplink": self.uplink, "packets": self.packets, "bytes": self.bytes,
            "flows": self.flows, "other_packets": self.other_packets, "other_bytes": self.other_bytes,
            "direction": self.direction, "ranked": self.ranked, "rate_bps": self.rate_bps,
            "seconds": round(self.seconds, 9), "utilisation": None if share is None else round(share, 6),
            "state": self.state or "up",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mmr:
    """Maximum over mean of flows and of bytes over a set of links, with idle ones; None when all links are idle."""

    flows: float | None
    bytes: float | None

    @classmethod
    def of(cls, links: Sequence[LinkUse]) -> Mmr:
        """The MMR over these links."""
        return cls(_max_over_mean([link.flows for link in links]), _max_over_mean([link.bytes for link in links]))


@dataclass(frozen=True, slots=True)
class UplinkSet:
    """The links of an MMR: the uplinks of switches with ranks below them, that could be used.

    left_out: number of uplinks without ranks. unusable: the others, which were down or drained and carried nothing.
    """

    links: tuple[LinkUse, ...]
    left_out: int
    unusable: tuple[LinkUse, ...] = ()

    @classmethod
    def of(cls, links: Sequence[LinkUse]) -> UplinkSet:
        """The uplinks of leaves among these links."""
        uplinks = [link for link in links if link.uplink]
        ranked = [link for link in uplinks if link.ranked]
        usable, unusable = (tuple(link for link in ranked if link.usable is each) for each in (True, False))
        return cls(usable, len(uplinks) - len(ranked), unusable)

    def text(self, word: str) -> str:
        """`max/mean over 7 uplinks of 2 RTSWs with ranks; 8 without ranks and rtsw1:eth1 (down) are left out`.

        word: for one of these switches.
        """
        without = [f"{self.left_out} without ranks"] if self.left_out else []
        every = [*without, some_of([f"{link.port} ({link.state})" for link in self.unusable])]
        left = " and ".join(filter(None, every))
        are = "is" if len(self.unusable) + self.left_out == 1 else "are"
        end = "" if len(self.switches) == 1 else "es" if word == "switch" else "s"
        uplinks = f"{len(self.links)} uplink{'' if len(self.links) == 1 else 's'}"
        over = f"{uplinks} of {len(self.switches)} {word}{end} with ranks"
        return f"max/mean over {over}{f'; {left} {are} left out' if left else ''}"

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches of these links, in order."""
        return tuple(dict.fromkeys(link.port.partition(":")[0] for link in self.links))


def links_of(fabric: Fabric, evidence: Evidence) -> list[LinkUse]:
    """A row for each port of each switch, in the order of the fabric."""
    ours = {sent.flow.key for sent in evidence.sent}
    used: dict[str, list[int]] = {}  # port -> packets, bytes, flows
    for switch, table in evidence.counters.items():
        for row in table.flows:
            if row.key in ours:
                cell = used.setdefault(f"{switch}:{row.port}", [0, 0, 0])
                cell[0] += row.packets
                cell[1] += row.bytes
                cell[2] += 1
    queues = fabric.policy.queues
    classes = {each for sent in evidence.sent for each in sent.classes(queues.class_of_dscp)}
    numbers = evidence.with_trims(sorted(classes), queues.trim_queue)
    totals = {f"{name}:{row.port}": row for name, table in evidence.counters.items() for row in table.ports}
    nics, states = nics_of(fabric, [sent.flow for sent in evidence.sent]), _states(fabric, evidence.before)
    around = _around(fabric, nics)
    links: list[LinkUse] = []
    for _, port in _ports(fabric):
        packets, size, count = used.get(port.ref, (0, 0, 0))
        total = totals.get(port.ref)
        others = (total.packets - packets, total.bytes - size) if total else (0, 0)
        # Counted before the queue, so what the queue dropped or cut off was counted and not sent.
        gone = evidence.tally(port.ref, *numbers)
        packets, size = max(0, packets - gone.refused), max(0, size - gone.refused_bytes - gone.trimmed_bytes)
        counts = (packets, size, count, *others)
        links.append(_link(fabric, port, around, counts, evidence.seconds, states.get(port.ref, "")))
    return links


def planned_links(fabric: Fabric, flows: Sequence[Flow], counts: Mapping[str, int], now: Snapshot) -> list[LinkUse]:
    """The same before anything is sent. counts: flows by port."""
    around, states = _around(fabric, nics_of(fabric, flows)), _states(fabric, now)
    return [
        _link(fabric, port, around, (0, 0, counts.get(port.ref, 0), 0, 0), None, states.get(port.ref, ""))
        for _, port in _ports(fabric)
    ]


def _states(fabric: Fabric, then: Snapshot) -> dict[str, Literal["down", "drained"]]:
    """Ports of links that are down, at both ends, and of links of drained switches; as far as the snapshot has it."""
    down = {f"{name}:{port}" for name, each in then.nodes.items() for port in each.down or ()}
    drained = {name for name, each in then.nodes.items() if each.drained}
    found: dict[str, Literal["down", "drained"]] = {}
    for switch, port in _ports(fabric):
        if {port.ref, port.peer_ref} & down:
            found[port.ref] = "down"
        elif {switch.name, port.peer_node} & drained:
            found[port.ref] = "drained"
    return found


def nics_of(fabric: Fabric, flows: Sequence[Flow]) -> frozenset[str]:
    """The host ports at both ends of some flows: the NICs of the ranks."""
    found = set()
    for flow in flows:
        switch, _, port = flow.first_hop.partition(":")
        found.add(fabric.by_name[switch].port(port).peer_ref)
        found |= {fabric.nic_at[flow.dst_ip].ref} if flow.dst_ip in fabric.nic_at else set()
    return frozenset(found)


def _ports(fabric: Fabric) -> list[tuple[Node, Port]]:
    return [(switch, port) for switch in fabric.switches for port in switch.ports]


_Around = tuple[frozenset[str], frozenset[str]]  # ports above the ends of flows; their networks


def _around(fabric: Fabric, nics: frozenset[str]) -> _Around:
    ends = (ref.split(":") for ref in nics)
    return ports_above(fabric, nics), frozenset(fabric.by_name[node].port(port).network for node, port in ends)


def _link(
    fabric: Fabric, port: Port, around: _Around,
    counts: tuple[int, int, int, int, int], run_s: float | None, state: Literal["", "down", "drained"],
) -> LinkUse:  # fmt: skip
    above, networks = around
    way, uplink = fabric.direction(port.node, port.peer_node), fabric.is_uplink(port) and port.network in networks
    return LinkUse(port.ref, uplink, *counts, way, port.ref in above, port.rate_bps, run_s, state)


def _max_over_mean(values: Sequence[int]) -> float | None:
    total = sum(values)
    return round(max(values) * len(values) / total, 4) if total else None
