"""The table of a run in nccl-tests' text format: its head, and a line for each size.

All widths are fixed, so that a line can be printed as soon as its size is measured (runrecord.py has the rest). Time is
the mean over ranks of one iteration, as nccl-tests reports it without `-a`; algbw = size / time and busbw = algbw x the
pattern's factor (nccl-tests doc/PERFORMANCE.md). GB is 10^9 bytes. All values are emulated: rates are those of the
fabric file, 1/k of the hardware's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Final

from heddle.base.units import emulated_words
from heddle.lab.fabricstate import FabricReading
from heddle.runs.ncclnames import program_name
from heddle.traffic.communicators import Communicators
from heddle.traffic.flow import Endpoint
from heddle.traffic.inflight import InFlight, Propagation
from heddle.traffic.options import NO_CONTROL, RunOptions, describe

_COLUMNS: Final = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        ",
)
WIDE: Final = 118  # columns of the whole table
_INTERPRETER: Final = re.compile(r"python[0-9.]*|(ba|da)?sh")
_IN_PLACE: Final = ("     time   algbw   busbw  #wrong", "     (us)  (GB/s)  (GB/s)        ")
_ITERATIONS: Final = ("    i_min    i_max    i_p99    i_cv%", "     (us)     (us)     (us)      (%)")
_NOT_MEASURED: Final = ("    N/A", *["   N/A"] * 3)
_NO_ITERATIONS: Final = ("    N/A",) * 4
_VERSION: Final = "# nccl-tests version 2.19.6 nccl-headers=0 nccl-library=0 (its format; measured by Heddle, emulated)"


@dataclass(frozen=True, slots=True)
class TableLook:
    """How a table is printed. per_iter: with the figures of iterations (`-I 1`); skip: leading ones that these leave
    out (`-K`). plain: without Heddle's own lines above the columns.
    """

    per_iter: bool = False
    skip: int = 0
    plain: bool = False


_USUAL: Final = TableLook()


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement of a size: microseconds per iteration, GB/s, wrong elements over all ranks.

    iteration_us: of each timed iteration, the mean over ranks (or as `-a` chooses); time_us is the mean of these.
    Empty in older runs.
    rank_us: the same times of each rank, by its number; empty in older runs.
    """

    time_us: float
    algbw: float
    busbw: float
    wrong: int
    iteration_us: tuple[float, ...] = ()
    rank_us: tuple[tuple[float, ...], ...] = ()

    def again(self, other: Figures) -> Figures:
        """With one more repetition: the mean over all iterations."""
        share = len(other.iteration_us) / (len(self.iteration_us) + len(other.iteration_us))
        time_us = self.time_us * (1 - share) + other.time_us * share
        faster = self.time_us / time_us
        return Figures(
            time_us, self.algbw * faster, self.busbw * faster, self.wrong + other.wrong,
            (*self.iteration_us, *other.iteration_us),
            tuple((*mine, *more) for mine, more in zip(self.rank_us, other.rank_us, strict=True)),
        )  # fmt: skip

    def columns(self) -> tuple[str, ...]:
        """Its four columns."""
        return _number(self.time_us, 7), _number(self.algbw, 6), _number(self.busbw, 6), _count(self.wrong, 6)

    @property
    def slowest_us(self) -> tuple[float, ...]:
        """Of each iteration, the time of its slowest rank."""
        return tuple(max(ranks) for ranks in zip(*self.rank_us, strict=True))

    def iteration_columns(self, skip: int) -> tuple[str, ...]:
        """The four columns of `-I 1`."""
        stats = stats_of(self.slowest_us, skip)
        if stats is None:
            return _NO_ITERATIONS
        return tuple(_number(each, 7) for each in (stats.min_us, stats.max_us, stats.p99_us, stats.cv_pct))


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One line of the table: bytes, and the fields of Figures. in_place: of a second measurement, in place.

    Without that, `sides` of a record knows whether the only measurement was in place.
    """

    size: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int
    iteration_us: tuple[float, ...] = ()
    rank_us: tuple[tuple[float, ...], ...] = ()
    in_place: Figures | None = None

    @classmethod
    def of(cls, size: int, first: Figures, second: Figures | None = None) -> SizeRow:
        """One or two measurements."""
        one = (first.time_us, first.algbw, first.busbw, first.wrong, first.iteration_us, first.rank_us)
        return cls(size, *one, second)

    @property
    def first(self) -> Figures:
        """The first measurement, or the only one."""
        return Figures(self.time_us, self.algbw, self.busbw, self.wrong, self.iteration_us, self.rank_us)

    @property
    def all(self) -> tuple[Figures, ...]:
        """Both measurements, or the only one."""
        return (self.first,) if self.in_place is None else (self.first, self.in_place)

    @property
    def all_wrong(self) -> int:
        """Wrong elements of both measurements; `wrong` has those of the first."""
        return sum(each.wrong for each in self.all)

    def again(self, other: SizeRow) -> SizeRow:
        """This size with one more repetition."""
        return SizeRow.of(self.size, *(one.again(more) for one, more in zip(self.all, other.all, strict=True)))


FOREIGN: Final = "foreign"  # the work of a run that has no program: what devices of users did in a time


@dataclass(frozen=True)
class RunHead:
    """The part of a record (runrecord.py) from before the first packet, which the table has above its rows.

    when: UTC, ISO 8601. fabric: preset, file or lab name. qps: queue pairs of all connections together.
    communicators: ranks that run the collective together, each in order. workload: the name of its file; job: its name
    there, where the file has jobs; beside: the other jobs of that run, in words. launch: of a program, the words after
    `./inv launch`; it has no sizes, no table, and as `qps` the number of its flows. recorded: instead of that, the
    devices of users whose flows it has, in words; `launch` has the words after `./inv record`. Of the table only:
    split, a text about the communicators, where there are several; propagation; before, the fabric before
    the run; in_flight.
    """

    lab: str
    fabric: str
    when: str
    k: int
    ecmp: str
    options: RunOptions
    ranks: tuple[Endpoint, ...]
    qps: int
    communicators: Communicators = ()
    job: str = ""
    workload: str = ""
    beside: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    split: str = ""
    propagation: Propagation | None = None
    before: FabricReading | None = None
    in_flight: InFlight | None = None

    @property
    def work(self) -> str:
        """`all-reduce/ring`, or the name of the program, of a script that of its file."""
        if not self.launch:
            return f"{self.options.collective}/{self.options.algorithm}"
        names = [word.rpartition("/")[2] for word in self.launch[self.launch.index("--") + 1 :]]
        script = _INTERPRETER.fullmatch(names[0]) and len(names) > 1 and not names[1].startswith("-")
        return names[1] if script else names[0]

    @property
    def command(self) -> list[str]:
        """The words of `./inv launch` or `./inv record` that made it."""
        if not self.recorded:
            return ["launch", "--lab", self.lab, *self.launch]
        waits = self.launch[-2:] == ("--", FOREIGN)
        return ["record", "--lab", self.lab, *(self.launch[:-2] if waits else self.launch)]

    @property
    def title(self) -> str:
        """The name of the job, or of a workload's file without jobs; empty for a run from flags."""
        return self.job or self.workload

    def lines(self, short: bool = False, narrow: bool = False, look: TableLook = _USUAL) -> list[str]:
        """All lines down to the names of the columns. short: without the ranks, and narrow.

        narrow: 80 columns, unless there are two measurements of a size, or figures of iterations.
        """
        return self._short() if short else self._long(self._narrow(narrow, look), look)

    def row(self, row: SizeRow, narrow: bool = False, look: TableLook = _USUAL) -> str:
        """The line of one size, in the same columns; below it, what its `#wrong` cannot show."""
        pattern = self.options.pattern
        narrow = self._narrow(narrow, look)
        wide = (10, 9) if narrow else (12, 12)
        sizes = f"{row.size:{wide[0]}d}  {self.count(row):{wide[1]}d}"
        columns = [f"{sizes}  {pattern.printed_type:>8s}  {pattern.redop:>6s}  {pattern.printed_root:6d}"]
        for each in (row.first,) if narrow else self.sides(row):
            columns += _NOT_MEASURED if each is None else each.columns()
            if look.per_iter:
                columns += _NO_ITERATIONS if each is None else each.iteration_columns(look.skip)
        return "\n".join(["  ".join(columns), *self._unseen(row)])

    def _unseen(self, row: SizeRow) -> list[str]:
        from heddle.endpoints.elements import Elements  # with numpy, which readers of records do not need

        pattern, ranks = self.options.pattern, len(self.communicators[0] if self.communicators else self.ranks)
        many = Elements.of(pattern, ranks).unseen(pattern.reductions(ranks, row.size // pattern.element_bytes))
        what = f"{many} of {ranks} ranks change no element of a part at this size: #wrong shows no such loss"
        return [f"#unseen   : {what}"] if many else []

    def sides(self, row: SizeRow) -> tuple[Figures | None, Figures | None]:
        """What was measured out of place, and what in place."""
        if self.options.pattern.placed(self.options.in_place) == (True,):
            return None, row.first
        return row.first, row.in_place

    @property
    def _twice(self) -> bool:
        return len(self.options.pattern.placed(self.options.in_place)) > 1

    def _narrow(self, wanted: bool, look: TableLook) -> bool:
        return wanted and not self._twice and not look.per_iter

    def count(self, row: SizeRow) -> int:
        """Elements of a size as nccl-tests counts them: of a chunk, where a rank has one for each rank."""
        pattern = self.options.pattern
        ranks = len(self.communicators[0] if self.communicators else self.ranks)
        return row.size // pattern.element_bytes // (ranks if pattern.by_chunk else 1)

    def emulated_line(self) -> str:
        """The line with the scale, which is in every table."""
        return f"#emulated : k = {self.k}: {emulated_words(self.k)}"

    @property
    def program(self) -> str:
        """The name of nccl-tests' program: `all_reduce_perf`."""
        return program_name(self.options.collective)

    def _long(self, narrow: bool, look: TableLook) -> list[str]:
        return [
            *self._start(look),
            *_rank_lines(self.ranks, self.communicators),
            "#",
            *([] if look.plain else self._own()),
            *(_narrow_columns() if narrow else _wide_columns(look)),
        ]

    def _start(self, look: TableLook) -> list[str]:
        o = self.options
        skipped = f"; summary skips first {look.skip} iterations" if look.skip else ""
        return [
            _VERSION,
            f"# Collective test starting: {self.program}",
            f"# nThread 1 nGpus 1 minBytes {o.sizes[0]} maxBytes {o.sizes[-1]} step: {_step(o.sizes)} "
            f"warmup iters: {o.warmup} iters: {o.iters} agg iters: 1 validation: 1 graph: 0 unalign: 0",
            *([f"# Per-Iteration Report: wall time; i_* uses max over process rows{skipped}"] if look.per_iter else []),
            "#",
            "# Using devices",
        ]

    def _own(self) -> list[str]:
        return [
            f"# {self.lab}: ecmp {self.ecmp}; " + ", ".join(describe(self.options)),
            *self._file(),
            *self._steps(),
            *self._fabric(),
            *([f"#window   : {self.in_flight.text()}"] if self.in_flight is not None else []),
            *self._delay(),
            *self._split(),
        ]

    def _short(self) -> list[str]:
        o = self.options
        what = f"# {o.collective} ({o.algorithm}) over {len(self.ranks)} ranks, {o.placement} placement; "
        lines = [f"{what}{o.qps} QPs ({o.qp_mode}), UDP source ports {o.source_ports.mode}"]
        more = [f"#window   : {self.in_flight.text()}"] if self.in_flight is not None and self.in_flight.usual else []
        columns = _wide_columns(_USUAL) if self._twice else _narrow_columns()
        return [*lines, *self._file(), *self._steps(), *self._fabric(), *more, *self._split(), *columns]

    def _file(self) -> list[str]:
        """One line where a file without jobs was run; the line of a job, below the rows, names its file too."""
        return [f"#workload : {self.workload}"] if self.workload and not self.job else []

    def _steps(self) -> list[str]:
        """A line for each step of an iteration, where it has several, and for its pace."""
        return [f"#step     : {line}" for line in self.options.pattern.lines()]

    def _fabric(self) -> list[str]:
        """Lines where the fabric was not converged before the run, or its links had faults; warnings have details."""
        if self.before is None:
            return []
        lines = [] if self.before.converged else [degraded_line("before", self.before)]
        return [*lines, *([f"#faults   : {self.before.link_text()}"] if self.before.link_faults else [])]

    def _delay(self) -> list[str]:
        if self.propagation is None:
            return []
        text = self.propagation.text(self.options.congestion != NO_CONTROL, self.options.network)
        return [f"#delay    : {text}"]

    def _split(self) -> list[str]:
        """One line where several communicators run; as in nccl-tests, bandwidths are then per communicator."""
        return [f"#split    : {self.split}; bandwidths are per communicator"] if self.split else []


def _wide_columns(look: TableLook) -> list[str]:
    if not look.per_iter:
        names = [left + right for left, right in zip(_COLUMNS, _IN_PLACE, strict=True)]
        return [f"# {'':61s}out-of-place{'':23s}in-place", *names]
    four = [left + more + right + more for left, more, right in zip(_COLUMNS, _ITERATIONS, _IN_PLACE, strict=True)]
    return [f"# {'':64s}out-of-place (+ per-iteration){'':32s}in-place (+ per-iteration)", *four]


def _narrow_columns() -> list[str]:
    """The same for narrow rows: with five letters less before the sizes."""
    return [(left[0] + left[3:12] + left[15:]).rstrip() for left in _COLUMNS]


def degraded_line(when: str, fabric: FabricReading) -> str:
    """The line for a fabric that was not converged before or after a run."""
    what = fabric.text()
    return f"#fabric   : degraded {when} this run ({what}): do not compare it with a converged fabric"


def figures(
    size: int, iters: int, factor: float, seconds: Sequence[float], wrong: int,
    iterations: Sequence[Sequence[float]] = (), average: int = 1,
) -> Figures:  # fmt: skip
    """One measurement from each rank's seconds for `iters` iterations. iterations: each rank's seconds of each.

    average: whose time it is, as `-a` of nccl-tests: 0 rank 0, 1 the mean, 2 the fastest rank, 3 the slowest.
    """
    order = sorted(range(len(seconds)), key=lambda rank: seconds[rank])
    whose = (range(1), order, order[:1], order[-1:])[average]
    time_s = fmean(seconds[rank] for rank in whose) / iters
    algbw = size / time_s / 1e9
    chosen = [iterations[rank] for rank in whose] if iterations else []
    each = tuple(round(fmean(ranks) * 1e6, 3) for ranks in zip(*chosen, strict=True))
    of_ranks = tuple(tuple(round(time * 1e6, 1) for time in times) for times in iterations)
    return Figures(time_s * 1e6, algbw, algbw * factor, wrong, each, of_ranks)


def _step(sizes: Sequence[int]) -> str:
    """The step of a series as nccl-tests prints it: `2(factor)`, or `65536(bytes)` where sizes are added."""
    steps = {high - low for low, high in pairwise(sizes)}
    if len(sizes) > 2 and len(steps) == 1:
        return f"{steps.pop()}(bytes)"
    return f"{sizes[1] / sizes[0]:g}(factor)" if len(sizes) > 1 else "1(factor)"


def _rank_lines(endpoints: Sequence[Endpoint], communicators: Communicators) -> list[str]:
    """One line per rank; above 16 ranks only the first, the last and a count. Group: its communicator.

    device: the number of the NIC at its host. A rank has no process of its own and no PCI device: these are 0.
    """
    group = {rank: place for place, ranks in enumerate(communicators) for rank in ranks}
    seen: Counter[str] = Counter()
    shown = []
    for e in endpoints:
        place = f"Rank {e.rank:2d} Group {group.get(e.rank, 0):2d} Pid {0:6d} on {e.host:>10s} device {seen[e.host]:2d}"
        shown.append(f"#  {place} [0000:00:00] {e.port} {e.ip} behind {e.first_hop}")
        seen[e.host] += 1
    return shown if len(shown) <= 16 else [*shown[:4], f"#  ... {len(shown) - 5} more ranks", shown[-1]]


def _number(value: float, width: int) -> str:
    """As many decimals as fit, four at most below 1, since emulated bandwidths are small: 0.01 would be too coarse.

    Below 0.001 it is written as 1.4e-5, since 0.0000 would be wrong.
    """
    if 0 < value < 0.001:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".rjust(width)
    for digits in (4, 3, 2, 1, 0) if value < 1 else (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def _count(value: int, width: int) -> str:
    """A whole number; as 1.2e6 if the digits do not fit, so that later columns stay aligned."""
    if len(str(value)) <= width:
        return f"{value:{width}d}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}".rjust(width)


@dataclass(frozen=True, slots=True)
class IterationStats:
    """Of the iterations of one size. Percentiles are nearest ranks, and the deviation is that of the population."""

    skipped: int
    min_us: float
    max_us: float
    avg_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    stdev_us: float

    @property
    def cv_pct(self) -> float:
        """The deviation in percent of the mean."""
        return 100 * self.stdev_us / self.avg_us if self.avg_us > 0 else 0.0


def stats_of(times_us: Sequence[float], skip: int = 0) -> IterationStats | None:
    """The statistics without the first `skip` iterations; None when none is left."""
    times = sorted(times_us[skip:])
    if not times:
        return None

    def percentile(percent: int) -> float:
        return times[math.ceil(len(times) * percent / 100) - 1]

    middle = times[len(times) // 2]
    return IterationStats(
        skip, times[0], times[-1], fmean(times), middle, percentile(95), percentile(99), pstdev(times)
    )
