"""The keys of lab.yml and solution.yml, and their checks.

In:  plain data of a YAML file (see catalogue.py). Out: UnitSpec, Solution, frozen. docs/unit-keys.md lists them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from heddle.base.conditions import Condition, Fact, Written
from heddle.base.problems import did_you_mean
from heddle.runtimes.registry import HERE, RUNTIMES
from heddle.spec.keys import Strict, at, wrong

Look = Literal["run", "bgp", "lab", "hashing", "queues", "settings", "fabric", "answer", "function"]
# What `of` may say for each look; for `run` every fact of a run.
OF: Final[dict[str, tuple[str, ...]]] = {
    "bgp": ("switch", "port"),
    "hashing": ("switch",),
    "queues": ("port", "class"),
    "settings": ("switch",),
}
_CONDITIONS: Final = 'write a value, a list of values, "<= 1.3", "above 1", "12 to 20", "is 0" or "!= fixed"'
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORD: Final = re.compile(r"[a-z][a-z0-9-]*")


def _condition(value: Any) -> Any:
    if value is None or not isinstance(value, str | int | float | bool | list) or value == []:
        raise wrong("is not a condition", _CONDITIONS)
    try:
        Condition(value)
    except ValueError as error:
        raise wrong(str(error), _CONDITIONS) from None
    return value


def _command(value: str) -> str:
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise wrong(f"cannot be split into words: {error}", "close the quote") from None
    if words[:1] != ["./inv"] or len(words) < 2:
        raise wrong("is not a command of Heddle", "write it as ./inv run --qps 16")
    return value


def _plain_name(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise wrong("is not a plain name of a file", "write it as test_fabric.py")
    return value


Wanted = Annotated[Written, BeforeValidator(_condition)]
UnitNumber = Annotated[str, Field(pattern=r"^[0-9]{2}$")]
InvCommand = Annotated[str, AfterValidator(_command)]
Text = Annotated[str, Field(min_length=1)]
UnitFiles = dict[Annotated[str, AfterValidator(_plain_name)], Text]  # name for the learner -> in the unit's folder


class UnitCommand(Strict):
    """One command that a unit runs. why: printed before it in a solution."""

    run: InvCommand
    why: str = ""


class Mistake(Strict):
    """A typical wrong answer. when: facts that show it.

    commands, files: make this mistake (for the test of all units); files as in a solution.
    """

    when: dict[str, Wanted] = Field(min_length=1)
    hint: Text
    commands: list[InvCommand] = Field(default_factory=list)
    files: UnitFiles = Field(default_factory=dict)


class StepSpec(Strict):
    """One step: what to look at, and what has to be there. wait: seconds that a fabric may need to settle.

    untouched: facts that show that the learner has not begun with it: not yet, instead of wrong.
    """

    title: Text
    look: Look
    of: dict[str, Fact] = Field(default_factory=dict)
    function: str = ""
    question: str = ""
    expect: dict[str, Wanted] = Field(min_length=1)
    untouched: dict[str, Wanted] = Field(default_factory=dict)
    wait: Annotated[int, Field(ge=0, le=20)] = 0
    hints: list[Text] = Field(min_length=1)
    wrong: dict[str, Mistake] = Field(default_factory=dict)

    @property
    def facts(self) -> frozenset[str]:
        """The facts that a verdict on this step needs."""
        return frozenset({*self.expect, *self.untouched, *(key for each in self.wrong.values() for key in each.when)})


def _runtime(name: str) -> str:
    if name not in RUNTIMES:
        raise wrong("is not a runtime", did_you_mean(name, RUNTIMES))
    return name


class UnitSpec(Strict):
    """One unit. fabric: a preset, or a file in the unit's folder. file: the learner's copy of it, where there is one.

    set: path=value of the fabric file. setup: commands after `up`, for the faults that the learner has to find.
    needs: numbers of the units that it builds on. next: number of the unit after it, empty for the last one.
    """

    title: Text
    minutes: Annotated[int, Field(ge=1, le=60)]
    needs: list[UnitNumber] = Field(default_factory=list)
    next: UnitNumber | Literal[""] = ""
    fabric: Text
    set: list[Text] = Field(default_factory=list)
    file: str = ""
    runtimes: list[Annotated[str, AfterValidator(_runtime)]] = Field(default_factory=lambda: list(HERE))
    packages: list[Text] = Field(default_factory=list)
    may_change: list[Text] = Field(min_length=1)
    setup: list[UnitCommand] = Field(default_factory=list)
    steps: dict[str, StepSpec] = Field(min_length=1)

    @model_validator(mode="after")
    def _named(self) -> UnitSpec:
        for name, step in self.steps.items():
            for path, why, hint in _complaints(name, step):
                raise at(path, why, hint)
        if self.file and not re.fullmatch(r"[a-z0-9][a-z0-9-]*\.yml", self.file):
            raise at("file", "is not a plain name of a file that ends in .yml", "write it as my-ecn.yml")
        if not self.runtimes:
            raise at("runtimes", "is empty", "remove it to use all runtimes")
        return self


class Solution(Strict):
    """solution.yml: the commands that solve the unit. file: a fabric file that replaces the learner's copy first.

    files: name in the learner's directory -> file of the unit's folder, which is written there before the commands.
    """

    commands: list[UnitCommand] = Field(min_length=1)
    file: str = ""
    files: UnitFiles = Field(default_factory=dict)


def _complaints(name: str, step: StepSpec) -> Iterator[tuple[str, str, str]]:
    """Path, reason and hint for keys of a step that do not fit together."""
    here = f"steps.{name}"
    if not _WORD.fullmatch(name):
        yield here, "is not a name of a step", "use lowercase letters, digits and hyphens"
    legal = OF.get(step.look, ())
    other = [key for key in step.of if key not in legal and step.look != "run"]
    if other:
        why = f"is not for look: {step.look}"
        yield f"{here}.of.{other[0]}", why, f"legal here: {', '.join(legal)}" if legal else "remove it"
    for key, look, value in (("function", "function", step.function), ("question", "answer", step.question)):
        if step.look == look and not value:
            yield f"{here}.look", f"needs the key {key}", f"add {key}: ..."
        if step.look != look and value:
            yield f"{here}.{key}", f"is only for look: {look}", "remove it"
    for mistake, each in step.wrong.items():
        if not each.commands and not each.files:
            yield f"{here}.wrong.{mistake}", "cannot be made", "add the commands, or the files, that make this mistake"
    if step.look == "answer":
        for part, keys in (
            ("expect", step.expect),
            *((f"wrong.{each}.when", m.when) for each, m in step.wrong.items()),
        ):
            if set(keys) != {"answer"}:
                yield f"{here}.{part}", "needs the one key answer, since the learner types a value", "write answer: 4"
