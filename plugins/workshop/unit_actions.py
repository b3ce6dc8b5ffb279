"""What `./inv workshop` does with a workshop unit, and the words that it prints about it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.files import real, result_name
from heddle.base.problems import InputError, Problem
from heddle.base.progname import as_started
from heddle.base.tables import table
from heddle.base.version import VERSION
from heddle.cli.console import Console
from heddle.host import packages
from heddle.runtimes.registry import get_runtime
from heddle.views.graph import write_file
from heddle_plugins.workshop import unitlife as life
from heddle_plugins.workshop.catalogue import WorkshopUnit, find_unit, names_unit, unit_ids
from heddle_plugins.workshop.record import OK, WRONG, RunProof, StepRecord, UnitResult, now
from heddle_plugins.workshop.unitlife import UnitProgress, read_progress, results

_WIDE: Final = 100
_SHORT: Final = 16  # digits of a digest in a text


@dataclass(frozen=True, slots=True)
class ListedUnit:
    """A row of `workshop list`. state: running, solved, started, a dash or `broken`. minutes: None if not known."""

    number: str
    id: str
    title: str
    minutes: int | None
    state: str

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "number": self.number, "title": self.title, "minutes": self.minutes, "state": self.state,
            "ready": self.state != "broken",
        }  # fmt: skip


def listed_units() -> list[ListedUnit]:
    """Every unit, by number. A unit with a wrong file is in the list, as broken."""
    running, rows = life.running_unit(), []
    for each in unit_ids():
        try:
            spec = find_unit(each).spec
            word = state_word(read_progress(each), running=each == running)
            rows.append(ListedUnit(each[:2], each, spec.title, spec.minutes, word))
        except InputError as error:
            first = str(error).partition("\n")[0]
            rows.append(ListedUnit(each[:2], each, first, None, "broken"))
    return rows


def start_unit(out: Console, what: Sequence[str], runtime: str, name: str, *, fresh: bool, yes: bool) -> None:
    """`workshop start`. yes: the answer to all questions."""
    if not what:
        hint = "./inv workshop start 01; ./inv workshop list shows the units"
        raise InputError(Problem("", "workshop start", "needs a unit", hint))
    unit = find_unit(what[0])
    get_runtime(runtime)  # InputError for a word that is none
    for needed in (packages.for_runtime(runtime), unit.spec.packages):
        packages.ensure(needed, yes=yes, ask=out.confirm, say=out.say)
    created = life.start(
        unit, runtime, out.observer, lambda question: yes or out.confirm(question), name=name, fresh=fresh
    )
    progress = read_progress(unit.id)
    data = {
        "unit": unit.id, "lab": progress.lab, "runtime": progress.runtime, "created": created, "file": progress.file,
        "readme": unit.readme, "steps": list(unit.spec.steps),
    }  # fmt: skip
    out.result(data, start_text(unit, progress, created=created))


def check_unit(out: Console, what: Sequence[str]) -> None:
    """`workshop check`: exit code 1 until every step is right."""
    report = life.check(life.meant_unit(*what))
    out.result(report.to_json(), check_text(report))
    out.exit_code = 0 if report.solved else 1


def show_hint(out: Console, what: Sequence[str]) -> None:
    """`workshop hint`."""
    unit, rest = unit_first(what, most=1)
    shown = life.hint(unit, rest[0] if rest else None)
    data = {"unit": unit.id, "step": shown.step, "hints": list(shown.texts), "count": shown.count, "new": shown.new}
    out.result(data, hint_text(unit, shown))


def take_answer(out: Console, what: Sequence[str]) -> None:
    """`workshop answer`, which checks the unit, too."""
    unit, rest = unit_first(what, most=2)
    if len(rest) < 2:
        asked = [name for name, step in unit.spec.steps.items() if step.look == "answer"]
        hint = (
            f"./inv workshop answer {asked[0]} VALUE" if asked else "./inv workshop check: this unit asks no question"
        )
        raise InputError(Problem("", "workshop answer", "needs a step and a value", hint))
    life.answer(unit, *rest)
    check_unit(out, [unit.id])


def unit_first(what: Sequence[str], most: int) -> tuple[WorkshopUnit, Sequence[str]]:
    """The unit that the first word names; without one, the unit that runs. most: words that may follow the unit."""
    running = life.running_unit()
    unit = find_unit(running) if running is not None else None
    if unit is not None and what and len(what) <= most and what[0] in unit.spec.steps:
        return unit, what
    if what and names_unit(what[0]):
        return find_unit(what[0]), what[1:]
    unit = life.meant_unit()
    if what:
        unit.step(what[0])
    return unit, what


def solve_unit(out: Console, what: Sequence[str], *, yes: bool) -> None:
    """`workshop solve`, after a question."""
    unit = life.meant_unit(*what)
    life.opened(unit)
    if not yes and not out.confirm(f"Show the solution of unit {unit.id} and apply it to the lab?"):
        why = "was not solved: the question was not answered with yes"
        raise InputError(Problem("", f"unit {unit.id}", why, "./inv workshop solve --yes"))
    report = life.solve(unit, out.observer, out.part, lambda line: out.part(f"    {line}"))
    out.result(report.to_json(), "\n" + check_text(report))
    out.exit_code = 0 if report.solved else 1


def stop_unit(out: Console, what: Sequence[str]) -> None:
    """`workshop stop`."""
    unit = life.meant_unit(*what)
    name = read_progress(unit.id).lab
    removed = life.stop(unit, out.observer)
    done = f"unit {unit.id}: its lab {name} is down; progress is kept"
    out.result(
        {"unit": unit.id, "down": [name] if removed else []}, done if removed else f"unit {unit.id} is not running"
    )


def hand_in(out: Console, what: Sequence[str], name: str | None) -> None:
    """`workshop result`. name: the file to write, or None to print it."""
    found = results(*what)
    data = {"heddle": VERSION, "written": now(), "units": [each.to_json() for each in found]}
    text = result_text(found)
    if name is None:
        return out.result(data, text)
    written = json.dumps(data, indent=2) if out.json else as_started(text)
    write_file(real(name), written.rstrip("\n").encode() + b"\n", name)
    many = f"{len(found)} unit{'' if len(found) == 1 else 's'}"
    out.result({"result": result_name(name), "units": len(found)}, f"wrote {name}: {many}")
    return None


def state_word(progress: UnitProgress, *, running: bool) -> str:
    """The learner's state in a unit."""
    if running:
        return "running, solved" if progress.solved else "running"
    if progress.solved:
        return "solved"
    return "started" if progress.states or progress.hints or progress.begun else "-"


def list_text(rows: Sequence[ListedUnit]) -> str:
    """The table of units."""
    lines = [(row.number, f"{row.minutes} min" if row.minutes else "", row.state, row.title) for row in rows]
    total = sum(row.minutes or 0 for row in rows)
    return (
        f"{table(('unit', 'time', 'state', 'title'), lines)}\n\n{total} minutes in all. ./inv workshop start 01 begins."
    )


def result_text(found: Sequence[UnitResult]) -> str:
    """A table for each unit, then the path proofs of its runs."""
    lines = [f"Heddle {VERSION}: workshop result, written {_clock(now())}"]
    for each in found:
        spec, many = each.unit.spec, len(each.unit.spec.steps)
        word = "solved" if each.solved else f"{each.done} of {many} steps are right"
        rows = [(name, *_cells(each.step(name))) for name in spec.steps]
        lines += ["", f"Unit {each.unit.number}, {spec.title}: {word}; started {_clock(each.started)}"]
        lines += [table(("step", "right at", "wrong states", "hints", "solution", "Heddle"), rows)]
        lines += [_proved(name, proof) for name in spec.steps if (proof := each.step(name).proof)]
    lines += ["", "wrong states: how many different ones a check found before the step was right. --format json has"]
    return "\n".join([*lines, "the path of each QP; labs/README.md says what this result proves."])


def _cells(step: StepRecord) -> tuple[str, ...]:
    """The time, mistakes and helps of a step."""
    if not step.solved_at:
        return "not yet", str(step.wrong), str(step.hints), "", ""
    return _clock(step.solved_at), str(step.wrong), str(step.hints), "used" if step.with_solution else "-", step.heddle


def _proved(name: str, proof: RunProof) -> str:
    """`fixed: run 0001 of 07:15: 32 of 32 QPs proven, MMR 4.00, digest ...`."""
    head = f"{name}: run {proof.run} of {_clock(proof.when)}"
    if proof.missing:
        return f"{head}: no paths: {proof.missing}"
    mmr = f", MMR {proof.mmr:.2f}" if proof.mmr is not None else ""
    return f"{head}: {proof.proven} of {proof.qps} QPs proven{mmr}, digest {proof.digest[:_SHORT]}"


def _clock(when: str) -> str:
    """`2026-11-27 07:15:00 UTC` for a time in ISO 8601."""
    return when.partition("+")[0].partition(".")[0].removesuffix("Z").replace("T", " ") + " UTC" if when else "-"


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
    if spec.needs:
        lines += ["", "This unit builds on " + " and ".join(f"unit {each}" for each in spec.needs) + "."]
    lines += ["", "You may change:"]
    for each in spec.may_change:
        lines += _wrapped("  - ", each)
    if progress.file:
        lines += [
            "",
            f"Your copy of the fabric file: {progress.file}. ./inv workshop start {unit.number} applies a change.",
        ]
    answers = [name for name, step in spec.steps.items() if step.look == "answer"]
    lines += ["", "next: ./inv workshop check; ./inv workshop hint; ./inv workshop stop"]
    if answers:
        lines.append(f"To answer a question: ./inv workshop answer {answers[0]} VALUE")
    return "\n".join(lines)


def check_text(report: life.UnitReport) -> str:
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


def _next(report: life.UnitReport) -> str:
    step = report.next_step
    if step is None:
        after = report.unit.spec.next
        more = f"the next one is ./inv workshop start {after}" if after else "it is the last one: ./inv workshop result"
        return f"The unit is solved. ./inv workshop stop takes its lab down; {more}"
    word = "next hint" if step.state == WRONG else "a hint for the next step"
    return f"For {'the ' if step.state == WRONG else ''}{word}: ./inv workshop hint {report.unit.number} {step.step}"


def hint_text(unit: WorkshopUnit, shown: life.ShownHint) -> str:
    """All hints of a step so far, the new one last."""
    lines = [f"Unit {unit.number}, step {shown.step}: {shown.title}"]
    for index, text in enumerate(shown.texts, 1):
        lines += _wrapped(f"  hint {index} of {shown.count}: ", text)
    if len(shown.texts) < shown.count:
        lines.append(f"One more: ./inv workshop hint {unit.number} {shown.step}")
    else:
        lines.append(f"These are all hints. ./inv workshop solve {unit.number} shows the solution and applies it.")
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
