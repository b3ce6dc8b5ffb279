"""The wire: frames of the fast builder, of the scapy layers and of the published vector are the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from heddle.endpoints.nic.frames import SendBatch, ip_checksum
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.layout import icrc
from heddle.wire.sport import SPORTS, entropy_sports, flow_label_for_qps, sport_for_qps, sport_of_own_qpn, sport_of_rxe
from tests.unit.roce_samples import DST_IP, MTU, PSN, SAMPLES, SAMPLES6, SRC_IP, TOS, Sample, flow, payload_of

BY_NAME = pytest.mark.parametrize("sample", [*SAMPLES, *SAMPLES6], ids=lambda s: s.name)
VERSION = pytest.mark.parametrize("version", [4, 6])
ROOT = Path(__file__).parents[2]

# scapy's test/contrib/roce.uts, "an example UC packet": payload with its two bytes of padding, without ICRC.
VECTOR_BODY = b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00"
VECTOR_ICRC = 0x78F353F3


def vector() -> Any:
    mac = "24:8a:07:a8:fa:22"
    packet = Ether(dst=mac, src=mac) / IP(tos=1, id=1144, flags="DF", src="192.168.0.7", dst="192.168.0.7")
    packet /= UDP(sport=49152) / roce.BTH(opcode="UC_SEND_ONLY", migreq=1, dqpn=211, psn=13571856)
    return packet / VECTOR_BODY[:-2]


def test_the_published_packet_gets_its_published_icrc() -> None:
    data = bytes(vector())
    assert data.endswith(VECTOR_BODY + VECTOR_ICRC.to_bytes(4, "big"))
    assert icrc(data[14:]) == VECTOR_ICRC.to_bytes(4, "big")
    read = Ether(data)
    assert (read[roce.BTH].icrc, read[IP].chksum, read[roce.BTH].padcount) == (VECTOR_ICRC, 0xB4D5, 2)
    assert read[Raw].load == VECTOR_BODY[:-2]
    assert roce.icrc_ok(read)


@BY_NAME
def test_builder_and_layers_make_the_same_bytes(sample: Sample) -> None:
    assert sample.frame() == bytes(sample.layers())


@BY_NAME
def test_layers_read_what_the_builder_wrote(sample: Sample) -> None:
    packet = Ether(sample.frame())
    bth = packet[roce.BTH]
    assert roce.icrc_ok(packet)
    assert (bth.opcode, bth.psn, bth.ackreq, bth.padcount) == (
        sample.opcode, sample.psn, sample.ackreq, -sample.size % 4,
    )  # fmt: skip
    assert (bytes(packet[Raw].load) if Raw in packet else b"") == payload_of(sample.size)
    if sample.reth:
        assert (packet[roce.RETH].va, packet[roce.RETH].rkey, packet[roce.RETH].dmalen) == sample.reth
    if sample.imm:
        assert packet[roce.ImmDt].data == sample.imm
    if sample.aeth:
        assert (packet[roce.AETH].syndrome, packet[roce.AETH].msn) == sample.aeth
    assert bytes(packet) == sample.frame()


@BY_NAME
def test_ip_headers_are_right(sample: Sample) -> None:
    frame = sample.frame()
    packet = Ether(frame)
    if sample.version == 6:
        ip = packet[IPv6]
        assert (ip.plen, packet[UDP].len, packet[UDP].chksum) == (len(frame) - 54, len(frame) - 54, 0)
        assert (ip.tc, ip.fl, ip.hlim, ip.nh) == (TOS, 0, 64, 17)
        return
    assert ip_checksum(frame[14:34]) == 0
    assert (packet[IP].len, packet[UDP].len, packet[UDP].chksum) == (len(frame) - 14, len(frame) - 34, 0)
    assert (packet[IP].flags, packet[IP].id, packet[IP].ttl) == ("DF", 0, 64)


@pytest.mark.parametrize("size", [0, 1, MTU - 1, MTU, MTU + 1, 6 * MTU, 9 * MTU + 5])
@pytest.mark.parametrize("burst", [1, 3, 64])
@VERSION
def test_a_message_is_the_same_in_bursts_of_any_size(version: int, size: int, burst: int) -> None:
    message = payload_of(size)
    packets = max(1, -(-size // MTU))
    batch, whole = SendBatch(MTU, version=version), b""
    for index in range(0, packets, burst):
        count = min(burst, packets - index)
        batch.put_write(
            0, flow(version), PSN + index, message, reth=(1, 2, size), imm=3, index=index, count=count, ack_every=4
        )
        read = [Ether(bytes(batch.frame(i))) for i in range(count)]
        assert all(roce.icrc_ok(packet) for packet in read)
        for i, packet in enumerate(read, index):
            last = i == packets - 1
            assert packet[roce.BTH].psn == (PSN + i) & 0xFFFFFF
            assert packet[roce.BTH].ackreq == (last or i % 4 == 3)
            assert (roce.RETH in packet, roce.ImmDt in packet) == (i == 0, last)
            whole += bytes(packet[Raw].load) if Raw in packet else b""
    assert whole == message


def test_switches_do_not_touch_the_icrc_but_nat_would() -> None:
    packet = Ether(SAMPLES[0].frame())
    changed = packet.copy()
    changed[IP].ttl -= 3
    changed[IP].tos |= wire.ECN_CE
    changed[roce.BTH].becn = changed[roce.BTH].fecn = 1
    del changed[IP].chksum
    assert roce.icrc_ok(Ether(bytes(changed)))
    for layer, field in ((UDP, "sport"), (IP, "id"), (roce.BTH, "dqpn"), (roce.BTH, "psn"), (roce.BTH, "pkey")):
        wrong = packet.copy()
        setattr(wrong[layer], field, wrong[layer].getfieldval(field) ^ 1)
        assert not roce.icrc_ok(Ether(bytes(wrong))), field


@pytest.mark.parametrize(
    ("opcode", "chain"),
    [
        (wire.READ_RESPONSE_ONLY, roce.aeth(31, 1) / b"data"),
        (wire.READ_RESPONSE_MIDDLE, Raw(b"data")),
        (wire.COMPARE_SWAP, roce.AtomicETH(va=8, rkey=1, swap=2, compare=3)),
        (wire.ATOMIC_ACK, roce.aeth(31, 1) / roce.AtomicAckETH(before=5)),
        (wire.UC + wire.WRITE_ONLY_IMM, roce.RETH(va=1) / roce.ImmDt(data=2) / b"data"),
        (wire.UD_SEND_ONLY, roce.DETH(qkey=0x11111111, sqpn=5) / b"data"),
        (wire.UD_SEND_ONLY_IMM, roce.DETH(qkey=1, sqpn=5) / roce.ImmDt(data=7) / b"data"),
    ],
)
def test_every_opcode_has_its_headers(opcode: int, chain: Any) -> None:
    packet = IP(src=SRC_IP, dst=DST_IP) / UDP(sport=50000) / roce.BTH(opcode=opcode, dqpn=3) / chain
    read = IP(bytes(packet))
    assert bytes(read[roce.BTH].payload) == bytes(chain)
    assert [type(layer) for layer in _layers(read[roce.BTH].payload)] == [type(layer) for layer in _layers(chain)]
    assert roce.icrc_ok(read)


def _layers(packet: Any) -> list[Any]:
    return [packet.getlayer(i) for i in range(len(packet.layers()))]


@pytest.mark.parametrize("first", ["scapy.contrib.roce", "heddle.wire.roce"])
def test_scapys_own_layers_may_be_loaded_too(first: str) -> None:
    second = {"scapy.contrib.roce": "heddle.wire.roce", "heddle.wire.roce": "scapy.contrib.roce"}[first]
    script = f"""
import {first}, {second}
from scapy.all import Ether, IP, UDP, Raw
from scapy.contrib import roce as theirs
from heddle.wire import roce as ours
data = bytes(Ether(dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=5) / theirs.BTH(dqpn=3))
read = Ether(data)
assert type(read[UDP].payload) is ours.BTH and ours.icrc_ok(read)
ack = bytes(theirs.BTH(opcode=0x11, icrc=0) / theirs.AETH(msn=5))
assert ack.hex() == "1100ffff" + "00" * 8 + "00000005" + "00" * 4
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("lqpn", "rqpn", "label", "port"),
    [
        (0x11, 0x12, 0x132, 49458),
        (0x100, 0x200, 0x20000, 49160),
        (0x101, 0x201, 0x20301, 49929),
        (0x123, 0x456, 0x4EDC2, 60881),
    ],
)
def test_source_ports_are_the_kernels(lqpn: int, rqpn: int, label: int, port: int) -> None:
    assert flow_label_for_qps(lqpn, rqpn) == flow_label_for_qps(rqpn, lqpn) == label
    assert sport_for_qps(lqpn, rqpn) == port


def test_source_ports_of_numbers() -> None:
    assert [sport_of_own_qpn(qpn) for qpn in (0x11, 0x12, 0x3FFF, 0x4011)] == [0xC011, 0xC012, 0xFFFF, 0xC011]
    # Source ports of soft roce.
    assert [sport_of_rxe(qpn) for qpn in range(17, 23)] == [57236, 63494, 53368, 59626, 49500, 55758]


@pytest.mark.parametrize("base", [49152, 50000, 65535, 1, 16000])
def test_source_ports_of_a_sprayed_queue_pair_are_all_different(base: int) -> None:
    ports = entropy_sports(base, 256)
    assert ports[0] == base and len(set(ports)) == 256
    assert all(port in SPORTS for port in ports[1:])
    assert entropy_sports(base, 1) == (base,)


@pytest.mark.parametrize(
    ("opcode", "size", "extra"),
    [
        (wire.WRITE_ONLY, 8, {}),
        (wire.WRITE_MIDDLE, 8, {"imm": 1}),
        (wire.WRITE_LAST_IMM, 8, {"reth": (1, 2, 3)}),
        (wire.SEND_ONLY, MTU + 1, {}),
    ],
)
def test_the_builder_refuses_what_does_not_fit_the_opcode(opcode: int, size: int, extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"MTU|does not match"):
        SendBatch(MTU).put_data(0, flow(), opcode, 0, bytes(size), **extra)


def test_a_batch_refuses_what_does_not_fit() -> None:
    batch = SendBatch(MTU)
    with pytest.raises(ValueError, match="room is for 4174: a batch of IPv4"):
        batch.put_data(0, flow(6), wire.WRITE_ONLY_IMM, 0, bytes(MTU), reth=(1, 2, 3), imm=4)
    with pytest.raises(ValueError, match="two versions of IP"):
        flow(6, dst_ip=DST_IP)
    # Payloads are aligned for either ip.
    for version, layout in wire.LAYOUTS.items():
        batch = SendBatch(MTU, version=version)
        assert all((batch.flat.ctypes.data + start + layout.ext_at) % 64 == 0 for start in batch.starts)
    # A run that does not fit is refused.
    with pytest.raises(ValueError, match="do not fit at slot"):
        SendBatch(MTU, slots=4).put_write(
            0, flow(), 0, bytes(MTU), reth=(1, 2, 3), imm=0, index=0, count=2, ack_every=1
        )
