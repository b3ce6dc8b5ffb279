"""The verdict on each step of a unit: ok, wrong or not done yet, with what was observed and where.

In:  a unit, its running lab, the learner's answers, and the facts at the start.
Out: StepVerdict for each step. A verdict compares facts (observe.py) with lab.yml; it changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import HeddleError
from heddle.workshop.observe import Facts, NotDoneError, Seen, UnitLab, observed
from heddle.workshop.unitspec import Condition, Fact, Written, fact_text

if TYPE_CHECKING:
    from heddle.workshop.catalogue import WorkshopUnit
    from heddle.workshop.unitspec import StepSpec

OK: Final = "ok"
WRONG: Final = "wrong"
OPEN: Final = "not yet"
StepState = Literal["ok", "wrong", "not yet"]
_MOMENT_S: Final = 2
_EVERY_S: Final = 0.5  # between two looks at a fabric that settles


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
        f"{_name(key)} {fact_text(facts[key])}" if step.look != "answer" else str(facts[key]) for key in keys
    )


def _wanted(step: StepSpec, facts: Facts, missed: Mapping[str, Condition]) -> str:
    """`uplinks used 2 (expected 8)`; of an answer only what was typed."""
    if step.look == "answer":
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
