"""What reorders the packets of a run: hashing that spreads them, under a transport that needs them in order.

In:  the hashing of the switches, a plan and its transport. Out: warnings.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle.base.units import format_duration
from heddle.endpoints.transports import TRANSPORTS
from heddle.endpoints.transports.protocol import Transport
from heddle.fabric.hashmodes import SPREADING
from heddle.predict.forwarding import FlowArrays
from heddle.predict.predict import rule_of
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.plan import Plan
from heddle.wire.layout import LAYOUTS


def reordering(hashing: Mapping[str, SwitchHashing], plan: Plan, transport: Transport) -> list[str]:
    """What reorders packets. hashing: of each switch, by name."""
    if transport.any_order:
        return []
    flow = FlowArrays.of([plan.qps[0].flow])
    frame_ns = _frame_ns(plan)
    spraying, splitting, varying = [], [], []
    for row in hashing.values():
        if row.mode == "spray":
            spraying.append(row)
        elif row.mode in SPREADING and row.options.gap_ns < frame_ns:
            splitting.append(row)
        elif row.mode not in SPREADING and rule_of(row).spreads(flow):
            varying.append(row)
    why = f"transport {plan.options.transport} counts packets that arrive out of order as lost"
    able = ", ".join(name for name, kind in TRANSPORTS.items() if kind.any_order)
    use = f"use --transport {able}, which accepts any order"
    found = []
    if spraying:
        found.append(f"{_switches(len(spraying), 'spray', 'sprays')} packets, but {why}: {use}")
    if splitting:
        gap = max(row.options.gap_ns for row in splitting)
        found.append(
            f"{_switches(len(splitting), 'begin', 'begins')} a new flowlet after {format_duration(gap)}, but packets at"
            f" line rate are {format_duration(frame_ns)} apart: each may take another path, and {why}; set a longer"
            f" hash.gap, or {use}"
        )
    if varying:
        found.append(
            f"{_switches(len(varying), 'hash', 'hashes')} bytes that differ between packets of one QP (hash.udf), but"
            f" {why}: {use}"
        )
    return found


def _switches(count: int, many: str, one: str) -> str:
    return f"1 switch {one}" if count == 1 else f"{count} switches {many}"


def _frame_ns(plan: Plan) -> int:
    """The time of a full frame on the slowest NIC, in whole microseconds."""
    bits = 8 * (plan.ib_mtu + LAYOUTS[plan.ip_version].overhead_bytes)
    return bits * 10**6 // min(each.rate_bps for each in plan.endpoints) * 1000
