"""RC queue pairs: what is written is what was sent, or an error; traces by hand of what each recovery sends again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest

from heddle.endpoints.nic.frames import FrameBuffer, Parser, Received
from heddle.endpoints.nic.qpend import NEVER, Message
from heddle.endpoints.transports.rc import Rc, requester_of, responder_of
from heddle.endpoints.transports.rcstate import RcParams, Recovery, Requester, Responder, WritePacket
from heddle.wire.layout import ACK_NO_LIMIT, NAK_ACCESS, NAK_SEQUENCE, PSN_MASK

PARAMS = RcParams(mtu=256, window=16, ack_every=4, timeout_s=1.0, retries=7)
RKEY = 7


@dataclass
class Memory:
    data: bytearray
    arrivals: list[int] = field(default_factory=list)
    base: int = 0

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        at = va - self.base
        fits = rkey == RKEY and at >= 0 and at + length <= len(self.data)
        return memoryview(self.data)[at : at + length] if fits else None

    def arrived(self, imm: int) -> None:
        self.arrivals.append(imm)


def parsed(frames: Sequence[bytes]) -> Received:
    """Frames as a NIC reads them."""
    buffer = FrameBuffer(8192, slots=max(1, len(frames)))
    for start, frame in zip(buffer.starts, frames, strict=False):
        buffer.mem[start : start + len(frame)] = frame
    return Parser().parse(buffer, [len(frame) for frame in frames])


def packets_of(requester: Requester, now: float, limit: int = 64) -> list[tuple[WritePacket, memoryview]]:
    """What the NIC would put on the wire for the bursts that the requester hands out."""
    out = []
    for burst in requester.take(limit, now):
        message = burst.message
        for i in range(burst.start, burst.start + burst.packets):
            first, last = i == 0, i == burst.of - 1
            psn = (burst.psn + i - burst.start) & PSN_MASK
            reth = (message.va, message.rkey, len(message.payload)) if first else None
            ask = last or i % requester.params.ack_every == 0
            mtu = requester.params.mtu
            packet = WritePacket(psn, first, last, ask, reth, message.imm if last else None)
            out.append((packet, message.payload[i * mtu : (i + 1) * mtu]))
    return out


def test_acknowledgements_move_the_window_but_not_those_of_what_was_never_sent() -> None:
    requester = Requester(PARAMS, 0)
    requester.post(Message(memoryview(bytes(256 * 100)), 0, RKEY, 0))
    assert sum(b.packets for b in requester.take(64, 0.0)) == PARAMS.window
    assert requester.take(64, 0.0) == []
    requester.acknowledge(3, ACK_NO_LIMIT, 0.1)
    assert requester.ready == 4
    # Acknowledgements of what was never sent change nothing.
    requester = Requester(PARAMS, 100)
    requester.post(Message(memoryview(bytes(1024)), 0, RKEY, 0))
    requester.take(2, 0.0)
    requester.acknowledge(500, ACK_NO_LIMIT, 0.0)
    requester.acknowledge(50, ACK_NO_LIMIT, 0.0)
    assert requester.una == 100


def test_a_wrong_key_or_length_is_refused_and_never_written() -> None:
    memory = Memory(bytearray(256))
    requester, responder = Requester(PARAMS, 0), Responder(PARAMS, 0, memory)
    requester.post(Message(memoryview(b"abcd"), 0, RKEY + 1, 0))
    for packet, payload in packets_of(requester, 0.0):
        responder.receive(packet, payload, 0.0)
    assert responder.reply == (0, NAK_ACCESS)
    requester.acknowledge(*responder.reply, 0.0)
    assert "refused" in requester.error
    assert bytes(memory.data) == bytes(256)
    # Payloads that do not fit their message are never written.
    memory = Memory(bytearray(512))
    responder = Responder(PARAMS, 0, memory)
    responder.receive(WritePacket(0, True, True, True, (0, RKEY, 4), 1), memoryview(b"far too long"), 0.0)
    assert responder.counters.invalid == 1
    assert bytes(memory.data) == bytes(512)
    assert memory.arrivals == []


def test_a_nak_whose_gap_has_closed_asks_for_what_came_too_early_and_then_for_nothing() -> None:
    memory = Memory(bytearray(256 * 4))
    responder = Responder(PARAMS, PSN_MASK, memory)
    parts = packets_of(posted(bytes(256 * 4), PSN_MASK), 0.0)
    for packet, payload in (parts[0], parts[2], parts[1]):
        responder.receive(packet, payload, 0.0)
    # Part 2 was not kept: without a NAK its sender would wait for an acknowledgement until its timer ran out.
    assert responder.reply == (1, NAK_SEQUENCE)
    responder.receive(*parts[2], 0.0)
    assert responder.counters.naks == 1
    assert responder.reply is None
    assert responder.ack_due
    assert responder.acked == 1


def posted(payload: bytes, psn: int = 0) -> Requester:
    requester = Requester(PARAMS, psn)
    requester.post(Message(memoryview(payload), 0, RKEY, 0))
    return requester


def test_a_timer_that_was_held_runs_out_so_much_later() -> None:
    requester = posted(bytes(256))
    requester.take(64, 0.0)
    requester.hold(2.0)
    requester.expire(2.9)
    assert (requester.counters.timeouts, requester.ready) == (0, 0)
    requester.expire(3.0)
    assert (requester.counters.timeouts, requester.ready) == (1, 1)
    idle = posted(b"")
    idle.hold(2.0)
    assert idle.deadline == NEVER


def test_an_acknowledgement_waits_for_more_packets_but_not_for_long() -> None:
    params = RcParams(mtu=256, window=16, ack_every=3, ack_delay_s=0.5)
    responder = Responder(params, 0, Memory(bytearray(8)))

    def write(psn: int, now: float) -> None:
        responder.receive(WritePacket(psn, True, True, True, (0, RKEY, 4)), memoryview(b"abcd"), now)

    write(0, 1.0)
    assert (responder.ack_due, responder.ack_at) == (False, 1.5)
    write(1, 1.2)
    assert (responder.ack_due, responder.ack_at) == (False, 1.5), "the first one's wait counts"
    responder.expire(1.4)
    assert not responder.ack_due
    responder.expire(1.5)
    assert responder.ack_due and responder.acked == 1
    responder.answered()
    assert responder.ack_at == NEVER and not responder.ack_due
    for psn in (2, 3, 4):
        assert not responder.ack_due
        write(psn, 2.0)
    assert responder.ack_due and responder.acked == 4, "as many as ack_every: at once"
    responder.answered()
    write(4, 2.1)
    assert responder.ack_due, "what came twice is answered at once: the sender waits for it"


RECOVERY_PARAMS = RcParams(mtu=256, window=32, ack_every=4, timeout_s=1.0, retries=3)
PACKETS = 10  # of each of two messages
FIRST = PSN_MASK - 4  # so that the PSNs of the first message wrap
DATA = bytes(range(256)) * 2 * PACKETS


class Pair:
    """Two halves of a queue pair with a network in which packets are lost by their number: 0 is the first PSN."""

    def __init__(self, recovery: Recovery, window: int = 32) -> None:
        params = replace(RECOVERY_PARAMS, recovery=recovery, window=window)
        self.memory = Memory(bytearray(len(DATA)))
        self.requester: Requester = requester_of(params, FIRST)
        self.responder: Responder = responder_of(params, FIRST, self.memory)
        half = len(DATA) // 2
        for number in (0, 1):
            part = memoryview(DATA)[number * half : (number + 1) * half]
            self.requester.post(Message(part, number * half, RKEY, number))

    def send(self, *lost: int, now: float = 0.0) -> list[int]:
        """Send all that is ready; the numbers of the packets that were sent."""
        sent = []
        for packet, payload in packets_of(self.requester, now):
            number = (packet.psn - FIRST) & PSN_MASK
            sent.append(number)
            if number not in lost:
                self.responder.receive(packet, payload, now)
        return sent

    def answers(self, now: float = 0.0, *, lost: bool = False) -> list[tuple[str, int]]:
        """Deliver the answers that are due; they, as ("nak", 3)."""
        found = []
        while self.responder.ack_due or self.responder.reply is not None:
            psn, syndrome = self.responder.reply or (self.responder.acked, ACK_NO_LIMIT)
            self.responder.answered()
            found.append(("nak" if syndrome == NAK_SEQUENCE else "ack", (psn - FIRST) & PSN_MASK))
            if not lost:
                self.requester.acknowledge(psn, syndrome, now)
        return found

    def done(self) -> bool:
        return self.requester.idle and bytes(self.memory.data) == DATA and self.memory.arrivals == [0, 1]


def test_go_back_n_sends_all_packets_from_the_lost_one_on() -> None:
    pair = Pair("go-back-n")
    assert pair.send(13) == list(range(20))
    assert pair.answers() == [("nak", 13)]
    assert pair.send() == list(range(13, 20))
    pair.answers()
    assert pair.done()


def test_go_back_0_sends_the_whole_message_again() -> None:
    pair = Pair("go-back-0")
    pair.send(13)
    assert pair.answers() == [("nak", 10)]
    assert pair.send(19) == list(range(10, 20))
    assert pair.answers() == [("ack", 18)]
    pair.requester.expire(1.0)  # the last packet is lost: nothing reveals it but the timer
    assert pair.send(now=1.0) == list(range(10, 20))
    pair.answers(1.0)
    assert pair.done()
    assert pair.requester.counters.retransmitted == 20
    assert pair.responder.counters.received == 20
    assert pair.responder.counters.duplicates == 3 + 9  # accepted, and discarded by a restart


def test_go_back_0_discards_what_it_has_and_ignores_older_acknowledgements() -> None:
    pair = Pair("go-back-0")
    pair.send(13)
    pair.answers()
    pair.requester.acknowledge((FIRST + 12) & PSN_MASK, ACK_NO_LIMIT, 0.0)  # from before the restart
    assert pair.send()[0] == 10
    pair.answers()
    assert pair.done()
    # Go back 0 discards what it has when the message begins again.
    pair = Pair("go-back-0")
    again = packets_of(Pair("go-back-0").requester, 0.0)
    pair.send(19)
    pair.responder.receive(*again[10], 0.0)
    assert (pair.responder.acked - FIRST) & PSN_MASK == 10
    assert pair.responder.counters.received == 11


def test_selective_repeat_ignores_requests_of_packets_that_it_has_not_sent_or_that_are_acknowledged() -> None:
    pair = Pair("selective-repeat")
    packets_of(pair.requester, 0.0, limit=5)
    pair.requester.acknowledge((FIRST + 1) & PSN_MASK, ACK_NO_LIMIT, 0.0)
    for number in (0, 1, 5, 19, 20):
        pair.requester.acknowledge((FIRST + number) & PSN_MASK, NAK_SEQUENCE, 0.0)
    assert pair.send() == list(range(5, 20))


def test_selective_repeat_requests_once_acknowledges_at_once_and_keeps_no_more_than_the_window() -> None:
    pair = Pair("selective-repeat")
    packets = [(packet._replace(ack_request=False), payload) for packet, payload in packets_of(pair.requester, 0.0)]
    for number in (0, 2, 1):
        pair.responder.receive(*packets[number], 0.0)
    assert pair.answers() == [("ack", 2)]
    # Selective repeat requests a packet once while its repetition may still come.
    pair = Pair("selective-repeat")
    for packet, payload in [each for n, each in enumerate(packets_of(pair.requester, 0.0)) if n != 3]:
        pair.responder.receive(packet, payload, 0.0)
        pair.responder.receive(packet, payload, 0.0)  # the network duplicates each packet
    assert pair.answers() == [("nak", 3), ("ack", 2)]
    # Selective repeat keeps no packet beyond the window.
    pair = Pair("selective-repeat", window=4)
    packets = packets_of(Pair("selective-repeat").requester, 0.0)
    pair.responder.receive(*packets[4], 0.0)
    assert pair.answers() == []
    pair.responder.receive(*packets[3], 0.0)
    assert pair.answers() == [("nak", 0), ("nak", 1), ("nak", 2)]


def test_selective_repeat_sends_only_the_lost_packets_again() -> None:
    pair = Pair("selective-repeat")
    assert pair.send(3, 4, 13) == list(range(20))
    assert pair.answers() == [("nak", 3), ("nak", 4), ("nak", 13)]
    assert pair.memory.arrivals == []
    assert pair.send() == [3, 4, 13]
    assert pair.answers() == [("ack", 19)]
    assert pair.done()
    assert pair.requester.counters.retransmitted == 3
    assert pair.responder.counters.out_of_order == 17 - 3


def test_selective_repeat_sends_the_oldest_and_the_latest_packet_after_a_timeout() -> None:
    pair = Pair("selective-repeat")
    pair.send(3, 4, 19)
    assert pair.answers(lost=True) == [("nak", 3), ("nak", 4)]
    pair.requester.expire(1.0)
    assert pair.send(now=1.0) == [0, 19]  # no acknowledgement has arrived
    assert pair.answers(1.0) == [("nak", 3), ("nak", 4), ("ack", 2)], "requested again, since the first NAKs are old"
    assert pair.send(now=1.0) == [3, 4]
    pair.answers(1.0)
    assert pair.done()


@pytest.mark.parametrize("recovery", get_args(Recovery))
def test_a_receiver_that_never_answers_ends_every_recovery(recovery: Recovery) -> None:
    pair, now = Pair(recovery), 0.0
    while not pair.requester.error:
        pair.send(*range(20), now=now)
        now = pair.requester.deadline
        pair.requester.expire(now)
        assert now < 10
    last = (FIRST - 1) & PSN_MASK
    assert pair.requester.error == f"no acknowledgement after 3 retries of 1 s (last good PSN {last:#x})"
    assert pair.send(now=now) == []


def test_only_go_back_n_is_compiled() -> None:
    assert Rc(RECOVERY_PARAMS).fast() is not None
    assert Rc(replace(RECOVERY_PARAMS, recovery="go-back-0")).fast() is None
    assert Rc(replace(RECOVERY_PARAMS, recovery="selective-repeat")).fast() is None
