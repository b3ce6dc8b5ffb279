"""Read `--plan` into a checked PlanSpec: a YAML file, the name of a plan in `traffic/`, or a word for a simple plan.

In:  `my.yml`, `checkpoint` (traffic/checkpoint.yml), `ring`, `all-to-all`, `shift:4`, `matrix.csv`; keys may follow a
     name or a word: `ring,qps=16,size=64M`.
Out: PaperPlan: the spec, its name, and the lines of its keys, for problems that need the fabric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.files import real, short_path
from heddle.base.problems import InputError, Problem, Problems, nearest
from heddle.forecast.planspec import NAMED, PlanSpec
from heddle.traffic.collectives import patterns

if TYPE_CHECKING:
    from heddle.spec.yamlfile import Document

# Words and their keys, in addition to the named matrices: each collective with a name different from these.
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "ring": {"collective": "all-reduce", "algorithm": "ring"},
    **{name: {"collective": name} for name, _ in patterns() if name not in NAMED},
}
_FLAG: Final = "--plan"


@dataclass(frozen=True)
class PaperPlan:
    """A plan as read. name: as typed; file: its file, or empty for a plan made of words."""

    spec: PlanSpec
    name: str
    document: Document
    file: str = ""

    def problem(self, key: str, why: str, hint: str = "") -> Problem:
        """A problem with a key: its line, and its value as written or by default."""
        text = self.document.text((key,))
        value = text or str(getattr(self.spec, key))
        return Problem(self.document.where((key,)), f"{key}: {value}", why, hint)

    @property
    def matrix_file(self) -> str | None:
        """The file of the matrix, for `base.files.real`: relative to the plan's directory, or absolute."""
        if self.spec.file is None or not self.file:
            return self.spec.file
        return _beside(self.file, self.spec.file)


def load_plan(typed: str) -> PaperPlan:
    """Read a plan's file or words. InputError with all problems that do not depend on the fabric."""
    from heddle.spec.wording import examined

    document, file = _of_words(typed), ""
    if document is None:
        name, *keys = typed.split(",")
        if name in plans():
            path = _plans() / f"{name}.yml"
            file = short_path(path)
        else:
            path, file, keys = _file(typed), typed, []
        document = _of_file(path, file)
        _put(document, keys)
    found = examined(document, PlanSpec)
    if found.value is None or found.problems:
        raise InputError(*found.problems)
    return PaperPlan(found.value, typed, document, file)


def _of_file(path: Path, shown: str) -> Document:
    from heddle.spec.yamlfile import ReadOptions, parse, read_text

    kind = ReadOptions(kind="plan", example="traffic/all-reduce-16qp.yml")
    document = parse(read_text(path, shown, kind), shown, kind)
    if not document.data.keys() & {"collective", "matrix"}:
        hint = "write collective: all-reduce, or matrix: all-to-all"
        raise InputError(Problem(shown, "the plan", "names neither a collective nor a matrix", hint))
    return document


def plan_words() -> list[str]:
    """The words that a plan can begin with."""
    return [*_WORDS, *NAMED]


def plans() -> list[str]:
    """Names of the plans that Heddle ships, sorted: `traffic/NAME.yml`."""
    return sorted(p.stem for p in _plans().glob("*.yml"))


def _plans() -> Path:
    return resources.HERE.content(resources.TRAFFIC)


def files_of(typed: str | None) -> list[str]:
    """The user's files that a plan needs: its own and that of its matrix. Nothing is checked here."""
    if typed is None or typed.partition(",")[0] in plans():
        return []
    if _is_words(typed):
        first = typed.partition(",")[0]
        return [first] if _is_matrix(first) else []
    import yaml

    found = [typed]
    try:
        matrix = yaml.safe_load(Path(typed).expanduser().read_text(encoding="utf-8"))["matrix"]
    except Exception:  # load_plan reports the error
        return found
    if isinstance(matrix, str) and _is_matrix(matrix):
        found.append(_beside(typed, matrix))
    return found


def _beside(plan: str, matrix: str) -> str:
    path = Path(matrix).expanduser()
    return str(path if path.is_absolute() else Path(plan).parent / path)


def _is_matrix(word: str) -> bool:
    return word.lower().endswith(".csv")


def _is_words(typed: str) -> bool:
    first = typed.partition(",")[0]
    return _is_matrix(first) or first.partition(":")[0] in plan_words()


def _file(typed: str) -> Path:
    """The plan's file; InputError with the nearest word when there is no such file."""
    path = real(typed)
    if path.suffix in (".yml", ".yaml") or path.is_file():
        return path
    legal = [*_WORDS, *(name + more for name, more in NAMED.items())]
    near = nearest(typed.partition(",")[0].partition(":")[0], [*plan_words(), *plans()])
    hint = f"words: {', '.join(legal)};\nplans of traffic/: {', '.join(plans())};\nfiles end in .yml or .csv"
    hint = f"did you mean {near}?" if near else hint
    raise InputError(
        Problem("", f"{_FLAG} {typed[:200] or 'with no word'}", "is neither a known plan nor a file", hint)
    )


def _of_words(typed: str) -> Document | None:
    """The document for a plan in words, as `ring,qps=16`; None when `typed` is a file's name."""
    from heddle.spec.yamlfile import Document, Mark

    if not _is_words(typed):
        return None
    first, *more = typed.split(",")
    document = Document({}, _FLAG, {(): Mark(_FLAG)})
    for key, text in _WORDS.get(first, {"matrix": first}).items():
        document.data[key] = text
        document.marks[key,] = Mark(_FLAG, text)
    _put(document, more)
    return document


def _put(document: Document, keys: Sequence[str]) -> None:
    """Put `key=value` texts into a document that is not yet checked; InputError for malformed ones."""
    from heddle.spec.yamlfile import parse_value

    problems = Problems()
    for each in keys:
        key, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not key or not text:
            problems.add(
                where=_FLAG, what=each or "an empty string", why="is not key=value", hint="write it as in ring,qps=16"
            )
            continue
        try:
            document.data[key], marks = parse_value(text, _FLAG, (key,))
        except InputError as error:
            problems.found += error.problems
            continue
        document.marks.update(marks)
    problems.raise_if_any()
