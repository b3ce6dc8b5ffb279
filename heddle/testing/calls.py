"""What the fixtures `heddle_run`, `heddle_paths` and `heddle_queues` give a test: functions bound to its lab.

In:  a running Lab. Out: RunResult, PathsResult, QueuesResult, typed as everywhere else. A mistake in the arguments is
an InputError; the plugin ends its traceback at the line of the test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.lab.queuestatus import QueueRow, QueuesResult
    from heddle.proof.verdict import PathsResult
    from heddle.runs.results import RunResult


class RunCall:
    """`heddle_run(collective="all-reduce", sizes="1M", qps=16)`: run a collective, return its RunResult.

    The arguments are those of `run`: sizes "64K:4M:x4" is `--size 64K:4M:x4`.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.runs: list[RunResult] = []  # of this test, oldest first

    def __call__(
        self,
        *,
        collective: str = "all-reduce",
        sizes: str | int = "1M",
        algorithm: str | None = None,
        ranks: int | None = None,
        iters: int = 5,
        warmup: int = 1,
        qps: int = 1,
        qp_mode: str = "split",
        placement: str = "block",
        sport: str = "qpn",
        chunk: str = "128K",
        window: int | None = None,
        timeout: int | None = None,
        bucket: str = "10ms",
        transport: str = "rc",
        split: str = "auto",
        fastpath: str = "auto",
    ) -> RunResult:
        """Run it now. InputError for a wrong argument, CheckError when a queue pair dies."""
        from heddle.base.events import Silent
        from heddle.endpoints.transports import find_transport
        from heddle.runs.run import run
        from heddle.traffic.options import run_options

        options = run_options(
            collective=collective, algorithm=algorithm, ranks=ranks, size=str(sizes), iters=iters, warmup=warmup,
            qps=qps, qp_mode=qp_mode, placement=placement, sport=sport, chunk=chunk, window=window, timeout=timeout,
            bucket=bucket, transport=transport, find_transport=find_transport, split=split, fastpath=fastpath,
        )  # fmt: skip
        self.runs.append(run(self._lab, options, Silent()))
        return self.runs[-1]


class PathsCall:
    """`heddle_paths()`: the path of every queue pair of this test's last run, by three sources."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __call__(self, run: RunResult | str | None = None) -> PathsResult:
        """The proof of a run: its result, its ID, or the last one. InputError when there is none."""
        from heddle.runs.past import has_run, paths_of

        if run is None and not has_run(self._lab):
            hint = "call heddle_run(...) before heddle_paths()"
            raise InputError(
                Problem("", "heddle_paths()", "has no run to prove: this test has not run a collective", hint)
            )
        return paths_of(self._lab, run if run is None or isinstance(run, str) else run.run_id)


class QueuesCall:
    """`heddle_queues()`: every port and class, counted since the test began."""

    def __init__(self, lab: Lab) -> None:
        from heddle.lab.queuestatus import read_queues

        self._lab = lab
        # A reset sets all counters to 0 but those that depths are computed from.
        rows = read_queues(lab).rows
        self._before: Mapping[tuple[str, int], tuple[int, int]] = {
            (row.port, row.traffic_class): (row.packets, row.bytes) for row in rows
        }

    def __call__(self) -> QueuesResult:
        """One reading."""
        from heddle.lab.queuestatus import read_queues

        result = read_queues(self._lab)
        return replace(result, rows=tuple(map(self._since, result.rows)))

    def _since(self, row: QueueRow) -> QueueRow:
        packets, size = self._before.get((row.port, row.traffic_class), (0, 0))
        return replace(row, packets=row.packets - packets, bytes=row.bytes - size)
