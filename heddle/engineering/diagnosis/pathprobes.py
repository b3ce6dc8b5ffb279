"""Send probes over every link of a running lab, as R-Pingmesh does: loss of each hop, wrong ICRCs, delay of each path.

In:  a running lab without a run. Out: TrafficSeen: what each port sent and lost, and the flows with their paths.
Probes are RoCEv2 packets in the class of data, for queue pairs that no NIC has. Source ports are chosen by prediction,
so that each port of a switch that leads somewhere is passed by several flows. Their number is bounded. Where switches
spread the packets of a flow, counters show losses, and paths tell nothing.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
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
from heddle.predict.predict import predict
from heddle.predict.walk import ports_of, spreads
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
_MOST_S: Final = 12.0


@dataclass
class _Sent:
    """A flow of probes: what was sent and what came. sent_s: by PSN."""

    flow: Flow
    header: FlowHeader
    path: tuple[str, ...]
    nic: str
    sent_s: list[float] = field(default_factory=list)
    arrived: int = 0
    damaged: int = 0
    waited_s: float = 0.0

    def seen(self) -> FlowSeen:
        """As a diagnosis uses it."""
        sound, lost = self.arrived - self.damaged, len(self.sent_s) - self.arrived
        name = f"probe from {self.nic} to {self.flow.dst}, source port {self.flow.sport}"
        latency_s = self.waited_s / sound if sound else None
        return FlowSeen(name, (self.nic, *self.path), self.arrived, self.damaged, lost, latency_s)


def probe_paths(lab: Lab, observer: Observer) -> TrafficSeen:
    """Send the probes, and count. The lab is locked meanwhile. InputError when another command has it."""
    parts = LabPart.FIBS | LabPart.HASHING | LabPart.DROPS
    with owners.lock(lab.name, work="diagnose (probes)"), ExitStack() as stack:
        before = lab.snapshot(parts)
        ends = _ends(lab)
        ports: dict[str, PacketSocket] = {}
        for end in ends:
            try:
                with inside(lab.handles()[end.host].netns):
                    announce(end.port, end.mac, end.ip, end.gateway_ip)
                ports[end.nic] = stack.enter_context(
                    PacketSocket(lab.handles()[end.host].netns, end.port, version=lab.fabric.policy.ip_version)
                )
            except OSError:
                continue  # its link is down: another reading shows that
        try:
            flows = _chosen(lab, before, [end for end in ends if end.nic in ports])
        except CheckError:
            flows = []  # the hash is not modelled
        count = max(_LEAST, min(_EACH, MOST_PACKETS // max(1, len(flows))))
        observer.begin(STEP)
        _exchange(flows, ports, count, lab.fabric.policy.ip_version)
        after = lab.snapshot(LabPart.DROPS)
        observer.end(STEP, f"{many(sum(len(each.sent_s) for each in flows), 'packet')} over {many(len(flows), 'path')}")
    seen = tuple(each.seen() for each in flows if not spreads(each.path))
    dropped = after.backlog_drops - before.backlog_drops
    return TrafficSeen(OF_PROBES, tallies_since(after.tallies, before.tallies), seen, dropped)


def _ends(lab: Lab) -> list[Endpoint]:
    nics = [port for port in lab.fabric.nics if not no_nic(lab.fabric, port)]
    return [endpoint_at(lab.fabric, rank, port) for rank, port in enumerate(nics)]


def _chosen(lab: Lab, now: Snapshot, ends: Sequence[Endpoint]) -> list[_Sent]:
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
    found: list[_Sent] = []
    for flow, path in zip(flows, predict(lab.fabric, now.fibs, now.hashing, flows), strict=True):
        here, there = by_ip[flow.src_ip], by_ip[flow.dst_ip]
        ports = (here.nic, *(port for step in path for port in ports_of(step)))
        if not path or path[-1] != there.first_hop:
            continue
        if all(passed.get(port, 0) >= _OF_A_PORT for port in ports):
            continue
        for port in ports:
            passed[port] = passed.get(port, 0) + 1
        header = FlowHeader(
            src_mac=here.mac, dst_mac=here.gateway_mac, src_ip=here.ip, dst_ip=there.ip, sport=flow.sport,
            dqpn=flow.qpn, tos=wire.TOS_DATA,
        )  # fmt: skip
        found.append(_Sent(flow, header, path, here.nic))
    return found


def _exchange(flows: Sequence[_Sent], ports: Mapping[str, PacketSocket], count: int, version: int) -> None:
    """Send all in turns, a few of each flow, and receive until nothing more comes."""
    by_qpn = {each.flow.qpn: each for each in flows}
    parser, batch = Parser(version=version), SendBatch(slots=_BURST, version=version)
    parser.expect(len(flows))
    waiting = {each.fileno(): each for each in ports.values()}
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    left = {id(each): count for each in flows}
    end, last = time.monotonic() + _MOST_S, time.monotonic()
    while time.monotonic() < min(end, last + _QUIET_S):
        for each in flows:
            if not left[id(each)]:
                continue
            size = min(_BURST, left[id(each)])
            for slot in range(size):
                psn = len(each.sent_s) + slot
                batch.put_data(slot, each.header, wire.WRITE_MIDDLE, psn, _PAYLOAD)
            sent = ports[each.nic].send(batch, size)
            each.sent_s += [time.monotonic()] * sent
            left[id(each)] -= sent
            last = time.monotonic() if sent else last
            if _receive(poll, waiting, parser, by_qpn, 0):
                last = time.monotonic()
        if _receive(poll, waiting, parser, by_qpn, 5):
            last = time.monotonic()


def _receive(
    poll: select.poll,
    waiting: Mapping[int, PacketSocket],
    parser: Parser,
    flows: Mapping[int, _Sent],
    milliseconds: int,
) -> int:
    """Take what has arrived; returns the number of probes."""
    found = 0
    for fd, _ in poll.poll(milliseconds):
        buffer, lengths = waiting[fd].recv()
        got, now = parser.parse(buffer, lengths), time.monotonic()
        for at, qpn in enumerate(got.dqpns):
            each = flows.get(qpn)
            if each is None or not got.oks[at]:
                continue
            found += 1
            each.arrived += 1
            if not got.sounds[at]:
                each.damaged += 1
            elif (psn := got.psns[at]) < len(each.sent_s):
                each.waited_s += now - each.sent_s[psn]
    return found
