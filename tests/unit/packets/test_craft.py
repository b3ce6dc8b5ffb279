"""Packets by hand: every opcode in both versions of IP, the fields that a user sets, and what cannot be sent."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest
from scapy.layers.l2 import Ether

from heddle.base.problems import HeddleError, InputError, MachineError
from heddle.wire import layout as wire
from heddle.wire.dissect import dissect
from heddle.wire.layout import verdict
from heddle.wire.roce import BTH
from heddle_plugins.packets.craft import Crafted, ResponderSeen, _exchange
from heddle_plugins.packets.crafted import PacketEnds, bits_of, field_rows, layers_as_data, read_recipe
from heddle_plugins.packets.verbs import crafted_text
from tests.answers import Answers
from tests.typed import typed

ENDS = PacketEnds(
    "02:00:00:00:00:01", "02:00:00:00:00:02", "10.0.0.1", "10.0.1.1", 4200, 4096, 0x100, 0, 0x1234, 0x10000, 49152,
    "host1:eth1",
)  # fmt: skip
ENDS6 = replace(ENDS, src_ip="fd00::1", dst_ip="fd00:1::1")


def frames(ends: PacketEnds = ENDS, **chosen: Any) -> list[bytes]:
    return [bytes(packet) for packet in read_recipe(chosen).packets(ends)]


def problems(ends: PacketEnds = ENDS, **chosen: Any) -> str:
    with pytest.raises(InputError) as caught:
        frames(ends, **chosen)
    return str(caught.value)


@pytest.mark.parametrize("ends", [ENDS, ENDS6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("opcode", [*wire.OPCODE_NAMES, 0x3F])
def test_every_opcode_is_read_as_it_was_made(opcode: int, ends: PacketEnds) -> None:
    (frame,) = frames(ends, opcode=opcode)
    found = dissect(frame)
    assert (found.opcode, found.fields["qpn"], found.fields["psn"]) == (opcode, 0x100, 0)
    assert verdict(frame, wire.ETH_BYTES) == "right"
    assert (found.fields["payload_bytes"] == 0) == (opcode in wire.HEADERS_ONLY or opcode not in wire.EXTENSIONS)
    (frame,) = frames(ends, opcode=opcode, icrc="wrong", psn=9, ecn="ce", dscp=5, ttl=7)
    found = dissect(frame)
    assert (found.fields["psn"], found.fields["ecn"], found.fields["dscp"]) == (9, "ce", 5)
    assert verdict(frame, wire.ETH_BYTES) == "wrong"
    assert frame[22 if ends is ENDS else 21] == 7


@pytest.mark.parametrize("name", [row[0] for row in field_rows()])
def test_every_field_takes_its_largest_value_and_no_larger_one(name: str) -> None:
    layer, _, field = name.partition(".")
    bits = bits_of(layer, field)
    headers = {"RETH": "RC_RDMA_WRITE_ONLY", "ImmDt": "RC_SEND_ONLY_WITH_IMMEDIATE", "AETH": "RC_ACKNOWLEDGE",
               "DETH": "UD_SEND_ONLY", "AtomicETH": "RC_FETCH_ADD", "AtomicAckETH": "RC_ATOMIC_ACKNOWLEDGE",
               "CNP": "CNP", "SETH": "SACK", "NETH": "NACK"}  # fmt: skip
    if bits is None or name in ("IPv6.version", "IP.version", "IP.ihl", "IP.proto", "IPv6.nh"):
        return  # without a number, or without an ICRC
    ends, opcode = ENDS6 if layer == "IPv6" else ENDS, headers.get(layer, "RC_RDMA_WRITE_ONLY")
    value = (1 << bits) - 1
    (packet,) = read_recipe({"opcode": opcode, "set": {name: value}}).packets(ends)
    assert layers_as_data(packet)[layer][field] in (value, str(packet[layer].getfieldval(field)))
    text = problems(ends, opcode=opcode, set=[f"{name}={value + 1:#x}"])
    assert f"does not fit {name}, a field of {bits} bit" in text and f"use 0 to {value:#x}" in text


def test_a_turn_of_packets_is_one_message_and_is_repeated_with_the_next_psns() -> None:
    turn = "RC_RDMA_WRITE_FIRST,rdma_write_middle,RC_RDMA_WRITE_LAST_WITH_IMMEDIATE"
    made = [Ether(frame) for frame in frames(opcode=turn, psn="0xfffffe", count=2, imm="0xabc")]
    assert [p[BTH].psn for p in made] == [0xFFFFFE, 0xFFFFFF, 0, 1, 2, 3]
    assert [len(p["Raw"].load) for p in made] == [4096, 4096, 32] * 2
    assert (made[0]["RETH"].dmalen, made[0]["RETH"].rkey, made[5]["ImmDt"].data) == (8224, 0x1234, 0xABC)
    made = [Ether(frame) for frame in frames(opcode="RC_RDMA_READ_REQUEST,RC_SEND_ONLY", length=9000)]
    assert [p[BTH].psn for p in made] == [0, 3]  # the response has three packets
    (frame,) = frames(payload=b"\x00\xff", set={"BTH.ackreq": 0, "va": 5, "IP.src": "10.0.0.9"})
    assert Ether(frame)["Raw"].load == b"\x00\xff" and dissect(frame).src == "10.0.0.9"
    assert not dissect(frame).fields["ack_request"] and verdict(frame, wire.ETH_BYTES) == "right"
    assert frames(payload="0x00ff") == frames(payload=b"\x00\xff")
    assert frames(icrc="0x12345678")[0][-4:] == bytes.fromhex("12345678")


def test_what_cannot_be_sent_is_explained(answers: Answers) -> None:
    answers(lambda chosen: problems(**chosen))
    assert "is 5060 bytes of IP, and the MTU of host1:eth1 is 4200" in problems(payload="x" * 5000)


def test_all_errors_are_reported_together() -> None:
    text = problems(psn="x", ecn="y", set=["a=1"])
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "--psn x is not a number", "--set a=1 names no field", "--ecn y is not a codepoint of ECN",
    ]  # fmt: skip


def test_packets_that_a_port_does_not_take_are_an_error() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's minimum; the other end does not read
        with pytest.raises(MachineError, match=r"accepted \d of 9 packets within 0.05 s"):
            _exchange(ours, [bytes(2000)] * 9, 0.05, 0)


def test_a_packet_for_the_responders_number_that_its_kind_does_not_take_is_not_called_unknown() -> None:
    seen = ResponderSeen(0, 0, 0, 0, 0, 0, "", (), (), icrc_errors=0, stray=1, malformed=0)
    text = crafted_text(Crafted("tiny", "host1:eth1", "host3:eth1", (), (), (), seen, None), 1.0)
    assert "responder: 1 that no queue pair takes; PSN 0 is next" in text  # such as a packet of UC for QP 0x100


def test_the_list_needs_no_lab_and_a_packet_needs_two_hosts() -> None:
    done = typed("craft", "--list")
    assert done.returncode == 0 and "RC_RDMA_READ_REQUEST" in done.stdout and "BTH.pkey" in done.stdout
    from heddle_plugins.testing import craft

    with pytest.raises(HeddleError, match="is no time to wait"):
        craft(None, "host1", "host2", wait=0)
