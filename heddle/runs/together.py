"""The result of a workload: the run of each of its jobs, and how much slower each was beside the others than alone.

In:  RunRecord of each job, all measured together; on request, repeats of that, and of each job alone on the same NICs.
Out: text with a block for each job, and JSON.
Only iterations count that ran beside all other jobs: each of these had an iteration under way for WHOLE of the time.
Jobs of which no iterations overlap, as with `after`, do not interfere and are left out. noise.py judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heddle.base.arrays import F64
from heddle.runs.noise import chance_of_groups, middle
from heddle.runs.runrecord import RunRecord, unfit

if TYPE_CHECKING:
    from heddle.runs.timeline import Iterations

_WORDS: Final = {"unknown": "not known"}
REPEATS: Final = 3  # of the jobs alone and together
WHOLE: Final = 0.9  # of an iteration: pauses between iterations of another job may be the rest


@dataclass(frozen=True, slots=True)
class Beside:
    """Iterations of a job that ran beside all others. busbw: by size, GB/s, emulated. share: of all iterations.

    busy: the share of the time of all iterations in which the others, each, had one under way; the least of them.
    """

    others: tuple[str, ...]
    busbw: dict[int, float]
    share: float
    busy: float = 0.0

    @classmethod
    def of(cls, job: RunRecord, jobs: Sequence[RunRecord]) -> Beside:
        """Of a job among those that ran with it."""
        mine = _iterations(job)
        took, found = mine.end_s - mine.begin_s, dict[int, float]()
        every = {each.job: _overlap(mine, _iterations(each)) for each in jobs if each.job != job.job}
        others = {name: overlap for name, overlap in every.items() if overlap.any()}
        if not others:
            return cls((), {}, 0.0)
        short = np.any([overlap < WHOLE * took for overlap in others.values()], axis=0)
        inside = ~np.isin(mine.epoch, mine.epoch[short])
        for row in job.rows:
            of_size = mine.size == row.size
            if (of_size & inside).any():
                found[row.size] = row.busbw * float(took[of_size].mean() / took[of_size & inside].mean())
        busy = min(float(overlap.sum() / took.sum()) for overlap in others.values())
        return cls(tuple(others), found, float(inside.mean()), busy)


def _overlap(its: Iterations, others: Iterations) -> F64:
    """How long any rank of the other job had an iteration under way during each of these, in seconds."""
    order = np.argsort(others.begin_s)
    ends = np.maximum.accumulate(others.end_s[order])
    begins = np.maximum(others.begin_s[order], np.concatenate([[-np.inf], ends[:-1]]))
    done = np.cumsum(ends - begins)
    at, busy = np.column_stack([begins, ends]).ravel(), np.column_stack([done - (ends - begins), done]).ravel()
    return np.asarray(np.interp(its.end_s, at, busy) - np.interp(its.begin_s, at, busy), np.float64)


def _iterations(job: RunRecord) -> Iterations:
    from heddle.runs.timeline import Timeline

    timeline = job.courses["slowest"][1]
    assert isinstance(timeline, Timeline)  # noqa: S101
    return timeline.iterations


@dataclass(frozen=True, slots=True)
class Interference:
    """One job alone and beside others. alone, together: busbw of each repeat, the mean over sizes, GB/s, emulated.

    together: of iterations beside all the others; empty where there are none. share: of these among all. busy: the
    share of the time with an iteration of each other job under way. *_runs: IDs of the stored runs. doubts: why a run
    is not fit for a verdict. wrong: elements in runs that are not shown.
    """

    job: str
    others: tuple[str, ...]
    alone: tuple[float, ...]
    together: tuple[float, ...]
    share: float
    alone_runs: tuple[str, ...]
    together_runs: tuple[str, ...]
    doubts: tuple[str, ...]
    wrong: int = 0
    busy: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Together as a share of alone; None if no iteration ran beside all the others, or a busbw is 0."""
        measured = self.together and min(*self.alone, *self.together) > 0
        return middle(self.together, counted=False) / middle(self.alone, counted=False) if measured else None

    @property
    def verdict(self) -> str:
        """Whether noise explains the difference, or why that is not known."""
        if self.doubts:
            return f"no verdict: {self.doubts[0]}"
        groups, names = (self.alone, self.together), ("those alone", "those together")
        found = None if self.ratio is None else chance_of_groups(groups, counted=False, names=names)
        return "not known" if found is None else f"{_WORDS.get(found.verdict, found.verdict)}: {found.words}"

    def lines(self) -> list[str]:
        """`a: 51 % of 0.0119 GB/s alone (runs 0001, 0004, 0007) beside b (...)`, and the verdict."""
        alone = f"{middle(self.alone, counted=False):.4g} GB/s alone (runs {', '.join(self.alone_runs)})"
        where = f"beside {' and '.join(self.others)} (runs {', '.join(self.together_runs)})"
        if self.ratio is None:
            if not self.others:
                return [f"{self.job}: no other job ran at the same time"]
            why = f"in no iteration all of these ran for {WHOLE:.0%} of the time: "
            why += "let them run longer, by iters or repeat: background"
            why = "a bandwidth is 0" if self.together else why
            return [f"{self.job}: not known {where}: {why}"]
        head = f"{self.job}: {100 * self.ratio:.0f} % of {alone} {where}"
        beside = f"{self.share:.0%} of its iterations ran beside these ({self.busy:.0%} of its time)"
        return [head, f"{self.job}: {beside}; {self.verdict}"]


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """A finished workload: the result of each job, in order. interference: of each job, if it was measured."""

    name: str
    jobs: tuple[RunRecord, ...]
    interference: tuple[Interference, ...] = ()

    @property
    def wrong(self) -> int:
        """Wrong elements of all jobs, in all repeats."""
        return sum(job.wrong for job in self.jobs) + sum(each.wrong for each in self.interference)

    @classmethod
    def compared(cls, repeats: Sequence[tuple[Sequence[RunRecord], WorkloadResult]]) -> WorkloadResult:
        """The last of some repeats, with the interference. Each: the result of each job alone, and of all together."""
        last, found = repeats[-1][1], []
        for at, job in enumerate(last.jobs):
            alone, here = [each[0][at] for each in repeats], [each[1].jobs[at] for each in repeats]
            beside = [Beside.of(one, each[1].jobs) for one, each in zip(here, repeats, strict=True)]
            others = dict.fromkeys(name for each in beside for name in each.others)
            there = [each.busbw for each in beside if each.busbw]  # a repeat may have no such iteration
            sizes = set.intersection(*({*each} for each in there)) if there else set[int]()
            rows = [[row.busbw for row in one.rows if row.size in sizes or not sizes] for one in alone]
            doubts = [f"run {one.id}: {why.why}" for one in (*alone, *here) if (why := unfit(one))]
            runs = [tuple(one.id for one in each) for each in (alone, here)]
            values = tuple(fmean(each[size] for size in sizes) for each in there) if sizes else ()
            found.append(
                Interference(
                    job.job, tuple(others), tuple(map(fmean, rows)), values, fmean(each.share for each in beside),
                    runs[0], runs[1], tuple(doubts), sum(one.wrong for one in (*alone, *here[:-1])),
                    fmean(each.busy for each in beside),
                )
            )  # fmt: skip
        return cls(last.name, last.jobs, tuple(found))

    def to_json(self) -> dict[str, Any]:
        """The document that `--format json` prints: `jobs` has the document of a run for each job."""
        return {
            "workload": self.name,
            "jobs": [job.to_json() for job in self.jobs],
            "interference": [
                {
                    **asdict(each), "ratio": each.ratio, "verdict": each.verdict,
                    "alone_busbw": middle(each.alone, counted=False),
                    "together_busbw": middle(each.together, counted=False) if each.together else None,
                }
                for each in self.interference
            ],
        }  # fmt: skip

    def table(self, narrow: bool = False) -> str:
        """A block for each job, and lines of each for the interference. narrow: 80 columns."""
        blocks = []
        for job in self.jobs:
            rows = [job.row(row, narrow=narrow) for row in job.rows]
            blocks.append("\n".join([*job.lines(narrow=narrow), *rows, *job.foot()]))
        lines = [f"#interference: {line}" for each in self.interference for line in each.lines()]
        if lines:
            lines.append("#interference: of average bus bandwidths; other causes of a difference are not excluded")
        return "\n\n".join([*blocks, *(["\n".join(lines)] if lines else [])]) + "\n"
