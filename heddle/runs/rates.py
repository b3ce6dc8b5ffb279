"""Sending rates of a run's queue pairs over time, where congestion control limits them: `rates.npz` in its directory.

In:  the reports of the workers at the end of a run, and its queue pairs.
Out: Rates, for the picture and the report; UnreadableError with the reason where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import TypeAdapter

from heddle.base.arrays import F64
from heddle.runs.files import Layout, UnreadableError, read_arrays, typed, undamaged, write_arrays

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun

RATES: Final = "rates.npz"
_VERSION_OF_RATES: Final = 1
_ARRAYS: Final[Layout] = {"counts": ("i", 1), "times_s": ("f", 1), "rates_bps": ("f", 1)}


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


_QPS: Final = TypeAdapter(tuple[PacedQp, ...])


@dataclass(frozen=True)
class RateCourse:
    """The rate of one queue pair: rates_bps[i] from times_s[i] until the next one. Seconds since the run began."""

    qp: PacedQp
    times_s: F64
    rates_bps: F64

    def at(self, times_s: F64) -> F64:
        """The rate at some times; before its first packet the line rate."""
        if not len(self.times_s):
            return np.full(len(times_s), float(self.qp.line_bps))
        index = np.searchsorted(self.times_s, times_s, side="right") - 1
        return np.where(index < 0, float(self.qp.line_bps), self.rates_bps[np.maximum(index, 0)])

    def mean(self, end_s: float) -> float:
        """The mean rate from the first packet until `end_s`, bit/s."""
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

    def write(self, directory: Path) -> None:
        """Write rates.npz atomically."""
        about = {
            "format": _VERSION_OF_RATES, "controller": self.controller, "seconds": self.seconds,
            "qps": [asdict(each.qp) for each in self.courses],
        }  # fmt: skip
        arrays = {
            "counts": np.array([len(each.times_s) for each in self.courses], np.int64),
            "times_s": np.concatenate([np.empty(0), *(each.times_s for each in self.courses)]),
            "rates_bps": np.concatenate([np.empty(0), *(each.rates_bps for each in self.courses)]),
        }
        write_arrays(directory / RATES, about, arrays)


def rates_of_run(measured: MeasuredRun) -> Rates | None:
    """The rates that the workers recorded; None without congestion control."""
    plan = measured.plan
    if plan.control is None:
        return None
    ends = {(end.rank, end.qpn): end for report in measured.reports for end in report.qps}
    steps = []
    for qp in plan.qps:
        flow, rate = qp.flow, plan.endpoints[qp.flow.src_rank].rate_bps
        steps.append((PacedQp(flow.src, flow.dst, flow.qpn, rate), ends[flow.src_rank, qp.src_qpn].rates))
    return rates_of(plan.control.name, (measured.ended_ns - measured.began_ns) / 1e9, measured.began_ns, steps)


def rates_of(
    controller: str, seconds: float, began_ns: int, steps: Sequence[tuple[PacedQp, Sequence[tuple[int, float]]]]
) -> Rates:
    """From the steps of each queue pair: (CLOCK_MONOTONIC in ns, bit/s). began_ns: the start of the run.

    Steps after the run's end are left out: at its end, workers let all delays expire at once.
    """
    courses = []
    for qp, each in steps:
        table = np.array(each, np.float64).reshape(-1, 2)
        times = np.maximum(0.0, (table[:, 0] - began_ns) / 1e9)
        within = times <= seconds
        courses.append(RateCourse(qp, times[within], table[within, 1]))
    return Rates(controller, seconds, tuple(courses))


def read_rates(directory: Path) -> Rates:
    """Read rates.npz. UnreadableError with the reason when that is not possible."""
    path = directory / RATES
    if not path.exists():
        raise UnreadableError(f"{RATES} is missing: the run had no congestion control, or did not finish")
    with undamaged(RATES):
        about, arrays = read_arrays(path, _VERSION_OF_RATES, _ARRAYS)
        counts, times, rates = (arrays[name] for name in _ARRAYS)
        if (counts < 0).any() or (counts > len(times)).any() or not int(counts.sum()) == len(times) == len(rates):
            raise ValueError("its arrays do not fit together")
        qps, seconds = typed(_QPS, about["qps"]), float(about["seconds"])
        if seconds < 0 or (times < 0).any() or (rates < 0).any() or not all(qp.line_bps > 0 for qp in qps):
            raise ValueError("a time or a rate is not positive")
        ends = np.cumsum(counts)
        courses = tuple(
            RateCourse(qp, times[end - count : end], rates[end - count : end])
            for qp, end, count in zip(qps, ends.tolist(), counts.tolist(), strict=True)
        )
        return Rates(str(about["controller"]), seconds, courses)
