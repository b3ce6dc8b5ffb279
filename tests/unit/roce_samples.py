"""One frame of every kind that Heddle sends, made by traffic/nic/frames.py, and the same by traffic/roce.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from traffic.nic import wire
from traffic.nic.frames import FlowHeader, Reth, SendBatch

MTU: Final = 4096
SRC_IP: Final = "10.0.3.2"
DST_IP: Final = "10.0.7.2"
SRC_MAC: Final = "02:00:00:00:00:01"
DST_MAC: Final = "02:00:00:00:00:02"
SPORT: Final = 49929
DQPN: Final = 0x123456
TOS: Final = 26 << 2 | 2
PSN: Final = 0xFFFFFE
RETH: Final[Reth] = (0x0123456789ABCDEF, 0xCAFE0001, 70000)
IMM: Final = 0xDEADBEEF


def payload_of(size: int) -> bytes:
    return bytes((7 * i + 3) & 0xFF for i in range(size))


def flow(**changes: Any) -> FlowHeader:
    fields = {"src_mac": SRC_MAC, "dst_mac": DST_MAC, "src_ip": SRC_IP, "dst_ip": DST_IP}
    return FlowHeader(**{**fields, "sport": SPORT, "dqpn": DQPN, "tos": TOS, **changes})


@dataclass(frozen=True)
class Sample:
    """A kind of packet: what is in it, and how the builder is asked for it."""

    name: str
    opcode: int
    size: int = 0
    ackreq: bool = False
    solicited: bool = False
    reth: Reth | None = None
    imm: int | None = None
    aeth: tuple[int, int] | None = None

    def put(self, batch: SendBatch, slot: int = 0) -> int:
        if self.opcode == wire.ACK and self.aeth is not None:
            return batch.put_ack(slot, flow(), PSN, *self.aeth)
        if self.opcode == wire.CNP:
            return batch.put_cnp(slot, flow())
        return batch.put_data(
            slot, flow(), self.opcode, PSN, payload_of(self.size),
            ackreq=self.ackreq, solicited=self.solicited, reth=self.reth, imm=self.imm,
        )  # fmt: skip

    def frame(self) -> bytes:
        batch = SendBatch(MTU, slots=1)
        batch.flat[:] = 0xA5  # what an older frame may have left must not show
        self.put(batch)
        return bytes(batch.frame(0))

    @property
    def psn(self) -> int:
        return 0 if self.opcode == wire.CNP else PSN

    def layers(self) -> Any:
        """The same packet as scapy layers, from its Ethernet header on."""
        from scapy.layers.inet import IP, UDP
        from scapy.layers.l2 import Ether

        from traffic import roce

        packet = Ether(src=SRC_MAC, dst=DST_MAC) / IP(src=SRC_IP, dst=DST_IP, tos=TOS, id=0, flags="DF")
        packet /= UDP(sport=SPORT)
        packet /= roce.BTH(
            opcode=self.opcode, dqpn=DQPN, psn=self.psn, ackreq=self.ackreq, solicited=self.solicited,
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
        lambda n: Sample(f"send_only_{n}", wire.SEND_ONLY, n, solicited=True),
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
