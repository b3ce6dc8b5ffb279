"""Send packets made by hand from a host of a running lab; show the answers, what the other side saw, and the path.

In:  a running lab, two hosts (or NICs, `host1:eth2`), and fields (crafted.py).
Out: Crafted. InputError for fields and hosts that cannot be, MachineError for a port that cannot be opened.
At the other host a responder on scapy's layers (endpoints/transports/scapyqp.py) answers, with a memory region that is
known. It exists for as long as the call. Both hosts' ports are observed by packet sockets, where the hosts are.
The path has the same proof as those of a run: prediction, the kernels' lookups, and the counters of every port.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scapy.layers.l2 import Ether

from heddle.base import owners
from heddle.base.problems import InputError, MachineError, Problem
from heddle.endpoints.congestion.ratecontrol import CnpRule, NotifyingReceiver
from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import Nic, QueuePair, announce
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.transports.scapyparams import ScapyParams
from heddle.endpoints.transports.scapyqp import ScapyQp
from heddle.kernel.namespace import inside
from heddle.lab import attached, health
from heddle.lab.lab import Lab
from heddle.lab.spread import nothing, only, spread
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.verdict import FlowProof, PathsResult, prove
from heddle.runs.explain import nic_named
from heddle.runtimes.shardcalls import Moment
from heddle.traffic.flow import Endpoint, Flow, Sent
from heddle.traffic.placement import endpoint_at, no_nic
from heddle.wire import layout as wire
from heddle.wire.dissect import Dissected, dissect
from heddle.wire.layout import IcrcVerdict, verdict
from heddle_plugins.packets.crafted import PacketEnds, layers_as_data, layers_as_text, read_recipe

RESPONDER_QPN: Final = 0x100
REQUESTER_QPN: Final = 0x200  # to which answers are sent
FIRST_PSN: Final = 0
RKEY: Final = 0x1234
REGION_AT: Final = 0x10000
REGION_BYTES: Final = 1 << 16
RECEIVES: Final = 64  # posted for SENDs
SPORT: Final = 0xC000
MOST_WAIT_S: Final = 60.0
_QUIET_S: Final = 0.25  # without another answer after the last one
_SEND_BYTES: Final = 1 << 16  # of the socket: its frames fit into the port's queue
_POLL_S: Final = 0.005
_MOST_ANSWERS: Final = 4096
_CNP: Final = CnpRule(gap_ns=50_000, dscp=wire.DSCP_ANSWER)


@dataclass(slots=True)
class Region:
    """The memory of the responder."""

    data: bytearray = field(default_factory=lambda: bytearray(REGION_BYTES))
    imms: list[int] = field(default_factory=list)

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """The bytes from an address on, or None."""
        at = va - REGION_AT
        inside_it = rkey == RKEY and at >= 0 and at + length <= len(self.data)
        return memoryview(self.data)[at : at + length] if inside_it else None

    def arrived(self, imm: int) -> None:
        """Keep an immediate."""
        self.imms.append(imm)

    @property
    def written(self) -> str:
        """The bytes that are not zero any more."""
        changed = [at for at, byte in enumerate(self.data) if byte]
        return f"{REGION_AT + changed[0]:#x} to {REGION_AT + changed[-1]:#x}" if changed else ""


def craft(
    lab: Lab | str | None, src: str, dst: str, *, responder: bool = True, wait: float = 1.0, **fields: Any
) -> Crafted:
    """Craft packets and send them from `src` to `dst`. lab: a running lab, its name, or None for the only one.

    fields: opcode, qpn, psn, rkey, va, length, payload, imm, ecn, dscp, sport, ttl, icrc, count, and set (a mapping of
    `BTH.pkey` to a value). wait: seconds without an answer. The lab is locked meanwhile.
    """
    from heddle.lab.opening import open_lab

    if not 0 < wait <= MOST_WAIT_S:
        hint = f"use up to {MOST_WAIT_S:g} seconds"
        raise InputError(Problem("", f"--wait {wait:g}", "is no time to wait for answers", hint))
    recipe = read_recipe(fields)
    where = open_lab(lab) if lab is None or isinstance(lab, str) else lab
    ends = _ends(where, src, dst)
    here, there = ends
    attached.check_free(where, "craft", {here.host, there.host})
    addresses = PacketEnds(
        here.mac, here.gateway_mac, here.ip, there.ip, here.mtu, where.fabric.policy.ib_mtu, RESPONDER_QPN, FIRST_PSN,
        RKEY, REGION_AT, SPORT, here.nic,
    )  # fmt: skip
    packets = recipe.packets(addresses)
    frames = [bytes(packet) for packet in packets]
    with owners.lock(where.name, work=f"craft ({len(frames)} packets from {src} to {dst})"):
        health.check_ports(where)
        before = collect_before(where)
        began = Moment(time.monotonic_ns())
        _listen(where, *ends, began, responder=responder)
        try:
            left, came = _exchanged(where, ends[0], frames, wait, began)
        finally:
            heard, seen = _heard(where, ends[1])
        first = left[0][0]
        sent, answers, arrived = (
            tuple(HandPacket.of(at - first, frame) for at, frame in rows) for rows in (left, came, heard)
        )
        flows = _flows(ends, sent, arrived, answers)
        proof = None
        if flows:
            counts = [count for _, count in flows]
            proof = prove(where.fabric, collect_after(where, before, [each for each, _ in flows], counts))
    return Crafted(where.name, ends[0].nic, ends[1].nic, sent, arrived, answers, seen, proof)


def _ends(lab: Lab, src: str, dst: str) -> tuple[Endpoint, Endpoint]:
    found = []
    for rank, name in enumerate((src, dst)):
        port, _ = nic_named(lab.fabric, "craft", name)
        if why := no_nic(lab.fabric, port):
            raise InputError(Problem("", f"craft {port.ref}", why))
        found.append(endpoint_at(lab.fabric, rank, port))
    if found[0].nic == found[1].nic:
        raise InputError(Problem("", f"craft {src} {dst}", "has the same NIC at both ends", "name another host"))
    return found[0], found[1]


def _flows(
    ends: tuple[Endpoint, Endpoint],
    sent: Sequence[HandPacket],
    arrived: Sequence[HandPacket],
    answers: Sequence[HandPacket],
) -> list[tuple[Sent, int]]:
    """The flow of the packets and that of the first answer, as switches count them, and how many arrived of each."""
    found = []
    here, there = ends
    directions = [(here, there, sent, arrived), (there, here, answers, answers)]
    for start, end, left, came in directions:
        key = next((_key(each) for each in left if each.what.ip_at), None)
        if key is None:
            break
        count = [each for each in left if _key(each) == key]
        flow = Flow(start.host, end.host, *key[:2], key[2], key[3], start.first_hop)
        reached = sum(_key(each) == key for each in came)
        found.append((Sent(flow, len(count), sum(len(each.frame) for each in count)), reached))
    return found


def _key(packet: HandPacket) -> tuple[str, str, int, int]:
    fields = packet.what.fields
    return packet.what.src, packet.what.dst, int(fields.get("sport", -1)), int(fields.get("qpn", -1))


Timed = list[tuple[float, bytes]]  # seconds after a moment, and the frame


def _send(port: socket.socket, frames: list[bytes]) -> bytes | None:
    """Send the first of these frames, and remove it; None while the port's queue takes no more."""
    try:
        port.send(frames[0])
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOBUFS):
            return None
        why = "its link is down" if error.errno == errno.ENETDOWN else str(error.strerror)
        raise MachineError(Problem("", "the packet", f"cannot be sent: {why}", "./inv validate")) from None
    return frames.pop(0)


def _read(port: socket.socket, into: Timed, began_ns: int) -> None:
    while len(into) < _MOST_ANSWERS:
        try:
            frame = port.recv(1 << 16)
        except BlockingIOError:
            return
        # Errors of ICMP are answers, too: a router's, when the TTL ends.
        if (kind := dissect(frame).kind).startswith("RoCE") or kind in ("ICMP", "ICMPv6"):
            into.append(((time.monotonic_ns() - began_ns) / 1e9, frame))


@spread(only, nodes=lambda here, *_: [here.host])
def _exchanged(lab: Lab, here: Endpoint, frames: Sequence[bytes], wait_s: float, began: Moment) -> tuple[Timed, Timed]:
    """Send all frames at a port, and read until nothing more has arrived for some time: those sent, and answers."""
    with _open(lab, here) as port:
        return _exchange(port, frames, wait_s, began.ns)


def _exchange(port: socket.socket, frames: Sequence[bytes], wait_s: float, began_ns: int) -> tuple[Timed, Timed]:
    sent, answers, left = Timed(), Timed(), list(frames)
    last = time.monotonic()
    while time.monotonic() < last + (_QUIET_S if answers and not left else wait_s):
        before = len(sent) + len(answers)
        while left and (frame := _send(port, left)) is not None:
            sent.append(((time.monotonic_ns() - began_ns) / 1e9, frame))
        _read(port, answers, began_ns)
        if len(sent) + len(answers) > before:
            last = time.monotonic()
        select.select([port], [], [], _POLL_S)
    if left:
        why = f"accepted {len(sent)} of {len(frames)} packets within {wait_s:g} s"
        hint = "it may be paused (./inv queues), or slow: use a longer --wait, or a smaller --count"
        raise MachineError(Problem("", "the port of the sender", why, hint))
    return sent, answers


class _FarSide:
    """Observes the port of the receiver, and drives its responder, in a thread until `close`."""

    def __init__(self, lab: Lab, ends: tuple[Endpoint, Endpoint], began_ns: int, *, responder: bool) -> None:
        self.arrived = Timed()
        self._began_ns, self._stop = began_ns, threading.Event()
        self._port = _open(lab, ends[1])
        self.responder = _Responder(lab, *ends) if responder else None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="responder", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        waits: list[Any] = [self._port, *([] if self.responder is None else [self.responder.nic.socket])]
        try:
            while not self._stop.is_set():
                _read(self._port, self.arrived, self._began_ns)
                if self.responder is not None:
                    self.responder.turn()
                select.select(waits, [], [], _POLL_S)
            _read(self._port, self.arrived, self._began_ns)
        except BaseException as error:  # raised where it is awaited
            self._error = error

    def close(self) -> None:
        """End it, with the error that has ended it before."""
        self._stop.set()
        self._thread.join()
        self._port.close()
        if self.responder is not None:
            self.responder.nic.close()
        if self._error is not None:
            raise self._error


_FAR: Final[dict[str, _FarSide]] = {}  # by lab, which is locked


@spread(nothing, nodes=lambda _, there, *__, **___: [there.host])
def _listen(lab: Lab, here: Endpoint, there: Endpoint, began: Moment, *, responder: bool) -> None:
    """Begin to observe the port of the receiver; it listens when this returns."""
    _FAR[lab.name] = _FarSide(lab, (here, there), began.ns, responder=responder)


@spread(only, nodes=lambda there: [there.host])
def _heard(lab: Lab, there: Endpoint) -> tuple[Timed, ResponderSeen | None]:
    """End that: the packets that arrived, and what the responder saw."""
    far = _FAR.pop(lab.name)
    far.close()
    return far.arrived, None if far.responder is None else far.responder.report()


class _Responder:
    """The NIC at the other side, with one queue pair."""

    def __init__(self, lab: Lab, here: Endpoint, there: Endpoint) -> None:
        netns, mtu = lab.handles()[there.host].netns, lab.fabric.policy.ib_mtu
        flow = FlowHeader(
            src_mac=there.mac, dst_mac=there.gateway_mac, src_ip=there.ip, dst_ip=here.ip, sport=SPORT,
            dqpn=REQUESTER_QPN, tos=wire.TOS_DATA,
        )  # fmt: skip
        version = flow.layout.version
        data, answers = (PacketSocket(netns, there.port, mtu, receive_bytes=size, version=version)
                         for size in (1 << 22, 0))  # fmt: skip
        self.nic = Nic(data, answers, mtu, version)
        self._region = Region()
        qp = QpInfo(RESPONDER_QPN, flow, FIRST_PSN)
        params = ScapyParams(mtu, 64, 1, 1.0, 7)
        self._end = ScapyQp(params, qp, self._region, answers=flow.with_tos(wire.TOS_ANSWER))
        for _ in range(RECEIVES):
            self._end.responder.post_receive(memoryview(bytearray(mtu)))
        self._pair = QueuePair(self.nic, qp, NotifyingReceiver(self._end, _CNP, qp))
        self.nic.add(self._pair)

    def turn(self) -> None:
        """Receive, execute, answer."""
        self.nic.receive(time.monotonic())
        self.nic.expire(time.monotonic())
        self.nic.blocked = False
        self.nic.transmit(time.monotonic())

    def report(self) -> ResponderSeen:
        """The counters of the queue pair and of the NIC."""
        seen, nic = self._end.responder, self.nic.counters
        return ResponderSeen(
            seen.received, seen.duplicates, seen.out_of_order, seen.naks, self._pair.end.counters()["cnps_sent"],
            seen.expected, self._region.written, tuple(each.length for each in seen.arrivals),
            tuple(self._region.imms), nic.icrc_errors, nic.stray, nic.malformed,
        )  # fmt: skip


def _open(lab: Lab, end: Endpoint) -> socket.socket:
    """A packet socket at a port: for one protocol, so it gets frames with the marks of their last queue."""
    version = 6 if ":" in end.ip else 4
    try:
        with inside(lab.handles()[end.host].netns):
            announce(end.port, end.mac, end.ip, end.gateway_ip)
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        raw.bind((end.port, wire.LAYOUTS[version].ethertype))
    except OSError as error:
        why = f"cannot be opened: {error.strerror}; its link may be down"
        raise MachineError(Problem("", end.nic, why, "./inv validate says what is wrong")) from None
    return raw


@dataclass(frozen=True, slots=True)
class HandPacket:
    """One packet, where it was captured. at_s: after the first one that was sent. layers: header -> its fields."""

    at_s: float
    frame: bytes
    what: Dissected
    icrc: IcrcVerdict

    @classmethod
    def of(cls, at_s: float, frame: bytes) -> HandPacket:
        """From a frame."""
        what = dissect(frame)
        return cls(at_s, frame, what, verdict(frame, what.ip_at) if what.ip_at else "unchecked")

    @property
    def ttl(self) -> int:
        """The TTL or hop limit; 0 if it is no RoCEv2 packet."""
        at = self.what.ip_at
        return self.frame[at + (8 if self.frame[at] >> 4 == 4 else 7)] if at else 0

    @property
    def layers(self) -> dict[str, dict[str, Any]]:
        """Every field of every header, as scapy reads them."""
        return layers_as_data(Ether(self.frame))

    @property
    def fields(self) -> list[str]:
        """The same as text, a line for each header."""
        return layers_as_text(Ether(self.frame))

    def to_json(self) -> dict[str, Any]:
        what = self.what
        return {
            "time_s": round(self.at_s, 6), "src": what.src, "dst": what.dst, "bytes": len(self.frame),
            "kind": what.kind, "text": what.text, **what.fields, "ttl": self.ttl, "icrc": self.icrc,
            "frame": self.frame.hex(), "layers": self.layers,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResponderSeen:
    """What the responder counted, in packets. expected: its PSN now. written: addresses of bytes that are not zero.

    sends: bytes of each SEND that was taken. imms: immediates of WRITEs. The last three count packets for no QP.
    """

    executed: int
    duplicates: int
    out_of_order: int
    naks: int
    cnps: int
    expected: int
    written: str
    sends: tuple[int, ...]
    imms: tuple[int, ...]
    icrc_errors: int
    stray: int
    malformed: int

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Crafted:
    """What was sent, what came back, and where it went.

    src, dst: NICs. arrived: the packets as they came to the destination's port. responder: None if there was none.
    proof: of the packets' flow, and of that of the answers, if there are any; None if switches do not count such
    packets: they are not RoCEv2.
    """

    lab: str
    src: str
    dst: str
    sent: tuple[HandPacket, ...]
    arrived: tuple[HandPacket, ...]
    answers: tuple[HandPacket, ...]
    responder: ResponderSeen | None
    proof: PathsResult | None

    @property
    def flow(self) -> FlowProof | None:
        """The flow of the packets, with its path by three sources."""
        return self.proof.flows[0] if self.proof is not None else None

    @property
    def path(self) -> tuple[str, ...]:
        """The ports that counted the packets, from the first switch on; empty if none did."""
        return self.flow.measured if self.flow is not None else ()

    def to_json(self) -> dict[str, Any]:
        """`sent`, `arrived` and `answers` are lists of packets."""
        return {
            "lab": self.lab, "src": self.src, "dst": self.dst, "sent": [each.to_json() for each in self.sent],
            "arrived": [each.to_json() for each in self.arrived],
            "answers": [each.to_json() for each in self.answers],
            "responder": self.responder.to_json() if self.responder is not None else None,
            "path": list(self.path),
            "paths": [each.to_json() for each in self.proof.flows] if self.proof is not None else [],
        }  # fmt: skip
