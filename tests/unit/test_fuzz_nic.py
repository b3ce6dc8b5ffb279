"""Malformed frames into NICs: whatever arrives, nothing raises, no byte of it is written, and each frame is counted.

For the Python NIC with the ends of every transport, and for the compiled one. Between the malformed frames right ones
arrive, and in the end all of their data must be there, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pytest

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.qpend import Message, QpEnd, QpInfo
from heddle.endpoints.transports.rc import RcReceiver, RcSender
from heddle.endpoints.transports.rcstate import RcParams, Recovery
from heddle.endpoints.transports.scapyparams import ScapyParams
from heddle.endpoints.transports.scapyqp import ScapyQp
from heddle.endpoints.transports.srd import SrdParams, SrdReceiver, SrdSender
from heddle.endpoints.transports.uc import UcParams, UcReceiver, UcSender
from heddle.wire import layout as wire
from heddle.wire.layout import icrc
from tests.marks import deep
from tests.unit.fastpath_bench import FAR, MTU, NEAR, Bench, FastBench, FrameLists, answer, flow, needs_object
from tests.unit.test_rc import RKEY, Memory

QUICK, LONG = 2_000, 30_000
SENDER, RECEIVER = 0x100, 0x300
MESSAGE: Final = 40 * MTU - 100
PAYLOAD: Final = random.Random(1).randbytes(MESSAGE)
IMM: Final = 7
PSN: Final = wire.PSN_MASK - 10
PARAMS: Final = RcParams(MTU, 64, 8, 1e6, 7)
SCAPY: Final = ScapyParams(MTU, 64, 8, 1e6, 7)
# Opcodes that no transport here takes: reserved ones, unreliable datagrams, atomics, reliable datagrams.
FOREIGN_OPCODES: Final = (0x12, 0x13, 0x14, 0x15, 0x1F, 0x2C, 0x3F, 0x40, 0x64, 0x65, 0x80, 0xA0, 0xFF)


def header(version: int, dqpn: int, src: str | None = None) -> FlowHeader:
    """Of frames to the NIC: from its peer, or from another source."""
    return FlowHeader(
        src_mac="02:00:00:00:00:01", dst_mac="02:00:00:00:00:02", src_ip=src or FAR[version], dst_ip=NEAR[version],
        sport=50000, dqpn=dqpn, tos=wire.TOS_DATA,
    )  # fmt: skip


class Source:
    """Right frames, and malformed ones made of them."""

    def __init__(self, version: int, seed: int, right: Sequence[bytes]) -> None:
        self.version, self.dice, self.right = version, random.Random(seed), list(right)
        self.batch = SendBatch(MTU, slots=1, version=version)
        self.next = 0  # index in `right`
        self.replays_from = 0
        layout = wire.LAYOUTS[version]
        self.covered_at = layout.udp_at
        # ICRC does not cover the UDP checksum, and the first byte of the BTH's second word.
        self.open = {layout.udp_at + 6, layout.udp_at + 7, layout.dqpn_word_at}

    def malformed(self) -> bytes:
        kinds = (self.cut, self.longer, self.flipped, self.foreign_qp, self.foreign_source, self.opcode, self.garbage)
        return self.dice.choice(kinds)()

    def some(self) -> bytes:
        """A frame that would be taken."""
        return self.right[min(self.next, len(self.right) - 1)]

    def cut(self) -> bytes:
        frame = self.some()
        return frame[: self.dice.randrange(1, len(frame))]

    def longer(self) -> bytes:
        return self.some() + bytes(self.dice.choice((1, 4, 60, 9000)))

    def flipped(self) -> bytes:
        made = bytearray(self.some())
        places = [self.dice.randrange(self.covered_at, len(made)) for _ in range(self.dice.randint(1, 3))]
        for at in {place for place in places if place not in self.open} or {len(made) - 1}:
            made[at] ^= 1 << self.dice.randrange(8)
        return bytes(made)

    def foreign_qp(self) -> bytes:
        return self.built(header(self.version, 0x500 + self.dice.randrange(1 << 20)), wire.WRITE_ONLY_IMM)

    def foreign_source(self) -> bytes:
        other = {4: "10.9.9.9", 6: "fd00::9"}[self.version]
        return self.built(header(self.version, RECEIVER, other), wire.WRITE_ONLY_IMM)

    def built(self, to: FlowHeader, opcode: int) -> bytes:
        reth = wire.RETH.pack(Bench.BASE, RKEY, 8)
        self.batch.put_packet(0, to, opcode, PSN, b"evildata", extension=reth + wire.WORD.pack(IMM))
        return bytes(self.batch.frame(0))

    def opcode(self) -> bytes:
        """A right ICRC, and an opcode that no transport here takes, for a queue pair of this NIC."""
        made = bytearray(self.some())
        made[self.covered_at + wire.UDP_BYTES] = self.dice.choice(FOREIGN_OPCODES)
        made[-4:] = icrc(made[wire.IP_AT :])
        return bytes(made)

    def garbage(self) -> bytes:
        size = self.dice.randint(1, 400)
        return self.some()[: self.dice.choice((0, 12, 14, self.covered_at))] + self.dice.randbytes(size)

    def replayed(self) -> bytes | None:
        before = self.right[self.replays_from : self.next]
        return self.dice.choice(before) if before else None


def rc(recovery: Recovery) -> tuple[Callable[..., QpEnd], Callable[..., QpEnd]]:
    params = RcParams(MTU, 64, 8, 1e6, 7, recovery=recovery)
    return lambda qp: RcSender(params, qp), lambda qp, memory: RcReceiver(params, qp, memory)


ENDS: Final[dict[str, tuple[Callable[..., QpEnd], Callable[..., QpEnd]]]] = {
    "rc": rc("go-back-n"),
    "rc go-back-0": rc("go-back-0"),
    "rc selective-repeat": rc("selective-repeat"),
    "uc": (lambda qp: UcSender(UcParams(MTU), qp), lambda qp, memory: UcReceiver(UcParams(MTU), qp, memory)),
    "srd": (
        lambda qp: SrdSender(SrdParams(PARAMS), qp),
        lambda qp, memory: SrdReceiver(SrdParams(PARAMS, 1e6), qp, memory),
    ),
    "all operations": (
        lambda qp: RcSender(PARAMS, qp),
        lambda qp, memory: ScapyQp(SCAPY, qp, memory),
    ),
}


def right_frames(version: int, sender: QpEnd) -> list[bytes]:
    """All packets of one message to the receiving queue pair."""
    sender.post(Message(memoryview(PAYLOAD), Bench.BASE, RKEY, IMM))
    batch = SendBatch(MTU, slots=64, version=version)
    return [bytes(batch.frame(i)) for i in range(sender.take(batch, 0, 64, 0.0))]


def frames(source: Source, count: int) -> Iterator[tuple[bytes, str]]:
    """`count` malformed or replayed frames, and between them the right ones in order."""
    every = count // len(source.right)
    for number in range(count):
        if number % every == every - 1 and source.next < len(source.right):
            yield source.right[source.next], "right"
            source.next += 1
        replayed = source.replayed() if source.dice.random() < 0.1 else None
        yield (replayed, "replayed") if replayed is not None else (source.malformed(), "malformed")
    for frame in source.right[source.next :]:
        yield frame, "right"


@pytest.mark.parametrize("count", [QUICK // 5, deep(LONG // len(ENDS))])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", ENDS)
def test_the_python_nic_counts_and_ignores_malformed_frames(name: str, version: int, count: int) -> None:
    make_sender, make_receiver = ENDS[name]
    there = QpInfo(SENDER, header(version, RECEIVER), PSN)
    source = Source(version, len(name), right_frames(version, make_sender(there)))
    source.replays_from = int(name == "rc go-back-0")  # the first packet of a message begins it again
    sockets = FrameLists(MTU, version), FrameLists(MTU, version)
    nic = Nic(*sockets, MTU, version)  # type: ignore[arg-type]
    memory = Memory(bytearray(MESSAGE), base=Bench.BASE)
    here = QpInfo(RECEIVER, flow(version, SENDER), PSN)
    pair = QueuePair(nic, here, make_receiver(here, memory))
    nic.add(pair)
    seen = {"right": 0, "replayed": 0, "malformed": 0}
    for frame, kind in frames(source, count // 2 if version == 6 else count):
        seen[kind] += 1
        sockets[0].arriving.append(frame)
        if len(sockets[0].arriving) == 16 or kind == "right":
            nic.receive(1.0)
            nic.transmit(1.0)
    while sockets[0].arriving:
        nic.receive(1.0)
    turned_away = nic.counters.malformed + nic.counters.icrc_errors + nic.counters.stray
    assert turned_away == seen["malformed"] > 0
    assert min(nic.counters.malformed, nic.counters.icrc_errors, nic.counters.stray) > 0
    assert sum(pair.taken.values()) == seen["right"] + seen["replayed"]
    assert seen["right"] == len(source.right)
    assert bytes(memory.data) == PAYLOAD
    assert memory.arrivals == [IMM]
    assert pair.end.error == ""


@pytest.mark.parametrize("count", [QUICK // 5, deep(LONG // 10)])
@pytest.mark.parametrize("name", [name for name in ENDS if name not in ("uc", "all operations")])
def test_a_sending_end_believes_no_malformed_answer(name: str, count: int) -> None:
    here = QpInfo(SENDER, flow(4, 0x200), PSN)
    socket = FrameLists(MTU, 4)
    nic = Nic(socket, FrameLists(MTU, 4), MTU)  # type: ignore[arg-type]
    pair = QueuePair(nic, here, ENDS[name][0](here))
    nic.add(pair)
    pair.post(Message(memoryview(PAYLOAD), 0, RKEY, IMM))
    nic.transmit(0.0)
    assert pair.packets == 40
    acks = [answer(4, SENDER, PSN + at & wire.PSN_MASK, wire.ACK_NO_LIMIT) for at in range(40)]
    source = Source(4, 5, acks)
    malformed = 0
    for frame, kind in frames(source, count):
        malformed += kind == "malformed"
        socket.arriving.append(frame)
        nic.receive(1.0)
        assert pair.end.idle == ((source.next == 39 and kind == "right" and frame == acks[39]) or source.next == 40)
    assert pair.end.idle and pair.end.error == "" and pair.packets == 40
    assert nic.counters.malformed + nic.counters.icrc_errors + nic.counters.stray == malformed


def test_a_nic_remembers_the_kinds_of_packets_of_all_its_queue_pairs() -> None:
    """More than a parser keeps by itself: otherwise it clears its cache again and again."""
    socket = FrameLists(MTU, 4)
    nic = Nic(socket, FrameLists(MTU, 4), MTU)  # type: ignore[arg-type]
    numbers = range(0x200, 0x200 + 5000)
    for qpn in numbers:
        here = QpInfo(qpn, flow(4, qpn), PSN)
        nic.add(QueuePair(nic, here, ENDS["rc"][0](here)))
    met = []
    for psn in (PSN, PSN + 1):
        for qpn in numbers:
            socket.arriving.append(answer(4, qpn, psn, wire.ACK_NO_LIMIT))
            nic.receive(1.0)
        met.append(len(nic._parser._kinds))
    assert met == [len(numbers)] * 2


@needs_object
@pytest.mark.parametrize("count", [QUICK, deep(LONG)])
@pytest.mark.parametrize("version", [4, 6])
def test_the_compiled_nic_counts_and_ignores_malformed_frames(version: int, count: int) -> None:
    there = QpInfo(SENDER, header(version, RECEIVER), PSN)
    source = Source(version, 3, right_frames(version, RcSender(PARAMS, there)))
    fast = FastBench(PARAMS, version, PSN, MESSAGE)
    fast.expect(MESSAGE, IMM, 1)
    seen = {"right": 0, "replayed": 0, "malformed": 0}
    try:
        fast.post(np.frombuffer(PAYLOAD, np.uint8), 0, IMM)
        for frame, kind in frames(source, count // 2 if version == 6 else count):
            seen[kind] += 1
            fast.give(frame)
            fast.work(1.0)
            if fast.done and fast.done != [0]:
                break
            if not seen["malformed"] % 64:
                fast.sent()
        assert sum(fast.turned_away()) == seen["malformed"] > 0
        assert min(fast.turned_away()) > 0
        assert fast.done == [0] and fast.failed == []
        assert fast.written() == PAYLOAD
        assert not fast.idle
    finally:
        fast.close()
