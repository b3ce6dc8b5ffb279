"""A frame of every kind that Heddle sends, over either IP: made by frames.py, and the same by heddle/wire/roce.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from heddle.endpoints.nic.frames import FlowHeader, Reth, SendBatch
from heddle.wire import layout as wire

MTU: Final = 4096
SRC_IP: Final = "10.0.3.2"
DST_IP: Final = "10.0.7.2"
SRC_IP6: Final = "fd00:0:0:3::2"
DST_IP6: Final = "fd00:0:0:7::2"
SRC_MAC: Final = "02:00:00:00:00:01"
DST_MAC: Final = "02:00:00:00:00:02"
SPORT: Final = 49929
DQPN: Final = 0x123456
TOS: Final = wire.TOS_DATA
PSN: Final = 0xFFFFFE
RETH: Final[Reth] = (0x0123456789ABCDEF, 0xCAFE0001, 70000)
IMM: Final = 0xDEADBEEF


def payload_of(size: int) -> bytes:
    return bytes((7 * i + 3) & 0xFF for i in range(size))


def flow(version: int = 4, **changes: Any) -> FlowHeader:
    ends = {"src_ip": SRC_IP, "dst_ip": DST_IP} if version == 4 else {"src_ip": SRC_IP6, "dst_ip": DST_IP6}
    fields = {"src_mac": SRC_MAC, "dst_mac": DST_MAC, **ends}
    return FlowHeader(**{**fields, "sport": SPORT, "dqpn": DQPN, "tos": TOS, **changes})


@dataclass(frozen=True)
class Sample:
    """A kind of packet: what is in it, and how the builder is asked for it."""

    name: str
    opcode: int
    size: int = 0
    ackreq: bool = False
    reth: Reth | None = None
    imm: int | None = None
    aeth: tuple[int, int] | None = None
    version: int = 4  # of IP

    def put(self, batch: SendBatch, slot: int = 0) -> int:
        header = flow(self.version)
        if self.opcode == wire.ACK and self.aeth is not None:
            return batch.put_ack(slot, header, PSN, *self.aeth)
        if self.opcode == wire.CNP:
            return batch.put_cnp(slot, header)
        return batch.put_data(
            slot, header, self.opcode, PSN, payload_of(self.size),
            ackreq=self.ackreq, reth=self.reth, imm=self.imm,
        )  # fmt: skip

    def frame(self) -> bytes:
        batch = SendBatch(MTU, slots=1, version=self.version)
        batch.flat[:] = 0xA5  # what an older frame may have left must not show
        self.put(batch)
        return bytes(batch.frame(0))

    @property
    def psn(self) -> int:
        return 0 if self.opcode == wire.CNP else PSN

    def layers(self) -> Any:
        """The same packet as scapy layers, from its Ethernet header on."""
        from scapy.layers.inet import IP, UDP
        from scapy.layers.inet6 import IPv6
        from scapy.layers.l2 import Ether

        from heddle.wire import roce

        packet = Ether(src=SRC_MAC, dst=DST_MAC)
        if self.version == 4:
            packet /= IP(src=SRC_IP, dst=DST_IP, tos=TOS, id=0, flags="DF")
        else:
            packet /= IPv6(src=SRC_IP6, dst=DST_IP6, tc=TOS, fl=0, hlim=64)
        packet /= UDP(sport=SPORT)
        packet /= roce.BTH(
            opcode=self.opcode, dqpn=DQPN, psn=self.psn, ackreq=self.ackreq,
            becn=self.opcode == wire.CNP,
        )  # fmt: skip
        if self.opcode == wire.CNP:
            packet /= roce.CNP()
        if self.reth is not None:
            packet /= roce.RETH(va=self.reth[0], rkey=self.reth[1], dmalen=self.reth[2])
        if self.imm is not None:
            packet /= roce.ImmDt(data=self.imm)
        if self.aeth is not None:
            packet /= roce.aeth(*self.aeth)
        return packet / payload_of(self.size) if self.size else packet


def _samples() -> list[Sample]:
    sized: list[Callable[[int], Sample]] = [
        lambda n: Sample(f"send_only_{n}", wire.SEND_ONLY, n),
        lambda n: Sample(f"send_only_imm_{n}", wire.SEND_ONLY_IMM, n, imm=IMM),
        lambda n: Sample(f"write_last_{n}", wire.WRITE_LAST, n, ackreq=True),
        lambda n: Sample(f"write_last_imm_{n}", wire.WRITE_LAST_IMM, n, ackreq=True, imm=IMM),
        lambda n: Sample(f"write_only_{n}", wire.WRITE_ONLY, n, reth=RETH),
        lambda n: Sample(f"write_only_imm_{n}", wire.WRITE_ONLY_IMM, n, ackreq=True, reth=RETH, imm=IMM),
    ]
    return [
        Sample("send_first", wire.SEND_FIRST, MTU),
        Sample("send_middle", wire.SEND_MIDDLE, MTU),
        Sample("write_first", wire.WRITE_FIRST, MTU, reth=RETH),
        Sample("write_middle", wire.WRITE_MIDDLE, MTU, ackreq=True),
        *(make(size) for make in sized for size in (0, 1, 2, 3, 4, 1021, MTU)),
        Sample("read_request", wire.READ_REQUEST, reth=RETH),
        Sample("ack", wire.ACK, aeth=(wire.ACK_NO_LIMIT, 0x010203)),
        Sample("nak", wire.ACK, aeth=(wire.NAK_SEQUENCE, 0xFFFFFF)),
        Sample("rnr_nak", wire.ACK, aeth=(wire.RNR_NAK | 14, 5)),
        Sample("cnp", wire.CNP),
    ]


SAMPLES: Final = _samples()
SAMPLES6: Final = [replace(sample, name=f"{sample.name}_ipv6", version=6) for sample in SAMPLES]
