"""Keep a run: its directory is created before the first packet and completed when the run ends, also after an error.

In:  a running lab whose lock is held, the plan; then the result with its evidence, or the error that ended the run.
Out: a directory of the lab's history (store.py). An interrupted run keeps its measured sizes; if it has none, nothing
is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from heddle.base import state
from heddle.base.problems import HeddleError
from heddle.lab.rehash import label
from heddle.proof.evidence import Evidence
from heddle.proof.verdict import prove
from heddle.runs.measured import write_evidence
from heddle.runs.rates import write_rates
from heddle.runs.results import ProofSummary, RunOutcome, RunResult
from heddle.runs.runrecord import RunHeader, RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.store import Draft, History
from heddle.runs.surroundings import Surroundings, write_surroundings
from heddle.traffic.plan import Plan

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class RunInterruptedError(KeyboardInterrupt):
    """Ctrl-C ended a run that had measured at least one size. record: the kept record, with its ID."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(*record.failure)
        self.record = record


class RunWriter:
    """Writes one run to its directory and completes its record. rows: the sizes measured so far."""

    def __init__(self, lab: Lab, plan: Plan, draft: Draft) -> None:
        self.draft = draft
        self.rows: list[SizeRow] = []
        self._lab = lab
        write_surroundings(draft.path, Surroundings.of(lab))
        self._began = time.monotonic()
        record = state.read_record(lab.name)
        self._header = RunHeader(
            lab=lab.name,
            fabric=(record.source if record else "") or lab.fabric.name,
            when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            k=plan.k,
            ecmp=label(lab),
            options=plan.options,
            ranks=plan.endpoints,
            qps=len(plan.qps),
            communicators=plan.communicators,
        )

    def finish(self, result: RunResult, evidence: Evidence) -> RunResult:
        """Store a finished run; returns the result with its ID and the verdict on its paths."""
        write_evidence(self.draft.path, result.flows, evidence)
        if result.rates is not None:
            write_rates(self.draft.path, result.rates)
        result = replace(result, proof=self._proof(evidence))
        return replace(result, run_id=self.draft.finish(self._record(result.outcome)).id)

    def failed(self, error: HeddleError) -> None:
        """Keep a failed run, so that `last` does not link to an older, successful one."""
        self.draft.finish(self._record(None, tuple(str(problem) for problem in error.problems)))

    def interrupted(self) -> RunRecord:
        """Keep the measured sizes of an interrupted run. `last` does not change."""
        why = f"interrupted after {len(self.rows)} of {len(self._header.options.sizes)} sizes"
        return self.draft.finish(replace(self._record(None, (why,)), interrupted=True))

    def _record(self, outcome: RunOutcome | None, failure: tuple[str, ...] = ()) -> RunRecord:
        seconds = round(time.monotonic() - self._began, 3)
        return RunRecord(self._header, seconds, outcome, failure, rows=() if outcome else tuple(self.rows))

    def _proof(self, evidence: Evidence) -> ProofSummary | None:
        """The verdict, or None: some hashing of imported topologies cannot be predicted."""
        try:
            return ProofSummary.of(prove(self._lab.fabric, evidence))
        except HeddleError:
            return None


@contextmanager
def writing(lab: Lab, plan: Plan) -> Iterator[RunWriter]:
    """A RunWriter for a with block. If the block raises a HeddleError, the run is kept as failed.

    Raises RunInterruptedError instead of KeyboardInterrupt when at least one size was measured.
    """
    with History.of(lab).draft() as draft:
        writer = RunWriter(lab, plan, draft)
        try:
            yield writer
        except HeddleError as error:
            with suppress(HeddleError):  # such as a full disk: report the error that ended the run instead
                writer.failed(error)
            raise
        except (KeyboardInterrupt, SystemExit) as end:  # SystemExit: a closed terminal, SIGTERM
            kept = None
            with suppress(HeddleError):
                kept = writer.interrupted() if writer.rows else None
            if kept is not None and isinstance(end, KeyboardInterrupt):
                raise RunInterruptedError(kept) from None
            raise
