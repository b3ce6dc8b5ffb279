"""The case of a diagnosis: all that an operator can see of a run and of its fabric.

In:  a stored run, and the lab if it is up; or the lab alone, read twice, for a run that is being measured.
Out: Case: states of ports, routes, hashing and sessions; packets that ports sent and that did not arrive; flows with
their paths; queues over time; times of ranks and messages.
Records of faults that Heddle injects are no part of it: no `faults.json`, no option `--fault` or `--slow` of the
run, no chance that a link program draws from. A diagnosis that read them would find only what Heddle itself broke.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import CheckError, HeddleError
from heddle.fabric.model import Fabric, Role
from heddle.lab.fact import Fact
from heddle.lab.facts import FACTS, RECORDED, facts, parts
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.thresholds import QueueSetting, own_settings
from heddle.predict.walk import ports_of, spreads
from heddle.proof.evidence import Evidence
from heddle.runs.store import History

if TYPE_CHECKING:
    from heddle.checks.validate import CheckResult
    from heddle.lab.fabricstate import FabricState
    from heddle.lab.lab import Lab
    from heddle.predict.polarisation import Pair
    from heddle.runs.parts.slowest import Slowest
    from heddle.runs.stored import StoredRun
    from heddle.switch.hashing.hashing import SwitchHashing
    from heddle.switch.queues.cells import Tallies

Confidence = Literal["established", "likely"]
Kind = Literal["node", "interface", "link"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One line of evidence. source: the reading that shows it: `counters of the run`, `kernels now`, `probes`."""

    text: str
    source: str

    def to_json(self) -> dict[str, str]:
        return {"text": self.text, "from": self.source}


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause at an object. cause: a key of CAUSES. object: a node, or a port (`rtsw1:eth1`).

    what: the cause with its object as a sentence without its end, such as `rtsw1:eth1 loses packets`.
    also: other ports that the evidence cannot distinguish from the object. fact: the kind of fact that shows it, if
    facts alone do. over: it was so before or after the run, and is not so now.
    """

    cause: str
    object: str
    what: str
    confidence: Confidence
    evidence: tuple[Observation, ...]
    also: tuple[str, ...] = ()
    fact: str = ""
    over: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause, "object": self.object, "what": self.what, "confidence": self.confidence,
            "evidence": [each.to_json() for each in self.evidence], "also": list(self.also),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CauseResult:
    """What the check of one cause came to: findings, or why there are none.

    ruled_out: what was read and shows that it is not the cause. unknown: what could not be read, or not everywhere.
    """

    findings: tuple[Finding, ...] = ()
    ruled_out: str = ""
    unknown: str = ""

    @classmethod
    def of(cls, findings: Sequence[Finding], ruled_out: str) -> CauseResult:
        """The findings; without any, the cause is ruled out."""
        return cls(tuple(findings), "" if findings else ruled_out)


NOW: Final = "state now"
OF_RUN: Final = "counters of the run"
OF_PROBES: Final = "probes"
_OF_WATCH: Final = "counters of a second"
_BEFORE: Final = "state before the run"
_AFTER: Final = "state after the run"
_WATCHED_S: Final = 1.0  # between two readings of a lab while a run is measured
_MOST: Final = 0.5  # of the switches: if more have one seed, it is no wrong value of single ones
_COUNTED: Final = LabPart.CARRIER | LabPart.COUNTERS | LabPart.DROPS | LabPart.QUEUES
_READ: Final = _COUNTED | LabPart.FIBS | LabPart.HASHING


@dataclass(frozen=True, slots=True)
class FlowSeen:
    """Packets of one flow: sent in a run, arrived of probes. ports: of its path, from the sender's NIC on.

    damaged: those that arrived with a wrong ICRC. Of probes: lost; latency_s, the mean time of one way of small ones;
    full and full_lost: those of the size of a full data packet, sent and lost.
    """

    name: str
    ports: tuple[str, ...]
    packets: int
    damaged: int
    lost: int = 0
    latency_s: float | None = None
    full: int = 0
    full_lost: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "path": list(self.ports), "packets": self.packets, "lost": self.lost, "full_lost": self.full_lost,
            "damaged": self.damaged,
            "latency_us": None if self.latency_s is None else round(self.latency_s * 1e6, 1),
        }  # fmt: skip


@dataclass(frozen=True)
class TrafficSeen:
    """Packets between two readings. source: of the evidence. tallies: by port and class.

    backlog: packets that the receive backlog of this machine dropped meanwhile, in any namespace.
    """

    source: str
    tallies: Tallies
    flows: tuple[FlowSeen, ...] = ()
    backlog: int = 0

    def on_link(self, port: str) -> tuple[int, int]:
        """Packets that a port sent, and how many of them did not arrive at the other end of its link."""
        rows = self.tallies.get(port, {}).values()
        return sum(each.offered - each.refused for each in rows), sum(each.lost - each.refused for each in rows)


@dataclass(frozen=True)
class LiveState:
    """What only a running lab shows. stopped: nodes that do not run.

    settings: node -> values of queues that were set live; None while a run is measured, which may scale them. facts:
    what `status` and `validate` report, too; none where nodes are not running.
    """

    snapshot: Snapshot
    stopped: tuple[str, ...]
    settings: Mapping[str, Mapping[str, QueueSetting]] | None
    facts: tuple[Fact, ...] = ()

    @classmethod
    def of(cls, lab: Lab) -> LiveState:
        """Read it now. MachineError when no lab runs."""
        stopped = tuple(each.where or each.what for each in lab.missing_nodes())
        now = lab.snapshot(_READ | parts(lab), [node.name for node in lab.fabric.nodes if node.name not in stopped])
        found = () if stopped else facts(lab, now, FACTS.keys() - {RECORDED})  # no record of a fault is read here
        return cls(now, stopped, None if History.of(lab).writing() else own_settings(lab), found)


@dataclass(frozen=True)
class Case:
    """What a diagnosis judges. evidence: of the run, or of a second in which the lab was watched.

    live: None without a running lab. traffic: of the run, then of probes. probed: whether probes were sent. checks:
    of `validate`, as far as they were made. watched: the evidence is of a second, since no run has left any.
    """

    fabric: Fabric
    run: StoredRun | None
    evidence: Evidence | None
    live: LiveState | None
    traffic: tuple[TrafficSeen, ...]
    probed: bool = False
    checks: tuple[CheckResult, ...] = ()
    watched: bool = False

    @classmethod
    def of(cls, fabric: Fabric, run: StoredRun | None, lab: Lab | None) -> Case:
        """Read what there is. A run that failed has no evidence; then the lab is watched for a second."""
        live = None if lab is None else LiveState.of(lab)
        evidence = None
        with suppress(HeddleError):
            measured = None if run is None or run.damage else run.measured.value
            evidence = None if measured is None else measured[1]
        watched = evidence is None and lab is not None and live is not None and not live.stopped
        if watched and lab is not None and live is not None:
            time.sleep(_WATCHED_S)
            evidence = Evidence.of(live.snapshot, lab.snapshot(_COUNTED, keep_errors=True), (), ())
        case, source = cls(fabric, run, evidence, live, (), watched=watched), _OF_WATCH if watched else OF_RUN
        if evidence is None:
            return case
        return replace(case, traffic=(TrafficSeen(source, evidence.tallies, case._flows(), evidence.backlog_drops),))

    def _flows(self) -> tuple[FlowSeen, ...]:
        measured = None if self.run is None else self.run.measured.value
        if measured is None:
            return ()
        found = []
        for row, path in zip(measured[0], self.paths, strict=True):
            flow = row.sent.flow
            if row.sent.packets and path and not spreads(path):
                name = f"QP {flow.label} from {flow.src} to {flow.dst}"
                ports = (self.peer(flow.first_hop), *path)
                found.append(FlowSeen(name, ports, row.sent.packets, row.damaged or 0))
        return tuple(found)

    @cached_property
    def paths(self) -> Sequence[tuple[str, ...]]:
        """The path of each flow of the evidence: as counted, else as expected."""
        proof = None if self.run is None else self.run.proof.value
        if proof is None:
            return [()] * (0 if self.evidence is None else len(self.evidence.sent))
        return [each.measured or each.expected for each in proof.flows]

    @cached_property
    def crossing(self) -> Mapping[str, int]:
        """Port -> flows of the run that passed it."""
        return Counter(port for path in self.paths for port in {port for step in path for port in ports_of(step)})

    @property
    def slowest(self) -> Slowest | None:
        """The slowest ranks and QPs of the run; None where messages were not kept."""
        from heddle.runs.parts.slowest import Slowest

        return None if self.run is None else self.run.record.part(Slowest)

    @property
    def probes(self) -> tuple[FlowSeen, ...]:
        """The paths that probes took; none where switches spread the packets of a flow."""
        return self.traffic[-1].flows if self.probed else ()

    @cached_property
    def states(self) -> tuple[tuple[str, Snapshot], ...]:
        """Every reading of the fabric that has switches, with its name."""
        run = None if self.watched else self.evidence
        found = [] if run is None else [(_BEFORE, run.before), (_AFTER, run.after)]
        found += [] if self.live is None else [(NOW, self.live.snapshot)]
        return tuple((source, state) for source, state in found if state.nodes)

    @cached_property
    def down(self) -> frozenset[str]:
        """Ports that had no carrier at one reading."""
        nodes = (row for _, state in self.states for row in state.nodes.items())
        return frozenset(f"{name}:{port}" for name, node in nodes for port in node.down or ())

    @cached_property
    def facts(self) -> Mapping[Fact, str]:
        """Every fact that a reading of the lab has, with its readings. Those of now come first, then in the order of
        FACTS: what explains others comes first.
        """
        around = self.around
        readings = [] if self.live is None else [(NOW, self.live.facts)]
        readings += [] if around is None else [(_BEFORE, around.before.facts), (_AFTER, around.after.facts)]
        found: dict[Fact, str] = {}
        for source, some in readings:
            for fact in (each for each in some if each.kind in FACTS):
                found[fact] = f"{found[fact]}, {source}" if fact in found else source
        order = [*FACTS]
        return dict(sorted(found.items(), key=lambda row: (NOW not in row[1], order.index(row[0].kind))))

    @property
    def around(self) -> FabricState | None:
        """What the run has read of the lab, before and after it."""
        return None if self.run is None else self.run.record.fabric_state

    @cached_property
    def disturbed(self) -> frozenset[str]:
        """Ports that cannot forward or count all packets, as facts show: what is lost there has a known cause."""
        kinds = ("mtu", "mac", "port", "programs")
        refs = {fact.problem.where for fact in self.facts if fact.kind in kinds}
        return frozenset({*refs, *(self.peer(ref) for ref in refs)})

    @cached_property
    def dead(self) -> tuple[str, ...]:
        """Switches that do not run, or all of whose links have no carrier at one reading."""
        found = set() if self.live is None else {*self.live.stopped}
        for _, state in self.states:
            down = {f"{name}:{port}" for name, node in state.nodes.items() for port in node.down or ()}
            for switch in self.fabric.switches:
                if switch.ports and all({port.ref, port.peer_ref} & down for port in switch.ports):
                    found.add(switch.name)
        return tuple(node.name for node in self.fabric.nodes if node.name in found)

    @cached_property
    def hashing(self) -> Mapping[str, SwitchHashing]:
        """Of each switch, at the last reading."""
        nodes = self.states[-1][1].nodes if self.states else {}
        return {name: node.hashing for name, node in nodes.items() if node.hashing is not None}

    @cached_property
    def polarised(self) -> Sequence[Pair] | None:
        """Switches that are polarised, by the hashing and routes of the last reading. None: it cannot be predicted."""
        from heddle.predict.polarisation import polarisation

        nodes = self.states[-1][1].nodes if self.states else {}
        fibs = {name: node.fib for name, node in nodes.items() if node.fib is not None}
        if min(len(fibs), len(self.hashing)) < len(self.fabric.switches):
            return None
        with suppress(CheckError):  # a hash that is not modelled
            return [pair for pair in polarisation(self.fabric, fibs, self.hashing).pairs if pair.polarised]
        return None

    @cached_property
    def one_seed(self) -> frozenset[str]:
        """The switches that hash with one seed, if they are more than half of all; else none."""
        seeds = Counter(rule.seed for rule in self.hashing.values())
        seed, count = seeds.most_common(1)[0] if seeds else (0, 0)
        shared = (name for name, rule in self.hashing.items() if rule.seed == seed)
        return frozenset(shared if count > _MOST * seeds.total() else ())

    def peer(self, ref: str) -> str:
        """The port at the other end of a link."""
        node, _, port = ref.partition(":")
        return self.fabric.by_name[node].port(port).peer_ref

    def link(self, ref: str) -> str:
        """`rtsw1:eth1 - ctsw1:eth1`."""
        return f"{ref} - {self.peer(ref)}"

    def to_host(self, ref: str) -> bool:
        """Whether a port of a switch leads to a host."""
        node, _, port = ref.partition(":")
        return self.fabric.leads_to_host(self.fabric.by_name[node].port(port))

    def of_switch(self, ref: str) -> bool:
        """Whether it is a port of a switch."""
        return self.fabric.by_name[ref.partition(":")[0]].role is Role.SWITCH
