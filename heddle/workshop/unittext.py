"""What the verb `lab` prints: the list of units, a unit that was started, the verdicts of a check, hints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.tables import table
from heddle.workshop.catalogue import WorkshopUnit
from heddle.workshop.stepcheck import OK, WRONG
from heddle.workshop.unitlife import ShownHint, UnitReport
from heddle.workshop.unitprogress import UnitProgress

_WIDE: Final = 100


@dataclass(frozen=True, slots=True)
class ListedUnit:
    """A row of `lab list`. state: running, solved, started, a dash, `later` or `broken`. minutes: None if not known."""

    number: str
    id: str
    title: str
    minutes: int | None
    state: str

    def to_json(self) -> dict[str, Any]:
        """An entry of `labs`."""
        return {
            "id": self.id, "number": self.number, "title": self.title, "minutes": self.minutes, "state": self.state,
            "ready": self.state not in ("later", "broken"),
        }  # fmt: skip


def state_word(progress: UnitProgress, *, running: bool) -> str:
    """The learner's state in a unit."""
    if running:
        return "running, solved" if progress.solved else "running"
    if progress.solved:
        return "solved"
    return "started" if progress.states or progress.hints or progress.begun else "-"


def list_text(rows: Sequence[ListedUnit]) -> str:
    """The table of units."""
    lines = [(row.number, f"{row.minutes} min" if row.minutes else "", _state(row), row.title) for row in rows]
    total = sum(row.minutes or 0 for row in rows)
    return f"{table(('unit', 'time', 'state', 'title'), lines)}\n\n{total} minutes in all. ./inv lab start 01 begins."


def _state(row: ListedUnit) -> str:
    return "comes later" if row.state == "later" else row.state


def start_text(unit: WorkshopUnit, progress: UnitProgress, *, created: bool) -> str:
    """What a learner needs after `start`: the text to read, the tasks, what may be changed, and the next commands."""
    spec = unit.spec
    lines = [
        f"Unit {unit.number}, {spec.title} ({spec.minutes} minutes): "
        + (f"lab {progress.lab} is up." if created else f"lab {progress.lab} is up already; --fresh starts it again."),
        f"Read {unit.readme} for the tasks and the reasons.",
        "",
        "Steps:",
    ]
    for name, step in spec.steps.items():
        lines += _wrapped(f"  {name:<{_width(spec.steps)}}  ", step.question or step.title)
    lines += ["", "You may change:"]
    for each in spec.may_change:
        lines += _wrapped("  - ", each)
    if progress.file:
        lines += ["", f"Your copy of the fabric file: {progress.file}. ./inv lab start {unit.number} applies a change."]
    answers = [name for name, step in spec.steps.items() if step.look == "answer"]
    lines += ["", "next: ./inv lab check; ./inv lab hint; ./inv lab stop"]
    if answers:
        lines.append(f"To answer a question: ./inv lab answer {answers[0]} VALUE")
    return "\n".join(lines)


def check_text(report: UnitReport) -> str:
    """A line for each step, then the hint for a typical wrong answer, then what to do next."""
    unit, steps = report.unit, report.steps
    lines = [f"Unit {unit.number}, {unit.spec.title}: lab {report.lab} ({report.runtime})", ""]
    width = _width(unit.spec.steps)
    for step in steps:
        where = f" [{step.where}]" if step.where else ""
        head = f"  {step.state:<7}  {step.step:<{width}}  "
        first, *more = step.observed.splitlines() or [""]
        lines += _wrapped(head, f"{step.title}: {first}{where if not more else ''}")
        lines += [" " * len(head) + each for each in more]
        if step.hint:
            lines += _wrapped(" " * len(head), f"hint: {step.hint}", " " * (len(head) + 6))
    right = sum(step.state == OK for step in steps)
    many = f"{right} of {len(steps)} steps {'is' if right == 1 else 'are'} right."
    lines += ["", f"{many} {_next(report)}"]
    return "\n".join(lines)


def _next(report: UnitReport) -> str:
    step = report.next_step
    if step is None:
        return "The unit is solved. ./inv lab stop takes its lab down; ./inv lab list shows the next one."
    word = "next hint" if step.state == WRONG else "a hint for the next step"
    return f"For {'the ' if step.state == WRONG else ''}{word}: ./inv lab hint {report.unit.number} {step.step}"


def hint_text(unit: WorkshopUnit, shown: ShownHint) -> str:
    """All hints of a step so far, the new one last."""
    lines = [f"Unit {unit.number}, step {shown.step}: {shown.title}"]
    for index, text in enumerate(shown.texts, 1):
        lines += _wrapped(f"  hint {index} of {shown.count}: ", text)
    if len(shown.texts) < shown.count:
        lines.append(f"One more: ./inv lab hint {unit.number} {shown.step}")
    else:
        lines.append(f"These are all hints. ./inv lab solve {unit.number} shows the solution and applies it.")
    return "\n".join(lines)


def _width(names: Mapping[str, object]) -> int:
    return max(map(len, names))


def _wrapped(head: str, text: str, more: str | None = None) -> list[str]:
    """The text behind a head, with further lines below its start."""
    return textwrap.wrap(
        text, max(_WIDE, len(head) + 40), initial_indent=head,
        subsequent_indent=" " * len(head) if more is None else more,
        break_long_words=False, break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip
