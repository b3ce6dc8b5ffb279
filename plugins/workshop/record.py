"""The verdict on each step of a unit, what `workshop check` records of it, and the result that a learner hands in.

In:  a unit, its running lab, the learner's answers, the facts at the start, and the record so far.
Out: StepVerdict and StepRecord of each step, UnitResult. A verdict compares facts (observe.py) with lab.yml; it changes
     nothing.

Only a check of the live lab writes a record. A lab takes its runs with it when it goes down. So the path proof of a run
is copied into the record in the moment when the step becomes right; later checks do not change it. The seal finds a
record that was changed by hand. It is not a signature: a learner with root can compute it, too.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.conditions import Condition, Fact, Written, fact_text
from heddle.base.problems import HeddleError
from heddle.base.version import VERSION
from heddle_plugins.workshop.observe import Facts, NotDoneError, Seen, UnitLab, observed

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof
    from heddle_plugins.workshop.catalogue import WorkshopUnit
    from heddle_plugins.workshop.unitspec import StepSpec

OK: Final = "ok"
WRONG: Final = "wrong"
OPEN: Final = "not yet"
StepState = Literal["ok", "wrong", "not yet"]
_MOMENT_S: Final = 2
_EVERY_S: Final = 0.5  # between two looks at a fabric that settles
_ANSWER: Final = "answer"


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """One step. mistake: the name of the typical wrong answer that it shows, or empty; hint: that one's hint.

    facts: what was observed, where a verdict depends on it. run: the ID of the run that was looked at, if any.
    """

    step: str
    title: str
    state: StepState
    observed: str
    where: str = ""
    mistake: str = ""
    hint: str = ""
    facts: Facts | None = None
    run: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step, "title": self.title, "state": self.state, "observed": self.observed,
            "where": self.where, "mistake": self.mistake, "hint": self.hint,
        }  # fmt: skip


def check_steps(unit: WorkshopUnit, where: UnitLab, begun: Mapping[str, Mapping[str, Fact]]) -> list[StepVerdict]:
    """The verdict on every step, in order. begun: facts at the start, by step.

    Steps wait together for the fabric to settle: a check lasts little longer than the longest `wait`. The steps behind
    that one still have a moment.
    """
    start, found = time.monotonic(), []
    for name, step in unit.spec.steps.items():
        end = max(start + step.wait, time.monotonic() + min(step.wait, _MOMENT_S))
        found.append(_settled(unit, name, where, begun.get(name), end))
    return found


def _settled(unit: WorkshopUnit, name: str, where: UnitLab, begun: Facts | None, end: float) -> StepVerdict:
    """The verdict on one step. end: when to stop waiting, as time.monotonic() has it."""
    step = unit.spec.steps[name]
    verdict = _verdict(unit, name, step, where, begun)
    while verdict.state == WRONG and not verdict.mistake and time.monotonic() < end:
        time.sleep(_EVERY_S)
        verdict = _verdict(unit, name, step, where, begun)
    return verdict


def _verdict(unit: WorkshopUnit, name: str, step: StepSpec, where: UnitLab, begun: Facts | None) -> StepVerdict:
    function = unit.function(name) if step.look == "function" else None
    try:
        seen = observed(where, name, step, function)
    except NotDoneError as missing:
        return StepVerdict(name, step.title, OPEN, str(missing))
    except AssertionError as failed:
        return StepVerdict(name, step.title, WRONG, str(failed).strip() or "an assertion of check.py failed")
    except HeddleError as error:
        return StepVerdict(name, step.title, WRONG, str(error))
    return _judged(name, step, seen, begun)


def _judged(name: str, step: StepSpec, seen: Seen, begun: Facts | None) -> StepVerdict:
    known = {key: seen.facts[key] for key in sorted(step.facts) if key in seen.facts}
    missed = {key: Condition(each) for key, each in step.expect.items() if not _holds(Condition(each), known.get(key))}
    if not missed:
        return StepVerdict(name, step.title, OK, _text(step, known, step.expect), seen.where, facts=known, run=seen.run)
    said = _wanted(step, known, missed)
    if known == begun or (step.untouched and _match(step.untouched, known)):
        return StepVerdict(name, step.title, OPEN, said, facts=known)  # the place may be the answer to another step
    made = next((key for key, mistake in step.wrong.items() if _match(mistake.when, known)), "")
    hint = step.wrong[made].hint if made else ""
    return StepVerdict(name, step.title, WRONG, said, seen.where, made, hint, known)


def _holds(condition: Condition, value: Fact | None) -> bool:
    return value is not None and condition.holds(value)


def _match(wanted: Mapping[str, Written], facts: Facts) -> bool:
    return all(_holds(Condition(value), facts.get(fact)) for fact, value in wanted.items())


def _text(step: StepSpec, facts: Facts, keys: Mapping[str, object]) -> str:
    return ", ".join(
        f"{_name(key)} {fact_text(facts[key])}" if step.look != _ANSWER else str(facts[key]) for key in keys
    )


def _wanted(step: StepSpec, facts: Facts, missed: Mapping[str, Condition]) -> str:
    """`uplinks used 2 (expected 8)`; of an answer only what was typed."""
    if step.look == _ANSWER:
        return str(facts["answer"])
    return ", ".join(
        f"{_name(key)} {fact_text(facts[key]) if key in facts else 'not known'} (expected {each.text()})"
        for key, each in missed.items()
    )


def _name(key: str) -> str:
    return key.replace("_", " ")


def begun_facts(unit: WorkshopUnit, where: UnitLab) -> dict[str, dict[str, Fact]]:
    """The facts of each step when the unit is started, for those that can be observed then."""
    found: dict[str, dict[str, Fact]] = {}
    for name, step in unit.spec.steps.items():
        verdict = _verdict(unit, name, step, where, None)
        if verdict.facts is not None:
            found[name] = dict(verdict.facts)
    return found


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
    found = RunProof(run, record.when)
    if record.done:
        found = replace(found, time_us=record.largest.time_us)
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
