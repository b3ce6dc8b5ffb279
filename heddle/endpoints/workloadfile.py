"""Read a workload: a YAML file, the name of one in `traffic/`, or words for a simple one.

In:  `my.yml`, `two-tenants` (traffic/two-tenants.yml), `ring`, `all-to-all`, `shift:4`, `matrix.csv`, a trace as
     `gpt.et`; keys may follow a name or a word: `ring,qps=16,size=64M`. They replace those of the file in all jobs.
Out: LoadedWorkload; InputError with file and line for everything that does not depend on the fabric.
workloadspec.py has the keys of a job. Keys beside `jobs` are defaults of every job. A file without `jobs` is one job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base import resources
from heddle.base.files import beside, expanded, is_file, real, short_path
from heddle.base.problems import HeddleError, InputError, Problem, Problems, nearest
from heddle.base.untrusted import kept_below
from heddle.endpoints import stepsfile
from heddle.endpoints.runoptions import run_options
from heddle.traffic.collectives import file_options, patterns
from heddle.traffic.matrixrows import NAMED, is_matrix_file
from heddle.traffic.placement import is_rank_file
from heddle.traffic.traces import is_trace, trace_ends
from heddle.traffic.workload import Job, Keys, Workload

if TYPE_CHECKING:
    from heddle.spec.yamlfile import Document

FLAG: Final = "--workload"
_WHOLE: Final = ("bucket", "fault")  # options of the whole run: not of a job beside others
# What a job runs: from the job, or all from beside `jobs`.
_RUNS: Final = ("collective", "algorithm", "matrix", *file_options(), "steps", "trace")
# Words and their keys, in addition to the named matrices: each collective with a name different from these,
# but those with servers, whose names are files of traffic/.
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "ring": {"collective": "all-reduce", "algorithm": "ring"},
    **{
        name: {"collective": name}
        for (name, _), pattern in patterns().items()
        if name not in (*NAMED, "matrix") and not pattern.served
    },
}


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
    document: Document, file: str, name: str, typed: Document | None = None, problems: Problems | None = None
) -> Workload:
    """The workload of a document. file: files that it names are beside it. typed: keys that replace those of all jobs.

    InputError with all problems that do not depend on the fabric, and those that were found before.
    """
    from heddle.endpoints.workloadspec import JobSpec, WorkloadSpec
    from heddle.spec.wording import examined, in_order
    from heddle.spec.yamlfile import Document

    problems, jobs, shares = problems or Problems(), list[Job](), False
    found, more = examined(document, WorkloadSpec), examined(typed or Document({}, FLAG), JobSpec)
    problems.found += [*found.problems, *more.problems]
    if found.value is not None:
        top = found.value.given
        shares = top.pop("share_nics", False)
        reader = _Reader(document, more.value.given if more.value else {}, file, problems, shares)
        for key, spec in top.pop("jobs", {"": None}).items():
            jobs += reader.job(key, spec.given if spec else {}, top)
    problems.found[:] = in_order(dict.fromkeys(problems.found))  # one of a default is in every job
    problems.raise_if_any()
    workload = Workload(tuple(jobs), name, shares)
    workload.check()
    return workload


class _Reader:
    """Makes jobs of a document's keys. typed: keys that the user typed after the file's name. shares: share_nics."""

    def __init__(
        self, document: Document, typed: Mapping[str, Any], file: str, problems: Problems, shares: bool
    ) -> None:
        self._document, self._typed, self._file, self._problems = document, typed, file, problems
        self._shares = shares

    def job(self, name: str, own: Mapping[str, Any], top: Mapping[str, Any]) -> Iterator[Job]:
        """The job, unless it has errors, which go to the problems. own: its keys; top: those of all jobs."""
        trail = ("jobs", name) if name else ()
        places: dict[str, tuple[str, str]] = {}
        values: dict[str, Any] = {}
        says = {*own, *self._typed} & {*_RUNS}
        for key, value in top.items():
            if not (name and key in _RUNS and says):
                values[key], places[key] = value, (self._document.where((key,)), key)
        for key, value in own.items():
            values[key], places[key] = value, (self._document.where((*trail, key)), ".".join((*trail, key)))
        for key, value in self._typed.items():
            values[key], places[key] = value, (FLAG, key)
        keys = Keys(name, self._document.where(trail), places)
        for key in [key for key in _WHOLE if key in own]:
            why, hint = "belongs to the whole run", "write it beside jobs, not in a job"
            self._problems.found.append(keys.problem(key, self._document.text((*trail, key)), why, hint))
            del values[key]
        if not values.keys() & {*_RUNS} - {"algorithm"}:
            self._nothing(keys)
            return
        before = len(self._problems.found)
        slots = self._slots(keys, values)
        steps, ranks = self._steps((*trail, "steps") if "steps" in own else ("steps",), keys, values, slots)
        if not steps and not values.keys() & {"collective", "matrix", *file_options()}:
            return  # the errors of its steps or its trace are found
        self._matrix(keys, values, size=name == "" or "size" in own)
        start, after, repeat = values.pop("start", 0.0), values.pop("after", ""), values.pop("repeat", 1)
        try:
            options = run_options(live=False, **values)
        except InputError as error:
            self._problems.found += map(keys.located, error.problems)
        if len(self._problems.found) == before:
            options = replace(options, ranks=ranks or options.ranks)
            yield Job(name, stepsfile.with_steps(options, steps), slots, start, after, repeat, keys)

    def _steps(
        self, trail: tuple[str, ...], keys: Keys, values: dict[str, Any], slots: Sequence[int] | None
    ) -> tuple[str, int]:
        """The steps of a job, as text, and the number of ranks of its trace, if it has one. Their keys are removed."""
        trace = {key: values.pop(key) for key in stepsfile.TRACE_KEYS if key in values}
        if "trace" in trace:
            return stepsfile.trace_of(keys, trace, values, slots, self._problems, self._beside)
        if trace and not any((*at, "trace") in self._document.marks for at in ((), trail[:-1])):
            found = (keys.problem(key, trace[key], "is for a job with a trace", "write trace: FILE") for key in trace)
            self._problems.found += found
        return stepsfile.steps_of(self._document, trail, keys, values, self._problems, self._beside), 0

    def _nothing(self, keys: Keys) -> None:
        """A job that has nothing to run, unless its key for that is wrong or may be misspelt."""
        from heddle.endpoints.workloadspec import WorkloadSpec

        data = self._document.data
        own = data["jobs"][keys.name] if keys.name else data
        if not {*own, *data} & {*_RUNS} and all(key in WorkloadSpec.model_fields and key != "jobs" for key in own):
            what = f"job {keys.name}" if keys.name else "the workload"
            hint = "write collective: all-reduce, matrix: all-to-all, or steps"
            self._problems.add(where=keys.where, what=what, why="names neither a collective nor a matrix", hint=hint)

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

    def _slots(self, keys: Keys, values: dict[str, Any]) -> tuple[int, ...] | None:
        """The NICs of `ranks`, which is removed, if it is a slice or a list; None for a number."""
        if not isinstance(found := values.get("ranks"), list):
            return None
        del values["ranks"]
        if not self._shares and len({*found}) < len(found):
            again = next(slot for slot, many in Counter(found).items() if many > 1)
            why = f"names NIC {again} twice, but a NIC has one rank"
            hint = "name each NIC once, or set share_nics: true"
            self._problems.found.append(keys.problem("ranks", "", why, hint))
        return tuple(found)


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
        return [*stepsfile.trace_names({**keys, "trace": first}, str), *stepsfile.typed_files(keys)]
    if not first or first in workloads() or _is_words(first):
        return [*[first] * is_matrix_file(first), *stepsfile.typed_files(keys)]
    file = typed or ""
    return [file, *kept_below(expanded(file), named_in(file))]


def named_in(file: str) -> list[str]:
    """The files that a workload's file names; none for a file that cannot be read: load_workload reports it."""
    try:
        return stepsfile.names_of(_read(real(file), file).data, lambda name: beside(file, name))
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


def _more(typed: Sequence[str], problems: Problems) -> Document:
    """The keys and values of `key=value` texts; errors for malformed ones."""
    from heddle.spec.yamlfile import Document, parse_value

    found = Document({}, FLAG)
    for each in typed:
        key, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not key or not text:
            hint = "write it as in ring,qps=16"
            problems.add(where=FLAG, what=each or "an empty string", why="is not key=value", hint=hint)
            continue
        try:
            found.data[key], marks = parse_value(text, FLAG, (key,))
            found.marks.update(marks)
        except InputError as error:
            problems.found += error.problems
    return found
