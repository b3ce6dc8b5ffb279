"""The states of a reliable connection against a model, with every recovery: whatever a network does to its packets and
answers, every message arrives once, whole, in order and at its place.

The model of the memory is a plain bytearray: each message written at its address. Hypothesis chooses the sizes, the
window, the first PSN (also just before 2^24), and what the network does with each packet and each answer.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.qpend import NEVER, Message
from heddle.endpoints.transports.rc import requester_of, responder_of
from heddle.endpoints.transports.rcstate import RcParams, Recovery, Responder, WritePacket
from heddle.wire.layout import ACK_NO_LIMIT, PSN_MASK
from tests.unit.test_rc import RKEY, Memory, packets_of

MTU = 64
TIMEOUT_S = 1.0
FATES = ("deliver", "lose", "twice", "late")  # of one packet or answer

T = TypeVar("T")

parameters = st.builds(
    RcParams,
    mtu=st.just(MTU), window=st.integers(1, 12), ack_every=st.integers(1, 8), timeout_s=st.just(TIMEOUT_S),
    retries=st.just(10_000), ack_delay_s=st.sampled_from((0.0, 0.1)), recovery=st.sampled_from(get_args(Recovery)),
)  # fmt: skip
# A message is not sent again from its start because no acknowledgement was requested: plans have no such window.
parameters = parameters.filter(lambda each: each.recovery != "go-back-0" or each.ack_every <= each.window)
first_psns = st.one_of(st.integers(0, 40), st.integers(PSN_MASK - 40, PSN_MASK))
lengths = st.lists(st.integers(0, 5 * MTU), min_size=1, max_size=8)
fates = st.lists(st.sampled_from(FATES), max_size=120)


class Network(Generic[T]):
    """One direction. Each item has the next of the given fates; when these are used up, everything is delivered.

    An item that is late is delivered after the one sent next.
    """

    def __init__(self, chosen: list[str]) -> None:
        self._fates = deque(chosen)
        self._late: list[T] = []

    def send(self, item: T) -> list[T]:
        fate = self._fates.popleft() if self._fates else "deliver"
        if fate == "late":
            self._late.append(item)
            return []
        late, self._late = self._late, []
        return {"deliver": [item], "lose": [], "twice": [item, item]}[fate] + late

    def quiet(self) -> list[T]:
        """What is late arrives when nothing else is sent."""
        late, self._late = self._late, []
        return late


@settings(max_examples=200, deadline=None, database=None)
@given(parameters, first_psns, lengths, fates, fates)
def test_every_message_arrives_once_in_order_and_whole(
    params: RcParams, psn: int, sizes: list[int], ways: list[str], ways_back: list[str]
) -> None:
    payloads = [bytes((7 * number + at) % 251 for at in range(size)) for number, size in enumerate(sizes)]
    memory, wanted = Memory(bytearray(sum(sizes))), b"".join(payloads)
    requester, responder = requester_of(params, psn), responder_of(params, psn, memory)
    va = 0
    for number, payload in enumerate(payloads):
        requester.post(Message(memoryview(payload), va, RKEY, number))
        va += len(payload)
    there, back = Network[tuple[WritePacket, memoryview]](ways), Network[tuple[int, int]](ways_back)
    now = 0.0
    for _ in range(20_000):
        if requester.idle:
            break
        arriving = [item for sent in packets_of(requester, now, 1 << 20) for item in there.send(sent)] or there.quiet()
        for packet, part in arriving:
            responder.receive(packet, part, now)
        answers = [each for answer in answers_of(responder) for each in back.send(answer)] or back.quiet()
        for acked, syndrome in answers:
            requester.acknowledge(acked, syndrome, now)
        assert not requester.error
        assert requester.next - requester.una <= params.window
        if not arriving and not answers:  # only a timer can go on
            now = min(requester.deadline, responder.ack_at)
            requester.expire(now)
            responder.expire(now)
    assert requester.idle
    assert memory.data == wanted
    assert memory.arrivals == list(range(len(sizes)))
    assert responder.msn == len(sizes)
    assert responder.counters.received == sum(max(1, -(-size // MTU)) for size in sizes)
    assert responder.counters.invalid == 0
    counts = requester.counters
    assert counts.sent - counts.retransmitted == sum(max(1, -(-size // MTU)) for size in sizes)
    if {*ways, *ways_back} <= {"deliver"} and params.ack_every <= params.window:
        assert counts.retransmitted == counts.timeouts == 0
        assert responder.counters.duplicates == responder.counters.out_of_order == 0
    assert requester.deadline == NEVER


def answers_of(responder: Responder) -> list[tuple[int, int]]:
    """The answers that are due: (PSN, syndrome)."""
    found: list[tuple[int, int]] = []
    while responder.ack_due or responder.reply is not None:
        found.append(responder.reply or (responder.acked, ACK_NO_LIMIT))
        responder.answered()
    return found
