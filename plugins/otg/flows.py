"""Ports, flows and captures of a configuration in a lab, as values: plan.py makes them, the engine runs them.

Rates are bit/s or packets per second of the emulation, times seconds of the clock, sizes bytes without FCS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.traffic.flow import Endpoint
from heddle_plugins.otg.documents import ECN
from heddle_plugins.otg.frames import RawFrames, Signature

MOST_MESSAGE: Final = 64 << 20  # bytes
WINDOW: Final = 64  # packets of a queue pair that may be unacknowledged


@dataclass(frozen=True, slots=True)
class OtgPort:
    """A port of a configuration. roce: its settings (documents._ROCE_PORT)."""

    name: str
    location: str
    end: Endpoint
    roce: Mapping[str, Any]

    @property
    def dcqcn(self) -> bool:
        """Whether its queue pairs slow down for CNPs, and it sends CNPs for marks."""
        return bool(self.roce["dcqcn_settings"]["enable_dcqcn"])


@dataclass(frozen=True, slots=True)
class RawFlow:
    """A flow of frames. pps: of the emulation. packets, seconds: its bounds, None without.

    burst: packets of one, 0: all. gap_s: between bursts; delay_s: before the first packet. signature: None where no
    receiver can identify its frames.
    """

    name: str
    tx: OtgPort
    rx: OtgPort | None
    frames: RawFrames
    pps: float
    packets: int | None
    seconds: float | None
    burst: int
    gap_s: float
    delay_s: float
    signature: Signature | None
    reported: bool
    loss: bool


@dataclass(frozen=True, slots=True)
class QpSetting:
    """One queue pair of a configuration, at its port. data: documents._QP."""

    name: str
    port: OtgPort
    peer: str
    destination: str
    ib_mtu: int
    data: Mapping[str, Any]

    @property
    def tos(self) -> int:
        """Traffic class of its data."""
        return int(self.data["dscp"]) << 2 | ECN[self.data["ecn"]]


@dataclass(frozen=True, slots=True)
class RoceFlow:
    """Messages of one queue pair. share: of the line rate, of all flows of the port. responder: number at the peer.

    delay_s: propagation that the receiving NIC adds; rtt_s: there and back.
    """

    name: str
    qp: QpSetting
    rx: OtgPort
    responder: int
    verb: str
    imm: int
    message_bytes: int
    share: float
    timeout_s: float
    retries: int
    delay_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class CaptureSetting:
    """A capture at one port. kept: bytes of each frame; None: all. overwrite: the oldest frames make room."""

    port: OtgPort
    kept: int | None
    overwrite: bool


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """A configuration in a lab. peers: (name, version of IP) -> its queue pairs."""

    ports: Mapping[str, OtgPort]
    raw: tuple[RawFlow, ...] = ()
    roce: tuple[RoceFlow, ...] = ()
    peers: Mapping[tuple[str, int], tuple[QpSetting, ...]] = field(default_factory=dict)
    captures: Mapping[str, CaptureSetting] = field(default_factory=dict)

    @property
    def flow_names(self) -> list[str]:
        """All flows."""
        return [*(flow.name for flow in self.raw), *(flow.name for flow in self.roce)]
