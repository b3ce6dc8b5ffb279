"""State and counters of every queue of a lab, from one reading of the shared maps.

In:  a running lab. Out: QueuesResult: a row for each port and class, a row for each switch, headroom, PFC processes.
Counters start when the lab comes up; sizes are bytes of frames, including the Ethernet header. The maps are read while
packets pass, so the numbers of one row may differ by a packet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from heddle.base.ethernet import CLASSES, HEADER
from heddle.base.units import parse_duration
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node, Port
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import nothing, only, spread
from heddle.spec.queuepolicy import PfcPolicy
from heddle.switch.queues.cells import CAUSES, LOST, REACTION_BINS, REACTION_STEP_NS, LabQueues, QueueState
from heddle.switch.queues.classes import ClassPolicy, Policies, numbered_ports, row

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.lab.thresholds import QueueSetting

WATCHDOG: Final = ("ok", "storm: drop", "storm: forward")
_JSON_KEYS: Final = {"traffic_class": "class", "drops": "drops_by_cause"}
EMPTY_S: Final = 5.0
_LOOK_S: Final = 0.2
_WAITING: Final = 2  # packets: a queue that was never longer counts as one where no packet waited


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One class of one port: its egress queue; `occupancy...`, `xoffs` and `headroom_high` of its ingress side.

    marks: packets marked CE here. ce_in: admitted packets that arrived with CE, from an earlier queue. paused_ms: total
    time that the gate was closed, including an active pause. occupancy: bytes that arrived by this port and have not
    left the switch. headroom_high: maximum of them above Xoff, including `short`: bytes dropped in one pause because
    the headroom was full. watchdog: empty where there is none, as at hosts. trims: packets of this class that were
    trimmed here; trim_sent: those that the trim queue took. The others are drops of cause `trim`.
    """

    port: str
    traffic_class: int
    kind: str
    depth: int
    high_water: int
    packets: int
    bytes: int
    marks: int
    ce_in: int
    drops: Mapping[str, int]  # cause -> packets; only causes with drops
    drop_bytes: int
    occupancy: int
    occupancy_high: int
    xoffs: int
    headroom_high: int
    short: int
    pfc_sent: int
    pfc_received: int
    paused: bool
    paused_ms: float
    watchdog: str
    storms: int
    quiet: bool  # no packet ever waited here, and none was marked, dropped, trimmed or paused
    trims: int = 0
    trim_sent: int = 0

    @property
    def dropped(self) -> int:
        """Packets, of all causes."""
        return sum(self.drops.values())

    @property
    def trim_drops(self) -> int:
        """Trimmed packets for which the trim queue had no room: trims - trim_sent."""
        return self.drops.get("trim", 0)

    def to_json(self) -> dict[str, Any]:
        data = {_JSON_KEYS.get(key, key): value for key, value in asdict(self).items() if key not in ("short", "quiet")}
        return {**data, "drops": self.dropped, "trim_drops": self.trim_drops}


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A switch's buffer in bytes: its size, what is in use, and the maximum so far. trim...: sums over its queues."""

    switch: str
    buffer: int
    shared: int  # size of the shared part
    used: int
    high_water: int
    shared_used: int
    headroom_used: int
    trims: int = 0
    trim_sent: int = 0
    trim_drops: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Headroom of all ports of one rate: what was assumed, and what was needed.

    ports: of switches. bytes: for each lossless class of each. highest: maximum needed, at the port `highest_at`.
    missing_bytes: shortage in the worst pause. drops: packets dropped because headroom was full. reaction_ns: assumed
    reaction time, None where the file gives bytes.
    """

    ports: int
    rate_bps: int
    mtu: int
    bytes: int
    reaction_ns: int | None
    highest: int
    highest_at: str
    missing_bytes: int
    drops: int

    def needed_for(self, reaction_ns: int) -> int:
        """Bytes that a reaction time requires: what the peer sends until it stops, and a frame in each direction."""
        return -(-self.rate_bps * reaction_ns // (8 * 10**9)) + 2 * (self.mtu + HEADER)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        missing, assumed = data.pop("missing_bytes"), data.pop("reaction_ns")
        reaction_ms = None if assumed is None else assumed / 1e6
        return {**data, "reaction_assumed_ms": reaction_ms, "missing": missing, "lacking": missing}


@dataclass(frozen=True, slots=True)
class Reactions:
    """Reaction times of senders, in ns: from the pause frame's arrival to the last packet. All ports together."""

    count: int
    median_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class AgentRow:
    """Process ids of the PFC agent and its keeper; None for one that is not running."""

    agent: int | None
    keeper: int | None

    @property
    def alive(self) -> bool:
        """True when both are running."""
        return self.agent is not None and self.keeper is not None


@dataclass(frozen=True, slots=True)
class QueuesResult:
    """The result of the verb `queues`. settings: node -> values set there since the lab came up."""

    lab: str
    k: int
    rows: tuple[QueueRow, ...]
    switches: tuple[SwitchRow, ...]
    headroom: tuple[Headroom, ...]
    reactions: Reactions
    agent: AgentRow
    settings: Mapping[str, Mapping[str, QueueSetting]]

    def to_json(self) -> dict[str, Any]:
        seen = self.reactions
        reaction = {
            "reactions": seen.count,
            "reaction_median_ms": seen.median_ns / 1e6 if seen.count else None,
            "reaction_max_ms": seen.max_ns / 1e6 if seen.count else None,
        }
        return {
            "lab": self.lab,
            "ports": [each.to_json() for each in self.rows],
            "switches": [each.to_json() for each in self.switches],
            "headroom": [{**each.to_json(), **reaction} for each in self.headroom],
            "agent": {**asdict(self.agent), "alive": self.agent.alive},
            "set": {node: dict(values) for node, values in self.settings.items()},
            "emulated": {"k": self.k},
        }


@spread(nothing)
def forget(lab: Lab) -> None:
    """Set all counters to 0. The caller holds the lock of the lab's runs."""
    with LabQueues.pinned(lab.fabric) as live:
        live.forget()


def wait_empty(lab: Lab, most_s: float | None = None) -> list[str]:
    """Wait until all queues are empty, EMPTY_S seconds at most. Returns the ports whose queues are not.

    Packets that a link has lost count as waiting there until the agent removes them, a second or two later. A run that
    starts before that has their pauses and losses.
    """
    end = time.monotonic() + (EMPTY_S if most_s is None else most_s)
    while True:
        depths = lab.snapshot(LabPart.QUEUES).queues.cells["depth"].reshape(-1, CLASSES)
        if not depths.any() or time.monotonic() >= end:
            return [port.ref for number, port in numbered_ports(lab.fabric) if depths[number].any()]
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class PortLevel:
    """One class of one port now: bytes that wait to leave by it, and those that came by it and are in the switch."""

    depth: int
    occupancy: int
    paused: bool

    @classmethod
    def of(cls, live: LabQueues, node: str, port: str, number: int) -> PortLevel:
        """Of a class."""
        at = row(live.ids[node, port], number)
        return cls(
            int(live.cells[at]["depth"]), int(live.ingress[at]["occupancy"]), bool(live.agent[at]["closed_since_ns"])
        )


@spread(only, nodes=lambda node, _: [node])
def port_levels(lab: Lab, node: str, port: str) -> list[PortLevel]:
    """All classes of a port. MachineError when the lab has no queues."""
    with LabQueues.pinned(lab.fabric) as live:
        return [PortLevel.of(live, node, port, number) for number in range(CLASSES)]


def read_queues(lab: Lab) -> QueuesResult:
    """Read a lab's queues once; MachineError when its maps are missing."""
    return _result_now(lab, lab.snapshot(LabPart.QUEUES).queues)


class QueueWatch:
    """Reads a lab repeatedly, for `--watch`. live: its maps, which stay open; None for a lab in shards."""

    def __init__(self, lab: Lab, live: LabQueues | None) -> None:
        self._lab, self._live = lab, live

    def read(self) -> QueuesResult:
        """Read once."""
        now = QueueState.of(self._live) if self._live is not None else self._lab.snapshot(LabPart.QUEUES).queues
        return _result_now(self._lab, now)


def _result_now(lab: Lab, queues: QueueState) -> QueuesResult:
    from heddle.lab import agents
    from heddle.lab.thresholds import own_settings, wanted_policies

    state = agents.alive(lab)
    agent = AgentRow(state.agent, state.keeper)
    return result_of(lab.fabric, queues, wanted_policies(lab), agent, own_settings(lab))


def result_of(
    fabric: Fabric,
    queues: QueueState,
    policies: Policies,
    agent: AgentRow,
    settings: Mapping[str, Mapping[str, QueueSetting]],
) -> QueuesResult:
    """The result for given map contents. It depends only on its arguments."""
    ports = numbered_ports(fabric)
    rows = tuple(each for number, port in ports for each in rows_of_port(queues, number, port, policies))
    switches = tuple(
        _switch_row(queues, fabric, node, policies[node.name, node.ports[0].name])
        for node in fabric.nodes
        if node in fabric.switches and node.ports
    )
    lost = {
        (port.ref, traffic_class): int(queues.ingress[row(number, traffic_class)]["drops"])
        for number, port in numbered_ports(fabric)
        for traffic_class, policy in enumerate(policies[port.node, port.name])
        if policy.pfc
    }
    headroom = _headroom(fabric, policies, rows, lost, settings)
    return QueuesResult(
        fabric.name, fabric.policy.k, rows, switches, headroom, reactions_of(queues.agent), agent, settings
    )


def rows_of_port(queues: QueueState, number: int, port: Port, policies: Policies) -> tuple[QueueRow, ...]:
    """The rows of one port, by class. number: its port id."""
    return tuple(
        _queue_row(queues, number, port, traffic_class, policy)
        for traffic_class, policy in enumerate(policies[port.node, port.name])
        if policy.kind != "unused"
    )


def _queue_row(queues: QueueState, number: int, port: Port, traffic_class: int, policy: ClassPolicy) -> QueueRow:
    at = row(number, traffic_class)
    cell, inward, gate, agent = queues.cells[at], queues.ingress[at], queues.gates[at], queues.agent[at]
    drops = {cause: int(count) for cause, count in zip(CAUSES, cell["drops"], strict=True) if count}
    if gate["lost"]:
        drops[LOST] = int(gate["lost"])
    closed_since = int(agent["closed_since_ns"])
    paused_ns = int(agent["paused_ns"]) + (max(0, queues.taken_ns - closed_since) if closed_since else 0)
    # The first dropped packet is in `highest` and in `short`. The headroom may have been smaller at that time.
    short, highest = int(inward["lost_high"]), int(inward["headroom_high"])
    counted = int(cell["marks"]) + sum(drops.values()) + int(gate["pfc_received"]) + int(agent["pfc_sent"])
    counted += int(cell["trims"])
    waited = int(cell["high_water"]) > _WAITING * (port.mtu + HEADER)
    return QueueRow(
        port=port.ref,
        traffic_class=traffic_class,
        kind=policy.kind,
        depth=int(cell["depth"]),
        high_water=int(cell["high_water"]),
        packets=int(cell["out_packets"]),
        bytes=int(cell["out_bytes"]),
        marks=int(cell["marks"]),
        ce_in=int(cell["ce_in"]),
        drops=drops,
        drop_bytes=int(cell["drop_bytes"]),
        occupancy=int(inward["occupancy"]),
        occupancy_high=int(inward["high_water"]),
        xoffs=int(inward["xoffs"]),
        headroom_high=max(highest, min(highest, policy.headroom) + short),
        short=short,
        pfc_sent=int(agent["pfc_sent"]),
        pfc_received=int(gate["pfc_received"]),
        paused=closed_since > 0,
        paused_ms=round(paused_ns / 1e6, 3),
        watchdog=WATCHDOG[int(agent["watchdog"])] if policy.detect_ns else "",
        storms=int(agent["storms"]),
        quiet=not (counted or waited or paused_ns or int(agent["storms"]) or int(agent["watchdog"])),
        trims=int(cell["trims"]),
        trim_sent=int(cell["trim_sent"]),
    )


def _switch_row(queues: QueueState, fabric: Fabric, node: Node, policies: Sequence[ClassPolicy]) -> SwitchRow:
    place = fabric.places[node.name]
    found = queues.switches[place.index]
    cells = queues.cells.reshape(-1, CLASSES)[list(place.ids)]
    any_policy = next(policy for policy in policies if policy.kind != "unused")
    return SwitchRow(
        node.name, any_policy.buffer, any_policy.shared, int(found["used"]), int(found["high_water"]),
        int(found["shared_used"]), int(found["headroom_used"]),
        int(cells["trims"].sum()), int(cells["trim_sent"].sum()), int(cells["drops"][..., CAUSES.index("trim")].sum()),
    )  # fmt: skip


def reactions_of(agent: npt.NDArray[Any]) -> Reactions:
    """Reaction times of all gates together; the median is interpolated linearly within its histogram bin."""
    count = int(agent["reactions"].sum())
    if not count:
        return Reactions(0, 0, 0)
    most = int(agent["reaction_max_ns"].max())
    bins = np.ascontiguousarray(agent["spare"]).view("<u4").reshape(-1, REACTION_BINS).sum(axis=0, dtype=np.int64)
    passed = np.cumsum(bins)
    half = passed[-1] / 2
    at = int(np.searchsorted(passed, half))
    low = 0 if at == 0 else REACTION_STEP_NS << (at - 1)
    within = (half - (passed[at] - bins[at])) / max(1, bins[at])
    median = round(float(low + within * ((REACTION_STEP_NS << at) - low)))
    return Reactions(count, min(most, median), most)


def _headroom(
    fabric: Fabric,
    policies: Policies,
    rows: Sequence[QueueRow],
    lost: Mapping[tuple[str, int], int],
    settings: Mapping[str, Mapping[str, QueueSetting]],
) -> tuple[Headroom, ...]:
    """One row for each rate, MTU and headroom of lossless classes at switch ports.

    lost: packets by ingress. settings: node -> path -> value, for values set while the lab was running.
    """
    by_row = {(each.port, each.traffic_class): each for each in rows}
    switches = {node.name for node in fabric.switches}
    groups: dict[tuple[int, int, int, int | None], list[QueueRow]] = {}
    for (node, name), classes in policies.items():
        port = fabric.by_name[node].port(name)
        assumed = _assumed_ns(fabric.policy.queues.pfc, settings.get(node, {}))
        for traffic_class, policy in enumerate(classes):
            if policy.pfc and node in switches:
                group = groups.setdefault((port.rate_bps, port.mtu, policy.headroom, assumed), [])
                group.append(by_row[port.ref, traffic_class])
    return tuple(
        Headroom(
            ports=len({each.port for each in found}),
            rate_bps=rate,
            mtu=mtu,
            bytes=size,
            reaction_ns=assumed,
            highest=(most := max(found, key=lambda each: each.headroom_high)).headroom_high,
            highest_at=most.port if most.headroom_high else "",
            missing_bytes=most.short,
            drops=sum(lost[each.port, each.traffic_class] for each in found),
        )
        for (rate, mtu, size, assumed), found in sorted(groups.items(), key=lambda each: (each[0][:3], each[0][3] or 0))
    )


def _assumed_ns(pfc: PfcPolicy, own: Mapping[str, QueueSetting]) -> int | None:
    """The reaction time that a node's headroom is sized for; None where bytes were given. own: its own values."""
    if own.get("pfc.headroom", pfc.headroom) != "auto":
        return None
    reaction = own.get("pfc.reaction")
    return parse_duration(reaction) if isinstance(reaction, str) else pfc.reaction
