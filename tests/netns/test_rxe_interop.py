"""Heddle's reliable connection against the Linux kernel's: every operation in both directions, over links with faults.

rxe checks our ICRC, PSNs and acknowledgements, and we check its: a packet with a wrong one would never be accepted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from heddle.endpoints.rdma import verbslib as ib
from heddle.kernel import rdma
from tests.marks import deep
from tests.netns.rxe_pair import HALF, MTU, RKEY, RxePair, impair, rxe_pair

_WHY = rdma.obstacle()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}")

SIZES = (1, 1024, 1025, 20_000)


def ours_to_rxe(pair: RxePair, sizes: Sequence[int] = SIZES) -> None:
    """WRITE, READ and SEND, the first and the last of them also with immediate, of each size."""
    theirs, mine = pair.theirs.array, pair.memory.data
    kept = theirs[HALF:].copy()
    inbox = theirs[HALF // 2 : HALF]  # for SENDs
    room = (pair.theirs.address + HALF // 2, HALF // 2, pair.theirs.lkey)
    at = 0
    for number, size in enumerate(sizes):
        pair.peer.post_receive(number, room[0], 0, pair.theirs.lkey)  # for the immediate
        pair.post("write", mine[:size].data, at)
        pair.post("write", mine[1 : size + 1].data, at + size, imm=number)
        at += 2 * size
    pair.work(receives=len(sizes))
    assert [each.imm for each in pair.received] == list(range(len(sizes)))
    at = 0
    for size in sizes:
        np.testing.assert_array_equal(theirs[at : at + size], mine[:size])
        np.testing.assert_array_equal(theirs[at + size : at + 2 * size], mine[1 : size + 1])
        at += 2 * size
    got = [np.zeros(size, np.uint8) for size in sizes]
    for number, size in enumerate(sizes):
        for step, imm in ((7, None), (9, 50 + number)):
            pair.received.clear()
            pair.peer.post_receive(number, *room)
            if imm is None:
                pair.post("read", got[number].data, HALF)
            pair.post("send", mine[step : size + step].data, imm=imm)
            pair.work(receives=1)
            assert (pair.received[0].imm, pair.received[0].length) == (imm, size)
            np.testing.assert_array_equal(inbox[:size], mine[step : size + step])
        np.testing.assert_array_equal(got[number], kept[:size])


def rxe_to_ours(pair: RxePair, sizes: Sequence[int] = SIZES) -> None:
    """The same, requested by rxe."""
    theirs, mine = pair.theirs, pair.memory.data
    kept, inboxes = mine[HALF:].copy(), (bytearray(HALF), bytearray(HALF))
    imms, base = len(pair.memory.imms), theirs.address
    for number, size in enumerate(sizes):
        theirs.array[HALF:] = np.roll(theirs.array[HALF:], 1)
        source = theirs.array[HALF : HALF + size].copy()
        done, arrived = len(pair.sent), len(pair.end.responder.arrivals)
        for inbox in inboxes:
            pair.end.responder.post_receive(memoryview(inbox))
        for opcode, va, local in (
            (ib.WR_WRITE, 0, HALF),
            (ib.WR_WRITE_IMM, size, HALF),
            (ib.WR_SEND, 0, HALF),
            (ib.WR_READ, HALF, 0),
            (ib.WR_SEND_IMM, 0, HALF),
        ):
            pair.peer.post_send(opcode, number, base + local, size, theirs.lkey, imm=number + 9, va=va, rkey=RKEY)
        pair.work(sends=done + 5, arrivals=arrived + 2, imms=imms + number + 1)
        np.testing.assert_array_equal(mine[:size], source)
        np.testing.assert_array_equal(mine[size : 2 * size], source)
        np.testing.assert_array_equal(theirs.array[:size], kept[:size])
        assert [bytes(inbox[:size]) for inbox in inboxes] == [source.tobytes()] * 2
        assert pair.end.responder.arrivals[-2:] == [(size, None), (size, number + 9)]
        assert pair.memory.imms[-1] == number + 9


@pytest.mark.parametrize(
    ("version", "mtu", "faults"),
    [(4, MTU, ""), (6, MTU, ""), deep(4, 4096, ""), deep(4, MTU, "limit 1000 loss 2% duplicate 5%")],
)
def test_every_operation_in_both_directions(version: int, mtu: int, faults: str) -> None:
    # Without faults a timeout is long: a slow machine must not look like loss. 16: 0.27 s, 20: 4.3 s.
    with rxe_pair(version, 16 if faults else 20, mtu) as pair:
        if faults:
            impair(pair.link.spaces, faults)
        for _ in range(3 if faults else 1):
            pair.received.clear()
            ours_to_rxe(pair)
            rxe_to_ours(pair)
        seen, counters = pair.end.counters(), pair.nic.counters
        assert (counters.icrc_errors, counters.malformed, counters.stray) == (0, 0, 0)
        if faults:
            assert seen["retransmitted"] > 0 and seen["duplicates"] + seen["out_of_order"] > 0
        else:
            assert seen["retransmitted"] == seen["naks"] == seen["timeouts"] == seen["duplicates"] == 0


def test_a_send_without_memory_gets_rnr_nak_from_both_and_is_repeated() -> None:
    with rxe_pair() as pair:
        pair.post("send", pair.memory.data[:3000].data, imm=3)
        for _ in range(200):
            pair.turn()
            time.sleep(0.0005)
        assert pair.end.counters()["not_ready"] > 0
        pair.peer.post_receive(0, pair.theirs.address, HALF, pair.theirs.lkey)
        pair.work(receives=1)
        np.testing.assert_array_equal(pair.theirs.array[:3000], pair.memory.data[:3000])
        pair.peer.post_send(ib.WR_SEND_IMM, 0, pair.theirs.address, 3000, pair.theirs.lkey, imm=4)
        for _ in range(200):
            pair.turn()
            time.sleep(0.0005)
        assert pair.end.responder.counters.naks > 0 and not pair.sent
        inbox = bytearray(4000)
        pair.end.responder.post_receive(memoryview(inbox))
        pair.work(sends=1, arrivals=1)
        assert bytes(inbox[:3000]) == pair.memory.data[:3000].tobytes()
