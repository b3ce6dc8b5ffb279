"""The shortest time for one iteration of a plan that the NICs' links allow: the fluid bound of a run.

In:  a fabric, and the plan of a run on it.
Out: NicBound: seconds, and the bandwidths that follow.
It is exact in bytes: each message is cut as ranks and NICs cut it (volume.py), with all headers of short last packets,
of small messages and of IPv6. It is a lower bound of time, for an ideal fluid without delay. Not included: answers (an
ACK for several packets, in the other direction), propagation, the dependencies between the steps of a collective, and
slower links between switches. `paths --predict` has the time of every link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle.base.arrays import F64
from heddle.fabric.model import Fabric
from heddle.forecast.volume import cutting, of_pattern
from heddle.switch.queues.classes import held_bps
from heddle.traffic.collectives import find_pattern
from heddle.traffic.options import ELEMENT_BYTES
from heddle.traffic.plan import Plan


@dataclass(frozen=True, slots=True)
class NicBound:
    """size: bytes of a rank's array. seconds: of one iteration. algbw, busbw: GB/s, at most, as in a run's table."""

    size: int
    seconds: float
    algbw: float
    busbw: float


def nic_bound(fabric: Fabric, plan: Plan, size: int) -> NicBound:
    """The bound of one size of a plan. ValueError when no packet is sent."""
    options = plan.options
    pattern = find_pattern(options.collective, options.algorithm)
    cut = cutting(fabric, options.qps, options.qp_mode, options.chunk, options.transport)
    pairs, kind, volume = of_pattern(pattern, plan.size, size // ELEMENT_BYTES, cut)
    wire = volume.wire.sum(axis=1)[kind]  # bytes of frames of each pair
    # Links are full duplex: sent and received data do not share the rate.
    busiest = np.maximum(*(np.bincount(pairs[:, end], weights=wire, minlength=plan.size) for end in (0, 1)))
    rates: F64 = np.array([held_bps(e.rate_bps) for e in plan.endpoints], dtype=np.float64)
    seconds = max(float((busiest * 8 / rates[list(ranks)]).max()) for ranks in plan.communicators)
    if not seconds:
        raise ValueError(f"{options.collective} of {size} bytes sends nothing")
    algbw = size / seconds / 1e9
    return NicBound(size, seconds, algbw, algbw * pattern.busbw_factor(plan.size))
