"""Causes that a state shows: links, nodes, control planes, routes, seeds, thresholds, rates.

In:  a Case. Out: a CauseResult for each function; the table of causes is in causes.py.
A state that follows from another one is not reported: a link of a dead node, a session over a dead link.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from heddle.base.problems import CheckError
from heddle.base.tables import many, some_of
from heddle.base.units import format_rate
from heddle.engineering.diagnosis.case import NOW, OF_RUN, Case, CauseResult, Confidence, Finding, Observation
from heddle.fabric.model import Role
from heddle.switch.queues.classes import held_bps
from heddle.wire.layout import DSCP_DATA

if TYPE_CHECKING:
    from heddle.predict.polarisation import Pair

NO_LAB: Final = "the lab is not running"
_ONCE: Final = 2  # changes of a carrier: lost and found
_LINES: Final = 3  # of evidence
_SHARE: Final = 0.5  # of the switches: as many with one seed are no single wrong value


def node_down(case: Case) -> CauseResult:
    """A switch does not run, or none of its links has a carrier."""
    found = []
    for name in case.dead:
        node = case.fabric.by_name[name]
        lines = [Observation(f"none of its {many(len(node.ports), 'link')} has a carrier", case.states[-1][0])]
        if case.live is not None and name in case.live.stopped:
            lines = [Observation("the node does not run", NOW)]
        elif daemons := case.silent.get(name):
            lines.append(Observation(f"{' and '.join(daemons)} do not answer", NOW))
        found.append(Finding("node-down", name, f"{name} is down", "established", tuple(lines)))
    ruled_out = f"no switch of {len(case.fabric.switches)} has lost all links"
    return CauseResult.of(found, ruled_out) if case.states else _unread()


def link_down(case: Case) -> CauseResult:
    """A link lost its carrier once during the run, and found it again; facts show those that are down."""
    if not case.states:
        return _unread()
    found = list[Finding]()
    for ref, count in _changes(case).items():
        if count == _ONCE and not {ref, case.peer(ref)} & case.down and not _on_dead(case, ref):
            line = Observation(f"the carrier of {ref} was lost once and came back", OF_RUN)
            what = f"the link {case.link(ref)} was down for a part of the run, and is up again"
            found.append(Finding("link-down", ref, what, "established", (line,)))
    return CauseResult.of(found, f"all {len(case.fabric.links)} links have a carrier")


def _on_dead(case: Case, ref: str) -> bool:
    return bool({ref.partition(":")[0], case.peer(ref).partition(":")[0]} & {*case.dead})


def _changes(case: Case) -> dict[str, int]:
    """The lower end of each link -> how often its carrier was lost or found during the run."""
    found: dict[str, int] = {}
    for ref, count in ({} if case.evidence is None else case.evidence.carrier_changes).items():
        lower = _lower(case, ref)
        found[lower] = max(count, found.get(lower, 0))
    return found


def link_flaps(case: Case) -> CauseResult:
    """A link lost its carrier during the run several times."""
    if case.evidence is None:
        return CauseResult(unknown="the run left no counters")
    found = []
    for ref, count in _changes(case).items():
        if count > _ONCE and not _on_dead(case, ref):
            line = Observation(f"the carrier of {ref} changed {count} times during the run", OF_RUN)
            found.append(Finding("link-flap", ref, f"the link {case.link(ref)} flaps", "established", (line,)))
    return CauseResult.of(found, "no carrier was lost more than once during the run")


def _lower(case: Case, ref: str) -> str:
    """The end of a link on the lower level that is a switch's; else the switch's end."""
    other = case.peer(ref)
    levels = {each: case.fabric.by_name[each.partition(":")[0]].level for each in (ref, other) if case.of_switch(each)}
    return min(levels, key=lambda each: (levels[each], each))


def without_facts(case: Case, ruled_out: str) -> CauseResult:
    """The result for a cause that facts alone show, where there is none."""
    if case.live is None and not case.states:
        return _unread()
    stopped = case.live is not None and case.live.stopped
    return CauseResult(unknown="nodes do not run") if stopped else CauseResult(ruled_out=ruled_out)


def lossy_class(case: Case) -> CauseResult:
    """Data is in a class that may drop it: a property of the fabric file, not a fault."""
    dscp = DSCP_DATA if case.run is None else case.run.record.header.options.dscp
    texts = case.fabric.policy.queues.lossy_data(dscp)
    number = case.fabric.policy.queues.class_of_dscp[dscp]
    lost = sum(rows[number].refused for each in case.traffic for rows in each.tallies.values() if number in rows)
    lines = (*(Observation(text, "fabric file") for text in texts),)
    if lost:
        lines += (Observation(f"queues dropped {many(lost, 'packet')} of class {number}", case.traffic[0].source),)
    what = f"data is in class {number}, which is lossy"
    confidence: Confidence = "established" if lost else "likely"
    found = [Finding("lossy-class", case.fabric.name, what, confidence, lines)] if texts else []
    return CauseResult.of(found, f"data is in class {number}, as its DSCP says")


def polarisation(case: Case) -> CauseResult:
    """Switches of two levels choose by the same rule, so that the upper one uses few of its next hops."""
    pairs = _polarised(case)
    if pairs is None:
        return CauseResult(unknown="the hashing of its switches cannot be predicted")
    if not pairs:
        return CauseResult(ruled_out="the choice at one level does not decide the choice at the next")
    if not _one_seed(case):
        return CauseResult(unknown="the seeds differ; see wrong-seed")
    worst = max(pairs, key=lambda pair: pair.share)
    names = [*dict.fromkeys(pair.switch for pair in pairs)]
    lines = [Observation(worst.text(), case.states[-1][0]), Observation(f"affected: {some_of(names)}", OF_RUN)]
    what = f"{worst.switch} is polarised: it chooses by the same hash and seed as {worst.before}"
    found = Finding("polarisation", worst.switch, what, "established", tuple(lines), tuple(names))
    return CauseResult((found,))


def _one_seed(case: Case) -> bool:
    """Whether most switches have the same seed."""
    hashing = [node.hashing for node in case.states[-1][1].nodes.values() if node.hashing] if case.states else []
    counts = Counter(each.seed for each in hashing)
    return bool(counts) and counts.most_common(1)[0][1] > _SHARE * len(hashing)


def _polarised(case: Case) -> list[Pair] | None:
    from heddle.predict.polarisation import polarisation as pairs_of

    if not case.states:
        return None
    state = case.states[-1][1]
    hashing = {name: node.hashing for name, node in state.nodes.items() if node.hashing is not None}
    fibs = {name: node.fib for name, node in state.nodes.items() if node.fib is not None}
    if len(fibs) < len(case.fabric.switches) or len(hashing) < len(case.fabric.switches):
        return None
    try:
        return [pair for pair in pairs_of(case.fabric, fibs, hashing).pairs if pair.polarised]
    except CheckError:
        return None


def wrong_threshold(case: Case) -> CauseResult:
    """Thresholds of ECN, PFC or buffers that were set live, and are not those of the fabric file."""
    around = None if case.run is None else case.run.surroundings.value
    settings = case.live.settings if case.live is not None else None if around is None else around.queues
    if settings is None:
        return CauseResult(unknown="a run may scale them while it is measured") if case.live is not None else _unread()
    found, source = list[Finding](), "configuration of the run" if case.live is None else NOW
    for name, values in settings.items():
        if values and case.fabric.by_name[name].role is not Role.HOST:
            lines = [Observation(f"{path}: {value}", source) for path, value in values.items()][:_LINES]
            what = f"{name} has thresholds that differ from the fabric file"
            found.append(Finding("wrong-threshold", name, what, "established", tuple(lines)))
    return CauseResult.of(found, "all thresholds of ECN, PFC and buffers are those of the fabric file")


def slow_port(case: Case) -> CauseResult:
    """Ports that are set to a lower rate than their link has; one finding for a link, also if both ends are slow.

    A slow NIC is a slow host, whatever rate the switch's end has. Elsewhere it is a slow link.
    """
    if case.live is None:
        return _unread()
    shapers, texts = case.live.snapshot.shapers, dict[str, str]()
    for port in (port for node in case.fabric.nodes for port in node.ports):
        row = shapers.get(port.ref)
        if row is not None and (now := min(row.rate_bps, row.ceil_bps)) < held_bps(port.rate_bps):
            texts[port.ref] = f"{port.ref} is set to {format_rate(now)}; its link has {format_rate(port.rate_bps)}"
    found: dict[frozenset[str], Finding] = {}
    for ref in sorted(texts, key=case.of_switch):  # NICs first
        link = frozenset({ref, case.peer(ref)})
        lines = tuple(Observation(texts[each], NOW) for each in sorted(link & texts.keys()))
        cause, what = "slow-link", f"the link {case.link(ref)} is slow"
        if not case.of_switch(ref):
            cause, what = "slow-host", f"the NIC {ref} is slow"
        found.setdefault(link, Finding(cause, ref, what, "established", lines))
    return CauseResult.of([*found.values()], "every port has the rate of its link now")


def _unread() -> CauseResult:
    return CauseResult(unknown=NO_LAB)
