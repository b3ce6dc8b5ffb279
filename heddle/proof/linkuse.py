"""The use of links: flows, packets, bytes and time of every switch port, and how even it is.

In:  a fabric, and Evidence of a run; or ports with flows that are only planned.
Out: LinkUse, a row for each egress port of each switch, at all levels; Mmr.
The use of a link is a time: bytes * 8 / its rate. `paths --predict` has the same rule (heddle/forecast/result.py).
Divided by the seconds of the run it is the utilisation, a mean over the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.fabric.model import Fabric, Node, Port
from heddle.fabric.wiring import ports_above
from heddle.proof.evidence import Evidence
from heddle.traffic.flow import Flow


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A switch's egress port: the proven flows on it, their packets and bytes, and all other traffic.

    uplink: of a leaf to a higher level. ranked: ranks are below this link (fabric/wiring.py). rate_bps: 0 if not known.
    run_s: seconds of the run; None if not known, and before a run.
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

    @property
    def seconds(self) -> float:
        """The time that the bytes of these flows need at the port's rate."""
        return self.bytes * 8 / self.rate_bps if self.rate_bps else 0.0

    @property
    def utilisation(self) -> float | None:
        """The share of the run in which the port sent these flows, 0 to 1."""
        return self.seconds / self.run_s if self.run_s else None

    def to_json(self) -> dict[str, Any]:
        """One row of `links`."""
        share = self.utilisation
        return {
            "port": self.port, "uplink": self.uplink, "packets": self.packets, "bytes": self.bytes,
            "flows": self.flows, "other_packets": self.other_packets, "other_bytes": self.other_bytes,
            "direction": self.direction, "ranked": self.ranked, "rate_bps": self.rate_bps,
            "seconds": round(self.seconds, 9), "utilisation": None if share is None else round(share, 6),
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
    """The links of an MMR: the uplinks of switches with ranks below them. left_out: number of other uplinks."""

    links: tuple[LinkUse, ...]
    left_out: int

    @classmethod
    def of(cls, links: Sequence[LinkUse]) -> UplinkSet:
        """The uplinks of leaves among these links."""
        uplinks = [link for link in links if link.uplink]
        ranked = tuple(link for link in uplinks if link.ranked)
        return cls(ranked, len(uplinks) - len(ranked))

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
    totals = {f"{name}:{row.port}": row for name, table in evidence.counters.items() for row in table.ports}
    above = ports_above(fabric, nics_of(fabric, [sent.flow for sent in evidence.sent]))
    links: list[LinkUse] = []
    for switch_node, port in _ports(fabric):
        packets, size, count = used.get(port.ref, (0, 0, 0))
        total = totals.get(port.ref)
        others = (total.packets - packets, total.bytes - size) if total else (0, 0)
        links.append(_link(fabric, switch_node, port, above, (packets, size, count, *others), evidence.seconds))
    return links


def planned_links(fabric: Fabric, flows: Sequence[Flow], counts: Mapping[str, int]) -> list[LinkUse]:
    """The same before anything is sent. counts: flows by port."""
    above = ports_above(fabric, nics_of(fabric, flows))
    return [
        _link(fabric, switch, port, above, (0, 0, counts.get(port.ref, 0), 0, 0), None)
        for switch, port in _ports(fabric)
    ]


def nics_of(fabric: Fabric, flows: Sequence[Flow]) -> frozenset[str]:
    """The host ports at both ends of some flows: the NICs of the ranks."""
    of_address = {str(port.address.ip): port.ref for host in fabric.hosts for port in host.ports if port.address}
    found = set()
    for flow in flows:
        switch, _, port = flow.first_hop.partition(":")
        found |= {fabric.by_name[switch].port(port).peer_ref, of_address.get(flow.dst_ip, "")}
    return frozenset(found - {""})


def _ports(fabric: Fabric) -> list[tuple[Node, Port]]:
    return [(switch, port) for switch in fabric.switches for port in switch.ports]


def _link(
    fabric: Fabric, switch: Node, port: Port, above: frozenset[str],
    counts: tuple[int, int, int, int, int], run_s: float | None,
) -> LinkUse:  # fmt: skip
    peer = fabric.by_name[port.peer_node]
    uplink = switch.level == 1 and not fabric.leads_to_host(port)
    return LinkUse(
        port.ref, uplink, *counts,
        f"{fabric.level_of(switch).title} to {fabric.level_of(peer).title}", port.ref in above, port.rate_bps, run_s,
    )  # fmt: skip


def _max_over_mean(values: Sequence[int]) -> float | None:
    total = sum(values)
    return round(max(values) * len(values) / total, 4) if total else None
