"""What each recovery sends again: traces by hand. That no data are lost is shown in test_rc_model.py."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from heddle.endpoints.nic.qpend import Message
from heddle.endpoints.transports.rc import Rc
from heddle.endpoints.transports.rcstate import RcParams, Requester, Responder
from heddle.endpoints.transports.recovery import requester_of, responder_of
from heddle.traffic.options import Recovery
from heddle.wire.layout import ACK_NO_LIMIT, NAK_SEQUENCE, PSN_MASK
from tests.unit.test_rc import RKEY, Memory, packets_of

PARAMS = RcParams(mtu=256, window=32, ack_every=4, timeout_s=1.0, retries=3)
PACKETS = 10  # of each of two messages
FIRST = PSN_MASK - 4  # so that the PSNs of the first message wrap
DATA = bytes(range(256)) * 2 * PACKETS


class Pair:
    """Two halves of a queue pair with a network in which packets are lost by their number: 0 is the first PSN."""

    def __init__(self, recovery: Recovery, window: int = 32) -> None:
        params = replace(PARAMS, recovery=recovery, window=window)
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


def test_go_back_0_ignores_the_acknowledgement_of_what_the_receiver_has_discarded() -> None:
    pair = Pair("go-back-0")
    pair.send(13)
    pair.answers()
    pair.requester.acknowledge((FIRST + 12) & PSN_MASK, ACK_NO_LIMIT, 0.0)  # from before the restart
    assert pair.send()[0] == 10
    pair.answers()
    assert pair.done()


def test_go_back_0_discards_what_it_has_when_the_message_begins_again() -> None:
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


def test_selective_repeat_acknowledges_at_once_when_a_gap_is_closed() -> None:
    pair = Pair("selective-repeat")
    packets = [(packet._replace(ack_request=False), payload) for packet, payload in packets_of(pair.requester, 0.0)]
    for number in (0, 2, 1):
        pair.responder.receive(*packets[number], 0.0)
    assert pair.answers() == [("ack", 2)]


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


def test_selective_repeat_requests_a_packet_once_while_its_repetition_may_still_come() -> None:
    pair = Pair("selective-repeat")
    for packet, payload in [each for n, each in enumerate(packets_of(pair.requester, 0.0)) if n != 3]:
        pair.responder.receive(packet, payload, 0.0)
        pair.responder.receive(packet, payload, 0.0)  # the network duplicates each packet
    assert pair.answers() == [("nak", 3), ("ack", 2)]


def test_selective_repeat_keeps_no_packet_beyond_the_window() -> None:
    pair = Pair("selective-repeat", window=4)
    packets = packets_of(Pair("selective-repeat").requester, 0.0)
    pair.responder.receive(*packets[4], 0.0)
    assert pair.answers() == []
    pair.responder.receive(*packets[3], 0.0)
    assert pair.answers() == [("nak", 0), ("nak", 1), ("nak", 2)]


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
    assert Rc(PARAMS).fast() is not None
    assert Rc(replace(PARAMS, recovery="go-back-0")).fast() is None
    assert Rc(replace(PARAMS, recovery="selective-repeat")).fast() is None
