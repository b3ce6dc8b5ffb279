"""scapy: the reliable connection on scapy's layers: slow, to learn from and to test `rc` with (scapyqp.py).

Importing scapy takes a third of a second, so this module imports it where an end is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.qpend import Access, QpEnd, QpInfo
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rc import COLUMNS
from heddle.endpoints.transports.scapyparams import Role, ScapyParams
from heddle.traffic.plan import Plan

_ACK_EVERY: Final = 8


@dataclass(frozen=True, slots=True)
class Scapy(Transport):
    """The connection, with its parameters."""

    params: ScapyParams

    columns: ClassVar[tuple[Column, ...]] = COLUMNS
    packet_cost: ClassVar[float | None] = 1200.0

    @classmethod
    def of(cls, plan: Plan) -> Self:
        # A window that follows delays needs an acknowledgement for each packet.
        every = 1 if plan.control is not None and plan.control.windowed else _ACK_EVERY
        return cls(ScapyParams(plan.ib_mtu, plan.window, every, plan.timeout_s, plan.options.retries))

    def sender(self, qp: QpInfo) -> QpEnd:
        return self._end(qp, None, "sends")

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        return self._end(qp, memory, "receives")

    def _end(self, qp: QpInfo, memory: Access | None, role: Role) -> QpEnd:
        from heddle.endpoints.transports.scapyqp import ScapyQp

        window = qp.window or self.params.window
        params = replace(self.params, window=window, ack_every=min(self.params.ack_every, max(1, window // 4)))
        return ScapyQp(params, qp, memory, role=role)
