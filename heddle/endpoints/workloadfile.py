"""Read a workload: a YAML file, the name of one in `traffic/`, or words for a simple one.

In:  `my.yml`, `two-tenants` (traffic/two-tenants.yml), `ring`, `all-to-all`, `shift:4`, `matrix.csv`, a trace as
     `gpt.et`; keys may follow a name or a word: `ring,qps=16,size=64M`. They replace those of the file in all jobs.
Out: LoadedWorkload; InputError with file and line for everything that does not depend on the fabric.
The keys of a job are the options of `./inv run` (runoptions.py), and those of _When. Keys beside `jobs` are defaults
of every job. A file without `jobs` is one job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from heddle.base import resources
from heddle.base.declared import Declared, options_of, read_options
from heddle.base.files import beside, expanded, is_file, real, short_path
from heddle.base.problems import HeddleError, InputError, Problem, Problems, did_you_mean, nearest
from heddle.base.units import parse_duration
from heddle.base.untrusted import kept_below
from heddle.endpoints.runoptions import option_fields, run_options
from heddle.endpoints.stepsfile import (
    NAME,
    TraceKeys,
    names_of,
    numbers_of,
    steps_of,
    trace_names,
    trace_of,
    typed_files,
    with_steps,
)
from heddle.traffic.collectives import file_options, patterns
from heddle.traffic.matrixrows import NAMED, is_matrix_file
from heddle.traffic.placement import is_rank_file
from heddle.traffic.traces import is_trace, trace_ends
from heddle.traffic.workload import BACKGROUND, Job, Keys, Workload

if TYPE_CHECKING:
    from heddle.spec.yamlfile import Document

FLAG: Final = "--workload"
_WHOLE: Final = ("bucket", "fault")  # options of the whole run: not of a job beside others
# What a job runs: from the job, or all from beside `jobs`.
_RUNS: Final = ("collective", "algorithm", "matrix", *file_options(), "steps", "trace")
# Words and their keys, in addition to the named matrices: each collective with a name different from these.
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "ring": {"collective": "all-reduce", "algorithm": "ring"},
    **{name: {"collective": name} for name, _ in patterns() if name not in (*NAMED, "matrix")},
}
_MOST_REPEATS: Final = 10_000
_MOST_START_S: Final = 3600.0


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", text) else parse_duration(text) / 1e9
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_START_S:
        raise ValueError(f"is not a time from 0 to {_MOST_START_S:.0f} s; write seconds, or a time as 500ms")
    return seconds


def _repeats(text: str) -> int:
    if text != "background" and not (re.fullmatch("[0-9]{1,8}", text) and 1 <= int(text) <= _MOST_REPEATS):
        raise ValueError(f"is neither a number from 1 to {_MOST_REPEATS} nor background")
    return BACKGROUND if text == "background" else int(text)


@dataclass(frozen=True)
class _When:
    """The keys of a job that are not options of a run, as in Job."""

    start_s: Annotated[float, Declared("when it starts", word="start", reads=_seconds)] = 0.0
    after: Annotated[str, Declared("the job that must have ended before")] = ""
    repeat: Annotated[int, Declared("how often all sizes are measured", reads=_repeats)] = 1


@dataclass(frozen=True)
class LoadedWorkload:
    """A workload as read. file: its file; empty for one made of words."""

    workload: Workload
    file: str


def load_workload(typed: str) -> LoadedWorkload:
    """Read a workload's file or words. InputError with all problems that do not depend on the fabric."""
    document, file, more = _document(typed)
    problems = Problems()
    typed_keys = _more(more, problems)
    return LoadedWorkload(read_workload(document, file, Path(file).stem if file else typed, typed_keys, problems), file)


def read_workload(
    document: Document, file: str, name: str, typed: Mapping[str, Any] | None = None, problems: Problems | None = None
) -> Workload:
    """The workload of a document. file: files that it names are beside it. typed: keys that replace those of all jobs.

    InputError with all problems that do not depend on the fabric, and those that were found before.
    """
    from heddle.spec.wording import in_order

    problems = problems or Problems()
    reader = _Reader(document, typed or {}, file, problems)
    jobs = tuple(reader.jobs())
    problems.found[:] = in_order(dict.fromkeys(problems.found))  # one of a default is in every job
    problems.raise_if_any()
    workload = Workload(jobs, name, reader.shares)
    workload.check()
    return workload


class _Reader:
    """Reads jobs from a document. typed: keys that the user typed after the file's name."""

    def __init__(self, document: Document, typed: Mapping[str, Any], file: str, problems: Problems) -> None:
        self._document, self._typed, self._file, self._problems = document, typed, file, problems
        self._fields = {each.word: each for each in (*option_fields(), *options_of(_When), *options_of(TraceKeys))}
        self._legal = [*self._fields, "steps", "scale"]
        self.shares = self._flag("share_nics")

    def _flag(self, key: str) -> bool:
        """A key of the whole file that is true or false."""
        value = self._document.data.get(key, False)
        if not isinstance(value, bool):
            self._wrong((key,), "is not true or false", "")
        return value is True

    def jobs(self) -> Iterator[Job]:
        """Every job; errors go to the problems."""
        data, top = self._document.data, {}
        for key, value in data.items():
            if key in self._legal:
                top[key] = value
            elif key not in ("jobs", "share_nics"):
                self._unknown((key,), [*self._legal, "jobs", "share_nics"])
        for key in self._typed:
            if key not in self._legal:
                what, hint = f"{key}={self._typed[key]}", did_you_mean(key, self._legal)
                self._problems.add(where=FLAG, what=what, why="is not a key of a job", hint=hint)
        if "jobs" not in data:
            yield from self._job("", {}, top)
            return
        jobs = data["jobs"]
        if not isinstance(jobs, dict) or not jobs:
            why = "has no job" if not jobs else "is not a group of jobs"
            self._wrong(("jobs",), why, "write a name, and below it the keys of that job, as collective: all-reduce")
            return
        for name, keys in jobs.items():
            trail = ("jobs", name)
            if not NAME.fullmatch(name):
                self._wrong(trail, "is not a name of a job", "use up to 24 letters, digits, - and _")
            elif not isinstance(keys, dict):
                self._wrong(trail, "is not a group of keys", "write its keys below it, as collective: all-reduce")
            else:
                yield from self._job(name, keys, top)

    def _job(self, name: str, own: Mapping[str, Any], top: Mapping[str, Any]) -> Iterator[Job]:
        """The job, unless it has errors. own: its keys; top: those of all jobs."""
        before = len(self._problems.found)
        trail = ("jobs", name) if name else ()
        places: dict[str, tuple[str, str]] = {}
        values: dict[str, Any] = {}
        says = {*own, *self._typed} & {*_RUNS}
        for key, value in top.items():
            if not (name and key in _RUNS and says):
                values[key], places[key] = value, (self._document.where((key,)), key)
        for key, value in own.items():
            if key in _WHOLE:
                self._wrong((*trail, key), "belongs to the whole run", "write it beside jobs, not in a job")
            elif key not in self._legal:
                self._unknown((*trail, key), self._legal)
            else:
                values[key], places[key] = value, (self._document.where((*trail, key)), ".".join((*trail, key)))
        for key, value in self._typed.items():
            if key in self._legal:
                values[key], places[key] = value, (FLAG, key)
        keys = Keys(name, self._document.where(trail), places)
        slots = self._slots(keys, values)
        steps, ranks = self._steps((*trail, "steps") if "steps" in own else ("steps",), keys, values, slots)
        if not steps and not values.keys() & {"collective", "matrix", *file_options()}:
            what = f"job {name}" if name else "the workload"
            hint = "write collective: all-reduce, matrix: all-to-all, or steps"
            if len(self._problems.found) == before:  # a key may be misspelt
                self._problems.add(
                    where=keys.where, what=what, why="names neither a collective nor a matrix", hint=hint
                )
            return
        plain = {key: word for key, value in values.items() if (word := self._plain(keys, key, value)) is not None}
        self._matrix(keys, plain, size=name == "" or "size" in own)
        wrong = Problems()
        when = read_options(_When, {each.word: plain.pop(each.word, None) for each in options_of(_When)}, wrong)
        try:
            options = run_options(live=False, **plain)
        except InputError as error:
            wrong.found += error.problems
        self._problems.found += map(keys.located, wrong.found)
        if len(self._problems.found) == before:
            options = replace(options, ranks=ranks or options.ranks)
            yield Job(name, with_steps(options, steps), slots, when.start_s, when.after, when.repeat, keys)

    def _steps(
        self, trail: tuple[str, ...], keys: Keys, values: dict[str, Any], slots: Sequence[int] | None
    ) -> tuple[str, int]:
        """The steps of a job, as text, and the number of ranks of its trace, if it has one. Their keys are removed."""
        if typed := {each.word: values.pop(each.word) for each in options_of(TraceKeys) if each.word in values}:
            plain = {key: word for key, value in typed.items() if (word := self._plain(keys, key, value)) is not None}
            return trace_of(keys, plain, values, slots, self._problems, self._beside)
        return steps_of(self._document, trail, keys, values, self._problems, self._beside), 0

    def _beside(self, matrix: str) -> str:
        """The path of another file that this file names."""
        return beside(self._file, matrix) if self._file else matrix

    def _matrix(self, keys: Keys, plain: dict[str, Any], *, size: bool) -> None:
        """A matrix is a collective; its file, and those of ranks and shares, are beside that of the workload.

        size: the job itself has one.
        """
        found, matrix, placement = self._problems.found, plain.get("matrix"), plain.get("placement", "")
        if self._file and is_rank_file(placement) and "placement" not in self._typed:
            plain["placement"] = beside(self._file, placement)
        if self._file and is_matrix_file(counts := plain.get("counts", "")) and "counts" not in self._typed:
            plain["counts"] = beside(self._file, counts)
        for word, of in file_options().items():
            if program := plain.get(word):
                plain.setdefault("collective", of.collective)
                plain[word] = self._beside(program)
        if matrix is None:
            return
        if plain.setdefault("collective", "matrix") != "matrix":
            del plain["matrix"]
            found.append(keys.problem("matrix", matrix, "does not go together with collective", "keep one of the two"))
        if "algorithm" in plain:
            why = "is for a collective, not for a matrix"
            found.append(keys.problem("algorithm", plain.pop("algorithm"), why, "remove it"))
        elif is_matrix_file(matrix):
            if size and "size" in plain:
                why = "is already in the file of the matrix"
                found.append(keys.problem("size", plain["size"], why, "remove it"))
            plain["matrix"] = self._beside(matrix)

    def _plain(self, keys: Keys, key: str, value: Any) -> Any:
        """A value of YAML as users type it; None, and an error, for one that has no text."""
        field = self._fields[key]
        if field.kind == "list" and isinstance(value, list) and not any(isinstance(v, dict | list) for v in value):
            return [str(each) for each in value]
        if value is None or isinstance(value, dict | list):
            kind = "group" if isinstance(value, dict) else "list"
            why = "has no value" if value is None else f"is a {kind}, but must be one value"
            self._problems.found.append(keys.problem(key, "", why))
            return None
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        if field.kind != "int":
            return text
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            self._problems.found.append(keys.problem(key, text, "is not a whole number"))
            return None
        return int(text)

    def _slots(self, keys: Keys, values: dict[str, Any]) -> tuple[int, ...] | None:
        """The NICs of `ranks`, which is removed, if it is a slice or a list; None for a number."""
        value = values.get("ranks")
        if not (isinstance(value, list) or (isinstance(value, str) and ":" in value)):
            return None
        del values["ranks"]
        try:
            found = numbers_of(value)
        except ValueError as error:
            hint = "write a number, 0:16:2 (from, to, step) or [0, 2, 4]; NICs are numbered from 0"
            self._problems.found.append(keys.problem("ranks", str(error), "names no NICs", hint))
            return None
        if not self.shares and len({*found}) < len(found):
            again = next(slot for slot, many in Counter(found).items() if many > 1)
            why = f"names NIC {again} twice, but a NIC has one rank"
            hint = "name each NIC once, or set share_nics: true"
            self._problems.found.append(keys.problem("ranks", _shown(value), why, hint))
        elif len(found) < 2:
            self._problems.found.append(keys.problem("ranks", _shown(value), "has fewer than 2 NICs"))
        return tuple(found)

    def _unknown(self, trail: tuple[str, ...], legal: Sequence[str]) -> None:
        where = self._document.where(trail)
        self._problems.add(where=where, what=".".join(trail), why="is not a key", hint=did_you_mean(trail[-1], legal))

    def _wrong(self, trail: tuple[str, ...], why: str, hint: str) -> None:
        text = self._document.text(trail)
        what = ".".join(trail) + (f": {text}" if text else "")
        self._problems.add(where=self._document.where(trail), what=what, why=why, hint=hint)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _document(typed: str) -> tuple[Document, str, Sequence[str]]:
    """The document, the name of its file (empty for words), and the keys that were typed after it."""
    from heddle.spec.yamlfile import Document, Mark

    first, *more = typed.split(",")
    if _is_words(typed):
        keys = {"trace": first} if is_trace(first) else _WORDS.get(first, {"matrix": first})
        document = Document({**keys}, FLAG, {(): Mark(FLAG)})
        document.marks.update({(key,): Mark(FLAG, text) for key, text in keys.items()})
        return document, "", more
    if first in workloads():
        path = _shipped() / f"{first}.yml"
        file = short_path(path)
    else:
        path, file, more = _file(typed), typed, []
    return _read(path, file), file, more


def _read(path: Path, file: str) -> Document:
    """The document of a workload's file. file: its name in errors."""
    from heddle.spec.yamlfile import ReadOptions, parse, read_text

    kind = ReadOptions(kind="workload", example="traffic/all-reduce-16qp.yml")
    return parse(read_text(path, file, kind), file, kind)


def workload_words() -> list[str]:
    """The words that a workload can begin with."""
    return [*_WORDS, *NAMED]


def workloads() -> list[str]:
    """Names of the workloads that Heddle ships, sorted: `traffic/NAME.yml`."""
    return sorted(p.stem for p in _shipped().glob("*.yml"))


def _shipped() -> Path:
    return resources.HERE.content(resources.TRAFFIC)


def files_of(typed: str | None) -> list[str]:
    """The user's files that a workload needs: its own, and those that it names, which are below its folder.

    InputError for others: the workload may be of another user, and the files are sent to another machine.
    """
    first, *more = (typed or "").split(",")
    keys = dict(each.split("=", 1) for each in more if "=" in each)
    if is_trace(first):
        return [*trace_names({**keys, "trace": first}, str), *typed_files(keys)]
    if not first or first in workloads() or _is_words(first):
        return [*[first] * is_matrix_file(first), *typed_files(keys)]
    file = typed or ""
    return [file, *kept_below(expanded(file), named_in(file))]


def named_in(file: str) -> list[str]:
    """The files that a workload's file names; none for a file that cannot be read: load_workload reports it."""
    try:
        return names_of(_read(real(file), file).data, lambda name: beside(file, name))
    except (HeddleError, AttributeError, TypeError, ValueError, OSError):
        return []


def _is_words(typed: str) -> bool:
    first = typed.partition(",")[0]
    return is_matrix_file(first) or is_trace(first) or first.partition(":")[0] in workload_words()


def _file(typed: str) -> Path:
    """The workload's file; InputError with the nearest word when there is no such file."""
    path = real(typed)
    if path.suffix in (".yml", ".yaml") or is_file(path, typed):
        return path
    legal = [*_WORDS, *(name + more for name, more in NAMED.items())]
    near = nearest(typed.partition(",")[0].partition(":")[0], [*workload_words(), *workloads()])
    ends = ", ".join((".yml", ".csv", *trace_ends()))
    hint = f"words: {', '.join(legal)};\nfiles of traffic/: {', '.join(workloads())};\nfiles end in {ends}"
    hint = f"did you mean {near}?" if near else hint
    if real(typed.partition(",")[0]).suffix in (".yml", ".yaml"):
        hint = "keys cannot follow the name of your own file; write them into it"
    what = f"{FLAG} {typed[:200] or 'with no word'}"
    raise InputError(Problem("", what, "is neither a known workload nor a file", hint))


def _more(typed: Sequence[str], problems: Problems) -> dict[str, Any]:
    """The keys and values of `key=value` texts; errors for malformed ones."""
    from heddle.spec.yamlfile import parse_value

    found: dict[str, Any] = {}
    for each in typed:
        key, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not key or not text:
            hint = "write it as in ring,qps=16"
            problems.add(where=FLAG, what=each or "an empty string", why="is not key=value", hint=hint)
            continue
        try:
            found[key], _ = parse_value(text, FLAG, (key,))
        except InputError as error:
            problems.found += error.problems
    return found
