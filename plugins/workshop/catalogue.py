"""The workshop units that Heddle has: `labs/NN-slug/`.

In:  the word for a unit: `02`, `2`, `02-entropy`, `entropy`.
Out: WorkshopUnit: lab.yml, checked, with the lines of its keys. InputError with every mistake of the file.
Nothing here needs a running lab.
"""

from __future__ import annotations

import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from heddle.base import resources
from heddle.base.files import short_path
from heddle.base.problems import InputError, Problem, nearest
from heddle.base.progname import as_started
from heddle_plugins.workshop.observe import FACTS, OPEN_LOOKS
from heddle_plugins.workshop.unitspec import Solution, StepSpec, UnitSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from heddle.spec.yamlfile import Document

SHEET: Final = "lab.yml"
README: Final = "README.md"
_CHECKS: Final = "check.py"
_SOLUTION: Final = "solution.yml"
M = TypeVar("M", UnitSpec, Solution)
_FOLDER: Final = re.compile(r"([0-9]{2})-([a-z0-9-]+)")


@dataclass(frozen=True)
class WorkshopUnit:
    """One unit. number: `02`; folder: labs/02-entropy."""

    number: str
    slug: str
    folder: Path
    spec: UnitSpec
    document: Document

    @property
    def id(self) -> str:
        """`02-entropy`."""
        return f"{self.number}-{self.slug}"

    @property
    def lab(self) -> str:
        """The name of its lab, unless the learner chose another: `unit02`."""
        return f"unit{self.number}"

    @property
    def readme(self) -> str:
        """The path of its README, as a user opens it."""
        return short_path(self.folder / README)

    @property
    def fabric(self) -> str:
        """The preset, or the path of the fabric file in the unit's folder."""
        own = self.folder / self.spec.fabric
        return str(own) if own.is_file() else self.spec.fabric

    def step(self, name: str) -> StepSpec:
        """One step; InputError with the nearest name."""
        if name not in self.spec.steps:
            near = nearest(name, self.spec.steps)
            hint = f"did you mean {near}?" if near else f"steps: {', '.join(self.spec.steps)}"
            raise InputError(Problem("", f"step {name}", f"does not exist in unit {self.id}", hint))
        return self.spec.steps[name]

    def problem(self, trail: tuple[str | int, ...], why: str, hint: str = "") -> Problem:
        """A problem with a key of lab.yml."""
        from heddle.spec.yamlfile import dotted

        text = self.document.text(trail)
        what = f"{dotted(trail)}: {text}" if text else dotted(trail)
        return Problem(self.document.where(trail), what, why, hint)

    def solution(self) -> Solution:
        """Its solution.yml. InputError when it is missing or wrong."""
        found, document = _examined(self.folder / _SOLUTION, Solution)
        if problems := list(_missing_files(self.folder, document, ("files",), found.files)):
            raise InputError(*problems)
        return found

    def function(self, step: str) -> Callable[..., Any]:
        """The function in check.py that a step names. InputError when there is none."""
        name = self.spec.steps[step].function
        path = self.folder / _CHECKS
        found = getattr(_module(path), name, None)
        if not callable(found):
            hint = f"write def {name}(lab: UnitLab) in {short_path(path)}"
            raise InputError(self.problem(("steps", step, "function"), "is not a function of check.py", hint))
        return found  # type: ignore[no-any-return]


def unit_ids() -> list[str]:
    """`02-entropy` of every unit that is there, in order."""
    return [path.name for path in _folders()]


def find_unit(word: str) -> WorkshopUnit:
    """The unit that a word names. InputError with the nearest one, or with what is wrong in its files."""
    for path in _folders():
        if word in _words(path):
            return load_unit(path)
    names = {_parts(path)[1]: path.name for path in _folders()} | {path.name: path.name for path in _folders()}
    near = nearest(word, names)
    hint = f"did you mean {names[near]}?" if near else f"units: {', '.join(unit_ids())}"
    raise InputError(Problem("", f"unit {word}", "does not exist", hint))


def names_unit(word: str) -> bool:
    """Whether a word is meant as a unit: it names one, or it begins with a digit."""
    return word[:1].isdigit() or any(word in _words(path) for path in _folders())


def load_unit(folder: Path) -> WorkshopUnit:
    """A unit from its folder. InputError with every mistake of lab.yml."""
    number, slug = _parts(folder)
    spec, document = _examined(folder / SHEET, UnitSpec)
    unit = WorkshopUnit(number, slug, folder, spec, document)
    if problems := list(_mistakes(unit)):
        raise InputError(*problems)
    return unit


def _mistakes(unit: WorkshopUnit) -> Iterator[Problem]:
    """What the models cannot check: names of facts, of packages, of files."""
    from heddle.host.packages import PARTS

    for name, step in unit.spec.steps.items():
        known = FACTS.get(step.look, ())
        used: list[tuple[tuple[str, ...], str]] = [(("steps", name, "expect", fact), fact) for fact in step.expect]
        used += [(("steps", name, "untouched", fact), fact) for fact in step.untouched]
        used += [(("steps", name, "wrong", k, "when", f), f) for k, each in step.wrong.items() for f in each.when]
        used += [(("steps", name, "of", fact), fact) for fact in step.of if step.look == "run"]
        for trail, fact in used:
            if step.look not in OPEN_LOOKS and fact not in known:
                near = nearest(fact, known)
                hint = f"did you mean {near}?" if near else f"facts of {step.look}: {', '.join(known)}"
                yield unit.problem(trail, f"is not a fact of look: {step.look}", hint)
        for mistake, each in step.wrong.items():
            yield from _missing_files(
                unit.folder, unit.document, ("steps", name, "wrong", mistake, "files"), each.files
            )
    for index, part in enumerate(unit.spec.packages):
        if part not in PARTS:
            near = nearest(part, PARTS)
            yield unit.problem(
                ("packages", index), "is not a system package of Heddle", near and f"did you mean {near}?"
            )
    if unit.spec.file and not (unit.folder / unit.spec.fabric).is_file():
        hint = "put a fabric file into the unit's folder, or remove the key file"
        yield unit.problem(("fabric",), "is not a file of this unit, so the learner has nothing to copy", hint)


def _missing_files(
    folder: Path, document: Document, trail: tuple[str | int, ...], files: Mapping[str, str]
) -> Iterator[Problem]:
    from heddle.spec.yamlfile import dotted

    for name, source in files.items():
        here = (*trail, name)
        if not (folder / source).is_file():
            yield Problem(document.where(here), f"{dotted(here)}: {source}", "is not a file of this unit")


def _root() -> Path:
    return resources.HERE.content(resources.LABS)


def _folders() -> list[Path]:
    return sorted(path for path in _root().iterdir() if path.is_dir() and _FOLDER.fullmatch(path.name))


def _words(folder: Path) -> tuple[str, ...]:
    """The words for a unit: 02, 2, entropy, 02-entropy, and with a slash behind it, as a shell completes it."""
    number, slug = _parts(folder)
    return number, str(int(number)), slug, folder.name, f"{folder.name}/"


def _parts(folder: Path) -> tuple[str, str]:
    match = _FOLDER.fullmatch(folder.name)
    if match is None:
        hint = "name it as 02-entropy: two digits, a hyphen, lowercase words"
        raise InputError(Problem("", folder.name, "is not the name of a unit's folder", hint))
    return match[1], match[2]


def _examined(path: Path, model: type[M]) -> tuple[M, Document]:
    from heddle.spec.wording import examined
    from heddle.spec.yamlfile import ReadOptions, parse, read_text

    kind = ReadOptions(kind="workshop unit", example="labs/02-entropy/lab.yml")
    source = short_path(path)
    document = parse(read_text(path, source, kind), source, kind)
    found = examined(document, model)
    if found.value is None or found.problems:
        raise InputError(*found.problems)
    return found.value, document


def _module(path: Path) -> ModuleType:
    """check.py as a module. InputError when it cannot be read or is not Python."""
    source = short_path(path)
    module = ModuleType(f"check_{path.parent.name.replace('-', '_')}")
    module.__file__ = str(path)
    try:
        with tokenize.open(path) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102  (a unit of this installation; importing would write __pycache__)
    except FileNotFoundError:
        raise InputError(Problem("", source, "does not exist", "a step of lab.yml names a function of it")) from None
    except SyntaxError as error:
        raise InputError(Problem(f"{source}:{error.lineno}", "the line", f"is not Python: {error.msg}")) from None
    except Exception as error:  # any statement of the file
        why = f"cannot be loaded: {type(error).__name__}: {error}"
        raise InputError(Problem("", source, as_started(why), "run python -m py_compile on it")) from None
    return module
