"""Congestion control in a run: its parameters, CNPs, and the rates of queue pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heddle.base.tables import Table, value_text
from heddle.runs.parts.part import RunPart

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun
    from heddle.runs.rates import Rates


@dataclass(frozen=True, slots=True)
class CongestionUse(RunPart):
    """Congestion control in one run. parameters: all of them, in hardware units; settings: those that were set.

    slowed: queue pairs whose rate was below the line rate at some time, of `qps`. least_bps: the lowest rate of any,
    at least_at.
    """

    controller: str
    parameters: Mapping[str, float]
    settings: str
    cnps_sent: int
    cnps_received: int
    slowed: int
    qps: int
    least_bps: float
    least_at: str
    profile: str = ""

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> CongestionUse | None:
        from heddle.runs.rates import rates_of_run

        control, rates = measured.plan.control, rates_of_run(measured)
        if control is None or rates is None:
            return None
        sums = measured.counters
        use = use_of_rates(rates, control.values, control.settings, sums["cnps_sent"], sums["cnps_received"])
        return replace(use, profile=control.profile)

    @classmethod
    def courses(cls, measured: MeasuredRun) -> tuple[str, Rates] | None:
        """The sending rate of every queue pair."""
        from heddle.runs.rates import rates_of_run

        rates = rates_of_run(measured)
        return None if rates is None else ("rates", rates)

    def lines(self) -> list[str]:
        slowed = f"{self.slowed} of {self.qps} QPs slowed, down to {self.least_bps / 1e6:.3g} Mb/s ({self.least_at})"
        cnps = f"{self.cnps_sent:,} CNPs sent, {self.cnps_received:,} received"
        lines = [f"{cnps}; {slowed if self.slowed else 'no QP slowed'}"]
        set_ = [f"set: {self.settings}"] if self.settings else []
        profile = [f"profile {self.profile}"] if self.profile else []
        if set_ or profile:
            lines.append("; ".join([*profile, *set_]))
        return [f"#{self.controller:<9s}: {line}" for line in lines]

    def table(self) -> Table:
        rows = tuple((name, value_text(value)) for name, value in self.parameters.items())
        note = "in units of the hardware: rates are divided by k, times multiplied"
        return Table(f"Congestion control {self.controller}", ("parameter", "value"), rows, note)


def use_of_rates(
    rates: Rates, parameters: Mapping[str, float], settings: str, cnps_sent: int, cnps_received: int
) -> CongestionUse:
    """The sums of a run."""
    least = [float(each.rates_bps.min(initial=each.qp.line_bps)) for each in rates.courses]
    slowed = sum(1 for each, rate in zip(rates.courses, least, strict=True) if rate < each.qp.line_bps)
    at = min(range(len(least)), key=least.__getitem__)
    return CongestionUse(
        rates.controller, parameters, settings, cnps_sent, cnps_received, slowed, len(least), least[at],
        rates.courses[at].qp.name,
    )  # fmt: skip
