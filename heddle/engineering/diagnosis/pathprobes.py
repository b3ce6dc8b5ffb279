"""Send probes over every link of a running lab, as R-Pingmesh does: loss of each hop, wrong ICRCs, delay of each path.

In:  a running lab without a run. Out: TrafficSeen: what each port sent and lost, and the flows with their paths.
Each shard of a lab sends and receives at its own hosts; times of a way between two are as exact as their clocks agree.
Probes are RoCEv2 packets in the class of data, for queue pairs that no NIC has. Source ports are chosen by prediction,
so that each port of a switch that leads somewhere is passed by several flows. Their number is bounded. One of sixteen
has the size of a full data packet: a link with a small MTU loses these alone. Where switches spread the packets of a
flow, counters show losses, and paths tell nothing.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from heddle.base import owners
from heddle.base.problems import CheckError
from heddle.base.tables import many
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.nic import announce
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.parse import Parser
from heddle.engineering.diagnosis.case import OF_PROBES, FlowSeen, TrafficSeen
from heddle.kernel.namespace import inside
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import concat, nothing, spread, union
from heddle.predict.predict import predict
from heddle.predict.walk import ports_of, spreads
from heddle.runtimes.shardcalls import Moment
from heddle.switch.queues.queuestate import tallies_since
from heddle.traffic.flow import Endpoint, Flow
from heddle.traffic.placement import endpoint_at, no_nic
from heddle.wire import layout as wire

if TYPE_CHECKING:
    from heddle.base.events import Observer
    from heddle.lab.lab import Lab

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


def probe_paths(lab: Lab, observer: Observer) -> TrafficSeen:
    """Send the probes, and count. The lab is locked meanwhile. InputError when another command has it."""
    parts = LabPart.FIBS | LabPart.HASHING | LabPart.DROPS
    with owners.lock(lab.name, work="diagnose (probes)"):
        before = lab.snapshot(parts)
        ends = _ends(lab)
        try:
            usable = _open(lab, ends)
            try:
                flows = _chosen(lab, before, [end for end in ends if end.nic in usable])
            except CheckError:
                flows = []  # the hash is not modelled
            count = max(_LEAST, min(_EACH, MOST_PACKETS // max(1, len(flows))))
            observer.begin(STEP)
            quiet_s = _QUIET_S if lab.runtime.here else _SHARD_QUIET_S
            sent, came = _exchanged(lab, flows, count, quiet_s, Moment(time.monotonic_ns()))
        finally:
            _close(lab)
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


def _ends(lab: Lab) -> list[Endpoint]:
    nics = [port for port in lab.fabric.nics if not no_nic(lab.fabric, port)]
    return [endpoint_at(lab.fabric, rank, port) for rank, port in enumerate(nics)]


def _chosen(lab: Lab, now: Snapshot, ends: Sequence[Endpoint]) -> list[_Probe]:
    """Flows of which some pass each port, chosen by their predicted paths. Each has a QP number of its own."""
    rng = random.Random(_SEED)  # noqa: S311 - no secret
    part = {end.nic: lab.fabric.part_of.get(end.first_hop.partition(":")[0]) for end in ends}
    pairs = [(a, b) for a in ends for b in ends if a.host != b.host and part[a.nic] == part[b.nic]]
    pairs = rng.sample(pairs, min(len(pairs), _MOST_PAIRS))
    flows = [
        Flow(a.host, b.host, a.ip, b.ip, rng.randrange(*_SPORTS), _FIRST_QPN + at, a.first_hop)
        for at, (a, b) in enumerate(pairs * _TRIES)
    ]
    by_ip = {end.ip: end for end in ends}
    passed: dict[str, int] = {}
    found: list[_Probe] = []
    for flow, path in zip(flows, predict(lab.fabric, now.fibs, now.hashing, flows), strict=True):
        here, there = by_ip[flow.src_ip], by_ip[flow.dst_ip]
        ports = (here.nic, *(port for step in path for port in ports_of(step)))
        if not path or path[-1] != there.first_hop:
            continue
        if all(passed.get(port, 0) >= _OF_A_PORT for port in ports):
            continue
        for port in ports:
            passed[port] = passed.get(port, 0) + 1
        found.append(_Probe(flow, path, here))
    return found


def _joined(
    found: Sequence[tuple[dict[int, list[int]], dict[int, _Arrivals]]],
) -> tuple[dict[int, list[int]], dict[int, _Arrivals]]:
    return union(sent for sent, _ in found), union(came for _, came in found)


@spread(_joined)
def _exchanged(
    lab: Lab, flows: Sequence[_Probe], count: int, quiet_s: float, began: Moment
) -> tuple[dict[int, list[int]], dict[int, _Arrivals]]:
    """Send all in turns, a few of each flow, and receive until nothing more comes for some time.

    Returns, by QP number, the times of packets that were sent here, and of those that arrived here, ns after `began`.
    """
    ports, version = _PORTS[lab.name], lab.fabric.policy.ip_version
    parser, batch = Parser(version=version), SendBatch(lab.fabric.policy.ib_mtu, slots=_BURST, version=version)
    full = bytes(lab.fabric.policy.ib_mtu)
    parser.expect(len(flows))
    own = [(each.flow.qpn, each.header(), ports[each.here.nic]) for each in flows if each.here.nic in ports]
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
        for qpn, header, port in own:
            first = len(sent[qpn])
            size = min(_BURST - first % _BURST, count - first)
            if not size:
                continue
            for slot in range(size):
                psn = first + slot
                batch.put_data(slot, header, wire.WRITE_MIDDLE, psn, full if _is_full(psn) else _PAYLOAD)
            try:
                done = port.send(batch, size)
            except OSError:  # the last one is longer than the port's MTU: it counts as lost
                done = size
            sent[qpn] += [time.monotonic_ns() - began.ns] * done
            if receive(0) or done:
                last = time.monotonic()
        if receive(5):
            last = time.monotonic()
    return sent, came
