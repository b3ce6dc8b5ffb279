"""Read `--plan` into a checked PlanSpec: a YAML file, the name of a plan in `traffic/`, or a word for a simple plan.

In:  `my.yml`, `checkpoint` (traffic/checkpoint.yml), `ring`, `all-to-all`, `shift:4`, `matrix.csv`; keys may follow a
     name or a word: `ring,qps=16,size=64M`.
Out: PaperPlan: the spec, its name, and the lines of its keys, for problems that need the fabric.
The keys are the options of `./inv run` that decide sender, receiver and bytes, or a traffic matrix. Other options of a
run (iterations, window, timeout) do not affect a prediction and are not keys here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from heddle.base import resources
from heddle.base.files import read_regular, real, short_path
from heddle.base.problems import InputError, Problem, Problems, did_you_mean, nearest
from heddle.endpoints.transports import TRANSPORTS
from heddle.endpoints.transports.srd import MAX_ENTROPY
from heddle.spec.keys import Size, at
from heddle.traffic.collectives import find_pattern, patterns, usual_algorithm
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.matrixrows import NAMED, NUMBERED
from heddle.traffic.options import MAX_QPS, TRANSPORT
from heddle.traffic.readers import MOST_SIZE, SourcePorts, parse_source_ports

if TYPE_CHECKING:
    from heddle.spec.yamlfile import Document


class PlanSpec(BaseModel):
    """One plan. size: bytes of a rank's array for a collective, of each pair of ranks for a named matrix."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    collective: str | None = None
    algorithm: str = ""  # empty: the collective's default
    matrix: str | None = None
    ranks: Annotated[int, Field(ge=2, le=1 << 20)] | None = None
    size: Annotated[Size, Field(ge=1, le=MOST_SIZE)] = 1 << 20
    qps: int = Field(default=1, ge=1, le=MAX_QPS)
    qp_mode: Literal["split", "round-robin"] = "split"
    sport: str = "qpn"
    chunk: Annotated[Size, Field(ge=4096, le=1 << 24)] = 1 << 17
    placement: str = "block"
    split: str = AUTO  # into communicators; see heddle/traffic/communicators.py
    transport: str = TRANSPORT
    entropy: int = Field(default=1, ge=1, le=MAX_ENTROPY)

    @property
    def pattern(self) -> tuple[str, str]:
        """Collective and algorithm, with their defaults."""
        collective = self.collective or "all-reduce"
        return collective, self.algorithm or usual_algorithm(collective)

    @property
    def source_ports(self) -> SourcePorts:
        """How NICs choose UDP source ports."""
        return parse_source_ports(self.sport)

    @property
    def file(self) -> str | None:
        """The file of the matrix as written; None for a named matrix."""
        return self.matrix if self.matrix is not None and self.matrix.lower().endswith(".csv") else None

    @property
    def named(self) -> tuple[str, int | None]:
        """A named matrix and its number: ("shift", 4). Only if `matrix` is not a file."""
        found = NUMBERED.fullmatch(self.matrix or "")
        assert found is not None  # noqa: S101  (the validator checked this)
        return found[1], int(found[2]) if found[2] else None

    @model_validator(mode="after")
    def _one_thing(self) -> PlanSpec:
        if self.matrix is not None and self.collective is not None:
            raise at("matrix", "does not go together with collective", "keep one of the two")
        if self.matrix is not None and "algorithm" in self.model_fields_set:
            raise at("algorithm", "is for a collective, not for a matrix", "remove it")
        if self.file is not None and "size" in self.model_fields_set:
            raise at("size", "is already in the file of the matrix", "remove it")
        parsed = {}
        for key, parser in (("sport", parse_source_ports), ("split", parse_split)):
            try:
                parsed[key] = parser(getattr(self, key))
            except ValueError as error:
                why, _, hint = str(error).partition("; ")
                raise at(key, why, hint) from None
        object.__setattr__(self, "split", parsed["split"])
        if self.file is not None and self.split != AUTO:
            raise at("split", "is for a collective or a named matrix", "remove it: the file names both ends")
        self._check_transport()
        if self.chunk % 128:
            raise at("chunk", "is not a multiple of 128 bytes", "try 128K, the chunk of NCCL")
        if self.matrix is not None:
            self._check_matrix()
        else:
            self._check_collective()
        return self

    def _check_transport(self) -> None:
        kind = TRANSPORTS.get(self.transport)
        legal = sorted(name for name, each in TRANSPORTS.items() if each.stack is None)
        if kind is None:
            raise at("transport", "is not a transport", did_you_mean(self.transport, legal))
        if kind.stack is not None:  # its messages are SENDs, and its packets those of the kernel
            hint = f"use one of {', '.join(legal)}; sport: rxe predicts its source ports"
            raise at("transport", "is not predicted offline, because the kernel builds its packets", hint)
        if self.entropy > 1 and not kind.any_order:
            why = f"is not for transport {self.transport}, which needs packets in order"
            raise at("entropy", why, "add transport: srd, or use more qps")

    def _check_collective(self) -> None:
        try:
            find_pattern(*self.pattern)
        except InputError as error:  # as for a run, where these are flags
            problem = error.problems[0]
            raise at(problem.what.removeprefix("--").partition(" ")[0], problem.why, problem.hint) from None

    def _check_matrix(self) -> None:
        if self.file is not None:
            return
        found = NUMBERED.fullmatch(self.matrix or "")
        if found is None or found[1] not in NAMED:
            word = (self.matrix or "").partition(":")[0]
            near = nearest(word, NAMED)
            hint = f"did you mean {near}?" if near else f"allowed: {', '.join(NAMED)}, or a file that ends in .csv"
            raise at("matrix", "is neither a named matrix nor a .csv file", hint)
        name, number = found[1], found[2]
        if NAMED[name] == "" and number is not None:
            raise at("matrix", "takes no number", f"write {name}")
        if NAMED[name] == ":N" and not (number and int(number)):
            raise at("matrix", "needs a number of at least 1", f"write {name}:4")


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

    from heddle.spec.yamlfile import MAX_BYTES

    found = [typed]
    try:
        matrix = yaml.safe_load(read_regular(Path(typed).expanduser(), MAX_BYTES))["matrix"]
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
