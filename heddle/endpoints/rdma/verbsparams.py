"""Parameters of queue pairs of the hosts' RDMA stack, from a plan: apart from the loop, so that help loads none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from heddle.endpoints.connections import part_bytes
from heddle.traffic.plan import ACK_TIMEOUT_UNIT_S, Plan


@dataclass(frozen=True, slots=True)
class VerbsParams:
    """Parameters of a queue pair. timeout: exponent of the local ACK timeout, 4.096 us x 2^timeout."""

    timeout: int
    retries: int
    traffic_class: int

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Those of a plan, in the three and five bits that verbs have for them."""
        exponent = round(math.log2(plan.timeout_s / ACK_TIMEOUT_UNIT_S))
        return cls(max(1, min(31, exponent)), min(7, plan.options.retries), plan.options.tos)


def message_bytes(plan: Plan) -> int:
    """The largest message that one queue pair sends."""
    o = plan.options
    return part_bytes(o.chunk, o.qps) if o.qp_mode == "split" else o.chunk
