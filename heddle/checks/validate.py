"""Run every check that applies to a running lab: ports and kernels as configured, and hosts that reach each other.

In:  a running Lab.
Out: a CheckResult for each check, in the order of their dependencies. Nothing in the lab is changed; the
only packets sent are UDP probes from host to host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from heddle.base.problems import HeddleError
from heddle.checks import labchecks, queuechecks
from heddle.checks.queuechecks import SHOWN, Answer, Found, NothingError, Subject, first_line, shortened
from heddle.lab.fabricstate import Fact
from heddle.lab.lab import Lab
from heddle.lab.spread import spread

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
    "mtu": labchecks.mtu,
    "neighbours": labchecks.neighbours,
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


# Those that read kernels and maps themselves. For a lab in shards they run in each.
BESIDE_NODES: Final = frozenset({"offloads", "order", "depths", "pauses"})
_COUNT: Final = re.compile(r"^\d+")


def joined(answers: Sequence[Answer | None]) -> Answer | None:
    """One answer of those of all shards: leading counts of equal texts are added. None: nothing to check."""
    found = [each for each in answers if each is not None]
    if not found:
        return None
    texts: dict[str, int] = {}
    for each in found:
        count = _COUNT.match(each.checked)
        texts[_COUNT.sub("", each.checked)] = texts.get(_COUNT.sub("", each.checked), 0) + int(count[0] if count else 0)
    checked = "; ".join(f"{count or ''}{text}" for text, count in texts.items())
    faults = [line for each in found for line in each.faults]
    return Answer(checked, faults, tuple(dict.fromkeys(note for each in found for note in each.notes)))


@spread(joined)
def check_beside(lab: Lab, name: str) -> Answer | None:
    """A check of BESIDE_NODES, for the nodes of one shard."""
    try:
        return Answer(*CHECKS[name](Subject.of(lab)))
    except NothingError:
        return None


def _in_shards(lab: Lab, name: str) -> Answer:
    found = check_beside(lab, name)
    if found is None:
        raise NothingError("no shard has anything that this check applies to")
    return found


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
    beside = frozenset() if lab.runtime.here else BESIDE_NODES
    asks = {
        name: partial(_in_shards, lab, name) if name in beside else partial(check, subject)
        for name, check in chosen.items()
    }
    return (nodes, *(result_of(name, ask, subject.facts_of) for name, ask in asks.items()))


def result_of(name: str, ask: Callable[[], Found | Answer], facts_of: Callable[[str], tuple[Fact, ...]]) -> CheckResult:
    """The facts that belong to a check; without any, what it found."""
    found: tuple[Fact, ...] = ()
    try:
        found = facts_of(name)
        checked, own, notes = Answer(*ask())
    except NothingError as reason:
        if not found:
            return CheckResult(name, True, str(reason), skipped=True)
        checked, own, notes = Answer("", [])
    except HeddleError as error:
        return CheckResult(name, False, "; ".join(map(first_line, error.problems)))
    faults = [each.text for each in found] or own  # what the check has found follows from the facts
    detail = shortened(faults) if faults else "; ".join([checked, *([shortened(notes)] if notes else [])])
    hint = f"; {found[0].problem.hint}" if found and found[0].problem.hint else ""
    return CheckResult(name, not faults, detail + hint, notes=notes)
