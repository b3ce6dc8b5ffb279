"""Diagnose a run: judge every cause, send probes where counters do not decide, and choose the verdict.

In:  a stored run, a running lab, or both. Out: Diagnosis, with findings, what was ruled out, and the verdict in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from heddle.engineering.diagnosis.case import Case, CauseResult, Finding, Observation
from heddle.engineering.diagnosis.causes import CAUSES
from heddle.engineering.diagnosis.symptoms import MEASURING
from heddle.lab.facts import FACTS

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
