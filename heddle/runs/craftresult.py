"""What packets made by hand caused: packets at both hosts, what the responder counted, and the proof of the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scapy.layers.l2 import Ether

from heddle.proof.verdict import FlowProof, PathsResult
from heddle.wire.crafted import layers_as_data, layers_as_text
from heddle.wire.dissect import Dissected, dissect
from heddle.wire.icrc import IcrcVerdict, verdict


@dataclass(frozen=True, slots=True)
class HandPacket:
    """One packet, where it was captured. at_s: after the first one that was sent. layers: header -> its fields."""

    at_s: float
    frame: bytes
    what: Dissected
    icrc: IcrcVerdict

    @classmethod
    def of(cls, at_s: float, frame: bytes) -> HandPacket:
        """From a frame."""
        what = dissect(frame)
        return cls(at_s, frame, what, verdict(frame, what.ip_at) if what.ip_at else "unchecked")

    @property
    def ttl(self) -> int:
        """The TTL or hop limit; 0 if it is no RoCEv2 packet."""
        at = self.what.ip_at
        return self.frame[at + (8 if self.frame[at] >> 4 == 4 else 7)] if at else 0

    @property
    def layers(self) -> dict[str, dict[str, Any]]:
        """Every field of every header, as scapy reads them."""
        return layers_as_data(Ether(self.frame))

    @property
    def fields(self) -> list[str]:
        """The same as text, a line for each header."""
        return layers_as_text(Ether(self.frame))

    def to_json(self) -> dict[str, Any]:
        what = self.what
        return {
            "time_s": round(self.at_s, 6), "src": what.src, "dst": what.dst, "bytes": len(self.frame),
            "kind": what.kind, "text": what.text, **what.fields, "ttl": self.ttl, "icrc": self.icrc,
            "frame": self.frame.hex(), "layers": self.layers,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResponderSeen:
    """What the responder counted, in packets. expected: its PSN now. written: addresses of bytes that are not zero.

    sends: bytes of each SEND that was taken. imms: immediates of WRITEs. The last three count packets for no QP.
    """

    executed: int
    duplicates: int
    out_of_order: int
    naks: int
    cnps: int
    expected: int
    written: str
    sends: tuple[int, ...]
    imms: tuple[int, ...]
    icrc_errors: int
    stray: int
    malformed: int

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Crafted:
    """What was sent, what came back, and where it went.

    src, dst: NICs. arrived: the packets as they came to the destination's port. responder: None if there was none.
    proof: of the packets' flow, and of that of the answers, if there are any; None if switches do not count such
    packets: they are not RoCEv2.
    """

    lab: str
    src: str
    dst: str
    sent: tuple[HandPacket, ...]
    arrived: tuple[HandPacket, ...]
    answers: tuple[HandPacket, ...]
    responder: ResponderSeen | None
    proof: PathsResult | None

    @property
    def flow(self) -> FlowProof | None:
        """The flow of the packets, with its path by three sources."""
        return self.proof.flows[0] if self.proof is not None else None

    @property
    def path(self) -> tuple[str, ...]:
        """The ports that counted the packets, from the first switch on; empty if none did."""
        return self.flow.measured if self.flow is not None else ()

    def to_json(self) -> dict[str, Any]:
        """`sent`, `arrived` and `answers` are lists of packets."""
        return {
            "lab": self.lab, "src": self.src, "dst": self.dst, "sent": [each.to_json() for each in self.sent],
            "arrived": [each.to_json() for each in self.arrived],
            "answers": [each.to_json() for each in self.answers],
            "responder": self.responder.to_json() if self.responder is not None else None,
            "path": list(self.path),
            "paths": [each.to_json() for each in self.proof.flows] if self.proof is not None else [],
        }  # fmt: skip
