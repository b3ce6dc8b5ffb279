"""Record the queues of a lab during one run: read before it, sampled during it, read after it, and saved.

In:  a running lab whose lock is held, the length of a bucket, and the directory of the run that is being written.
Out: QueueUse for the run's result, and the file that `plot` draws (series.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.base.problems import HeddleError
from heddle.lab.thresholds import wanted_policies
from heddle.runs.queueuse import QueueTotals, QueueUse, labels_of, use_of
from heddle.runs.series import Recorded, Sampler, Series, write_series
from heddle.switch.pfc import control as pfc
from heddle.switch.queues.cells import LabQueues

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Recording:
    """The recording of one run. Use `during` around the run, and call `finish` when no packet of it is in flight.

    remarks: warnings for the run's result.
    """

    def __init__(self, lab: Lab, live: LabQueues, bucket_ns: int, what: str, directory: Path) -> None:
        self._lab, self._live, self._what, self._directory = lab, live, what, directory
        self._before = QueueTotals.of(live)
        self._sampler = Sampler(live, bucket_ns / 1e9, self._restart_agent)
        self.remarks: list[str] = []

    def _restart_agent(self) -> None:
        """Restart the PFC agent if it and its keeper were killed: no other process would open its gates."""
        try:
            if not self.remarks and pfc.restart(self._lab.name, self._lab.fabric, self._lab.handles(), self._lab.dir):
                self.remarks.append("the PFC agent and its keeper ended during the run, and were restarted")
        except HeddleError as error:
            self.remarks.append(f"the PFC agent and its keeper ended during the run: {error.problems[0]}")

    @contextmanager
    def during(self, began_ns: Callable[[], int]) -> Iterator[None]:
        """Sample during a with block. The queues are saved also when the run fails or is interrupted.

        began_ns: returns when its first packet could be sent (CLOCK_MONOTONIC), 0 before that.
        """
        try:
            with self._sampler:
                yield
        except (HeddleError, KeyboardInterrupt, SystemExit) as end:
            how = "which failed" if isinstance(end, HeddleError) else "which was interrupted"
            with suppress(HeddleError):  # report the error that ended the run instead
                self._save(f"{self._what} ({how})", began_ns())
            raise

    def finish(self, start_ns: int) -> QueueUse:
        """Save the samples from `start_ns` (CLOCK_MONOTONIC) on; returns the totals of the whole run."""
        after = QueueTotals.of(self._live)
        return use_of(self._lab.fabric, self._before, after, self._save(self._what, start_ns))

    def _save(self, what: str, start_ns: int) -> Series:
        series = self._sampler.series(start_ns)
        labels = labels_of(self._lab.fabric, wanted_policies(self._lab), series.rows.tolist())
        write_series(self._directory, Recorded(self._lab.name, what, self._lab.fabric.policy.k, tuple(labels), series))
        return series


@contextmanager
def recording(lab: Lab, bucket_ns: int, what: str, directory: Path) -> Iterator[Recording]:
    """A recording for a with block, written to a directory. MachineError when the lab has no queues."""
    with LabQueues.pinned(lab.fabric) as live:
        yield Recording(lab, live, bucket_ns, what, directory)
