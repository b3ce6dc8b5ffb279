"""rxe: soft-RoCE, the Linux kernel's own RoCEv2, on devices in the hosts' namespaces; verbs carry the data.

Messages are SENDs with immediate. The kernel builds packets, acknowledges and retransmits. This module has the options
that it supports and the columns, which the programs at the NICs count (switch/counters.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from heddle.base.problems import Problems
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.hoststack import HostStack
from heddle.endpoints.rdma.rxestack import RxeStack
from heddle.endpoints.rdma.verbsdevice import MTU_OF_BYTES, VerbsParams, message_bytes
from heddle.endpoints.transports.protocol import Transport
from heddle.kernel.rdma import QPS_BEFORE_FIRST
from heddle.traffic.flow import Numbering
from heddle.traffic.plan import Plan
from heddle.wire.sport import SPORTS

_COLUMNS: Final = (
    Column("retransmitted", "packets", "retransmitted", "packets"),
    Column("naks", "packets", "NAKs received"),
    Column("not_ready", "packets", "receiver not ready"),
    Column("out_of_order", "packets", "out of order", "order"),
    Column("duplicates", "packets", "duplicate"),
)


@dataclass(frozen=True, slots=True)
class Rxe(Transport):
    """The connection, with its parameters."""

    params: VerbsParams

    columns: ClassVar[tuple[Column, ...]] = _COLUMNS
    stack: ClassVar[HostStack | None] = RxeStack()
    # Plans number queue pairs in advance, and the loop checks that the stack gives them the same numbers.
    numbering: ClassVar[Numbering] = Numbering(before_first=lambda nic: QPS_BEFORE_FIRST)
    predicted: ClassVar[bool] = False

    @classmethod
    def of(cls, plan: Plan) -> Self:
        problems, o = Problems(), plan.options
        if plan.control is not None:
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
