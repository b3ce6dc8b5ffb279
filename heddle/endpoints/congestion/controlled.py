"""The congestion control of one run, from its plan: the same in the run and in each of its workers."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Final

from heddle.base.plugins import Registry, having
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.endpoints.congestion import ratecontrol
from heddle.endpoints.congestion.dcqcn import Dcqcn
from heddle.endpoints.congestion.swift import Swift
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.qpend import QpEnd, QpInfo
from heddle.traffic.options import NO_CONTROL
from heddle.traffic.plan import Plan
from heddle.traffic.tunables import Control, described, values_of
from heddle.wire.layout import LAYOUTS

CONTROLLERS: Final[Registry[type[ratecontrol.Congestion]]] = Registry(
    "congestion",
    {
        "dcqcn": Dcqcn,
        "swift": Swift,
    },
    having("about", "tunables", "options", "windowed", "compiled", "of", "cnp", "coalesced", "control"),
)
CNP_COLUMNS: Final = (
    Column("cnps_received", "packets", "CNPs received"),
    Column("cnps_sent", "packets", "CNPs sent"),
)
_MBIT: Final = 1e6
_US: Final = 1e6


@dataclass(frozen=True, slots=True)
class Controlled:
    """Congestion control for all queue pairs of a run.

    steps: of the record of each rate. frame_bits: of a full frame.
    """

    name: str
    congestion: ratecontrol.Congestion
    steps: int
    frame_bits: int

    def sender(
        self, end: QpEnd, qp: QpInfo, line_bps: float, shapers: MutableMapping[bytes, ratecontrol.Shaper]
    ) -> QpEnd:
        """The sending end of a NIC with this line rate, under control.

        shapers: of this NIC, empty at first. Queue pairs to one address find theirs here, if they share one.
        """
        shaper = shapers.get(qp.flow.dst_ip) if self.congestion.coalesced else None
        if shaper is None:
            control = self.congestion.control(line_bps, ratecontrol.to_ns(qp.rtt_s))
            shaper = shapers[qp.flow.dst_ip] = ratecontrol.Shaper(control, line_bps, self.frame_bits, self.steps)
        return ratecontrol.PacedSender(end, shaper, qp)

    def receiver(self, end: QpEnd, qp: QpInfo) -> QpEnd:
        """The receiving end, which reports marks."""
        silent = end.reports_marks and _selective(type(self.congestion))
        return ratecontrol.NotifyingReceiver(end, self.congestion.cnp, qp, silent)


def find_control(name: str) -> type[ratecontrol.Congestion] | None:
    """The congestion control of that name, None for `none`; InputError with the nearest word for others."""
    if name != NO_CONTROL and name not in CONTROLLERS:
        hint = did_you_mean(name, [NO_CONTROL, *CONTROLLERS])
        raise InputError(Problem("", f"--cc {name}", "is not a congestion control", hint))
    return None if name == NO_CONTROL else CONTROLLERS[name]


def _selective(kind: type[ratecontrol.Congestion]) -> bool:
    """Whether its controls are selective. Not a name of the protocol, which controllers of plugins already follow."""
    return getattr(kind, "selective", False)


def with_control(plan: Plan) -> Plan:
    """The plan with the congestion control that its options choose; InputError for wrong parameters."""
    name, kind = plan.options.congestion, find_control(plan.options.congestion)
    if kind is None:
        return plan
    line_mbps = min(each.rate_bps for each in plan.endpoints) * plan.k / _MBIT
    on = ratecontrol.NicFacts(line_mbps, _frame_bytes(plan), plan.propagation.rtt_s * _US / plan.k, plan.trims)
    chosen = plan.options.of(kind.options)
    profile = chosen.profile(on)
    tunables = [replace(each, default=profile.values.get(each.name, each.default)) for each in kind.tunables]
    values = values_of(name, tunables, chosen.congestion_set, line_mbps)
    settings, factor = described(values, tunables), profile.ecn_factor
    learns = kind.windowed, kind.compiled, _selective(kind)
    return replace(plan, control=Control(name, values, settings, profile.name, factor, *learns))


def congestion_of(plan: Plan) -> Controlled | None:
    """The congestion control of a plan, or None."""
    if plan.control is None:
        return None
    frame = _frame_bytes(plan)
    congestion = CONTROLLERS[plan.control.name].of(plan.control.values, plan.k, frame)
    return Controlled(plan.control.name, congestion, ratecontrol.steps_for(len(plan.qps)), 8 * frame)


def _frame_bytes(plan: Plan) -> int:
    return plan.ib_mtu + LAYOUTS[plan.ip_version].overhead_bytes
