"""Diagnose a run: judge every cause, send probes where counters do not decide, and choose the verdict.

In:  a stored run, a running lab, or both. Out: Diagnosis, with findings, what was ruled out, and the verdict in words.
"""

from __future__ import annotations

import random
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from heddle.base import owners
from heddle.base.events import Observer
from heddle.base.problems import CheckError
from heddle.base.sysctls import HASH_SEED
from heddle.base.tables import many, some_of
from heddle.checks.validate import CHECKS, validate
from heddle.endpoints.nic.frames import FlowHeader, Parser, SendBatch
from heddle.endpoints.nic.nic import announce
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.kernel.namespace import inside
from heddle.lab.fact import Fact
from heddle.lab.facts import FACTS
from heddle.lab.lab import Lab
from heddle.lab.queues import wait_empty
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import concat, nothing, spread, union
from heddle.predict.predict import predict
from heddle.predict.walk import ports_of, spreads
from heddle.runs.stored import StoredRun
from heddle.runtimes.shardcalls import Moment
from heddle.switch.queues.cells import tallies_since
from heddle.traffic.flow import Endpoint, Flow
from heddle.traffic.placement import endpoint_at, no_nic
from heddle.wire import layout as wire
from heddle_plugins.engineering.diagnosis import symptoms, trims
from heddle_plugins.engineering.diagnosis.case import (
    NOW,
    OF_PROBES,
    Case,
    CauseResult,
    Finding,
    FlowSeen,
    Kind,
    Observation,
    TrafficSeen,
)


@dataclass(frozen=True, slots=True)
class CauseCheck:
    """One cause. words: for a list of what was ruled out. nika: its name in the benchmark NIKA, or our own where NIKA
    has none. kind: of the resource that NIKA blames. judge: its function; None where facts alone show it.

    fault: False for what load and hashing cause in a healthy fabric. effect: it may follow from another fault, so
    that also a likely one comes before it.
    """

    words: str
    nika: str
    kind: Kind
    judge: Callable[[Case], CauseResult] | None = None
    fault: bool = True
    effect: bool = False


_KNOWN: Final[Mapping[str, CauseCheck]] = {
    "node-down": CauseCheck("node down", "frr_service_down", "node", symptoms.node_down),
    "control-plane-dead": CauseCheck("control plane dead", "frr_service_down", "node"),
    "pause-agent": CauseCheck("PFC agent", "pfc_agent_down", "node"),
    "link-down": CauseCheck("link down", "link_down", "link", symptoms.link_down),
    "link-flap": CauseCheck("link flap", "link_flap", "link", symptoms.link_flaps),
    "wrong-mtu": CauseCheck("wrong MTU", "link_mtu_mismatch", "link", symptoms.wrong_mtu),
    "wrong-neighbour": CauseCheck("wrong neighbour", "arp_cache_poisoning", "interface"),
    "wrong-address": CauseCheck("wrong address, rule or route", "host_ip_misconfiguration", "node"),
    "wrong-seed": CauseCheck("wrong hash seed", "ecmp_seed_misconfiguration", "node"),
    "wrong-sysctl": CauseCheck("wrong sysctl", "sysctl_misconfiguration", "node"),
    "wrong-queues": CauseCheck("wrong queues", "qdisc_misconfiguration", "interface"),
    "pfc-storm": CauseCheck("PFC storm", "pfc_storm", "interface", symptoms.pause_storm),
    "slow-link": CauseCheck("slow link", "link_capacity_bottleneck", "link", symptoms.slow_link),
    "slow-host": CauseCheck("slow host or NIC", "receiver_resource_contention", "node", symptoms.slow_host),
    "bit-errors": CauseCheck("bit errors", "link_packet_corruption", "link", symptoms.bit_errors),
    "link-lossy": CauseCheck("lossy link", "silent_egress_packet_loss", "interface", symptoms.lossy_link),
    "wrong-threshold": CauseCheck(
        "wrong threshold", "ecn_threshold_misconfiguration", "node", symptoms.wrong_threshold
    ),
    "wrong-class": CauseCheck("wrong class of a DSCP", "dscp_misconfiguration", "node"),
    "drained": CauseCheck("drained switch", "bgp_graceful_shutdown", "node"),
    "bgp-session-down": CauseCheck("BGP session down", "bgp_session_down", "interface"),
    "misrouting": CauseCheck("misrouting", "host_static_blackhole", "node"),
    "missing-next-hop": CauseCheck("missing next hop", "missing_next_hop", "node"),
    "polarisation": CauseCheck("polarisation", "ecmp_polarisation", "node", symptoms.polarisation),
    "black-hole": CauseCheck("black hole", "host_static_blackhole", "node", symptoms.black_hole),
    "unproven-paths": CauseCheck(
        "unproven paths", "unproven_paths", "node", symptoms.unproven_paths, effect=True
    ),
    "failed-check": CauseCheck("failed check", "failed_check", "node", symptoms.failed_check, effect=True),
    "lossy-class": CauseCheck("lossy class of data", "lossy_class", "node", symptoms.lossy_class, fault=False),
    "trimmed": CauseCheck("buffer too small, trimmed", "buffer_exhaustion", "interface", trims.trimmed, fault=False),
    "incast": CauseCheck("incast", "incast_traffic_network_limitation", "interface", symptoms.incast, fault=False),
    "hash-collision": CauseCheck("hash collision", "ecmp_collision", "interface", symptoms.collision, fault=False),
    "host-cpu": CauseCheck("host CPU", "host_cpu", "node", symptoms.busy_machine, fault=False),
}  # fmt: skip


def _ordered() -> Iterator[tuple[str, CauseCheck]]:
    """The causes of facts in the order of FACTS, and each other one behind the one before it in _KNOWN."""
    of_facts = [*dict.fromkeys(each.causes[0] for each in FACTS.values())]
    behind: dict[str, list[str]] = {}
    last = ""
    for name in _KNOWN:
        last = name if name in of_facts else last
        behind.setdefault(last, []).append(name)
    for name in ("", *of_facts):
        for each in behind.get(name, [name]):
            yield each, _KNOWN.get(each) or CauseCheck(each.replace("-", " "), each.replace("-", "_"), "node")


# In the order in which they are reported: what explains others comes first.
CAUSES: Final[Mapping[str, CauseCheck]] = dict(_ordered())


@dataclass(frozen=True)
class Diagnosis:
    """What a diagnosis came to. results: by cause, in the order of CAUSES."""

    case: Case
    results: Mapping[str, CauseResult]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All: faults before properties of the load, established before likely ones and effects, and of now before past
        ones.
        """
        causes, facts = [*CAUSES], ["", *FACTS]
        every = [finding for result in self.results.values() for finding in result.findings]

        def rank(each: Finding) -> tuple[bool, bool, bool, bool, int, int]:
            check = CAUSES[each.cause]
            sure = each.confidence == "established" and not check.effect
            where = causes.index(each.cause), facts.index(each.fact)
            return not check.fault, not sure, check.effect, each.over, *where

        return tuple(sorted(every, key=rank))

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
        run, verdict = self.case.run, self.verdict
        roots = [each for each in self.findings if CAUSES[each.cause].fault]
        roots = [each for each in roots if not CAUSES[each.cause].effect or each is verdict]
        return {
            "lab": self.case.fabric.name, "run_id": None if run is None else run.id,
            "verdict": None if verdict is None else verdict.to_json(),
            "findings": [each.to_json() for each in self.findings],
            "ruled_out": self.ruled_out, "not_checked": self.not_checked, "probed": self.case.probed,
            "probes": [each.to_json() for each in self.case.probes],
            "is_anomaly": self.fault,
            "root_causes": [self._root_cause(each) for each in roots],
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
    results = {name: check.judge(case) for name, check in CAUSES.items() if check.judge is not None}
    found = [finding for result in results.values() for finding in result.findings]
    now = {(fact.kind, fact.problem.where, fact.problem.what) for fact, read in case.facts.items() if NOW in read}
    judges = case.live is not None and not case.live.stopped
    for fact, source in case.facts.items():
        where, causes = fact.problem.where, FACTS[fact.kind].causes
        line = Observation(fact.text.replace("  ", " "), source)
        over = judges and (fact.kind, where, fact.problem.what) not in now
        same = (at for at, each in enumerate(found) if each.cause in causes and _reports(case, each, fact, over=over))
        if (at := next(same, None)) is not None:
            found[at] = replace(found[at], evidence=(*found[at].evidence, line))
            continue
        what = f"{line.text} ({source}), and is not so now" if over else line.text
        place = where or case.fabric.name
        found.append(Finding(causes[0], place, what, "established", (line,), fact=fact.kind, over=over))
    found = [_polarised(case, each) if each.cause == "wrong-seed" and not each.over else each for each in found]
    found = [_placed(case, each) for each in found]
    for name in CAUSES:
        if own := tuple(each for each in found if each.cause == name):
            results[name] = CauseResult(own)
        elif name not in results:
            results[name] = symptoms.by_checks(case, name)
    return Diagnosis(case, {name: results[name] for name in CAUSES})


def _reports(case: Case, found: Finding, fact: Fact, *, over: bool) -> bool:
    """Whether an established finding is about the place of a fact; or about a link or a node that is down with it."""
    place = fact.problem.where
    ends = {place, case.peer(place)} if ":" in place else {place or case.fabric.name}
    if found.confidence != "established" or found.over != over or found.fact not in ("", fact.kind):
        return False
    if found.cause == "polarisation":  # by one wrong seed of most switches
        seeded = fact.kind != "sysctl" or fact.problem.what == HASH_SEED
        return seeded and place in case.one_seed and case.hashing[place].seed != case.fabric.by_name[place].hash_seed
    if found.cause == "node-down":
        return found.object in {end.partition(":")[0] for end in ends}
    if found.cause in FACTS["link"].causes:
        return found.object in ends
    named = {line.text.partition(" ")[0] for line in found.evidence}
    return (place or case.fabric.name) in {found.object, *named}


def _placed(case: Case, found: Finding) -> Finding:
    """A finding with the network of its object, if the run has sent nothing there."""
    name, _, port = found.object.partition(":")
    node, evidence = case.fabric.by_name.get(name), case.evidence
    ports = node.ports if node is not None else ()
    networks = {each.network for each in ports if port in ("", each.name)}
    if len(case.fabric.networks) == 1 or evidence is None or not evidence.sent or not networks:
        return found
    hops = (flow.flow.first_hop.split(":") for flow in evidence.sent)
    if networks & {case.fabric.by_name[switch].port(own).network for switch, own in hops}:
        return found
    what = f"{found.what}; it is in {some_of(sorted(networks))}, where the run sent nothing"
    return replace(found, what=what)


def _polarised(case: Case, found: Finding) -> Finding:
    """A wrong seed, with its effect where it is the seed of other switches."""
    seeds = {name: rule.seed for name, rule in case.hashing.items()}
    same = [name for name, seed in seeds.items() if seed == seeds.get(found.object) and name != found.object]
    pairs = [each for each in (case.polarised or () if same else ()) if each.switch in (found.object, *same)]
    if not pairs:
        return found
    pair = min(pairs, key=lambda each: each.switch != found.object)
    what = f"{found.what}; {found.object} has the seed of {some_of(same)}, and {pair.switch} is polarised by it"
    return replace(found, what=what, evidence=(*found.evidence, Observation(pair.text(), case.states[-1][0])))


def diagnose(run: StoredRun | None, lab: Lab | None, observer: Observer | None = None) -> Diagnosis:
    """Judge a run and a lab, with the checks of `validate`. observer: of probes, which are sent over every path when no
    fault is established, or the run has left no counters; None: send no packet. InputError for a run without a fabric
    when no lab runs.
    """
    fabric = lab.fabric if lab is not None else run.needed(run.fabric) if run is not None else None
    if fabric is None:
        raise ValueError("a diagnosis needs a run or a lab")
    case = Case.of(fabric, run, lab)
    if lab is None or case.live is None:
        return judged(case)
    facts = case.live.facts
    # `faults` compares with the record of faults, which a diagnosis does not read.
    names = CHECKS.keys() - {"faults"} - ({"reachability"} if observer is None else set())
    made = validate(lab, names, lambda check: tuple(each for each in facts if FACTS[each.kind].check == check))
    found = judged(replace(case, checks=made))
    checks = ((CAUSES[each.cause], each) for each in found.findings if not each.over)
    faults = (each for check, each in checks if check.fault and not check.effect)
    decided = any(each.confidence == "established" for each in faults)
    if (decided and not case.watched) or observer is None:
        return found
    probes = probe_paths(lab, observer)
    return judged(replace(found.case, traffic=(*case.traffic, probes), probed=True))


STEP: Final = "probe"
MOST_PACKETS: Final = 24_000
_OF_A_PORT: Final = 4  # flows that pass each port, if there are as many
_EACH: Final = 256  # packets of a flow, at most
_LEAST: Final = 16
_TRIES: Final = 4  # source ports of a pair of NICs
_MOST_PAIRS: Final = 4_000
_PAYLOAD: Final = bytes(64)
_FIRST_QPN: Final = 0xFF0000
_SPORTS: Final = (0xC000, 0x10000)
_SEED: Final = 16  # the same probes each time
_BURST: Final = 16  # packets of a flow in turn
_QUIET_S: Final = 0.3
_SHARD_QUIET_S: Final = 1.0  # shards do not begin at the same time
_MOST_S: Final = 12.0


@dataclass(frozen=True, slots=True)
class _Probe:
    """A flow of probes, with its predicted path from a NIC on."""

    flow: Flow
    path: tuple[str, ...]
    here: Endpoint

    def header(self) -> FlowHeader:
        """The fields that all of its packets have."""
        return FlowHeader(
            src_mac=self.here.mac, dst_mac=self.here.gateway_mac, src_ip=self.flow.src_ip, dst_ip=self.flow.dst_ip,
            sport=self.flow.sport, dqpn=self.flow.qpn, tos=wire.TOS_DATA,
        )  # fmt: skip

    def seen(self, sent: Mapping[int, list[int]], came: Mapping[int, _Arrivals]) -> FlowSeen:
        """As a diagnosis uses it. sent, came: of all flows, by QP number; times in ns."""
        nic, times, arrived = self.here.nic, sent.get(self.flow.qpn, []), came.get(self.flow.qpn, _Arrivals())
        waits = [at - times[psn] for psn, at in arrived.sound if psn < len(times) and not _is_full(psn)]
        count, full = len(arrived.sound) + arrived.damaged, sum(_is_full(psn) for psn, _ in arrived.sound)
        name = f"probe from {nic} to {self.flow.dst}, source port {self.flow.sport}"
        latency_s = sum(waits) / len(waits) / 1e9 if waits else None
        every = sum(map(_is_full, range(len(times))))
        lost = every - full if not arrived.damaged else 0
        return FlowSeen(name, (nic, *self.path), count, arrived.damaged, len(times) - count, latency_s, every, lost)


def _is_full(psn: int) -> bool:
    """Whether it is a probe of full size: the last one of a turn."""
    return psn % _BURST == _BURST - 1


@dataclass(slots=True)
class _Arrivals:
    """Packets of one flow that arrived. sound: PSN and time of those with a right ICRC, ns after the beginning."""

    sound: list[tuple[int, int]] = field(default_factory=list)
    damaged: int = 0


_Exchange = tuple[dict[int, list[int]], dict[int, _Arrivals]]  # by QP number: times of what was sent; what arrived


def probe_paths(lab: Lab, observer: Observer) -> TrafficSeen:
    """Send the probes, and count. The lab is locked meanwhile. InputError when another command has it."""
    parts = LabPart.FIBS | LabPart.HASHING | LabPart.DROPS
    with owners.lock(lab.name, work="diagnose (probes)"):
        before = lab.snapshot(parts)
        nics = [port for port in lab.fabric.host_ports if not no_nic(lab.fabric, port)]
        ends = [endpoint_at(lab.fabric, rank, port) for rank, port in enumerate(nics)]
        try:
            usable = _open(lab, ends)
            flows: list[_Probe] = []
            with suppress(CheckError):  # the hash is not modelled
                flows = _chosen(lab, before, [end for end in ends if end.nic in usable])
            count = max(_LEAST, min(_EACH, MOST_PACKETS // max(1, len(flows))))
            observer.begin(STEP)
            quiet_s = _QUIET_S if lab.runtime.here else _SHARD_QUIET_S
            sent, came = _exchanged(lab, flows, count, quiet_s, Moment(time.monotonic_ns()))
        finally:
            _close(lab)
        wait_empty(lab)
        after = lab.snapshot(LabPart.DROPS)
        observer.end(STEP, f"{many(sum(map(len, sent.values())), 'packet')} over {many(len(flows), 'path')}")
    seen = tuple(each.seen(sent, came) for each in flows if not spreads(each.path))
    dropped = after.backlog_drops - before.backlog_drops
    return TrafficSeen(OF_PROBES, tallies_since(after.tallies, before.tallies), seen, dropped)


_PORTS: Final[dict[str, dict[str, PacketSocket]]] = {}  # by lab, which is locked, and NIC


@spread(concat)
def _open(lab: Lab, ends: Sequence[Endpoint]) -> list[str]:
    """Listen at NICs; returns those that can send: the link of another is down, which another reading shows."""
    ports, handles = _PORTS.setdefault(lab.name, {}), lab.handles()
    for end in ends:
        if end.host not in handles:
            continue
        netns = handles[end.host].netns
        with suppress(OSError):
            with inside(netns):
                announce(end.port, end.mac, end.ip, end.gateway_ip)
            ports[end.nic] = PacketSocket(netns, end.port, version=lab.fabric.policy.ip_version)
    return [*ports]


@spread(nothing)
def _close(lab: Lab) -> None:
    for each in _PORTS.pop(lab.name, {}).values():
        each.close()


def _network(lab: Lab, end: Endpoint) -> str:
    return lab.fabric.by_name[end.host].port(end.port).network


def _chosen(lab: Lab, now: Snapshot, ends: Sequence[Endpoint]) -> list[_Probe]:
    """Flows of which some pass each port, chosen by their predicted paths. Each has a QP number of its own."""
    rng = random.Random(_SEED)  # noqa: S311 - no secret
    part = {end.nic: (_network(lab, end), lab.fabric.part_of.get(end.first_hop.partition(":")[0])) for end in ends}
    pairs = [(a, b) for a in ends for b in ends if a.host != b.host and part[a.nic] == part[b.nic]]
    pairs = rng.sample(pairs, min(len(pairs), _MOST_PAIRS))
    flows = [
        Flow(a.host, b.host, a.ip, b.ip, rng.randrange(*_SPORTS), _FIRST_QPN + at, a.first_hop)
        for at, (a, b) in enumerate(pairs * _TRIES)
    ]
    by_ip = {end.ip: end for end in ends}
    passed: Counter[str] = Counter()
    found: list[_Probe] = []
    for flow, path in zip(flows, predict(lab.fabric, now.fibs, now.hashing, flows), strict=True):
        here, there = by_ip[flow.src_ip], by_ip[flow.dst_ip]
        ports = (here.nic, *(port for step in path for port in ports_of(step)))
        if not path or path[-1] != there.first_hop:
            continue
        if all(passed[port] >= _OF_A_PORT for port in ports):
            continue
        passed.update(ports)
        found.append(_Probe(flow, path, here))
    return found


def _joined(found: Sequence[_Exchange]) -> _Exchange:
    return union(sent for sent, _ in found), union(came for _, came in found)


@spread(_joined)
def _exchanged(lab: Lab, flows: Sequence[_Probe], count: int, quiet_s: float, began: Moment) -> _Exchange:
    """Send all in turns, a few of each flow, and receive until nothing more comes for some time.

    Returns, by QP number, the times of packets that were sent here, and of those that arrived here, ns after `began`.
    """
    ports, version = _PORTS[lab.name], lab.fabric.policy.ip_version
    parser, batch = Parser(version=version), SendBatch(lab.fabric.policy.ib_mtu, slots=_BURST, version=version)
    policy, ends = lab.fabric.policy, {each.here.nic: _network(lab, each.here) for each in flows}
    room = {net: min(policy.ib_mtu, policy.of(net).mtu - policy.ip.overhead) for net in {*ends.values()}}
    parser.expect(len(flows))
    own = [(each.flow.qpn, each.header(), each.here.nic) for each in flows if each.here.nic in ports]
    sent: dict[int, list[int]] = {qpn: [] for qpn, _, _ in own}
    wanted, came = {each.flow.qpn for each in flows}, dict[int, _Arrivals]()
    waiting = {each.fileno(): each for each in ports.values()}
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)

    def receive(milliseconds: int) -> int:
        """Take what has arrived; returns the number of probes."""
        found = 0
        for fd, _ in poll.poll(milliseconds):
            buffer, lengths = waiting[fd].recv()
            got, now_ns = parser.parse(buffer, lengths), time.monotonic_ns() - began.ns
            for at, qpn in enumerate(got.dqpns):
                if qpn not in wanted or not got.oks[at]:
                    continue
                found += 1
                arrived = came.setdefault(qpn, _Arrivals())
                if got.sounds[at]:
                    arrived.sound.append((int(got.psns[at]), now_ns))
                else:
                    arrived.damaged += 1
        return found

    end, last = time.monotonic() + _MOST_S, time.monotonic()
    while time.monotonic() < min(end, last + quiet_s):
        for qpn, header, nic in own:
            first = len(sent[qpn])
            size = min(_BURST - first % _BURST, count - first)
            if not size:
                continue
            full = room[ends[nic]]
            for slot in range(size):
                psn = first + slot
                batch.put_data(slot, header, wire.WRITE_MIDDLE, psn, bytes(full) if _is_full(psn) else _PAYLOAD)
            try:
                done = ports[nic].send(batch, size)
            except OSError:  # the last one is longer than the port's MTU: it counts as lost
                done = size
            sent[qpn] += [time.monotonic_ns() - began.ns] * done
            if receive(0) or done:
                last = time.monotonic()
        if receive(5):
            last = time.monotonic()
    return sent, came
