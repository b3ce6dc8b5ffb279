"""Diagnose a run: judge every cause, send probes where counters do not decide, and choose the verdict.

In:  a stored run, a running lab, or both. Out: Diagnosis, with findings, what was ruled out, and the verdict in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from heddle.engineering.diagnosis import symptoms
from heddle.engineering.diagnosis.case import Case, CauseResult, Finding, Kind, Observation
from heddle.engineering.diagnosis.symptoms import MEASURING
from heddle.lab.facts import FACTS


@dataclass(frozen=True, slots=True)
class CauseCheck:
    """One cause. words: for a list of what was ruled out. judge: its function; or, where facts alone show it, the text
    for a lab without such a fact.

    nika: its name in the benchmark NIKA, or our own where NIKA has none. kind: of the resource that NIKA blames.
    fault: False for what load and hashing cause in a healthy fabric.
    """

    words: str
    judge: Callable[[Case], CauseResult] | str
    nika: str
    kind: Kind
    fault: bool = True

    def result(self, case: Case) -> CauseResult:
        """The findings of its function. What facts show is added by the diagnosis."""
        return symptoms.without_facts(case, self.judge) if isinstance(self.judge, str) else self.judge(case)


# In the order in which they are reported: what explains others comes first.
CAUSES: Final[Mapping[str, CauseCheck]] = {
    "node-down": CauseCheck("node down", symptoms.node_down, "frr_service_down", "node"),
    "link-down": CauseCheck("link down", symptoms.link_down, "link_down", "link"),
    "link-flap": CauseCheck("link flap", symptoms.link_flaps, "link_flap", "link"),
    "control-plane-dead": CauseCheck("control plane dead", "all daemons answer", "frr_service_down", "node"),
    "bgp-session-down": CauseCheck("BGP session down", "every session is established", "bgp_session_down", "interface"),
    "drained": CauseCheck("drained switch", "BGP drains no switch", "bgp_graceful_shutdown", "node"),
    "misrouting": CauseCheck("misrouting", "every route is a shortest path", "host_static_blackhole", "node"),
    "missing-next-hop": CauseCheck("missing next hop", "every prefix has its next hops", "missing_next_hop", "node"),
    "wrong-mtu": CauseCheck("wrong MTU", symptoms.wrong_mtu, "link_mtu_mismatch", "link"),
    "wrong-neighbour": CauseCheck("wrong neighbour", "all MACs are right", "arp_cache_poisoning", "interface"),
    "wrong-class": CauseCheck("wrong class of a DSCP", "every DSCP is in its class", "dscp_misconfiguration", "node"),
    "pause-agent": CauseCheck("PFC agent", "it runs", "pfc_agent_down", "node"),
    "wrong-queues": CauseCheck("wrong queues", "no port has others", "qdisc_misconfiguration", "interface"),
    "pfc-storm": CauseCheck("PFC storm", symptoms.pause_storm, "pfc_storm", "interface"),
    "slow-link": CauseCheck("slow link", symptoms.slow_link, "link_capacity_bottleneck", "link"),
    "slow-host": CauseCheck("slow host or NIC", symptoms.slow_host, "receiver_resource_contention", "node"),
    "bit-errors": CauseCheck("bit errors", symptoms.bit_errors, "link_packet_corruption", "link"),
    "link-lossy": CauseCheck("lossy link", symptoms.lossy_link, "silent_egress_packet_loss", "interface"),
    "wrong-threshold": CauseCheck(
        "wrong threshold", symptoms.wrong_threshold, "ecn_threshold_misconfiguration", "node"
    ),
    "polarisation": CauseCheck("polarisation", symptoms.polarisation, "ecmp_polarisation", "node"),
    "wrong-seed": CauseCheck("wrong hash seed", "every seed is as set last", "ecmp_seed_misconfiguration", "node"),
    "wrong-sysctl": CauseCheck("wrong sysctl", "every sysctl is as set", "sysctl_misconfiguration", "node"),
    "failed-check": CauseCheck("failed check", symptoms.failed_check, "failed_check", "node"),
    "lossy-class": CauseCheck("lossy class of data", symptoms.lossy_class, "lossy_class", "node", fault=False),
    "incast": CauseCheck("incast", symptoms.incast, "incast_traffic_network_limitation", "interface", fault=False),
    "hash-collision": CauseCheck("hash collision", symptoms.collision, "ecmp_collision", "interface", fault=False),
    "host-cpu": CauseCheck("host CPU", symptoms.busy_machine, "host_cpu", "node", fault=False),
}  # fmt: skip


_LINES: Final = 3  # of evidence, of one cause at one place

if TYPE_CHECKING:
    from heddle.base.events import Observer
    from heddle.lab.lab import Lab
    from heddle.runs.stored import StoredRun


@dataclass(frozen=True)
class Diagnosis:
    """What a diagnosis came to. results: by cause, in the order of CAUSES."""

    case: Case
    results: Mapping[str, CauseResult]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: faults before properties of the load, established ones before likely ones."""
        order = [*CAUSES]
        every = [finding for result in self.results.values() for finding in result.findings]
        return tuple(
            sorted(
                every,
                key=lambda each: (
                    not CAUSES[each.cause].fault, each.confidence != "established", order.index(each.cause),
                ),
            )
        )  # fmt: skip

    @property
    def verdict(self) -> Finding | None:
        """The first finding; None when no cause is established or likely."""
        return next(iter(self.findings), None)

    @property
    def fault(self) -> bool:
        """Whether the verdict is a fault of the fabric or of a host."""
        return self.verdict is not None and CAUSES[self.verdict.cause].fault

    @property
    def ruled_out(self) -> dict[str, str]:
        """Cause -> what shows that it is not one."""
        return {name: result.ruled_out for name, result in self.results.items() if result.ruled_out}

    @property
    def not_checked(self) -> dict[str, str]:
        """Cause -> why it could not be judged."""
        return {name: result.unknown for name, result in self.results.items() if result.unknown}

    def to_json(self) -> dict[str, Any]:
        """The document. `root_causes` is in the form of the benchmark NIKA."""
        run = self.case.run
        verdict = self.verdict
        return {
            "lab": self.case.fabric.name, "run_id": None if run is None else run.id,
            "verdict": None if verdict is None else verdict.to_json(),
            "findings": [each.to_json() for each in self.findings],
            "ruled_out": self.ruled_out, "not_checked": self.not_checked, "probed": self.case.probed,
            "probes": [each.to_json() for each in self.case.probes],
            "is_anomaly": self.fault,
            "root_causes": [self._root_cause(each) for each in self.findings if CAUSES[each.cause].fault],
        }  # fmt: skip

    def _root_cause(self, found: Finding) -> dict[str, Any]:
        """NIKA's resource: a node, an interface of it, or a link by both of its ends in order."""
        check = CAUSES[found.cause]
        node, _, port = found.object.partition(":")
        resource: dict[str, str] = {"kind": "node", "node": node}
        if port and check.kind == "link":
            resource = {"kind": "link", "name": "--".join(sorted((found.object, self.case.peer(found.object))))}
        elif port and check.kind == "interface":
            resource = {"kind": "interface", "node": node, "name": port}
        return {"resource": resource, "fault_type": check.nika}


def judged(case: Case) -> Diagnosis:
    """Judge every cause, and add what facts show and no finding reports: a diagnosis knows all facts."""
    results = {name: check.result(case) for name, check in CAUSES.items()}
    added: dict[tuple[str, str], Finding] = {}
    for fact, source in case.facts.items():
        where, causes = fact.problem.where, FACTS[fact.kind].causes
        line = Observation(fact.text.replace("  ", " "), source)
        if any(_reports(case, found, where) for name in causes for found in results[name].findings):
            continue
        key = (causes[0], where)
        old = added.get(key) or Finding(causes[0], where or case.fabric.name, line.text, "established", ())
        added[key] = replace(old, evidence=(*old.evidence, line)[:_LINES])
    for (cause, _), finding in added.items():
        results[cause] = CauseResult((*results[cause].findings, finding))
    if results["missing-next-hop"].findings and results["misrouting"].ruled_out:
        results["misrouting"] = CauseResult(unknown="next hops are missing")
    return Diagnosis(case, results)


def _reports(case: Case, found: Finding, where: str) -> bool:
    """Whether a finding is about a place, or about a node or a link that has it."""
    node, colon, _ = where.partition(":")
    return found.object in {where, node, *((peer := case.peer(where), peer.partition(":")[0]) if colon else ())}


def diagnose(run: StoredRun | None, lab: Lab | None, observer: Observer | None = None) -> Diagnosis:
    """Judge a run and a lab. observer: of probes, which are sent over every path when no fault is established, or the
    run has left no counters; None: send none. InputError for a run without a fabric when no lab runs.
    """
    fabric = lab.fabric if lab is not None else run.needed(run.fabric) if run is not None else None
    if fabric is None:
        raise ValueError("a diagnosis needs a run or a lab")
    found = judged(Case.of(fabric, run, lab))
    verdict = found.verdict
    decided = found.fault and verdict is not None and verdict.confidence == "established"
    if (decided and not found.case.watched) or lab is None or observer is None:
        return found
    from heddle.checks.validate import validate
    from heddle.engineering.diagnosis.pathprobes import probe_paths

    case = replace(found.case, traffic=(*found.case.traffic, probe_paths(lab, observer)), probed=True)
    if found.case.live is None or found.case.live.stopped:
        return judged(case)
    failed = [each for each in validate(lab, MEASURING) if not each.ok and each.name in MEASURING]
    return judged(replace(case, checks=tuple(failed)))
