"""Faults of a run (`run --fault`), and when each was set: as the FaultClock saw it (lab/runfaults.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from heddle.base.tables import Table, some_of
from heddle.runs.parts.part import RunPart, TimeSpan

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault that was set. begin_ns, end_ns: CLOCK_MONOTONIC; end_ns is None where it lasted to the run's end.

    taken: another command has ended or replaced it, at a time that is not known.
    """

    port: str
    what: str
    requested: str
    begin_ns: int
    end_ns: int | None
    down: bool = False
    taken: bool = False


@dataclass(frozen=True, slots=True)
class FaultTimes(RunPart):
    """The faults of a run. began_ns: of the first barrier (CLOCK_MONOTONIC). seconds: from it to the last report.

    spans: in the order of their beginnings; missed: faults whose time never came.
    """

    began_ns: int
    seconds: float
    spans: tuple[FaultSpan, ...]
    missed: tuple[str, ...] = ()

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self | None:
        clock, k = measured.faults, measured.plan.k
        if not clock.planned:
            return None
        spans = tuple(
            FaultSpan(
                span.planned.port, span.planned.what(k), span.planned.times.text(), span.begin_ns, span.end_ns,
                span.planned.reroutes, span.taken,
            )
            for span in clock.spans
        )  # fmt: skip
        begun = {span.planned for span in clock.spans}
        missed = (f"{each.what(k)} {each.times.text()}" for each in clock.planned if each not in begun)
        return cls(measured.began_ns, (measured.ended_ns - measured.began_ns) / 1e9, spans, tuple(missed))

    def lines(self) -> list[str]:
        """A line for each fault that has times, and for each whose time never came."""
        timed = [span for span in self.spans if span.requested]
        return [
            *(f"#faults   : {each}" for each in self._grouped(timed)),
            *(f"#faults   : {each}: the run ended before, after {self.seconds:.3f} s" for each in self.missed),
        ]

    def table(self) -> Table:
        rows = tuple((span.what, span.requested or "the whole run", *self._seconds(span)) for span in self.spans)
        rows += tuple((each, "", "never", "") for each in self.missed)
        note = "seconds of wall time since the first barrier of the run"
        return Table("Faults of links", ("fault", "requested", ">from", ">to"), rows, note)

    def times(self) -> Sequence[TimeSpan]:
        ends = [self.seconds if span.end_ns is None else (span.end_ns - self.began_ns) / 1e9 for span in self.spans]
        return [
            TimeSpan(span.what, max(0.0, (span.begin_ns - self.began_ns) / 1e9), end)
            for span, end in zip(self.spans, ends, strict=True)
            if span.requested and not span.taken
        ]

    def outages(self) -> tuple[str, ...]:
        """Links that were down for a part of the run, as the proof of paths names them."""
        timed = [span for span in self.spans if span.down and span.requested]
        return tuple(f"{each}; requested with --fault, so packets took other paths" for each in self._grouped(timed))

    def _grouped(self, spans: Sequence[FaultSpan]) -> list[str]:
        """`rtsw1:eth1 down, in wall time of the run: 2.003 s to 4.002 s, 7.001 s to the end`."""
        found: dict[str, list[str]] = {}
        for span in spans:
            begin, end = self._seconds(span)
            found.setdefault(span.what, []).append(f"{begin} to {end}")
        return [f"{what}, in wall time of the run: {some_of(times)}" for what, times in found.items()]

    def _seconds(self, span: FaultSpan) -> tuple[str, str]:
        """`2.003 s`, `4.002 s`; `the start` for a fault set before it, `the end` for one that the run's end ended."""
        begin, end = ((ns - self.began_ns) / 1e9 for ns in (span.begin_ns, span.end_ns or 0))
        last = "a time that is not known" if span.taken else "the end" if span.end_ns is None else f"{end:.3f} s"
        return "the start" if begin < 0 else f"{begin:.3f} s", last
