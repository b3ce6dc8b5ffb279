"""Optics that die: a link whose bit errors become more and more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from heddle.base.units import format_duration, format_share
from heddle.lab.faults.kind import Going, KeptFault
from heddle.lab.faults.packets import read_faults, wanted_faults, write_fault
from heddle.lab.faults.record import SetFault, changing
from heddle.spec.impairments import NO_FAULT

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

STEPS: Final = 10


class BitErrors(KeptFault):
    """A process raises the share of corrupt packets in steps; then the fault of the link stays."""

    name = "bit-errors"
    does = "One bit of a share of RoCEv2 packets is inverted; the share grows to its rate in ten steps (ramp)."
    at = "port"
    part = "errors"
    settings: ClassVar[Mapping[str, str | None]] = {"rate": None, "ramp": "10s"}

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """With the share that the port has already."""
        return {**values, "before": wanted_faults(lab).get(where, NO_FAULT).corrupt}

    def effect(self, lab: Lab, fault: SetFault) -> str:
        """The program at the port has a share, and the process still runs or has reached the rate."""
        row = next((each for each in read_faults(lab) if each.port == fault.where), None)
        if row is None or row.counts is None or not (share := row.fault.corrupt):
            return ""
        if share < fault.values["rate"] and not self.kept(lab, fault):
            return ""
        corrupted = f"{row.counts['corrupted']} of {row.counts['packets']} packets since the last step"
        return f"now {format_share(share)}; the program has inverted a bit in {corrupted}"

    def undo(self, lab: Lab, fault: SetFault) -> None:
        super().undo(lab, fault)
        _set(lab, fault.where, fault.values["before"])

    def work(self, lab: Lab, fault: SetFault, going: Going) -> bool:
        rate, step_s = fault.values["rate"], fault.values["ramp"] / 1e9 / STEPS
        for number in range(1, STEPS + 1):
            with changing(lab):
                _set(lab, fault.where, rate if number == STEPS else rate * number / STEPS)
            if number < STEPS and not going(step_s):
                break
        return False

    def text(self, fault: SetFault, k: int) -> str:
        return f"bit-errors up to {format_share(fault.values['rate'])} within {format_duration(fault.values['ramp'])}"


def _set(lab: Lab, ref: str, share: float) -> None:
    """Set the share of corrupt packets of a port; what else its link does stays. The caller holds CHANGES."""
    now = wanted_faults(lab).get(ref, NO_FAULT)
    if now.corrupt != share:
        write_fault(lab, ref, replace(now, corrupt=share))
