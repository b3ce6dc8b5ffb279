"""Heddle's reliable connection against the Linux kernel's: every operation in both directions, over links with faults.

rxe checks our ICRC, PSNs and acknowledgements, and we check its: a packet with a wrong one would never be accepted.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from heddle.base.process import run
from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.verbs import verbslib as ib
from heddle.kernel import rdma
from heddle.wire import layout as wire
from heddle.wire.layout import TOS_ANSWER
from heddle.wire.sport import sport_for_qps
from tests.machine import patience
from tests.netns.rxe_pair import HALF, MTU, OWN_QPN, PSN, RKEY, RxePair, impair, rxe_pair

_WHY = rdma.obstacle()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}")

SIZES = (1, 1024, 1025, 20_000)
FAULTS = {
    "none": "",
    "loss": "limit 1000 loss 3%",
    "duplication": "limit 1000 duplicate 10%",
    "reordering": "limit 1000 delay 3ms reorder 70%",
    "all": "limit 1000 delay 3ms reorder 80% loss 2% duplicate 5%",
}


def ours_to_rxe(pair: RxePair) -> None:
    """WRITE, WRITE with immediate, SEND with immediate and READ, of each size."""
    theirs, mine = pair.theirs.array, pair.memory.data
    kept = theirs[HALF:].copy()
    inbox = theirs[HALF // 2 : HALF]  # for SENDs
    at = 0
    for number, size in enumerate(SIZES):
        pair.peer.post_receive(number, pair.theirs.address + HALF // 2, 0, pair.theirs.lkey)  # for the immediate
        pair.post("write", mine[:size].data, at)
        pair.post("write", mine[1 : size + 1].data, at + size, imm=number)
        at += 2 * size
    pair.work(receives=len(SIZES))
    assert [each.imm for each in pair.received] == list(range(len(SIZES)))
    at = 0
    for size in SIZES:
        np.testing.assert_array_equal(theirs[at : at + size], mine[:size])
        np.testing.assert_array_equal(theirs[at + size : at + 2 * size], mine[1 : size + 1])
        at += 2 * size
    got = [np.zeros(size, np.uint8) for size in SIZES]
    for number, size in enumerate(SIZES):
        pair.received.clear()
        pair.peer.post_receive(number, pair.theirs.address + HALF // 2, HALF // 2, pair.theirs.lkey)
        pair.post("read", got[number].data, HALF)
        pair.post("send", mine[7 : size + 7].data, imm=50 + number)
        pair.work(receives=1)
        assert (pair.received[0].imm, pair.received[0].length) == (50 + number, size)
        np.testing.assert_array_equal(inbox[:size], mine[7 : size + 7])
        np.testing.assert_array_equal(got[number], kept[:size])


def rxe_to_ours(pair: RxePair) -> None:
    """The same, requested by rxe."""
    theirs, mine = pair.theirs, pair.memory.data
    kept, inbox = mine[HALF:].copy(), bytearray(HALF)
    imms, base = len(pair.memory.imms), theirs.address
    for number, size in enumerate(SIZES):
        theirs.array[HALF:] = np.roll(theirs.array[HALF:], 1)
        source = theirs.array[HALF : HALF + size].copy()
        done, arrived = len(pair.sent), len(pair.end.responder.arrivals)
        pair.end.responder.post_receive(memoryview(inbox))
        for opcode, va, local in (
            (ib.WR_WRITE, 0, HALF),
            (ib.WR_WRITE_IMM, size, HALF),
            (ib.WR_READ, HALF, 0),
            (ib.WR_SEND_IMM, 0, HALF),
        ):
            pair.peer.post_send(opcode, number, base + local, size, theirs.lkey, imm=number + 9, va=va, rkey=RKEY)
        pair.work(sends=done + 4, arrivals=arrived + 1, imms=imms + number + 1)
        np.testing.assert_array_equal(mine[:size], source)
        np.testing.assert_array_equal(mine[size : 2 * size], source)
        np.testing.assert_array_equal(theirs.array[:size], kept[:size])
        assert bytes(inbox[:size]) == source.tobytes()
        assert pair.end.responder.arrivals[-1] == (size, number + 9)
        assert pair.memory.imms[-1] == number + 9


@pytest.mark.parametrize("fault", FAULTS)
def test_every_operation_in_both_directions(fault: str) -> None:
    # Without faults a timeout is long: a slow machine must not look like loss. 16: 0.27 s, 20: 4.3 s.
    with rxe_pair(timeout=20 if fault == "none" else 16) as pair:
        if FAULTS[fault]:
            impair(pair.spaces, FAULTS[fault], spare_acks="reorder" in FAULTS[fault])
        for _ in range(1 if fault == "none" else 4):
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


def test_over_ipv6() -> None:
    with rxe_pair(version=6) as pair:
        ours_to_rxe(pair)
        rxe_to_ours(pair)
        assert pair.end.counters()["retransmitted"] == 0


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
def test_tshark_reads_the_packets_of_both_stacks_alike(tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "both.pcap"
    with rxe_pair() as pair:
        argv = [
            "nsenter",
            f"--net={pair.spaces[0]}",
            "tcpdump",
            "-i",
            "eth1",
            "-U",
            "--immediate-mode",
            "-w",
            str(path),
            "udp port 4791",
        ]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as dump:
            assert dump.stderr is not None and any("listening" in line for line in dump.stderr)
            size = 3000
            pair.post("write", pair.memory.data[:size].data)
            pair.work()
            pair.peer.post_send(ib.WR_WRITE, 0, pair.theirs.address, size, pair.theirs.lkey, va=HALF, rkey=RKEY)
            pair.work(sends=1)
            time.sleep(0.5)
            dump.terminate()
        sport = sport_for_qps(OWN_QPN, pair.peer.qpn)
        qpns = {pair.ips[0]: pair.peer.qpn, pair.ips[1]: OWN_QPN}
    fields = ("ip.src", "udp.srcport", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.padcnt")
    argv = ["tshark", "-r", str(path), "-T", "fields"]
    rows = [line.split("\t") for line in run([*argv, *(w for f in fields for w in ("-e", f))]).out.splitlines()]
    requests = {ip: [row[2:] for row in rows if row[0] == ip and int(row[2]) != wire.ACK] for ip in qpns}
    wanted = [wire.WRITE_FIRST, wire.WRITE_MIDDLE, wire.WRITE_LAST]
    for ip, found in requests.items():
        assert [int(opcode) for opcode, _, _ in found] == wanted
        assert {int(qpn, 16) for _, qpn, _ in found} == {qpns[ip]}
        assert [int(pad) for _, _, pad in found] == [0, 0, -size % 4]
    assert {int(row[1]) for row in rows} == {sport}  # rxe chose the port that the plan predicts
    assert {row[0] for row in rows if int(row[2]) == wire.ACK} == set(qpns)
