"""Whether checks can fail: the runs of each with the changes of its `broken_by`, which it must not pass.

In:  an Experiment. Out: `breaks`, the experiments to run: checks with equal changes share their runs and labs; and
`unbroken`, of their results. A check has failed here if it came out of its band, had wrong data, or had unproven paths,
at every point of its grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heddle.experiments.loading import Experiment
from heddle.experiments.outcome import ExperimentResult


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
        checks, axes = (*before.checks, replace(each, broken=None)), {**before.axes, **each.broken.axes}
        found[key] = replace(before, variants=(*before.variants, *more), checks=checks, axes=axes)
    return [*found.values()]


def unbroken(experiment: Experiment, results: Sequence[ExperimentResult]) -> dict[str, str]:
    """The checks with a band or a sign that did not fail, and why; those that were skipped are left out."""
    found = {
        each.name: "has no broken_by" if each.broken is None else "did not run"
        for each in experiment.checks if each.spec.bounds is not None
    }  # fmt: skip
    for result in results:
        for check in result.experiment.checks:
            rows = [row for row in result.rows if row.check.name == check.name]
            passed = [row for row in rows if not row.broken]
            if passed:
                found[check.name] = f"{passed[0].result}, though it was broken"
            elif rows or result.skipped:
                del found[check.name]
    return found
