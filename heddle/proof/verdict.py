"""The verdict on paths: a comparison of three sources, and how evenly the links were used.

In:  a lab's fabric, and Evidence of a run.
Out: PathsResult. `agree` is true only if for every QP that sent packets
- prediction, oracle and measurement name the same ports, and these lead to its destination,
- the first hop counted exactly the packets and bytes that were sent,
- the NIC took the packets that the last port counted, and
- packets missing between two counters are exactly those of their class that the queue between them dropped.
If a QP is spread over several ports, prediction and kernel lookup name all ports that it may take, no other port may
have counted it, and the counts of each step must add up all the same.
On a kernel that chooses differently from our arithmetic (selftest.py), the result has no prediction.
If traffic engineering changed entries during the run, a packet may meet the old rule at one switch and the new one at
the next. So a step then has all ports that the switch chose for this flow under any of its rules, as for a spread flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import count as numbers
from typing import Any

from heddle.base.tables import many, some_of
from heddle.fabric.hashmodes import SPREADING
from heddle.fabric.model import Fabric, NicNames
from heddle.fabric.wiring import BACKEND
from heddle.kernel.fib import Fib
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.predict.forwarding import FlowArrays
from heddle.predict.predict import predict, predict_under, rule_of
from heddle.predict.rules import HashingRule
from heddle.predict.selftest import SelfTest, verdict
from heddle.predict.statistics import Entropy, entropy_of
from heddle.predict.walk import ports_of, spreads
from heddle.proof import oracle
from heddle.proof.collect import RunningLab
from heddle.proof.evidence import Evidence
from heddle.proof.linkuse import LinkUse, Mmr, UplinkSet, links_of, planned_links
from heddle.proof.measure import Behind, Measured, measure, measured_why, peers_of
from heddle.proof.separation import Separation, separation
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.flow import Flow, Sent

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowProof:
    """One QP: its sent packets, its path by three sources, and the reason that it is not proven ('' when it is).

    predicted: None on a kernel for which the prediction is wrong. seen: the counts of the ports.
    """

    sent: Sent
    predicted: Path | None
    oracle: Path
    seen: Measured
    why: str

    @property
    def flow(self) -> Flow:
        """The QP's data flow."""
        return self.sent.flow

    @property
    def measured(self) -> Path:
        """The ports that counted it."""
        return self.seen.path

    @property
    def counted(self) -> tuple[int, ...]:
        """Packets at each measured step."""
        return self.seen.packets

    @property
    def by_port(self) -> Mapping[str, int]:
        """Packets that each port counted, for a QP that was spread."""
        return {count.port: count.packets for step in self.seen.steps for count in step}

    @property
    def expected(self) -> Path:
        """The expected path: the prediction, or the kernel lookup if there is none."""
        return self.oracle if self.predicted is None else self.predicted

    @property
    def spread(self) -> bool:
        """Whether its packets may take several paths."""
        return spreads(self.expected) or spreads(self.oracle)

    def to_json(self) -> dict[str, Any]:
        row = {
            "src": self.flow.src, "dst": self.flow.dst, **self._number(), "sport": self.flow.sport,
            "predicted": None if self.predicted is None else list(self.predicted),
            "oracle": list(self.oracle), "measured": list(self.measured),
            "packets": self.sent.packets, "counted": list(self.counted),
            "received": self.seen.received, "agree": not self.why, "why": self.why,
            "spread": self.spread,
        }  # fmt: skip
        return {**row, "by_port": dict(self.by_port)} if self.spread else row

    def _number(self) -> dict[str, Any]:
        flow = self.flow
        return {"qpn": flow.qpn} if flow.has_qp else {"protocol": flow.label.split()[0], "dport": flow.dport}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Packets of all QPs at the last ports, and at the receiving NICs; None if not all NICs reported.

    No counter of a switch shows a loss after the last port; only the NIC's report does.
    """

    qps: int
    counted: int
    received: int | None

    @classmethod
    def of(cls, proofs: Sequence[FlowProof]) -> Arrivals:
        """The sums over some QPs."""
        taken = [proof.seen.received for proof in proofs if proof.seen.received is not None]
        # A QP that lost all of its packets on the way has no count at its last port.
        counted = sum(proof.counted[-1] for proof in proofs if len(proof.counted) >= len(proof.expected) > 0)
        return cls(len(proofs), counted, sum(taken) if len(taken) == len(proofs) else None)

    def to_json(self) -> dict[str, Any]:
        return {"qps": self.qps, "counted": self.counted, "received": self.received}


def source_words(sources: Sequence[str]) -> str:
    """Sources in words: `prediction, kernel lookup and counters`."""
    names = ["kernel lookup" if each == "oracle" else each for each in sources]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass(frozen=True, slots=True)
class PathsResult:
    """The result of `./inv paths`. lost: port -> packets of proven flows that were lost between it and the next port.
    trimmed: port -> packets of the flows' classes that were trimmed there, and went on.

    per_leaf: by the switches whose uplinks count; leaf_word: the shape's word for them.
    sources: those of prediction, oracle and counters that were compared. selftest: of the prediction on this kernel.
    mmr: over `uplinks`. delivery: None if nothing was sent. choices: the source of the oracle's choices (oracle.py).
    nics: the names of the flows' ends. rule: of all switches; of 5-tuples if they have several, or hash nothing.
    wrong: elements of the stored run that are wrong. separation: of several networks.
    """

    agree: bool
    flows: tuple[FlowProof, ...]
    links: tuple[LinkUse, ...]
    mmr: Mmr
    per_leaf: Mapping[str, Mmr]
    leaf_word: str
    lost: Mapping[str, int]
    notes: tuple[str, ...]
    sources: tuple[str, ...] = ("prediction", "oracle", "counters")
    selftest: SelfTest | None = None
    delivery: Arrivals | None = None
    choices: Mapping[str, int] = field(default_factory=dict)
    nics: NicNames = field(default_factory=NicNames)
    rule: HashingRule = field(default_factory=HashingRule)
    wrong: int = 0
    separation: Separation | None = None
    trimmed: Mapping[str, int] = field(default_factory=dict)

    @property
    def uplinks(self) -> UplinkSet:
        """The links of the MMR."""
        return UplinkSet.of(self.links)

    @property
    def units(self) -> str:
        """What `flows` are: `QPs`; `source ports of 4 QPs`, where hosts spray over several ports of each; `flows`, if
        some have no QP.
        """
        if not all(each.flow.has_qp for each in self.flows):
            return "flows"
        qps = len({(each.flow.src_ip, each.flow.dst_ip, each.flow.qpn) for each in self.flows})
        sprays = len(self.flows) > qps and len({each.flow.key for each in self.flows}) == len(self.flows)
        return f"source ports of {qps} QP{'' if qps == 1 else 's'}" if sprays else "QPs"

    @property
    def source_names(self) -> str:
        """The sources in words: `prediction, kernel lookup and counters`."""
        return source_words(self.sources)

    @property
    def unproven(self) -> list[str]:
        """A line for each flow that is not proven; the notes where another reason leaves all of them open."""
        wrong = [f"{p.flow.src} to {p.flow.dst}, QP {p.flow.label}: {p.why}" for p in self.flows if p.why]
        return wrong if wrong or self.agree else list(self.notes)

    @property
    def entropy(self) -> Entropy:
        """The entropy of what `rule` hashes; of 5-tuples where packets of one flow differ in it."""
        flows = FlowArrays.of([proof.flow for proof in self.flows])
        found = ((rule.inputs(flows), rule.hashed) for rule in (self.rule, HashingRule()))
        return next(entropy_of(inputs, of) for inputs, of in found if inputs is not None)

    def ends(self, proof: FlowProof) -> tuple[str, str]:
        """The ends of a QP: `host1`, or `host1:eth2` for a host with several NICs."""
        flow = proof.flow
        return self.nics.shown(flow.src, flow.src_ip), self.nics.shown(flow.dst, flow.dst_ip)

    def nics_of(self, proof: FlowProof) -> tuple[str, str]:
        """The NICs at both ends, `host1:eth1`."""
        flow = proof.flow
        return self.nics.nic(flow.src, flow.src_ip), self.nics.nic(flow.dst, flow.dst_ip)

    def _row(self, proof: FlowProof) -> dict[str, Any]:
        src, dst = self.nics_of(proof)
        return {**proof.to_json(), "src_nic": src, "dst_nic": dst}

    def to_json(self) -> dict[str, Any]:
        """The keys of `paths`; packets and bytes are counts, paths are lists of egress ports."""
        per_leaf = {name: {"flows": m.flows, "bytes": m.bytes} for name, m in self.per_leaf.items()}
        return {
            "agree": self.agree,
            "flows": [self._row(proof) for proof in self.flows],
            "links": [row.to_json() for row in self.links],
            "mmr": {
                "flows": self.mmr.flows,
                "bytes": self.mmr.bytes,
                f"per_{self.leaf_word}": per_leaf,
                "over": {
                    "links": len(self.uplinks.links),
                    "switches": list(self.uplinks.switches),
                    "left_out": {link.port: link.state for link in self.uplinks.unusable},
                },
            },
            "delivery": self.delivery.to_json() if self.delivery else None,
            "oracle_choices": dict(self.choices),
            "entropy": self.entropy.to_json(),
            "lost": dict(self.lost),
            **({"trimmed": dict(self.trimmed)} if self.trimmed else {}),
            "notes": list(self.notes),
            "sources": list(self.sources),
            "selftest": self.selftest.to_json() if self.selftest else None,
            **({"separation": self.separation.to_json()} if self.separation else {}),
        }


def prove(fabric: Fabric, evidence: Evidence, selftest: SelfTest | None = None) -> PathsResult:
    """Compare the three sources for every flow that was sent.

    selftest: of the prediction on the kernel that forwarded; by default that of this machine's kernel.
    """
    flows = evidence.sent
    wanted = [sent.flow for sent in flows]
    trusted = selftest or verdict()
    predicted, answers = _paths_by(fabric, evidence, wanted, trusted)
    expected = [asked if own is None else own for own, asked in zip(predicted, answers, strict=True)]
    wide = [spreads(path) for path in expected]
    measured = measure(fabric, evidence.counters, wanted, wide, evidence.received)
    peers = peers_of(fabric)
    classes = [sent.classes(fabric.policy.queues.class_of_dscp) for sent in flows]
    queue = fabric.policy.queues.trim_queue
    behind = Behind.by_class(evidence, measured, peers, classes, queue)
    addresses = _host_addresses(fabric)
    proofs = tuple(
        _proof(sent, own, asked, seen, (behind[number], peers), addresses)
        for sent, own, asked, seen, (number, *_) in zip(flows, predicted, answers, measured, classes, strict=True)
    )
    misses = sum(table.misses for table in evidence.counters.values())
    notes = _notes(evidence, _change_notes(evidence, predicted), misses, behind)
    notes += _prediction_notes(trusted, () if evidence.switched else proofs)
    notes += other_routes(fabric, evidence.after.fibs, wanted, [proof.measured for proof in proofs])
    # Packets that were sent under rules which are not known prove none of them, even if the counts agree with some.
    agree = not misses and _proven_over_changes(evidence, predicted) and all(not proof.why for proof in proofs)
    links = links_of(fabric, evidence)
    lost = sum((Counter(each.lost) for each in behind.values()), Counter[str]())
    found = _result(fabric, agree, proofs, links, lost, notes, (_sources(trusted, "counters"), trusted))
    rule = _rule([*evidence.before.hashing.values(), *evidence.after.hashing.values()])
    apart = separation(fabric, evidence.counters) if len(fabric.networks) > 1 else None
    return replace(found, delivery=Arrivals.of(proofs), choices=evidence.choices, rule=rule, separation=apart,
                   trimmed=_trimmed(evidence, behind.values()))  # fmt: skip


def lookup_paths(lab: RunningLab, flows: Sequence[Flow], now: Snapshot | None = None) -> PathsResult:
    """Prediction and kernel lookup for flows that are not sent; measured is empty, and links count flows only.

    now: a snapshot with FIBS, HASHING, CARRIER and, where BGP can drain switches, DRAINED, if the caller has one.
    """
    now = now or lab.snapshot(LabPart.FIBS | LabPart.HASHING | LabPart.CARRIER)
    trusted = verdict()
    predicted: Sequence[Path | None] = [None] * len(flows)
    if not trusted.differs:
        predicted = predict(lab.fabric, now.fibs, now.hashing, flows)
    asked = oracle.ask(lab, now.hashing, flows)
    addresses = _host_addresses(lab.fabric)
    proofs = tuple(
        FlowProof(Sent(flow, 0, 0), own, other, Measured(()), _path_why(flow, own, other, addresses))
        for flow, own, other in zip(flows, predicted, asked.paths, strict=True)
    )
    counts: dict[str, int] = {}
    for proof in proofs:
        for port in (port for step in proof.expected for port in ports_of(step)):
            counts[port] = counts.get(port, 0) + 1
    links = planned_links(lab.fabric, flows, counts, now)
    notes = ("no packet was sent: paths are from FIBs and kernel lookups", *_prediction_notes(trusted, proofs))
    agree = all(not proof.why for proof in proofs)
    found = _result(lab.fabric, agree, proofs, links, {}, notes, (_sources(trusted), trusted))
    return replace(found, choices=asked.choices, rule=_rule(now.hashing.values()))


def _rule(hashing: Iterable[SwitchHashing]) -> HashingRule:
    """The rule of all switches, if they have one rule by which each flow has one path; or that of 5-tuples."""
    rules = {rule_of(each) for each in hashing}
    known = [rule for rule in rules if rule.mode not in SPREADING and rule.problem("", 1) is None]
    return known[0] if len(rules) == len(known) == 1 else HashingRule()


def _sources(trusted: SelfTest, *more: str) -> tuple[str, ...]:
    return (*(() if trusted.differs else ("prediction",)), "oracle", *more)


def _prediction_notes(trusted: SelfTest, proofs: Sequence[FlowProof]) -> tuple[str, ...]:
    """Notes about the prediction, and about flows that take several paths."""
    notes = []
    if trusted.differs:
        notes.append(f"{trusted.text()}; kernel lookups are used instead")
    elif trusted.state == "unchecked":
        notes.append(trusted.text())
    if wide := sum(proof.spread for proof in proofs):
        said = "1 QP is" if wide == 1 else f"{wide} QPs are"
        notes.append(f"{said} spread: each has no single path, but a set of ports that its packets may take")
    return tuple(notes)


def _result(
    fabric: Fabric,
    agree: bool,
    proofs: tuple[FlowProof, ...],
    links: Sequence[LinkUse],
    lost: Mapping[str, int],
    notes: tuple[str, ...],
    sources: tuple[tuple[str, ...], SelfTest],
) -> PathsResult:
    uplinks = [link for link in links if link.uplink and link.usable]
    measured = {fabric.level_of(fabric.by_name[link.port.partition(":")[0]]).network for link in links if link.uplink}
    leaves = [each for each in fabric.switch_levels if each.counts_uplinks and each.network in (measured or {BACKEND})]
    per_leaf = {
        switch.name: Mmr.of([link for link in uplinks if link.port.partition(":")[0] == switch.name])
        for switch in fabric.switches
        if fabric.level_of(switch) in leaves
    }
    word = leaves[0].word if leaves else "switch"
    mmr = Mmr.of(UplinkSet.of(links).links)
    nics = NicNames.of(fabric)
    return PathsResult(agree, proofs, tuple(links), mmr, per_leaf, word, lost, notes, *sources, nics=nics)


def _proof(
    sent: Sent,
    own: Path | None,
    asked: Path,
    seen: Measured,
    changes: tuple[Behind, Mapping[str, str]],
    addresses: Mapping[str, str],
) -> FlowProof:
    expected = asked if own is None else own
    why = _path_why(sent.flow, own, asked, addresses, seen.path) or measured_why(sent, expected, seen, *changes)
    return FlowProof(sent, own, asked, seen, why)


def _host_addresses(fabric: Fabric) -> dict[str, str]:
    """Switch port -> the address of the NIC that is connected to it."""
    return {port.peer_ref: address for address, port in fabric.nic_at.items()}


def _path_why(flow: Flow, own: Path | None, asked: Path, addresses: Mapping[str, str], seen: Path = ()) -> str:
    if own is not None and own != asked:
        at = next(at for at in numbers() if own[at : at + 1] != asked[at : at + 1])
        where = (" ".join(path[at : at + 1]) or "nothing" for path in (own, asked))
        counted = f", counted {' '.join(seen[at : at + 1]) or 'nothing'}" if seen else ""
        return "the prediction differs from the kernels: predicted {}, kernel {}".format(*where) + counted
    if not asked:
        return f"{flow.first_hop.partition(':')[0]} has no route to {flow.dst_ip}"
    if {addresses.get(port) for port in ports_of(asked[-1])} != {flow.dst_ip}:
        return f"the path ends after {asked[-1]}, which does not lead to {flow.dst_ip}"
    return ""


def _notes(evidence: Evidence, moved: Sequence[str], misses: int, behind: Mapping[int, Behind]) -> tuple[str, ...]:
    """moved: notes on changes of rules and routes. behind: by the number of the class."""
    notes: list[str] = []
    if idle := sum(not sent.packets for sent in evidence.sent):
        notes.append(f"{idle} QPs had nothing to send, so they have no measured path")
    notes += (*moved, *evidence.requested, *evidence.unplanned)
    if trimmed := _trimmed(evidence, behind.values()):
        ports = some_of([f"{port} ({count})" for port, count in trimmed.items()])
        notes.append(f"{sum(trimmed.values())} packets were trimmed and went on as heads: at {ports}")
    if unused := sum(sum(each.unused.values()) for each in behind.values()):
        notes.append(f"{unused} trimmed packets reached NICs whose transport cannot use them")
    for changes in behind.values():
        number = " and ".join(map(str, changes.numbers))
        for port, count in sorted(changes.lost.items()):
            drops = evidence.class_drops(port, *changes.numbers)
            dropped = f"{evidence.drops[port]}" if drops is None else f"{drops} of class {number}"
            notes.append(f"{count} packets were lost after {port}; its queue dropped {dropped}")
        for port, count in sorted(changes.copied.items()):
            copies = evidence.tally(port, *changes.numbers).copies
            notes.append(f"{count} packets came twice after {port}; its link copied {copies} of class {number}")
    if evidence.backlog_drops:
        notes.append(
            f"this machine dropped {evidence.backlog_drops} packets before a switch received them: "
            "host CPU was the bottleneck, not the fabric (net.core.netdev_max_backlog)"
        )
    if misses:
        notes.append(f"{misses} packets were not counted: a counter map was full")
    return tuple(notes)


def _trimmed(evidence: Evidence, behind: Iterable[Behind]) -> dict[str, int]:
    """Port -> packets of the flows' classes that were trimmed there and went on."""
    classes = {number for each in behind for number in each.numbers}
    found = {port: sum(rows[n].trimmed for n in classes if n in rows) for port, rows in evidence.tallies.items()}
    return {port: count for port, count in found.items() if count}


def other_routes(
    fabric: Fabric, fibs: Mapping[str, Fib], flows: Sequence[Flow], paths: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Switches on these paths that match a destination with a prefix different from the fabric's."""
    asked = {
        (port.partition(":")[0], flow.dst_ip)
        for flow, path in zip(flows, paths, strict=True)
        for word in path
        for port in ports_of(word)
    }
    said: dict[str, None] = {}
    tables = {name: Fib(name, dict.fromkeys(fabric.expected_next_hops.get(name, ()), ())) for name in fibs}
    for switch, destination in sorted(asked):
        address = ip_address(destination)
        expected, found = (table[switch].match(address) for table in (tables, fibs))
        if expected is not None and found is not None and found != expected:
            said[f"{switch} routes {destination} with prefix {found}; the fabric has {expected}"] = None
    return tuple(said)


def _states_of(evidence: Evidence) -> tuple[Mapping[str, SwitchHashing], ...] | None:
    """The hashing of all switches from the start of the run, and from each change on; None if a change is missing."""
    state, states = dict(evidence.before.hashing), [evidence.before.hashing]
    epochs = dict(evidence.before.epochs)
    for change in evidence.rules:
        since = {name: each for name, each in change.rules.items() if each[0] > epochs[name]}
        if any(epoch != epochs[name] + 1 for name, (epoch, _) in since.items()):
            return None
        if since:
            epochs |= {name: epoch for name, (epoch, _) in since.items()}
            state |= {name: row for name, (_, row) in since.items()}
            states.append(dict(state))
    return tuple(states) if epochs == evidence.after.epochs else None


def _paths_by(
    fabric: Fabric, evidence: Evidence, flows: Sequence[Flow], trusted: SelfTest
) -> tuple[Sequence[Path | None], Sequence[Path]]:
    """For each flow its path by prediction (None on a kernel for which that is wrong), and by kernel lookup.

    The kernels were asked when the last rules were installed. If they agree with the prediction for these, the lookup
    has the ports of the earlier rules too.
    """
    if trusted.differs:
        return [None] * len(flows), evidence.oracle
    states = _states_of(evidence) or (evidence.before.hashing,)
    fibs = evidence.before.fibs
    if len(states) == 1:
        return predict(fabric, fibs, states[0], flows), evidence.oracle
    last, every = predict(fabric, fibs, states[-1], flows), predict_under(fabric, fibs, states, flows)
    rows = zip(evidence.oracle, last, every, strict=True)
    return every, [path if asked == end else asked for asked, end, path in rows]


def _change_notes(evidence: Evidence, paths: Sequence[Path | None]) -> tuple[str, ...]:
    """What is to be said of changes of rules and routes during the run. paths: by prediction."""
    rerouted = [name for name, fib in evidence.after.fibs.items() if fib != evidence.before.fibs[name]]
    notes = []
    if not evidence.switched:
        if evidence.changed:
            notes.append(f"routes or hashing changed during the run: {', '.join(evidence.changed)}")
        return tuple(notes)
    if not _proven_over_changes(evidence, paths):
        notes.append(f"hashing was changed during the run, so no path follows one rule: {', '.join(evidence.switched)}")
    else:
        said = [f"{each.by} at {datetime.fromtimestamp(each.at, UTC):%H:%M:%S.%f}"[:-3] for each in evidence.rules]
        moved = sum(path is not None and spreads(path) for path in paths)
        notes.append(
            f"entries were changed {many(len(said), 'time')} during the run ({some_of(said)} UTC): "
            f"{many(moved, 'QP')} had several paths in turn, and these are proven together"
        )
    if rerouted:
        notes.append(f"routes changed during the run: {', '.join(rerouted)}")
    return tuple(notes)


def _proven_over_changes(evidence: Evidence, paths: Sequence[Path | None]) -> bool:
    """Whether paths can be proven: no change of rules, or all of them are known and predicted."""
    return not evidence.switched or (_states_of(evidence) is not None and None not in paths)
