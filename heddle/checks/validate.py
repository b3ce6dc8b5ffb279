"""Run every check that applies to a running lab: ports and kernels as configured, and hosts that reach each other.

In:  a running Lab.
Out: a CheckResult for each check, in the order of their dependencies. Nothing in the lab is changed; the
only packets sent are UDP probes from host to host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from heddle.base.problems import HeddleError
from heddle.checks import labchecks, queuechecks
from heddle.checks.subject import SHOWN, Answer, Found, NothingError, Subject, first_line, shortened
from heddle.lab.lab import Lab

Check = Callable[[Subject], Found | Answer]
# Name -> check, in the order of their dependencies. A new check is a function in its own file, and one line here.
CHECKS: Final[Mapping[str, Check]] = {
    "sysctls": labchecks.sysctls,
    "hashing": labchecks.hashing,
    "queues": queuechecks.shapers,
    "offloads": labchecks.offloads,
    "order": labchecks.order,
    "programs": queuechecks.programs,
    "thresholds": queuechecks.thresholds,
    "faults": labchecks.faults,
    "links": labchecks.links,
    "daemons": labchecks.daemons,
    "bgp": labchecks.bgp,
    "routes": labchecks.routes,
    "reachability": labchecks.reachability,
    "depths": queuechecks.depths,
    "headroom": queuechecks.headroom,
    "pauses": queuechecks.pauses,
    "paths": labchecks.paths,
    "polarisation": labchecks.polarisation,
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; detail: what was checked, or what is wrong and where.

    skipped: the check does not apply to this lab; detail: why. notes: information that is not a fault.
    """

    name: str
    ok: bool
    detail: str
    skipped: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One row of `checks`; `skipped` and `notes` only where there are any."""
        optional = {"skipped": self.skipped, "notes": list(self.notes)}
        data = {"name": self.name, "ok": self.ok, "detail": self.detail}
        return data | {key: value for key, value in optional.items() if value}


def validate(lab: Lab, only: Collection[str] | None = None) -> tuple[CheckResult, ...]:
    """Run all checks. A check that cannot be made has failed, with the reason. If nodes are not running, skip the rest.

    only: names of the checks to run, and `nodes`; all when None.
    """
    lost = lab.runtime.missing_nodes(lab.name, lab.topology)
    nodes = CheckResult("nodes", not lost, "; ".join(map(first_line, lost[:SHOWN])) or f"{len(lab.handles())} running")
    if lost:
        skipped = "not checked: nodes are not running"
        return (nodes, *(CheckResult(name, True, skipped, skipped=True) for name in CHECKS))
    subject = Subject.of(lab)
    chosen = {name: check for name, check in CHECKS.items() if only is None or name in only}
    return (nodes, *(_check(name, partial(check, subject)) for name, check in chosen.items()))


def _check(name: str, ask: Callable[[], Found | Answer]) -> CheckResult:
    try:
        checked, faults, notes = Answer(*ask())
    except NothingError as reason:
        return CheckResult(name, True, str(reason), skipped=True)
    except HeddleError as error:
        return CheckResult(name, False, "; ".join(map(first_line, error.problems)))
    detail = shortened(faults) if faults else "; ".join([checked, *([shortened(notes)] if notes else [])])
    return CheckResult(name, not faults, detail, notes=notes)
