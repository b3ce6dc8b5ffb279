"""rxe: soft-RoCE, the Linux kernel's own RoCEv2, on devices in the hosts' namespaces; verbs carry the data.

Messages are SENDs with immediate. The kernel builds packets, acknowledges and retransmits. This module has the options
that it supports and the columns, which the programs at the NICs count (switch/stackcounts.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Final, Never, Self

from pydantic import JsonValue, TypeAdapter

from heddle.base.problems import Problems
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.qpend import Access, QpInfo
from heddle.endpoints.transports.protocol import HostStack
from heddle.endpoints.verbs.rxestack import RxeStack
from heddle.endpoints.verbs.verbslib import MTU_OF_BYTES
from heddle.endpoints.verbs.verbsloop import VerbsParams, message_bytes
from heddle.traffic.plan import Plan
from heddle.wire.sport import SPORTS

_COLUMNS: Final = (
    Column("retransmitted", "packets", "sent again", "packets"),
    Column("naks", "packets", "NAKs received"),
    Column("not_ready", "packets", "receiver not ready"),
    Column("out_of_order", "packets", "out of order", "order"),
    Column("duplicates", "packets", "received again"),
)


@dataclass(frozen=True, slots=True)
class Rxe:
    """The connection, with its parameters."""

    params: VerbsParams

    columns: ClassVar[tuple[Column, ...]] = _COLUMNS
    answer_bytes: ClassVar[int] = 0
    any_order: ClassVar[bool] = False
    addressed: ClassVar[bool] = False
    stack: ClassVar[HostStack | None] = RxeStack()

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The parameters for a plan; InputError for options that the kernel's soft-RoCE does not support."""
        problems, o = Problems(), plan.options
        if o.congestion != "none":
            why = "works in Heddle's own NICs, but with --transport rxe the kernel sends the packets"
            problems.add(where="", what=f"--cc {o.congestion}", why=why, hint="use --transport rc, or --cc none")
        for flag in [*(["--admission on"] if o.admission else []), *(f"--slow {host}" for host, _ in o.slow)]:
            why = "works with Heddle's own NICs, but with --transport rxe the kernel exchanges the packets"
            problems.add(where="", what=flag, why=why, hint="use --transport rc, or leave the option out")
        packets = math.ceil(message_bytes(plan) / plan.ib_mtu)
        least = min(qp.window for qp in plan.qps)
        if packets > least:
            what = f"--window {o.window}" if o.window is not None else f"--qps {o.qps} --qp-mode {o.qp_mode}"
            why = f"allows {least} packets in flight on a QP, but verbs send whole messages of {packets} packets"
            hint = f"use --chunk {max(4096, least * plan.ib_mtu)}, or a --window of {packets} or more"
            problems.add(where="", what=what, why=why, hint=hint)
        if wrong := [port for port in o.source_ports.ports if port not in SPORTS]:
            why = f"has {wrong[0]}, but verbs set a source port by a flow label: {SPORTS[0]} to {SPORTS[-1]}"
            problems.add(where="", what="--sport", why=why, hint="use --sport qpn, or ports in this range")
        if plan.ib_mtu not in MTU_OF_BYTES:
            why = "is not one that verbs support"
            problems.add(where="", what=f"an InfiniBand MTU of {plan.ib_mtu}", why=why, hint="use link.mtu 4200")
        problems.raise_if_any()
        return cls(VerbsParams.of(plan))

    @classmethod
    def load(cls, parameters: Mapping[str, JsonValue]) -> Self:
        """From the fields of VerbsParams."""
        return cls(TypeAdapter(VerbsParams).validate_python(parameters))

    def parameters(self) -> dict[str, JsonValue]:
        """The fields of VerbsParams."""
        return asdict(self.params)

    def fast(self) -> None:
        """None: the kernel drives it."""

    def patience_s(self) -> None:
        """None: ends detect every loss."""

    def sender(self, qp: QpInfo) -> Never:
        """Never called: the stack makes the queue pairs."""
        raise ValueError("the kernel builds the packets of rxe")

    def receiver(self, qp: QpInfo, memory: Access) -> Never:
        """Never called: the stack makes the queue pairs."""
        raise ValueError("the kernel takes the packets of rxe")
