"""What the fixtures `heddle_run`, `heddle_paths` and `heddle_queues` give a test: functions bound to its lab.

In:  a running Lab. Out: RunRecord, PathsResult, QueuesResult, typed as everywhere else. A mistake in the arguments is
an InputError; the plugin ends its traceback at the line of the test.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.base.plugins import function
from heddle.base.problems import InputError, Problem, did_you_mean

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.lab.queues import QueueRow, QueuesResult
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.together import WorkloadResult


class RunCall:
    """`heddle_run(collective="all-reduce", sizes="1M", qps=16)`: run a collective, return its RunRecord.

    The arguments are those of `run`: sizes "64K:4M:x4" is `--size 64K:4M:x4`.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.runs: list[RunRecord] = []  # of this test, oldest first

    def __call__(self, *, sizes: str | int | None = None, **arguments: Any) -> RunRecord:
        """Run it now. Defaults are those of `run`. InputError for a wrong argument, CheckError when a queue pair dies.

        sizes: the argument `size` of a run, also as a number of bytes.
        """
        from heddle.base.events import Silent
        from heddle.endpoints.runoptions import run_options
        from heddle.runs.run import run

        _check_names(arguments)
        if sizes is not None:
            arguments["size"] = str(sizes)
        self.runs.append(run(self._lab, run_options(**arguments), Silent()))
        return self.runs[-1]

    def workload(self, file: str | os.PathLike[str], *, interference: bool = False) -> WorkloadResult:
        """Run the jobs of a workload: its file, or the name of one in `traffic/`. Errors as above.

        interference: measure each job alone, too, and compare.
        """
        from heddle.base.events import Silent
        from heddle.endpoints.workloadfile import load_workload
        from heddle.runs.run import run_with_interference, run_workload

        wanted = load_workload(os.fspath(file)).workload
        done = (run_with_interference if interference else run_workload)(self._lab, wanted, Silent())
        self.runs += done.jobs
        return done


def _check_names(arguments: Collection[str]) -> None:
    from heddle.endpoints.runoptions import option_fields

    known = ("sizes", *(each.word for each in option_fields()))
    problems = [
        Problem("", f"heddle_run({name}=...)", "is not an argument of a run", did_you_mean(name, known))
        for name in arguments
        if name not in known
    ]
    if problems:
        raise InputError(*problems)


def craft(
    lab: Lab | str | None, src: str, dst: str, *, responder: bool = True, wait: float = 1.0, **fields: Any
) -> Any:
    """Send packets made by hand from `src` to `dst`: craft(lab, "host1", "host3", icrc="wrong"). See docs/craft.md.

    The result is a heddle_plugins.packets.craft.Crafted. InputError when that plugin is not here.
    """
    return function("craft", "craft(...)")(lab, src, dst, responder=responder, wait=wait, **fields)


class PathsCall:
    """`heddle_paths()`: the path of every queue pair of this test's last run, by three sources."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __call__(self, run: RunRecord | str | None = None) -> PathsResult:
        """The proof of a run: its result, its ID, or the last one. InputError when there is none."""
        from heddle.runs.store import has_run, paths_of

        if run is None and not has_run(self._lab):
            hint = "call heddle_run(...) before heddle_paths()"
            raise InputError(
                Problem("", "heddle_paths()", "has no run to prove: this test has not run a collective", hint)
            )
        return paths_of(self._lab, run if run is None or isinstance(run, str) else run.id)


class QueuesCall:
    """`heddle_queues()`: every port and class, counted since the test began."""

    def __init__(self, lab: Lab) -> None:
        from heddle.lab.queues import read_queues

        self._lab = lab
        # A reset sets all counters to 0 but those that depths are computed from.
        rows = read_queues(lab).rows
        self._before: Mapping[tuple[str, int], tuple[int, int]] = {
            (row.port, row.traffic_class): (row.packets, row.bytes) for row in rows
        }

    def __call__(self) -> QueuesResult:
        """One reading."""
        from heddle.lab.queues import read_queues

        result = read_queues(self._lab)
        return replace(result, rows=tuple(map(self._since, result.rows)))

    def _since(self, row: QueueRow) -> QueueRow:
        packets, size = self._before.get((row.port, row.traffic_class), (0, 0))
        return replace(row, packets=row.packets - packets, bytes=row.bytes - size)
