"""Runs of tests: short ones whose data must be right, what their flows counted, and paths that must be proven."""

from __future__ import annotations

from typing import Any

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.proof.verdict import PathsResult
from heddle.runs.lookup import paths_of
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text


def ran(lab: Lab, **options: Any) -> RunResult:
    """A run of the smallest size that still says something, by default an all-reduce. options: of RunOptions."""
    result = run(lab, RunOptions(**{"sizes": (1 << 18,), "iters": 2, "warmup": 1, **options}), Silent())
    assert result.wrong == 0
    return result


def proven(lab: Lab, run_id: str | None = None) -> PathsResult:
    """The paths of a run, on which prediction, kernels and counters must agree."""
    paths = paths_of(lab, run_id)
    assert paths.agree, paths_text(paths)
    return paths


def total(result: RunResult, key: str) -> int:
    """A counter of all flows together; 0 for one that the transport does not have."""
    return sum(flow.counters.get(key, 0) for flow in result.flows)
