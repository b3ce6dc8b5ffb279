"""Whether checks can fail: the runs of each with the changes of its `broken_by`, which it must not pass.

In:  an Experiment. Out: `breaks`, the experiments to run: checks with equal changes share their runs and labs; and
Broken, a row for each check with a band or a sign. A check passes here if it came out of its band, had wrong data, or
had unproven paths, at every point of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from heddle.experiments.loading import Experiment, ExperimentCheck
from heddle.experiments.outcome import ExperimentResult, Row


def breaks(experiment: Experiment) -> list[Experiment]:
    """What to run."""
    found: dict[str, Experiment] = {}
    for each in experiment.checks:
        if each.broken is None or each.spec.broken_by is None:
            continue
        key = each.spec.broken_by.model_dump_json(exclude={"why"})
        before = found.get(key, replace(each.broken, variants=(), checks=()))
        known = {variant.run for variant in before.variants}
        more = [variant for variant in each.broken.variants if variant.run not in known]
        checks, axes = (*before.checks, *each.broken.checks), {**before.axes, **each.broken.axes}
        found[key] = replace(before, variants=(*before.variants, *more), checks=checks, axes=axes)
    return [*found.values()]


@dataclass(frozen=True)
class Broken:
    """A check with its changes. rows: at every point; none where the file names no change, or it was skipped."""

    check: ExperimentCheck
    rows: Sequence[Row]
    skipped: str = ""

    @property
    def by(self) -> str:
        """What must make it fail."""
        return "nothing" if self.check.spec.broken_by is None else self.check.spec.broken_by.text()

    @property
    def ok(self) -> bool:
        """Whether it failed, as it must."""
        return bool(self.skipped) or (bool(self.rows) and all(row.broken for row in self.rows))


@dataclass(frozen=True)
class BreakResult:
    """Of an experiment, every check with a band or a sign."""

    experiment: Experiment
    broken: Sequence[Broken]
    interrupted: bool = False

    @classmethod
    def of(cls, experiment: Experiment, results: Sequence[ExperimentResult]) -> BreakResult:
        """From the results of `breaks`, as many as ran."""
        rows: dict[str, list[Row]] = {}
        for row in (row for each in results for row in each.rows):
            rows.setdefault(row.check.name, []).append(row)
        skipped = {check.name: each.skipped for each in results for check in each.experiment.checks}
        checks = [each for each in experiment.checks if each.spec.bounds is not None]
        broken = [Broken(each, rows.get(each.name, []), skipped.get(each.name, "")) for each in checks]
        return cls(experiment, broken, any(each.interrupted for each in results))

    @property
    def failed(self) -> bool:
        """Whether a check did not fail, or cannot."""
        return not all(each.ok for each in self.broken)

    def to_json(self) -> dict[str, Any]:
        """The document of `--break`."""
        checks = [
            {
                "check": each.check.name, "broken_by": each.by, "ok": each.ok, "skipped": each.skipped,
                "rows": [row.to_json() for row in each.rows],
            }
            for each in self.broken
        ]  # fmt: skip
        return {
            "experiment": self.experiment.name, "file": self.experiment.file, "ok": not self.failed,
            "interrupted": self.interrupted, "checks": checks,
        }  # fmt: skip
