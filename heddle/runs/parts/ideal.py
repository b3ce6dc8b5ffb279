"""The ideal of a run: how much longer an iteration took than on NICs alone, and what computations do not hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.base.tables import Table
from heddle.runs.parts.part import Card, RunPart

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun

_RATIO: Final = "job completion ratio"
_EXPOSED: Final = "exposed communication"


@dataclass(frozen=True, slots=True)
class IdealSize:
    """One size: microseconds of an iteration, measured and ideal, and their ratio."""

    size: int
    time_us: float
    ideal_us: float
    ratio: float


@dataclass(frozen=True, slots=True)
class ExposedTime:
    """One rank of the largest size: microseconds of an iteration, and of its computations.

    exposed_us: the rest, in which the rank only communicates or waits. share: of the iteration.
    """

    rank: int
    time_us: float
    computing_us: float
    exposed_us: float
    share: float


@dataclass(frozen=True, slots=True)
class IdealUse(RunPart):
    """The sizes of a run against their ideal (offline/ideal.py), and the exposed communication of ranks that compute.

    ranks: empty if no rank computes.
    """

    sizes: tuple[IdealSize, ...]
    ranks: tuple[ExposedTime, ...] = ()

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self | None:
        """From what each rank measured; None if that is not known, or there are too many messages for the ideal."""
        from heddle.offline.ideal import ideal_seconds

        sizes = []
        for row in measured.sizes:
            if ideal_s := ideal_seconds(measured.plan, row.size):
                sizes.append(IdealSize(row.size, row.time_us, 1e6 * ideal_s, row.time_us / (1e6 * ideal_s)))
        ranks = tuple(_exposed(measured)) if measured.sizes else ()
        return cls(tuple(sizes), ranks) if sizes or ranks else None

    @property
    def ratio(self) -> float | None:
        """Measured / ideal at the largest size; None: with too many messages for the ideal."""
        return max(self.sizes, key=lambda each: each.size).ratio if self.sizes else None

    @property
    def share(self) -> float | None:
        """The mean share of exposed communication over ranks; None if no rank computes."""
        return sum(each.share for each in self.ranks) / len(self.ranks) if self.ranks else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "completion_ratio": self.ratio, "exposed_share": self.share}

    def lines(self) -> list[str]:
        lines = [f"#ideal    : {name} {value}: {more}" for name, value, more in self.cards() if name == _RATIO]
        if self.ranks:
            most, many = max(self.ranks, key=lambda each: each.exposed_us), len(self.ranks)
            mean = sum(each.exposed_us for each in self.ranks) / many
            worst = f"most at rank {most.rank}, {_ms(most.exposed_us)}"
            lines.append(f"#exposed  : {_ms(mean)} an iteration without computation, {self.share:.0%} of it; {worst}")
        return lines

    def cards(self) -> Sequence[Card]:
        found: list[Card] = []
        if self.sizes:
            size = max(self.sizes, key=lambda each: each.size)
            ideal = f"{_ms(size.time_us)} an iteration, {_ms(size.ideal_us)} on NICs alone"
            found.append((_RATIO, f"{size.ratio:.2f}", ideal))
        if self.share is not None:
            found.append((_EXPOSED, f"{self.share:.0%}", "of an iteration, mean over ranks"))
        return found

    def table(self) -> Table:
        if not self.ranks:
            sizes = [(f"{s.size:,}", _ms(s.time_us), _ms(s.ideal_us), f"{s.ratio:.2f}") for s in self.sizes]
            note = "ideal: the same schedule on NICs alone, without queues, losses and acknowledgements"
            return Table("Against the ideal", (">size (B)", ">iteration", ">ideal", ">ratio"), tuple(sizes), note)
        rows = [
            (str(r.rank), _ms(r.time_us), _ms(r.computing_us), _ms(r.exposed_us), f"{r.share:.0%}") for r in self.ranks
        ]
        columns = (">rank", ">iteration", ">computing", ">exposed", ">share")
        return Table("Exposed communication", columns, tuple(rows), "exposed: the rank does not compute")


def _exposed(measured: MeasuredRun) -> list[ExposedTime]:
    """By rank, at the largest size."""
    pattern, largest = measured.plan.pattern, max(measured.sizes, key=lambda row: row.size)
    computing = [1e6 * pattern.computing(rank) for rank in range(len(largest.rank_us))]
    if not any(computing):
        return []
    found = []
    for rank, (each, times) in enumerate(zip(computing, largest.rank_us, strict=True)):
        time_us = sum(times) / len(times)
        exposed = max(0.0, time_us - each)
        found.append(ExposedTime(rank, time_us, each, exposed, exposed / time_us if time_us else 0.0))
    return found


def _ms(us: float) -> str:
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"
