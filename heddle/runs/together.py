"""The result of a workload: the run of each of its jobs, and how much slower each was together than alone.

In:  RunResult of each job, all measured together; on request, also of each job alone, on the same NICs.
Out: text with a block for each job, and JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heddle.runs.results import RunResult


@dataclass(frozen=True, slots=True)
class Interference:
    """One job alone and together with the others. busbw: average bus bandwidth over its sizes, GB/s, emulated.

    alone_run, together_run: IDs of the stored runs. unreliable: the host CPU was or may have been the bottleneck in one
    of the two.
    """

    job: str
    alone_busbw: float
    together_busbw: float
    alone_run: str
    together_run: str
    unreliable: bool

    @property
    def ratio(self) -> float:
        """Together as a share of alone."""
        return self.together_busbw / self.alone_busbw

    def text(self) -> str:
        """`a: 0.0119 GB/s alone (run 0001), 0.0061 GB/s together (run 0003): 51 %`."""
        alone, together = f"{self.alone_busbw:.4g}", f"{self.together_busbw:.4g}"
        runs = f"{alone} GB/s alone (run {self.alone_run}), {together} GB/s together (run {self.together_run})"
        doubt = "; UNRELIABLE: the host CPU may have been the bottleneck" if self.unreliable else ""
        return f"{self.job}: {runs}: {100 * self.ratio:.0f} %{doubt}"


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """A finished workload: the result of each job, in order. interference: of each job, if it was measured."""

    name: str
    jobs: tuple[RunResult, ...]
    interference: tuple[Interference, ...] = ()

    @property
    def wrong(self) -> int:
        """Wrong elements of all jobs."""
        return sum(job.wrong for job in self.jobs)

    def compared(self, alone: Sequence[RunResult]) -> WorkloadResult:
        """With the interference. alone: the result of each job alone, in the same order."""
        found = (
            Interference(here.job, there.busbw, here.busbw, there.run_id, here.run_id, there.limited or here.limited)
            for there, here in zip(alone, self.jobs, strict=True)
        )
        return WorkloadResult(self.name, self.jobs, tuple(found))

    def to_json(self) -> dict[str, Any]:
        """The document that `--format json` prints: `jobs` has the document of a run for each job."""
        return {
            "workload": self.name,
            "jobs": [job.to_json() for job in self.jobs],
            "interference": [
                {
                    "job": each.job, "alone_busbw": each.alone_busbw, "together_busbw": each.together_busbw,
                    "ratio": each.ratio, "alone_run": each.alone_run, "together_run": each.together_run,
                    "unreliable": each.unreliable,
                }
                for each in self.interference
            ],
        }  # fmt: skip

    def table(self, narrow: bool = False) -> str:
        """A block for each job, and a line of each for the interference. narrow: 80 columns."""
        blocks = []
        for job in self.jobs:
            rows = [job.row(row, narrow=narrow) for row in job.rows]
            blocks.append("\n".join([*job.lines(narrow=narrow), *rows, *job.foot()]))
        lines = [f"#interference: {each.text()}" for each in self.interference]
        if lines:
            lines.append("#interference: of average bus bandwidths; other causes of a difference are not excluded")
        return "\n\n".join([*blocks, *(["\n".join(lines)] if lines else [])]) + "\n"
