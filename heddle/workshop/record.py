"""What `workshop check` records of a solved step, and the result that a learner hands in (`workshop result`).

In:  the verdicts of a check, the unit's running lab, and the record so far.
Out: StepRecord of each step, UnitResult.

Only a check of the live lab writes a record. A lab takes its runs with it when it goes down. So the path proof of a run
is copied into the record in the moment when the step becomes right; later checks do not change it. The seal finds a
record that was changed by hand. It is not a signature: a learner with root can compute it, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import HeddleError
from heddle.base.version import VERSION
from heddle.workshop.stepcheck import OK, WRONG, StepVerdict

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof
    from heddle.workshop.catalogue import WorkshopUnit
    from heddle.workshop.observe import UnitLab

_ANSWER: Final = "answer"


@dataclass(frozen=True, slots=True)
class RunProof:
    """The path proof of one run. when: UTC, ISO 8601. qps: queue pairs that sent; proven: those whose sources agree.

    mmr: of bytes over the uplinks; None if none carried any. time_us: of the largest size.
    paths: a line for each queue pair: its ends, its numbers, the ports that counted it, its packets, the verdict.
    digest: SHA-256 of all of this. missing: why there are no paths.
    """

    run: str
    when: str
    time_us: float = 0.0
    qps: int = 0
    proven: int = 0
    mmr: float | None = None
    paths: tuple[str, ...] = ()
    digest: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. wrong: different wrong states that checks found before it was right; hints: those shown before.

    solved_at: UTC, ISO 8601; empty until it is right. with_solution: `workshop solve` was used before. heddle: the
    version that checked it. observed: what the check saw; empty for an answer. last_wrong: the wrong state of the last
    check.
    """

    wrong: int = 0
    hints: int = 0
    last_wrong: str = ""
    solved_at: str = ""
    with_solution: bool = False
    heddle: str = ""
    observed: str = ""
    proof: RunProof | None = None


Records = Mapping[str, StepRecord]


@dataclass(frozen=True, slots=True)
class UnitResult:
    """One unit in a result. started: UTC, ISO 8601."""

    unit: WorkshopUnit
    started: str
    steps: Records

    @property
    def done(self) -> int:
        """How many steps are right."""
        return sum(self.step(name).solved_at != "" for name in self.unit.spec.steps)

    @property
    def solved(self) -> bool:
        """Whether every step is right."""
        return self.done == len(self.unit.spec.steps)

    def step(self, name: str) -> StepRecord:
        """The record of a step; an empty one if no check has recorded any."""
        return self.steps.get(name, StepRecord())

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit.id, "title": self.unit.spec.title, "solved": self.solved, "started": self.started,
            "steps": [
                {
                    "step": name, "title": spec.title, "solved": bool(self.step(name).solved_at),
                    **{key: value for key, value in asdict(self.step(name)).items() if key != "last_wrong"},
                }
                for name, spec in self.unit.spec.steps.items()
            ],
        }  # fmt: skip


def now() -> str:
    """The time as UTC, ISO 8601, without fractions of a second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def recorded(
    unit: WorkshopUnit, before: Records, verdicts: Sequence[StepVerdict], lab: UnitLab, *, with_solution: bool
) -> dict[str, StepRecord]:
    """The record after a check. A step that was right before keeps its record."""
    found = dict(before)
    for verdict in verdicts:
        old = found.get(verdict.step, StepRecord())
        if old.solved_at:
            continue
        if verdict.state == OK:
            answer = unit.spec.steps[verdict.step].look == _ANSWER
            found[verdict.step] = replace(
                old, solved_at=now(), with_solution=with_solution, heddle=VERSION, last_wrong="",
                observed="" if answer else verdict.observed, proof=run_proof(lab, verdict.run) if verdict.run else None,
            )  # fmt: skip
        elif verdict.state == WRONG and verdict.observed != old.last_wrong:
            found[verdict.step] = replace(old, wrong=old.wrong + 1, last_wrong=verdict.observed)
    return found


def hinted(before: Records, step: str) -> dict[str, StepRecord]:
    """The record after one more hint of a step, which counts until the step is right."""
    old = before.get(step, StepRecord())
    return {**before, step: old if old.solved_at else replace(old, hints=old.hints + 1)}


def run_proof(lab: UnitLab, run: str) -> RunProof:
    """The path proof of one of the learner's runs."""
    record = next(each for each in lab.runs if each.id == run)
    found = RunProof(run, record.header.when)
    if record.outcome is not None:
        found = replace(found, time_us=max(record.outcome.rows, key=lambda row: row.size).time_us)
    try:
        paths = lab.paths(record)
    except HeddleError as error:
        return replace(found, missing=error.problems[0].why)
    sent = [proof for proof in paths.flows if proof.sent.packets]
    found = replace(
        found, qps=len(sent), proven=sum(not proof.why for proof in sent), mmr=paths.mmr.bytes,
        paths=tuple(_line(proof, *paths.nics_of(proof)) for proof in sent),
    )  # fmt: skip
    return replace(found, digest=_digest(asdict(found)))


def _line(proof: FlowProof, src: str, dst: str) -> str:
    flow, why = proof.flow, proof.why
    return (
        f"{src} to {dst}, QP {flow.qpn}, port {flow.sport}: {' '.join(proof.measured)}, {proof.sent.packets} packets, "
        + (f"not proven: {why}" if why else "proven")
    )


def seal(unit: str, started: str, steps: Records) -> str:
    """The seal of a unit's record."""
    return _digest([unit, started, {name: asdict(step) for name, step in steps.items()}])


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
