"""Keep a run: its directory is created before the first packet and completed when the run ends, also after an error.

In:  a running lab whose lock is held, the plan; then the result with its evidence, or the error that ended the run.
Out: a directory of the lab's history (store.py). An interrupted run keeps its measured sizes; if it has none, nothing
is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base import state
from heddle.base.problems import HeddleError
from heddle.lab.rehash import label
from heddle.proof.evidence import Evidence
from heddle.proof.verdict import PathsResult, prove
from heddle.runs.measured import FlowRow, write_evidence
from heddle.runs.runrecord import ProofSummary, RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.store import History
from heddle.runs.surroundings import Surroundings, write_surroundings

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class RunInterruptedError(KeyboardInterrupt):
    """Ctrl-C ended a run that had measured at least one size. records: of each job that had, with its ID."""

    def __init__(self, *records: RunRecord) -> None:
        super().__init__(*records[0].failure)
        self.records = records


class RunWriter:
    """Writes one run to its directory. record: as it begins; rows: the sizes measured so far.

    because: the failure of another job that ended this one.
    """

    def __init__(self, lab: Lab, record: RunRecord, path: Path) -> None:
        self.path, self.record = path, record
        self.rows: list[SizeRow] = []
        self.because = ""
        self._around, self._history = Surroundings.of(lab), History.of(lab)
        write_surroundings(path, self._around)
        self._began = time.monotonic()

    def add(self, number: int, row: SizeRow) -> None:
        """Add the row of a size, by its number; a repetition becomes part of the row that is there."""
        if number < len(self.rows):
            self.rows[number] = self.rows[number].again(row)
        else:
            self.rows.append(row)

    def finish(self, record: RunRecord, evidence: Evidence, flows: Sequence[FlowRow]) -> RunRecord:
        """Store a finished run; returns it with its ID. flows: of all jobs."""
        write_evidence(self.path, flows, evidence)
        for _, courses in record.courses.values():
            courses.write(self.path)
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
        return self._history.keep(self.path, replace(record, seconds=round(time.monotonic() - self._began, 3)))

    def proof(self, evidence: Evidence) -> PathsResult | None:
        """The verdict that the stored run will give, or None: some imported hashing cannot be predicted."""
        try:
            return prove(self._around.fabric, evidence, self._around.selftest)
        except HeddleError:
            return None


def begun(lab: Lab, **known: Any) -> RunRecord:
    """The record of a run that begins now. known: the fields that do not follow from the lab."""
    record = state.read_record(lab.name)
    return RunRecord(
        lab=lab.name,
        fabric=(record.source if record else "") or lab.fabric.name,
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        k=lab.fabric.policy.k,
        ecmp=label(lab),
        **known,
    )


@contextmanager
def writing(lab: Lab, record: RunRecord) -> Iterator[RunWriter]:
    """A RunWriter for a with block. If the block raises a HeddleError, the run is kept as failed.

    Raises RunInterruptedError instead of KeyboardInterrupt when at least one size was measured.
    """
    with History.of(lab).draft() as path:
        writer = RunWriter(lab, record, path)
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
