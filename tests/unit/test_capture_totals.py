"""What is counted of the packets of a capture: ICRCs, the order of PSNs, queue pairs, pauses, and RoCE v1."""

from __future__ import annotations

from collections import Counter

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl, MACControlPause
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.capturefile import CapturedPacket
from heddle.wire.conversations import CaptureTotals, PsnOrder
from heddle.wire.dissect import ROCE_V1, dissect
from heddle.wire.icrc import verdict
from tests.unit.capture_frames import packet, taken, v1_frame
from tests.unit.roce_samples import SAMPLES, SAMPLES6, Sample

# ICRC


@pytest.mark.parametrize("sample", [*SAMPLES, *SAMPLES6], ids=lambda s: s.name)
def test_an_icrc_is_right_whatever_routers_change_and_wrong_if_any_other_bit_is(sample: Sample) -> None:
    frame = sample.frame()
    ip_at = dissect(frame).ip_at
    assert verdict(frame, ip_at) == "right"
    assert verdict(frame + bytes(6), ip_at) == "right", "padding or FCS behind the packet"
    aged = bytearray(frame)
    for at in (15, 22, 24, 25) if sample.version == 4 else (14, 15, 16, 17, 21):
        aged[at] ^= 0x0F if at == 14 else 3
    assert verdict(bytes(aged), ip_at) == "right"
    for at in (len(frame) - 1, len(frame) - 5, ip_at + (20 if sample.version == 4 else 40)):
        broken = bytearray(frame)
        broken[at] ^= 1
        assert verdict(bytes(broken), ip_at) == "wrong"
    assert verdict(frame[:-4] + bytes(4), ip_at) == "zero"
    assert verdict(frame[:-1], ip_at) == "cut"
    assert verdict(frame[: ip_at + 3], ip_at) == "cut"


def test_tags_move_the_packet_and_fragments_are_not_checked() -> None:
    frame = SAMPLES[0].frame()
    tagged = frame[:12] + b"\x88\xa8\0\1\x81\0\0\2" + frame[12:]
    assert dissect(tagged).ip_at == 22 and verdict(tagged, 22) == "right"
    fragment = frame[:20] + b"\x20" + frame[21:]
    assert verdict(fragment, 14) == "unchecked"


# The order of PSNs


@pytest.mark.parametrize(
    ("psns", "gaps", "missing", "late", "repeated"),
    [
        ([1, 2, 3, 4], 0, 0, 0, 0),
        ([0xFFFFFE, 0xFFFFFF, 0, 1], 0, 0, 0, 0),
        ([1, 2, 5, 6], 1, 2, 0, 0),
        ([1, 2, 5, 3, 4, 6], 1, 0, 2, 0),
        ([1, 2, 3, 2, 3, 4], 0, 0, 0, 2),
        ([1, 2, 4, 5, 3, 4, 5, 6], 1, 0, 1, 2),  # go-back-N after a loss before this port
        ([0xFFFFFF, 2, 0, 1, 1], 1, 0, 2, 1),
        ([1, 9, 5, 5, 20], 2, 16, 1, 1),
    ],
)
def test_psns_tell_losses_and_repetitions(psns: list[int], gaps: int, missing: int, late: int, repeated: int) -> None:
    order = PsnOrder()
    for psn in psns:
        order.add(psn)
    assert (order.gaps, order.missing, order.late, order.repeated) == (gaps, missing, late, repeated)
    assert (order.first, order.restarts) == (psns[0], 0)


def test_another_connection_on_the_same_number_is_no_loss() -> None:
    order = PsnOrder()
    for psn in (10, 11, 5_000_000, 5_000_001, 20, 21):
        order.add(psn)
    assert (order.restarts, order.missing, order.repeated, order.last) == (2, 0, 0, 21)


# Totals


def test_a_queue_pair_has_its_marks_answers_and_losses() -> None:
    frames = [
        packet(wire.SEND_FIRST, 1),
        packet(wire.SEND_MIDDLE, 2, tos=3),
        packet(wire.SEND_LAST, 4),
        packet(wire.SEND_LAST, 4),
        packet(wire.ACK, 3, behind=roce.aeth(0, 1)),
        packet(wire.ACK, 3, behind=roce.aeth(wire.NAK_SEQUENCE, 1)),
        packet(wire.ACK, 3, behind=roce.aeth(wire.RNR_NAK, 1)),
        bytes(Ether() / IP(src="10.0.0.1", dst="10.0.1.1") / UDP(sport=50000) / roce.cnp(7)),
    ]
    broken = bytearray(packet(wire.SEND_ONLY, 5))
    broken[-6] ^= 1
    totals = taken([*frames, bytes(broken)])
    (qp,) = totals.qps.values()
    assert (qp.src, qp.dst, qp.qpn, qp.packets, qp.data) == ("10.0.0.1", "10.0.1.1", 7, 9, 4)
    assert (qp.acks, dict(qp.naks), qp.rnrs, qp.cnps, qp.ce) == (1, {"sequence": 1}, 1, 1, 1)
    assert (qp.order.first, qp.order.last, qp.order.missing, qp.order.repeated) == (1, 4, 1, 1)
    assert (totals.icrc, totals.wrong, qp.icrc_wrong) == (Counter(right=8, wrong=1), [9], 1)
    assert totals.ecn == Counter({"ect0": 7, "ce": 1, "not-ect": 1})


def test_reads_use_numbers_of_the_other_direction() -> None:
    read = roce.RETH(va=1, rkey=2, dmalen=9000)
    frames = [
        packet(wire.READ_REQUEST, 1, behind=read),
        packet(wire.READ_REQUEST, 4, behind=read),
        packet(wire.SEND_ONLY, 7),
        packet(wire.READ_RESPONSE_FIRST, 1, behind=roce.aeth(0, 1)),
        packet(wire.READ_RESPONSE_LAST, 3, behind=roce.aeth(0, 1)),
        packet(wire.READ_RESPONSE_ONLY, 9, behind=roce.aeth(0, 2)),
    ]
    (qp,) = taken(frames).qps.values()
    assert (qp.order.gaps, qp.order.missing) == (0, 0)
    assert (qp.responses, qp.order_of_responses.missing) == (3, 1)


def test_one_packet_at_two_ports_is_no_retransmission() -> None:
    totals = CaptureTotals()
    for number, port in enumerate(["leaf:eth1", "spine:eth1"] * 3):
        frame = packet(wire.SEND_ONLY, number // 2)
        totals.add(CapturedPacket(number + 1, port, number, None, len(frame), frame), dissect(frame))
    assert [(port, qp.order.repeated) for (port, *_), qp in totals.qps.items()] == [("leaf:eth1", 0), ("spine:eth1", 0)]


def test_roce_v1_is_named_and_no_conversation_of_ours() -> None:
    what = dissect(v1_frame())
    assert (what.kind, what.src, what.dst) == (ROCE_V1, "10.0.0.1", "::2")
    assert dict(what.fields) == {"opcode": "RC_SEND_ONLY", "qpn": 9, "psn": 77}
    totals = taken([v1_frame(), v1_frame()[:50]])
    assert totals.kinds == Counter({ROCE_V1: 1, "other": 1}) and not totals.qps and not totals.icrc


def test_pauses_are_counted_by_sender_and_class() -> None:
    pfc = Ether(src="02:00:00:00:00:09", dst="01:80:c2:00:00:01", type=0x8808)
    on = MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=500, c4_enabled=1, c4_pause_time=9)
    off = MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=0)
    frames = [bytes(pfc / each) for each in (on, off, on)]
    frames.append(bytes(pfc / MACControlPause(pause_time=33)))
    frames.append(frames[0][:12] + b"\x81\0\0\5" + frames[0][12:])
    rows = [(each.traffic_class, each.pauses, each.resumes, each.longest) for each in taken(frames).pauses.values()]
    assert rows == [("3", 3, 1, 500), ("4", 3, 0, 9), ("all", 1, 0, 33)]
    assert taken([frames[0][:20]]).pauses == {}
