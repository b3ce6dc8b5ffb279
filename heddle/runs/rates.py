"""Sending rates of a run's queue pairs over time, where congestion control limits them: `rates.npz` in its directory.

In:  the reports of the workers at the end of a run, and its queue pairs.
Out: Rates, for the picture and the report; UnreadableError with the reason where there are none. CongestionUse: the
sums for the table, JSON and the run's record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.runs.files import UnreadableError, read_arrays, undamaged, write_arrays
from heddle.traffic.tunables import described

if TYPE_CHECKING:
    from heddle.base.arrays import F64
    from heddle.runs.measured import MeasuredRun

RATES: Final = "rates.npz"
_VERSION_OF_RATES: Final = 1


@dataclass(frozen=True, slots=True)
class PacedQp:
    """The sending end of a queue pair. qpn: of the receiver, as in rows of flows. line_bps: the rate of its NIC."""

    src: str
    dst: str
    qpn: int
    line_bps: int

    @property
    def name(self) -> str:
        """`host2 to host1, QP 349135`."""
        return f"{self.src} to {self.dst}, QP {self.qpn}"


@dataclass(frozen=True)
class RateCourse:
    """The rate of one queue pair: rates_bps[i] from times_s[i] until the next one. Seconds since the run began."""

    qp: PacedQp
    times_s: F64
    rates_bps: F64

    def at(self, times_s: F64) -> F64:
        """The rate at some times; before its first packet the line rate."""
        import numpy as np

        if not len(self.times_s):
            return np.full(len(times_s), float(self.qp.line_bps))
        index = np.searchsorted(self.times_s, times_s, side="right") - 1
        return np.where(index < 0, float(self.qp.line_bps), self.rates_bps[np.maximum(index, 0)])

    def mean(self, end_s: float) -> float:
        """The mean rate from the first packet until `end_s`, bit/s."""
        import numpy as np

        if not len(self.times_s):
            return float(self.qp.line_bps)
        lengths = np.diff(np.append(self.times_s, max(end_s, float(self.times_s[-1]))))
        total = float(lengths.sum())
        return float((lengths * self.rates_bps).sum() / total) if total > 0 else float(self.rates_bps[-1])


@dataclass(frozen=True)
class Rates:
    """The rates of a run. controller: dcqcn, swift. seconds: from its first packet to its end."""

    controller: str
    seconds: float
    courses: tuple[RateCourse, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """A row per queue pair: `congestion.qps` of the run's document."""
        return [
            {
                **asdict(each.qp),
                "least_bps": float(each.rates_bps.min(initial=each.qp.line_bps)),
                "mean_bps": each.mean(self.seconds),
                "last_bps": float(each.rates_bps[-1]) if len(each.rates_bps) else float(each.qp.line_bps),
            }
            for each in self.courses
        ]


@dataclass(frozen=True, slots=True)
class CongestionUse:
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

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> CongestionUse | None:
        """From the end of a run; None without congestion control."""
        from heddle.endpoints.congestion.controlled import congestion_of

        control, rates = congestion_of(measured.plan), rates_of_run(measured)
        if control is None or rates is None:
            return None
        sums = measured.counters
        settings = described(control.values, control.congestion.tunables)
        return use_of_rates(rates, control.values, settings, sums["cnps_sent"], sums["cnps_received"])

    def to_json(self) -> dict[str, Any]:
        """`congestion` of the run's document, without the rates of each queue pair."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Lines of the table's footer."""
        slowed = f"{self.slowed} of {self.qps} QPs slowed, down to {self.least_bps / 1e6:.3g} Mb/s ({self.least_at})"
        cnps = f"{self.cnps_sent:,} CNPs sent, {self.cnps_received:,} received"
        lines = [f"{cnps}; {slowed if self.slowed else 'no QP slowed'}"]
        if self.settings:
            lines.append(f"set: {self.settings}")
        return [f"#{self.controller:<9s}: {line}" for line in lines]


def rates_of_run(measured: MeasuredRun) -> Rates | None:
    """The rates that the workers recorded; None without congestion control."""
    from heddle.endpoints.congestion.controlled import congestion_of

    plan, control = measured.plan, congestion_of(measured.plan)
    if control is None:
        return None
    ends = {(end.rank, end.qpn): end for report in measured.reports for end in report.qps}
    steps = []
    for qp in plan.qps:
        flow, rate = qp.flow, plan.endpoints[qp.flow.src_rank].rate_bps
        steps.append((PacedQp(flow.src, flow.dst, flow.qpn, rate), ends[flow.src_rank, qp.src_qpn].rates))
    return rates_of(control.name, (measured.ended_ns - measured.began_ns) / 1e9, measured.began_ns, steps)


def rates_of(
    controller: str, seconds: float, began_ns: int, steps: Sequence[tuple[PacedQp, Sequence[tuple[int, float]]]]
) -> Rates:
    """From the steps of each queue pair: (CLOCK_MONOTONIC in ns, bit/s). began_ns: the start of the run.

    Steps after the run's end are left out: at its end, workers let all delays expire at once.
    """
    import numpy as np

    courses = []
    for qp, each in steps:
        table = np.array(each, np.float64).reshape(-1, 2)
        times = np.maximum(0.0, (table[:, 0] - began_ns) / 1e9)
        within = times <= seconds
        courses.append(RateCourse(qp, times[within], table[within, 1]))
    return Rates(controller, seconds, tuple(courses))


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


def write_rates(directory: Path, rates: Rates) -> None:
    """Write rates.npz atomically."""
    import numpy as np

    about = {
        "format": _VERSION_OF_RATES, "controller": rates.controller, "seconds": rates.seconds,
        "qps": [asdict(each.qp) for each in rates.courses],
    }  # fmt: skip
    arrays = {
        "counts": np.array([len(each.times_s) for each in rates.courses], np.int64),
        "times_s": np.concatenate([np.empty(0), *(each.times_s for each in rates.courses)]),
        "rates_bps": np.concatenate([np.empty(0), *(each.rates_bps for each in rates.courses)]),
    }
    write_arrays(directory / RATES, about, arrays)


def read_rates(directory: Path) -> Rates:
    """Read rates.npz. UnreadableError with the reason when that is not possible."""
    import numpy as np

    path = directory / RATES
    if not path.exists():
        raise UnreadableError(f"{RATES} is missing: the run had no congestion control, or did not finish")
    with undamaged(RATES):
        about, arrays = read_arrays(path, _VERSION_OF_RATES)
        counts, times, rates = (arrays[name] for name in ("counts", "times_s", "rates_bps"))
        if not int(counts.sum()) == len(times) == len(rates) or (counts < 0).any():
            raise ValueError("its arrays do not fit together")
        ends = np.cumsum(counts)
        courses = tuple(
            RateCourse(PacedQp(**qp), times[end - count : end], rates[end - count : end])
            for qp, end, count in zip(about["qps"], ends.tolist(), counts.tolist(), strict=True)
        )
        return Rates(str(about["controller"]), float(about["seconds"]), courses)
