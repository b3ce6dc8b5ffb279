"""Causes that states and packets show: links, routes, losses, bit errors, pauses, late ranks, fan-in, a busy machine.

In:  a Case. Out: a CauseResult for each function; the table of causes is in diagnosis.py.
A wrong ICRC is seen only where a packet arrives. Its link follows from the paths: the port that all damaged packets
have passed, and the fewest others. That is the most likely place, if each packet of one link is damaged with the same
chance; the log-likelihood tells by how much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from heddle.base.arrays import F64
from heddle.base.ethernet import CLASSES
from heddle.base.tables import many, some_of
from heddle.base.units import format_bytes, format_rate
from heddle.fabric.model import Fabric, Port, Role
from heddle.fabric.wiring import BACKEND
from heddle.lab.facts import FACTS
from heddle.proof.linkuse import links_of
from heddle.runs.parts.slowest import Slowest
from heddle.runs.series import RowLabel, Series
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch.queues.classes import held_bps, numbered_ports
from heddle.wire.layout import DSCP_DATA
from heddle_plugins.engineering.diagnosis.case import (
    NOW,
    OF_PROBES,
    OF_RUN,
    Case,
    CauseResult,
    Confidence,
    Finding,
    FlowSeen,
    Observation,
)

NO_LAB: Final = "the lab is not running"
_ONCE: Final = 2  # changes of a carrier: lost and found
_LINES: Final = 3  # of evidence


def node_down(case: Case) -> CauseResult:
    """A switch does not run, or none of its links has a carrier."""
    found = []
    for name in case.dead:
        node = case.fabric.by_name[name]
        lines = [Observation(f"none of its {many(len(node.ports), 'link')} has a carrier", case.states[-1][0])]
        if case.live is not None and name in case.live.stopped:
            lines = [Observation("the node does not run", NOW)]
        elif case.live is not None and (daemons := case.live.snapshot.silent.get(name)):
            lines.append(Observation(f"{' and '.join(daemons)} do not answer", NOW))
        found.append(Finding("node-down", name, f"{name} is down", "established", tuple(lines)))
    ruled_out = f"no switch of {len(case.fabric.switches)} has lost all links"
    return CauseResult.of(found, ruled_out) if case.states else CauseResult(unknown=NO_LAB)


def link_down(case: Case) -> CauseResult:
    """A link lost its carrier once during the run, and found it again; facts show those that are down."""
    if not case.states:
        return CauseResult(unknown=NO_LAB)
    found = list[Finding]()
    for ref, count in _changes(case).items():
        if count == _ONCE and not {ref, case.peer(ref)} & case.down and not _on_dead(case, ref):
            line = Observation(f"the carrier of {ref} was lost once and came back", OF_RUN)
            what = f"the link {case.link(ref)} was down for a part of the run, and is up again"
            found.append(Finding("link-down", ref, what, "established", (line,)))
    links = {frozenset({port.ref, port.peer_ref}) for node in case.fabric.switches for port in node.ports}
    nodes = case.states[-1][1].nodes
    read = {f"{name}:{port}" for name, node in nodes.items() for port in node.carrier_changes or ()} - case.down
    silent = [min(link) for link in links if {ref for ref in link if case.of_switch(ref)} - read]
    if silent and not found:
        return CauseResult(unknown=f"{some_of(sorted(silent))} had no carrier at one reading")
    return CauseResult.of(found, f"{len(links)} links have a carrier")


def _on_dead(case: Case, ref: str) -> bool:
    return bool({ref.partition(":")[0], case.peer(ref).partition(":")[0]} & {*case.dead})


def _changes(case: Case) -> dict[str, int]:
    """The lower end of each link -> how often its carrier was lost or found during the run."""
    found: dict[str, int] = {}
    for ref, count in ({} if case.evidence is None else case.evidence.carrier_changes).items():
        ends = [each for each in (ref, case.peer(ref)) if case.of_switch(each)]
        lower = min(ends, key=lambda each: (case.fabric.by_name[each.partition(":")[0]].level, each))
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
    when = "in a second" if case.watched else "during the run"
    return CauseResult.of(found, f"no carrier was lost more than once {when}")


def by_checks(case: Case, cause: str) -> CauseResult:
    """The result for a cause that facts show, where there is none: what the checks of these facts have read."""
    if case.live is None:
        return CauseResult(unknown=NO_LAB) if case.around is None else CauseResult(ruled_out="the run has read none")
    if case.live.stopped:
        return CauseResult(unknown="nodes do not run")
    names = {each.check for each in FACTS.values() if each.causes[0] == cause}
    rows = [each for each in case.checks if each.name in names]
    open_ = [each.detail if each.ok else f"the check {each.name} fails" for each in rows if not each.ok or each.skipped]
    return CauseResult(ruled_out="" if open_ else "; ".join(each.detail for each in rows), unknown="; ".join(open_))


def _data_of_run(case: Case) -> tuple[int, QueuePolicy]:
    """The DSCP of data, and the queues of the network that carries it; without a run, those of probes."""
    options = None if case.run is None else case.run.record.options
    network = BACKEND if options is None else options.network
    return DSCP_DATA if options is None else options.dscp, case.fabric.policy.of(network).queues


def lossy_class(case: Case) -> CauseResult:
    """Data is in a class that may drop it: a property of the fabric file, not a fault."""
    dscp, queues = _data_of_run(case)
    texts, number = queues.lossy_data(dscp), queues.class_of_dscp[dscp]
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
    pairs = case.polarised
    if pairs is None:
        return CauseResult(unknown="the hashing of its switches cannot be predicted")
    if not pairs:
        return CauseResult(ruled_out="the choice at one level does not decide the choice at the next")
    if not case.one_seed:
        return CauseResult(unknown="the seeds differ; see wrong-seed")
    worst = max(pairs, key=lambda pair: pair.share)
    names = [*dict.fromkeys(pair.switch for pair in pairs)]
    lines = [Observation(worst.text(), case.states[-1][0]), Observation(f"affected: {some_of(names)}", OF_RUN)]
    what = f"{worst.switch} is polarised: it chooses by the same hash and seed as {worst.before}"
    found = Finding("polarisation", worst.switch, what, "established", tuple(lines), tuple(names))
    return CauseResult((found,))


def wrong_threshold(case: Case) -> CauseResult:
    """Thresholds of ECN, PFC or buffers that were set live, and are not those of the fabric file."""
    around = None if case.run is None else case.run.surroundings.value
    settings = case.live.settings if case.live is not None else None if around is None else around.queues
    if settings is None:
        return CauseResult(unknown=NO_LAB if case.live is None else "a run may scale them while it is measured")
    found, source = list[Finding](), "configuration of the run" if case.live is None else NOW
    for name, values in settings.items():
        if values and case.fabric.by_name[name].role is not Role.HOST:
            lines = [Observation(f"{path}: {value}", source) for path, value in values.items()][:_LINES]
            what = f"{name} has thresholds that differ from the fabric file"
            found.append(Finding("wrong-threshold", name, what, "established", tuple(lines)))
    return CauseResult(tuple(found)) if found else by_checks(case, "wrong-threshold")


def slow_port(case: Case) -> CauseResult:
    """Ports that are set to a lower rate than their link has; one finding for a link, also if both ends are slow.

    A slow NIC is a slow host, whatever rate the switch's end has. Elsewhere it is a slow link.
    """
    if case.live is None:
        return CauseResult(unknown=NO_LAB)
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
    return CauseResult.of([*found.values()], f"{len(shapers)} ports have the rate of their links")


OF_SERIES: Final = "queues over time"
OF_RANKS: Final = "times of the ranks"
_NO_SLOWEST: Final = "no message is known to have waited, or the host CPU was the bottleneck"
_SURE: Final = 3.0  # of the log-likelihood: 20 times as likely as the next port
_PLACES: Final = 3  # links with bit errors that are looked for
_SLOW: Final = 0.75  # of a link's rate, and of what other busy ports reach
_SLOWER: Final = 0.5  # the same, where the host CPU was busy
_PARTS: Final = 4  # of a port's busy time
_BUSY: Final = 4  # buckets in which a port always had a queue: fewer say nothing
_LATE: Final = 0.3  # of an iteration, in which arrived messages waited for their rank
_FEW: Final = 4  # one of so many ranks may be slow: if more are, it is the machine
_UNEVEN: Final = 1.3  # of the mean of a switch's uplinks
_FAN_IN: Final = 3  # senders to one receiver
_PAUSED: Final = 0.02  # of the run: a host that pauses its switch for less holds no one back


def lossy_link(case: Case) -> CauseResult:
    """A port sent packets that did not arrive at the other end of its link, and more than this machine dropped."""
    found: dict[str, Finding] = {}
    for traffic in case.traffic:
        rows = {port: traffic.on_link(port) for port in traffic.tallies}
        every = sum(lost for _, lost in rows.values())
        confidence: Confidence = "likely" if traffic.backlog else "established"
        for port, (sent, lost) in rows.items() if every > traffic.backlog else ():
            if lost <= 0 or _gone(case, port):
                continue
            share = f"{lost:,} of {sent:,} packets that {port} sent did not reach {case.peer(port)} ({lost / sent:.2%})"
            lines = [Observation(share, traffic.source)]
            if traffic.backlog:
                text = f"the receive backlog of this machine dropped {many(traffic.backlog, 'packet')}, too"
                lines.append(Observation(text, traffic.source))
            what = f"{port} loses packets on its link"
            found.setdefault(port, Finding("link-lossy", port, what, confidence, tuple(lines)))
    if not found and any(each.backlog for each in case.traffic):
        return CauseResult(unknown="the receive backlog of this machine dropped packets")
    return _seen(case, tuple(found.values()), "every packet that a port sent arrived at the other end")


def _gone(case: Case, port: str) -> bool:
    """Whether a state of the link explains lost packets: it was down, or has a wrong MTU."""
    return bool({port, case.peer(port)} & (case.down | case.disturbed)) or port.partition(":")[0] in case.dead


def bit_errors(case: Case) -> CauseResult:
    """Packets arrive with a wrong ICRC, and all of them passed one port."""
    found: dict[str, Finding] = {}
    for traffic in case.traffic:
        for place in damaged_at(traffic.flows):
            sure = place.margin >= _SURE and not place.ties
            text = f"{place.damaged:,} of {place.packets:,} packets over {place.port} had a wrong ICRC; "
            text += f"over other ports {place.elsewhere:,} of {place.others:,}"
            what = f"{place.port} damages packets on its link"
            confidence: Confidence = "established" if sure else "likely"
            line = Observation(text, traffic.source)
            old = found.get(place.port)
            if old is None or (old.confidence == "likely" and sure):
                lines = (*(() if old is None else old.evidence), line)
                found[place.port] = Finding("bit-errors", place.port, what, confidence, lines, place.ties)
    sure_ports = [each for each in found.values() if each.confidence == "established"]
    kept = sure_ports or [*found.values()]
    errors = None if case.run is None else case.run.record.icrc_errors
    if not kept and errors:
        text = f"{many(errors, 'packet')} arrived with a wrong ICRC, and no flow of data among them"
        return CauseResult(unknown=text)
    return _seen(case, tuple(kept), "no packet arrived with a wrong ICRC")


def wrong_mtu(case: Case) -> CauseResult:
    """Probes of full size are lost at one port, and small ones arrive. The diagnosis adds what facts show of MTUs."""
    full = [replace(each, packets=each.full, damaged=each.full_lost) for each in case.probes if each.full]
    found = []
    for place in damaged_at(full):
        small = [each.lost - each.full_lost for each in case.probes if place.port in each.ports]
        if place.damaged < place.packets or any(small) or case.disturbed & {place.port, *place.ties}:
            continue
        text = f"{place.damaged} of {place.packets} full packets over {place.port} were lost, and no small one"
        what = f"no full packet passes the link {case.link(place.port)} (MTU)"
        sure: Confidence = "established" if place.margin >= _SURE and not place.ties else "likely"
        found.append(Finding("wrong-mtu", place.port, what, sure, (Observation(text, OF_PROBES),), place.ties))
    return CauseResult(tuple(found)) if found else by_checks(case, "wrong-mtu")


@dataclass(frozen=True, slots=True)
class DamagePlace:
    """The port that damages packets, most likely. margin: of the log-likelihood, against the next port.

    ties: ports with the same packets. others, elsewhere: packets of flows that did not pass it, and the damaged ones.
    """

    port: str
    packets: int
    damaged: int
    others: int
    elsewhere: int
    margin: float
    ties: tuple[str, ...]


def damaged_at(flows: Sequence[FlowSeen]) -> list[DamagePlace]:
    """Where packets were damaged, a row for each link, as far as the paths of these flows tell."""
    left, found = [*flows], list[DamagePlace]()
    while (total := sum(flow.damaged for flow in left)) and len(found) < _PLACES:
        passed: dict[str, list[int]] = {}
        for flow in left:
            for port in flow.ports:
                row = passed.setdefault(port, [0, 0])
                row[0] += flow.packets
                row[1] += flow.damaged
        every = sum(flow.packets for flow in left)
        scores = {port: _score(row[0], row[1], every, total) for port, row in passed.items() if row[1]}
        best = max(scores, key=lambda port: (scores[port], port))
        same = tuple(port for port in scores if port != best and passed[port] == passed[best])
        others = [score for port, score in scores.items() if port != best and port not in same]
        margin = scores[best] - max(others) if others else math.inf
        packets, damaged = passed[best]
        found.append(DamagePlace(best, packets, damaged, every - packets, total - damaged, margin, same))
        left = [flow for flow in left if best not in flow.ports]
    return found


def _score(packets: int, damaged: int, every: int, total: int) -> float:
    """The log-likelihood of one share of damaged packets over a port, and another, small one elsewhere."""
    found = 0.0
    for count, hits in ((packets, damaged), (every - packets, total - damaged)):
        if 0 < hits < count:
            found += hits * math.log(hits / count) + (count - hits) * math.log1p(-hits / count)
    return found


def slow_link(case: Case) -> CauseResult:
    """A port is set to a lower rate than its link has, or drained its queue more slowly than others during the run."""
    state = slow_port(case)
    found = tuple(each for each in state.findings if each.cause == "slow-link")
    if found:
        return CauseResult.of(found, "")
    recorded = None if case.run is None else case.run.recorded.value
    run = None if case.run is None else case.run.record
    if recorded is None or run is None or not run.done:
        return CauseResult.of((), state.ruled_out) if state.ruled_out else CauseResult(unknown="no queues over time")
    # A busy host CPU holds all ports back alike, so then the difference must be larger.
    below = _SLOWER if run.limited else _SLOW
    labels, series = recorded.labels, recorded.series
    shares = {label.port: rate / label.rate_bps for label, rate in drain_rates(labels, series, always=False)}
    slow = []
    for label, rate in drain_rates(labels, series, always=True):
        port = label.port
        rest = [each for other, each in shares.items() if other != port]
        if not rest or rate / label.rate_bps >= below * min(1.0, median(rest)) or _gone(case, port):
            continue
        sent = format_rate(int(float(f"{rate:.2g}")))
        text = f"with a queue, {port} sent {sent} of {format_rate(label.rate_bps)} for some time"
        others = f"other ports with a queue reached {median(rest):.0%} of their rate"
        lines = (Observation(text, OF_SERIES), Observation(others, OF_SERIES))
        slow.append(Finding("slow-link", port, f"the link {case.link(port)} was slow", "likely", lines))
    return CauseResult.of(slow, state.ruled_out or "every port with a queue sent at the rate of its link")


def drain_rates(labels: Sequence[RowLabel], series: Series, *, always: bool) -> Iterator[tuple[RowLabel, float]]:
    """The rate of each port in the buckets that began and ended with a queue, without pauses, in bit/s.

    All classes of the port share it. Of several parts of the run the one with the lowest rate: a link may be slow for
    a part of it. always: only where the queue was not empty between, either: no more left than waited at the start of
    the bucket. That holds for several buckets in a row; a single one may be one in which the machine was late.
    """
    lengths: F64 = series.ends_s - series.starts_s
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label.port, []).append(row)
    for own in rows.values():
        depth, paused, out = (series.columns[name][own].sum(axis=0) for name in ("depth", "paused_ns", "out_bytes"))
        full = (depth[1:] > 0) & (depth[:-1] > 0) & (paused[1:] == 0) & (lengths[1:] > 0)
        if always:
            full &= out[1:] <= depth[:-1]
            edges = np.flatnonzero(np.diff(full, prepend=False, append=False))
            for begin, end in edges.reshape(-1, 2):
                full[begin:end] = end - begin >= _BUSY
        label, sent, seconds = labels[own[0]], out[1:][full], lengths[1:][full]
        if (count := int(full.sum())) >= _BUSY:
            parts = [slice(count * at // _PARTS, count * (at + 1) // _PARTS) for at in range(_PARTS)]
            parts = parts if count >= _BUSY * _PARTS else [slice(None)]
            yield label, min(float(8 * sent[part].sum() / seconds[part].sum()) for part in parts)


def slow_host(case: Case) -> CauseResult:
    """A rank uses messages long after they arrived, or its NIC is set to a lower rate."""
    nics = tuple(each for each in slow_port(case).findings if each.cause == "slow-host")
    slowest = case.slowest
    if nics or slowest is None or case.run is None:
        return CauseResult(nics, unknown="" if nics else "the times of ranks are not known")
    late = [rank for rank in slowest.ranks if rank.share >= _LATE]
    found = []
    for rank in late if _FEW * len(late) <= len(case.run.record.ranks) else ():
        text = f"messages that had arrived waited for rank {rank.rank} {rank.share:.0%} of an iteration"
        lines = (Observation(text, OF_RANKS), Observation(f"median of the other QPs: {slowest.median:.0%}", OF_RANKS))
        host = rank.nic.partition(":")[0]
        what = f"{host} is slow: its rank uses messages late"
        found.append(Finding("slow-host", host, what, _by_times(slowest), lines))
    lost = any(each.on_link(port)[1] > 0 for each in case.traffic for port in each.tallies)
    if not found and (lost or any(flow.damaged for each in case.traffic for flow in each.flows)):
        return CauseResult(unknown="packets were lost or damaged, so ranks waited for these")
    return CauseResult.of(found, "no rank uses messages late")


def pause_storm(case: Case) -> CauseResult:
    """A host sends pause frames, so that its switch's port, and the ports behind it, stop."""
    frames, source = _host_pauses(case)
    recorded = None if case.run is None else case.run.recorded.value
    found = []
    for port, count in frames.items():
        nic = case.peer(port)
        lines = [Observation(f"{port} received {many(count, 'pause frame')} from {nic}", source)]
        confidence: Confidence = "established"
        if recorded is not None and source == OF_SERIES:
            total = max(float(recorded.series.ends_s[-1]) if len(recorded.series.ends_s) else 0.0, 1e-9)
            times: Counter[str] = Counter()
            for row, label in enumerate(recorded.labels):
                times[label.port] += 0 if label.host else int(recorded.series.columns["paused_ns"][row].sum())
            paused = times[port] / 1e9
            lines.append(Observation(f"{port} was paused {paused / total:.0%} of the run", OF_SERIES))
            confidence = "established" if paused >= _PAUSED * total else "likely"
            if victims := [each for each, ns in times.most_common() if ns and each != port]:
                lines.append(Observation(f"paused behind it, as victims: {some_of(victims)}", OF_SERIES))
        what = f"{nic} sends pause frames (PFC storm)"
        found.append(Finding("pfc-storm", nic, what, confidence, tuple(lines)))
    if source == OF_RUN and not case.watched:
        return CauseResult(unknown="no queues over time")
    return CauseResult.of(found, "no host sent a pause frame")


def _host_pauses(case: Case) -> tuple[dict[str, int], str]:
    """Port of a switch to a host -> pause frames that it received, and the reading that counted them."""
    recorded = None if case.run is None else case.run.recorded.value
    found: Counter[str] = Counter()
    if recorded is not None:
        for row, label in enumerate(recorded.labels):
            if not label.host and case.to_host(label.port):
                found[label.port] += int(recorded.series.columns["pfc_received"][row].sum())
    elif case.watched and case.evidence is not None:
        counts = [state.queues.gates["pfc_received"] for state in (case.evidence.before, case.evidence.after)]
        moved = (counts[1] - counts[0]).reshape(-1, CLASSES).sum(axis=1)
        for number, port in numbered_ports(case.fabric):
            if case.of_switch(port.ref) and case.to_host(port.ref):
                found[port.ref] += int(moved[number])
    return {port: count for port, count in found.items() if count}, OF_RUN if recorded is None else OF_SERIES


def incast(case: Case) -> CauseResult:
    """Several senders fill the port of one receiver: a property of the traffic, not a fault."""
    slowest = _waited(case)
    if slowest is None:
        return CauseResult(unknown=_NO_SLOWEST)
    port = slowest.waits[0]
    flows = case.traffic[0].flows if case.traffic else ()
    senders = {flow.ports[0] for flow in flows if flow.ports[-1] == port.port}
    if not case.to_host(port.port) or len(senders) < _FAN_IN:
        return CauseResult(ruled_out="packets did not wait longest at the port of a receiver with several senders")
    text = f"packets waited {port.wait_s * 1e3:.3g} ms at {port.port}, up to {format_bytes(port.high_water)}"
    lines = (Observation(text, OF_SERIES), Observation(f"{len(senders)} NICs send to {case.peer(port.port)}", OF_RUN))
    what = f"{len(senders)} senders share {port.port}, the port of {case.peer(port.port)} (incast)"
    return CauseResult((Finding("incast", port.port, what, _by_times(slowest), lines),))


def _waited(case: Case) -> Slowest | None:
    """The slowest QPs of the run, if their packets waited at a port, and the host CPU was surely not the bottleneck."""
    run = None if case.run is None else case.run.record
    return case.slowest if run is not None and case.slowest and case.slowest.waits and not run.overrun else None


def _by_times(slowest: Slowest) -> Confidence:
    """How certain times are: the host CPU may have been the bottleneck."""
    return "likely" if slowest.limited else "established"


def collision(case: Case) -> CauseResult:
    """Flows share an uplink while others of the same switch carry less: hashing, not a fault."""
    slowest = _waited(case)
    if slowest is None or case.evidence is None:
        return CauseResult(unknown=_NO_SLOWEST)
    waits = {each.port: each for each in slowest.waits}
    uplinks: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for link in links_of(case.fabric, case.evidence):
        node, _, name = link.port.partition(":")
        if link.usable and _chosen(case.fabric, case.fabric.by_name[node].port(name)):
            uplinks.setdefault((node, link.direction), []).append((link.port, link.seconds))
    found = []
    for rows in uplinks.values():
        mean = sum(seconds for _, seconds in rows) / len(rows)
        for port, seconds in rows:
            if port in waits and mean and seconds > _UNEVEN * mean and case.crossing.get(port, 0) > 1:
                count = case.crossing[port]
                text = f"{port} carried {seconds / mean:.1f} x the mean of {len(rows)} uplinks, with {count} flows"
                wait = Observation(f"packets waited longest there: {waits[port].wait_s * 1e3:.3g} ms", OF_SERIES)
                what = f"{many(count, 'flow')} share the uplink {port} (hash collision)"
                lines = (Observation(text, OF_RUN), wait)
                found.append(Finding("hash-collision", port, what, _by_times(slowest), lines))
    return CauseResult.of(found, "the packets of the slowest QPs did not wait at an uplink with more load than others")


def _chosen(fabric: Fabric, port: Port) -> bool:
    """Whether a hash chooses a port that leads up; where routes go sideways, many edges have a single next hop."""
    if not fabric.sideways:
        return fabric.leads_up(port)
    return any(len(group.ports) > 1 and port.name in group.ports for group in fabric.next_hop_groups[port.node])


def busy_machine(case: Case) -> CauseResult:
    """The host CPU was the bottleneck of the run, not the fabric."""
    run = None if case.run is None else case.run.record
    if run is None or not run.done:
        return CauseResult(unknown="no finished run")
    doubts = run.doubts
    confidence: Confidence = "established" if run.overrun else "likely"
    lines = tuple(Observation(cause.text, "use of the machine") for cause in doubts[:4])
    what = f"the host CPU {'was' if run.overrun else 'may have been'} the bottleneck"
    found = [Finding("host-cpu", case.fabric.name, what, confidence, lines)] if doubts else []
    return CauseResult.of(found, "the host CPU was not the bottleneck")


def black_hole(case: Case) -> CauseResult:
    """Every probe of some paths is lost, and no link loses or refuses them: at a node that all these paths have."""
    tallies = case.traffic[-1] if case.probed else None
    if tallies is None or not case.probes:
        return CauseResult(unknown="no probes were sent")
    flows = []
    for each in case.probes:
        dead = not each.packets and not any(tallies.on_link(port)[1] > 0 or _gone(case, port) for port in each.ports)
        nodes = [port.partition(":")[0] for port in (*each.ports[1:], case.peer(each.ports[-1]))]
        flows.append(replace(each, ports=(*nodes,), packets=each.packets + each.lost, damaged=each.lost * dead))
    found = []
    for place in damaged_at(flows):
        count = sum(bool(each.damaged) for each in flows if place.port in each.ports)
        text = f"all probes over {many(count, 'path')} through {place.port} were lost, and none on a link"
        sure: Confidence = "established" if place.margin >= _SURE and not place.ties else "likely"
        what = f"{place.port} does not forward packets of {many(count, 'path')}"
        found.append(Finding("black-hole", place.port, what, sure, (Observation(text, OF_PROBES),), place.ties))
    alive = sum(each.packets > 0 for each in case.probes)
    text = f"probes passed {alive} of {many(len(case.probes), 'path')}"
    return CauseResult.of(found, text + ("" if alive == len(case.probes) else ", and links lost those of the others"))


def unproven_paths(case: Case) -> CauseResult:
    """Counters do not agree with the paths that routes and hashing give, as when routes were lost for some time."""
    proof = None if case.run is None else case.run.proof
    if proof is None or proof.value is None:
        return CauseResult(unknown="no run" if proof is None else proof.why)
    result, lines = proof.value, proof.value.unproven
    if not lines:
        return CauseResult(ruled_out=f"{result.source_names} agree on {len(result.flows)} {result.units}")
    dropped: Counter[str] = Counter()
    for each in result.flows:
        hop = each.flow.first_hop
        arrived = bool(case.traffic) and case.traffic[0].on_link(case.peer(hop))[1] <= 0
        if each.why and arrived:
            dropped[hop.partition(":")[0]] += max(0, each.sent.packets - (each.counted or (0,))[0])
    count = sum(bool(flow.why) for flow in result.flows) or len(result.flows)
    what = f"the paths of {count} of {len(result.flows)} {result.units} are not proven"
    where, packets = ((+dropped).most_common(1) or [(case.fabric.name, 0)])[0]
    if packets:
        what = f"{where} did not forward {many(packets, 'packet')} that it received, as without a route; {what}"
    rows = tuple(Observation(line, "proof of the run") for line in lines)
    return CauseResult((Finding("unproven-paths", where, what, "established", rows),))


def failed_check(case: Case) -> CauseResult:
    """A check of `validate` fails, and no fact is its cause."""
    found = []
    places = {*case.fabric.by_name, *(port.ref for node in case.fabric.nodes for port in node.ports)}
    # What facts, nodes that are down, and the proof of the run show is named by other findings.
    shown = {line.text for each in unproven_paths(case).findings for line in each.evidence}
    known = {FACTS[fact.kind].check for fact, source in case.facts.items() if NOW in source}
    known |= {"nodes"} if case.live is not None and {*case.live.stopped} <= {*case.dead} else set()
    for each in (row for row in case.checks if not row.ok and row.name not in known):
        if any(text in each.detail for text in shown):
            continue
        words = (word.rstrip(":,;") for word in each.detail.split())
        where = next((word for word in words if word in places), case.fabric.name)
        what = f"the check {each.name} fails: {each.detail.partition('; ')[0]}"
        line = Observation(each.detail, f"check {each.name}")
        found.append(Finding("failed-check", where, what, "likely", (line,)))
    made = sum(each.ok and not each.skipped for each in case.checks)
    return CauseResult.of(found, f"{made} checks pass") if made else CauseResult((*found,), unknown=NO_LAB)


def _seen(case: Case, found: tuple[Finding, ...], ruled_out: str) -> CauseResult:
    """ruled_out: for the ports that sent data, which it counts."""
    if not case.traffic:
        return CauseResult(unknown="no counters of a run, and no probes")
    dscp, queues = _data_of_run(case)
    numbers = {queues.class_of_dscp[dscp], case.fabric.policy.queues.class_of_dscp[DSCP_DATA]}  # of the run, of probes
    sent = {port for each in case.traffic for port, rows in each.tallies.items() if not numbers.isdisjoint(rows)}
    ports = [port.ref for node in case.fabric.nodes for port in node.ports]
    unseen = [ref for ref in ports if ref not in sent]
    unknown = f"{some_of(unseen)} sent no data" if unseen and not found else ""
    return CauseResult(found, "" if found else f"{ruled_out} ({len(sent)} of {len(ports)} ports sent data)", unknown)
