"""Heddle's reliable connection against the Linux kernel's: every operation in both directions, over links with faults.

rxe checks our ICRC, PSNs and acknowledgements, and we check its: a packet with a wrong one would never be accepted.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from heddle.base.process import run
from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.rdma import verbslib as ib
from heddle.endpoints.rdma.verbsdevice import gid_index, gid_of
from heddle.endpoints.transports.rcops import OpKind
from heddle.kernel import rdma
from heddle.kernel.namespace import inside
from heddle.wire import layout as wire
from heddle.wire.icrc import verdict
from heddle.wire.layout import TOS_ANSWER
from heddle.wire.sport import sport_for_qps
from tests.machine import patience
from tests.marks import deep
from tests.netns.rxe_compiled import compiled_pair
from tests.netns.rxe_pair import (
    HALF,
    MTU,
    OWN_QPN,
    PSN,
    RKEY,
    OwnEnd,
    RxePair,
    impair,
    rxe_link,
    rxe_pair,
    turned_until,
)
from tests.netns.rxe_wire import captured, fields, packets, response, wanted

_WHY = rdma.obstacle()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}")

SYSTEM_PYTHON = Path("/usr/bin/python3")
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
SIZES = (1, 1024, 1025, 20_000)
FAULTS = {
    "none": "",
    "loss": "limit 1000 loss 3%",
    "duplication": "limit 1000 duplicate 10%",
    "reordering": "limit 1000 delay 3ms reorder 70%",
    "all": "limit 1000 delay 3ms reorder 80% loss 2% duplicate 5%",
}
# Kinds of requests, with their immediate.
OPERATIONS: Final[Sequence[tuple[OpKind, int | None]]] = (
    ("write", None), ("write", 0x01020304), ("send", None), ("send", 0xA0B0C0D0), ("read", None),
)  # fmt: skip
OPCODES: Final = {
    ("write", False): ib.WR_WRITE, ("write", True): ib.WR_WRITE_IMM, ("send", False): ib.WR_SEND,
    ("send", True): ib.WR_SEND_IMM, ("read", False): ib.WR_READ,
}  # fmt: skip


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


@pytest.mark.parametrize("fault", FAULTS)
def test_every_operation_in_both_directions(fault: str) -> None:
    # Without faults a timeout is long: a slow machine must not look like loss. 16: 0.27 s, 20: 4.3 s.
    with rxe_pair(timeout=20 if fault == "none" else 16) as pair:
        if FAULTS[fault]:
            impair(pair.link.spaces, FAULTS[fault], spare_acks="reorder" in FAULTS[fault])
        for _ in range(1 if fault == "none" else 3):
            pair.received.clear()
            ours_to_rxe(pair)
            rxe_to_ours(pair)
        seen, counters = pair.end.counters(), pair.nic.counters
        assert (counters.icrc_errors, counters.malformed, counters.stray) == (0, 0, 0)
        if fault == "none":
            assert seen["retransmitted"] == seen["naks"] == seen["timeouts"] == seen["duplicates"] == 0
        if fault in ("loss", "all"):
            assert seen["retransmitted"] > 0 and seen["duplicates"] + seen["out_of_order"] > 0
        if fault == "duplication":
            assert seen["duplicates"] > 0
        if fault == "reordering":
            assert seen["out_of_order"] > 0 and seen["naks"] > 0


@pytest.mark.parametrize(("version", "mtu", "sizes"), [(6, MTU, SIZES), deep(4, 4096, (1, 4096, 4097, 20_000))])
def test_over_ipv6_and_with_the_largest_mtu(version: int, mtu: int, sizes: tuple[int, ...]) -> None:
    with rxe_pair(version=version, mtu=mtu) as pair:
        ours_to_rxe(pair, sizes)
        rxe_to_ours(pair, sizes)
        assert pair.end.counters()["retransmitted"] == 0


@pytest.mark.parametrize(("version", "loss"), [(4, False), deep(4, True), deep(6, False)])
def test_the_compiled_loop_writes_to_rxe_and_is_written_to(version: int, loss: bool) -> None:
    with compiled_pair(version, timeout=16 if loss else 20) as pair:
        if loss:
            impair(pair.link.spaces, FAULTS["loss"])
        for _ in range(6 if loss else 1):
            pair.ours_to_rxe(SIZES)
            pair.rxe_to_ours(SIZES)
        seen = pair.counters()
        assert seen["rejected"] == 0 and seen["taken"] >= sum(-(-size // MTU) for size in SIZES)
        if loss:
            assert seen["retransmitted"] > 0 and seen["out_of_order"] + seen["duplicates"] > 0
        else:
            assert not any(value for name, value in seen.items() if name != "taken"), seen


@pytest.mark.skipif(not PYVERBS.exists(), reason="needs python3-pyverbs")
@pytest.mark.deep
def test_rdma_cores_own_bindings_connect_to_our_end() -> None:
    """No code of Heddle is at the far end: its structures and flags are not ours, so ours are not only consistent."""
    size, imm = 3000, 0x01020304
    with rxe_link() as link:
        with inside(link.spaces[1]):
            index = gid_index(link.device, link.ips[1])
        given = {
            "device": link.device, "gid_index": index, "gid": gid_of(link.ips[0]).hex(":", 2),
            "qpn": OWN_QPN, "psn": PSN, "mtu": MTU, "timeout": 20, "va": 0, "rkey": RKEY, "imm": imm, "size": size,
            "text": "x",
        }  # fmt: skip
        program = [str(SYSTEM_PYTHON), str(Path(__file__).with_name("pyverbs_peer.py")), json.dumps(given)]
        argv = ["nsenter", f"--net={link.spaces[1]}", *program]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            far = json.loads(peer.stdout.readline())
            own, inbox, got = OwnEnd(link, far["qpn"]), bytearray(size), np.zeros(size, np.uint8)
            mine = own.memory.data.copy()
            own.end.responder.post_receive(memoryview(inbox))
            try:
                own.ask("write", mine[:size].data, far["va"] + 2 * size, far["rkey"], imm=7)
                own.ask("send", mine[size : 2 * size].data, 0, 0, imm=8)
                own.ask("read", got.data, far["va"], far["rkey"])
                turned_until(
                    lambda: peer.poll() is not None and own.nic.idle, own.turn, lambda: str(own.end.counters())
                )
                said = json.loads(peer.stdout.read())
            finally:
                peer.kill()
                own.close()
    assert got.tobytes() == bytes(inbox) == own.memory.data[:size].tobytes() == b"x" * size
    assert own.memory.imms == [imm] and own.end.responder.arrivals == [(size, imm)]
    assert said["came"] == [[7, size], [8, size]]
    assert bytes.fromhex(said["written"]) == mine[:size].tobytes()
    assert bytes.fromhex(said["sent"]) == mine[size : 2 * size].tobytes()
    assert bytes.fromhex(said["read"]) == b"x" * size


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


def test_rxe_refuses_a_wrong_key_of_ours() -> None:
    with rxe_pair() as pair:
        pair.theirs.rkey ^= 1
        pair.post("write", pair.memory.data[:100].data)
        with pytest.raises(AssertionError):
            pair.work(seconds=5)
        assert f"0x{wire.NAK_ACCESS:02x}" in pair.end.error


def test_rxe_ends_a_connection_when_an_old_ack_arrives_within_the_response_to_its_read() -> None:
    """Up to Linux 7.3.4 at least: rxe_comp.c, check_psn, passes an ACK of any earlier PSN on while a response is
    incomplete (meant for NAKs), and COMPST_UPDATE_COMP then forgets that one is. The next packet of the response is an
    error, and the READ completes as a success, with the bytes of the packets before it only."""
    size = 3 * MTU
    with rxe_pair() as pair:
        pair.peer.post_send(ib.WR_WRITE, 0, pair.theirs.address + HALF, 1, pair.theirs.lkey, va=0, rkey=RKEY)
        pair.work(sends=1)
        before = pair.theirs.array[:size].copy()
        pair.peer.post_send(ib.WR_READ, 1, pair.theirs.address, size, pair.theirs.lkey, va=HALF, rkey=RKEY)
        responder = pair.end.responder
        while not responder.reads:
            pair.nic.receive(time.monotonic())
        batch = SendBatch(MTU, slots=4)
        assert pair.end.take(batch, 0, 1, 0.0) == 1
        batch.put_ack(1, pair.header(TOS_ANSWER), PSN, wire.ACK_NO_LIMIT, responder.msn)  # of the WRITE, once more
        assert pair.end.take(batch, 2, 2, 0.0) == 2
        assert pair.nic.socket.send(batch, 4) == 4
        pair.peer.post_send(ib.WR_WRITE, 2, pair.theirs.address + HALF, 1, pair.theirs.lkey, va=0, rkey=RKEY)
        deadline = time.monotonic() + patience(60)
        while len(pair.sent) < 3 and time.monotonic() < deadline:
            pair.nic.transmit(time.monotonic())
            pair.nic.receive(time.monotonic())
            pair.nic.expire(time.monotonic())
            pair.sent += pair.device.sent()
        got, wanted = pair.theirs.array[:size], pair.memory.data[HALF : HALF + size]
        np.testing.assert_array_equal(got[:MTU], wanted[:MTU])
        errors = [each.error for each in pair.sent]
        if errors == ["", "", ""]:  # a kernel that ignores the old ACK
            np.testing.assert_array_equal(got, wanted)
        else:
            assert errors == ["", "", "Work Request Flushed Error"]
            np.testing.assert_array_equal(got[MTU:], before[MTU:])


def test_rxe_answers_no_mark_with_a_cnp_and_drops_the_cnps_that_it_gets() -> None:
    with rxe_pair() as pair:
        pair.mark()
        cnp = SendBatch(MTU, slots=1)
        cnp.put_cnp(0, pair.header(TOS_ANSWER))
        for _ in range(10):
            assert pair.nic.socket.send(cnp, 1) == 1
        size = 50_000
        pair.post("write", pair.memory.data[:size].data)
        pair.work()
        np.testing.assert_array_equal(pair.theirs.array[:size], pair.memory.data[:size])
        assert pair.nic.counters.stray == 0  # our end takes no CNPs, so they would count here
        pair.peer.post_send(ib.WR_WRITE, 0, pair.theirs.address, size, pair.theirs.lkey, va=0, rkey=RKEY)
        pair.work(sends=1)


@pytest.mark.needs("tshark")
@pytest.mark.parametrize("version", [4, deep(6)])
def test_tshark_reads_the_packets_of_both_stacks_alike(version: int, tmp_path: Path) -> None:
    """Each operation by both sides: all requests are as the specification has them, and both answer alike."""
    size, path = 4 * MTU + 1, tmp_path / "both.pcap"
    inbox, got = bytearray(size), np.zeros(size, np.uint8)
    with rxe_pair(version=version) as pair, captured(pair.link.spaces[0], path):
        room = (pair.theirs.address + HALF, size, pair.theirs.lkey)
        for number, (kind, imm) in enumerate(OPERATIONS):
            pair.received.clear()
            receives = kind == "send" or imm is not None
            if receives:
                pair.peer.post_receive(number, *room)
            pair.post(kind, got.data if kind == "read" else pair.memory.data[:size].data, imm=imm)
            pair.work(receives=int(receives))
        for number, (kind, imm) in enumerate(OPERATIONS):
            if kind == "send":
                pair.end.responder.post_receive(memoryview(inbox))
            opcode, local = OPCODES[kind, imm is not None], pair.theirs.address
            pair.peer.post_send(opcode, number, local, size, pair.theirs.lkey, imm=imm or 0, va=HALF, rkey=RKEY)
            pair.work(sends=number + 1)
        memories = {pair.link.ips[0]: (pair.theirs.address, pair.theirs.rkey), pair.link.ips[1]: (HALF, RKEY)}
        qpns = {pair.link.ips[0]: pair.peer.qpn, pair.link.ips[1]: OWN_QPN}
        sport = sport_for_qps(OWN_QPN, pair.peer.qpn)
    seen = packets(run(["tshark", "-r", str(path), *fields(version)]).out, path)
    assert {each.sport for each in seen} == {sport}  # rxe chose the port that the plan predicts
    assert {ip_address(each.src).compressed for each in seen} == set(qpns)
    answers = []
    for src, memory in memories.items():
        mine = [each for each in seen if each.src == src]
        assert {each.qpn for each in mine} == {qpns[src]}
        requests, psn = [], PSN
        for kind, imm in OPERATIONS:
            requests += wanted(kind, imm, size, MTU, psn, *memory)
            psn += -(-size // MTU)
        assert [each.head for each in mine if each.requests] == requests
        responses = [each for each in mine if wire.READ_RESPONSE_FIRST <= each.head.opcode < wire.ACK]
        assert [each.head for each in responses] == response(size, MTU, psn - -(-size // MTU))
        acks = [each for each in mine if each.head.opcode == wire.ACK]
        assert acks and all(each.head.psn - PSN & wire.PSN_MASK < psn - PSN for each in acks)
        ended = sorted({each.aeth for each in acks if each.aeth != (wire.ACK_NO_LIMIT, 0)})  # no message has ended
        answers.append(([each.aeth for each in responses], ended))
    assert answers[0] == answers[1] and answers[0][1] == [(wire.ACK_NO_LIMIT, msn) for msn in range(1, 5)]
    for each in seen:
        assert verdict(each.frame, wire.ETH_BYTES) == "right"
        assert each.icrc.to_bytes(4, "big") == each.frame[-wire.ICRC_BYTES :]
