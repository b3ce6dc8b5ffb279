"""Keep a run: its directory is created before the first packet and completed when the run ends, also after an error.

Its queues are recorded: read before the run, sampled during it, read after it, and saved for `plot` (series.py).

In:  a running lab whose lock is held, the plan; then the result with its evidence, or the error that ended the run.
Out: a directory of the lab's history (store.py). An interrupted run keeps its measured sizes; if it has none, nothing
is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base.ethernet import CLASSES
from heddle.base.problems import HeddleError
from heddle.fabric.model import Fabric, Role
from heddle.lab.thresholds import wanted_policies
from heddle.proof.evidence import Evidence
from heddle.proof.verdict import PathsResult, prove
from heddle.runs import watching
from heddle.runs.measured import FlowRow, write_evidence
from heddle.runs.runrecord import ProofSummary, RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.series import QueueRecord, Recorded, RowLabel, write_series
from heddle.runs.store import Draft, History
from heddle.runs.surroundings import Surroundings, write_surroundings
from heddle.runtimes.shardcalls import Moment
from heddle.switch.queues.classes import Policies
from heddle.switch.queues.portids import numbered_ports

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


def labels_of(fabric: Fabric, policies: Policies, rows: Sequence[int]) -> list[RowLabel]:
    """The label of each row of a series, with the thresholds in force when the run ended."""
    ports = dict(numbered_ports(fabric))
    found = []
    for row in rows:
        port, number = ports[row // CLASSES], row % CLASSES
        policy = policies[port.node, port.name][number]
        ecn = {"kmin": policy.kmin, "kmax": policy.kmax} if policy.ecn else {}
        pause = {"xoff": policy.xoff, "xon": policy.xon} if policy.pfc else {}
        host = fabric.by_name[port.node].role is Role.HOST
        found.append(RowLabel(port.ref, number, policy.kind, port.rate_bps, **ecn, **pause, host=host))
    return found


class Recording:
    """The recording of one run. Use `during` around the run, and call `finish` when no packet of it is in flight.

    remarks: warnings for the run's result.
    """

    def __init__(self, lab: Lab, bucket_ns: int, what: str, directories: Sequence[Path]) -> None:
        self._lab, self._what, self._directories = lab, what, directories
        self.remarks: list[str] = []
        watching.prepare(lab, bucket_ns)

    @contextmanager
    def during(self, began_ns: Callable[[], int]) -> Iterator[None]:
        """Sample during a with block. The queues are saved also when the run fails or is interrupted.

        began_ns: returns when its first packet could be sent (CLOCK_MONOTONIC), 0 before that.
        """
        try:
            watching.begin(self._lab)
            try:
                yield
            finally:
                watching.end(self._lab)
        except (HeddleError, KeyboardInterrupt, SystemExit) as end:
            how = "which failed" if isinstance(end, HeddleError) else "which was interrupted"
            with suppress(HeddleError):  # report the error that ended the run instead
                self._save(f"{self._what} ({how})", began_ns())
            raise

    def finish(self, start_ns: int) -> QueueRecord:
        """Save the samples from `start_ns` (CLOCK_MONOTONIC) on; with the totals before and after."""
        found = self._save(self._what, start_ns)
        return QueueRecord(self._lab.fabric, found.before, found.after, found.series)

    def _save(self, what: str, start_ns: int) -> watching.Watched:
        found = watching.taken(self._lab, Moment(start_ns))
        self.remarks[:] = found.remarks
        labels = labels_of(self._lab.fabric, wanted_policies(self._lab), found.series.rows.tolist())
        series = Recorded(self._lab.name, what, self._lab.fabric.policy.k, tuple(labels), found.series)
        for directory in self._directories:
            write_series(directory, series)
        return found


@contextmanager
def recording(lab: Lab, bucket_ns: int, what: str, directories: Sequence[Path]) -> Iterator[Recording]:
    """A recording for a with block, written to that of each job. MachineError when the lab has no queues."""
    found = Recording(lab, bucket_ns, what, directories)
    try:
        yield found
    finally:
        watching.close(lab)


class RunInterruptedError(KeyboardInterrupt):
    """Ctrl-C ended a run that had measured at least one size. records: of each job that had, with its ID."""

    def __init__(self, *records: RunRecord) -> None:
        super().__init__(*records[0].failure)
        self.records = records


class RunWriter:
    """Writes one run to its directory. record: as it begins; rows: the sizes measured so far.

    because: the failure of another job that ended this one.
    """

    def __init__(self, lab: Lab, record: RunRecord, draft: Draft) -> None:
        self.draft, self.record = draft, record
        self.rows: list[SizeRow] = []
        self.because = ""
        self._around = Surroundings.of(lab)
        write_surroundings(draft.path, self._around)
        self._began = time.monotonic()

    def add(self, number: int, row: SizeRow) -> None:
        """Add the row of a size, by its number; a repetition becomes part of the row that is there."""
        if number < len(self.rows):
            self.rows[number] = self.rows[number].again(row)
        else:
            self.rows.append(row)

    def finish(self, record: RunRecord, evidence: Evidence, flows: Sequence[FlowRow]) -> RunRecord:
        """Store a finished run; returns it with its ID. flows: of all jobs."""
        write_evidence(self.draft.path, flows, evidence)
        for _, courses in record.courses.values():
            courses.write(self.draft.path)
        return self._kept(record)

    def finish_program(self, evidence: Evidence, **known: Any) -> RunRecord:
        """Store the run of a program; returns its record, with its ID and the verdict on the paths of its flows.

        known: the fields of the record that are known at its end.
        """
        proof = self.proof(evidence)
        summary = None if proof is None else ProofSummary.of(proof)
        record = replace(self.record, done=True, qps=len(evidence.sent), proof=summary, **known)
        return self.finish(record, evidence, [FlowRow(sent, 0, {}) for sent in evidence.sent])

    def failed(self, error: HeddleError) -> None:
        """Keep a failed run, so that `last` does not link to an older, successful one."""
        self._kept(replace(self.record, failure=tuple(map(str, error.problems)), rows=tuple(self.rows)))

    def interrupted(self) -> RunRecord:
        """Keep the measured sizes of an interrupted run. `last` does not change."""
        why = f"interrupted after {len(self.rows)} of {len(self.record.options.sizes)} sizes"
        why += f", because {self.because}" if self.because else ""
        return self._kept(replace(self.record, failure=(why,), interrupted=True, rows=tuple(self.rows)))

    def _kept(self, record: RunRecord) -> RunRecord:
        return self.draft.finish(replace(record, seconds=round(time.monotonic() - self._began, 3)))

    def proof(self, evidence: Evidence) -> PathsResult | None:
        """The verdict that the stored run will give, or None: some imported hashing cannot be predicted."""
        try:
            return prove(self._around.fabric, evidence, self._around.selftest)
        except HeddleError:
            return None


@contextmanager
def writing(lab: Lab, record: RunRecord) -> Iterator[RunWriter]:
    """A RunWriter for a with block. If the block raises a HeddleError, the run is kept as failed.

    Raises RunInterruptedError instead of KeyboardInterrupt when at least one size was measured.
    """
    with History.of(lab).draft() as draft:
        writer = RunWriter(lab, record, draft)
        try:
            yield writer
        except HeddleError as error:
            with suppress(HeddleError):  # such as a full disk: report the error that ended the run instead
                if not writer.because:
                    writer.failed(error)
                elif writer.rows:
                    writer.interrupted()
            raise
        except (KeyboardInterrupt, SystemExit) as end:  # SystemExit: a closed terminal, SIGTERM
            kept = None
            with suppress(HeddleError):
                kept = writer.interrupted() if writer.rows else None
            if kept is not None and isinstance(end, KeyboardInterrupt):
                others = end.records if isinstance(end, RunInterruptedError) else ()
                raise RunInterruptedError(kept, *others) from None
            raise
