"""Cluster file -> LoadedCluster: its fabric, what its jobs send, and the jobs in order of arrival, all checked.

In:  a name below traffic/clusters, or a path. Out: LoadedCluster; InputError with all problems, with file and line.
A trace is read twice, line by line: once to check all of it, and once while jobs arrive. It is never kept.
"""

from __future__ import annotations

import csv
import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from heddle.base import files, resources
from heddle.base.files import beside, expanded, open_regular, real, short_path
from heddle.base.problems import HeddleError, InputError, Problem, Problems, did_you_mean
from heddle.base.untrusted import kept_below
from heddle.endpoints.workloadfile import named_in, read_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.offline.wires import trouble_of
from heddle.spec.load import settings_of, value_text
from heddle.spec.wording import examined
from heddle.spec.yamlfile import Document, Mark, ReadOptions, Trail, dotted, parse, read_text
from heddle.traffic.flow import Endpoint
from heddle.traffic.placement import place
from heddle.traffic.workload import Job
from heddle_plugins.time.clusterplaces import PLACERS
from heddle_plugins.time.clusterspec import MOST_JOBS, ClusterJob, ClusterSpec, Generated

FOLDER: Final = "clusters"
_READING: Final = ReadOptions(
    max_bytes=1 << 20, values=200_000, kind="cluster file", example="traffic/clusters/day.yml"
)
_OTHERS: Final = (
    "start",
    "after",
    "repeat",
    "placement",
    "fault",
    "bucket",
    "iters",
    "warmup",
    "ranks",
    "jobs",
    "trace",
)
_LINE: Final = 400  # characters of a line of a trace
_SHOWN: Final = 8  # wrong lines of a trace that are shown


@dataclass(frozen=True, eq=False)
class JobKind:
    """What a job does in an iteration. compute_s: seconds before its bits. checkpoint: iterations, 0 for none."""

    job: Job
    compute_s: float
    checkpoint: int


@dataclass(frozen=True, slots=True)
class JobArrival:
    """A job that arrives. iterations: 0 where it has lasts_s, the seconds that it would take alone."""

    name: str
    ranks: int
    at_s: float
    iterations: float
    lasts_s: float
    kind: JobKind


@dataclass(frozen=True)
class LoadedCluster:
    """A cluster file. slots: the NICs that can have ranks. jobs: how many arrive. problem_at: for errors of a kind."""

    spec: ClusterSpec
    name: str
    file: str
    fabric: Fabric
    slots: tuple[Endpoint, ...]
    kinds: Mapping[str, JobKind]
    jobs: int
    sizes: tuple[tuple[JobKind, int], ...]

    def arrivals(self) -> Iterator[JobArrival]:
        """The jobs, in order of arrival."""
        spec = self.spec
        listed = (_listed(number, job, self.kinds[f"j{number}"]) for number, job in enumerate(spec.jobs))
        parts: list[Iterator[JobArrival]] = [iter(sorted(listed, key=lambda each: each.at_s))]
        if spec.generate is not None:
            parts.append(_drawn(spec.generate, self.kinds["generate"]))
        if spec.trace is not None:
            parts.append(_Trace(beside(self.file, spec.trace.file), self.kinds["trace"], len(self.slots)).rows())
        return heapq.merge(*parts, key=lambda each: each.at_s)


def clusters_shipped() -> list[str]:
    """Names of the cluster files that Heddle ships, sorted."""
    return sorted(path.stem for path in _shipped().glob("*.yml"))


def _shipped() -> Path:
    return resources.HERE.content(resources.TRAFFIC) / FOLDER


def find_cluster(typed: str) -> tuple[Path, str]:
    """The file of a name or a path, and its name in problems."""
    if typed in clusters_shipped():
        path = _shipped() / f"{typed}.yml"
        return path, short_path(path)
    path = real(typed)
    if path.suffix in (".yml", ".yaml") or files.is_file(path, typed):
        return path, typed
    hint = did_you_mean(typed, clusters_shipped())
    raise InputError(Problem("", typed[:200] or "the cluster", "is not a cluster file", hint))


def files_of_cluster(typed: str) -> list[str]:
    """The user's files that a cluster needs: its own, fabric, trace and those of workloads, below its folder."""
    if not typed or typed in clusters_shipped():
        return []
    try:
        data = parse(read_text(real(typed), typed, _READING), typed, _READING).data
        named = [data["fabric"]["use"] if isinstance(data["fabric"], dict) else data["fabric"]]
        if trace := data.get("trace"):
            named.append(trace["file"] if isinstance(trace, dict) else trace)
        found = [beside(typed, str(each)) for each in named if _is_path(str(each))]
        found += named_in(typed)
    except (HeddleError, AttributeError, KeyError, TypeError):  # load_cluster reports it
        return [typed]
    return [typed, *kept_below(expanded(typed), found)]


def _is_path(word: str) -> bool:
    return "/" in word or word.endswith((".yml", ".yaml", ".csv"))


def load_cluster(path: Path, file: str, seed: int | None = None) -> LoadedCluster:
    """Read and check. seed: instead of the file's, for all that is drawn."""
    document = parse(read_text(path, file, _READING), file, _READING)
    found = examined(document, ClusterSpec)
    problems = Problems([*found.problems])
    if found.value is None:
        raise InputError(*problems.found)
    return _Loader(document, _seeded(found.value, seed), file, problems).cluster()


def _seeded(spec: ClusterSpec, seed: int | None) -> ClusterSpec:
    if seed is None:
        return spec
    parts = {
        key: part.model_copy(update={"seed": seed}) for key in ("generate", "mtbf") if (part := getattr(spec, key))
    }
    return spec.model_copy(update={"seed": seed, **parts})


class _Loader:
    """One file that is read. problems: gets all errors."""

    def __init__(self, document: Document, spec: ClusterSpec, file: str, problems: Problems) -> None:
        self._document, self._spec, self._file, self._problems = document, spec, file, problems

    def cluster(self) -> LoadedCluster:
        """The cluster. InputError with all problems."""
        spec, problems = self._spec, self._problems
        if spec.placement not in PLACERS:
            self._wrong(("placement",), "is not a placement", did_you_mean(spec.placement, PLACERS))
        names = [each.name for each in spec.jobs]
        for number, name in enumerate(names):
            if name in names[:number]:
                self._wrong(("jobs", number, "name"), "is the name of another job, too", "use another name")
        kinds, fabric = self._kinds(), self._fabric()
        slots = self._slots(fabric) if fabric is not None else ()
        if fabric is not None:
            self._failures(fabric)
        many = len(spec.jobs) + (spec.generate.count if spec.generate else 0)
        sizes: dict[tuple[str, int], None] = {}
        for number, job in enumerate(spec.jobs):
            self._fits(("jobs", number, "ranks"), job.ranks, len(slots))
            sizes[f"j{number}", job.ranks] = None
        if spec.generate is not None:
            self._fits(("generate", "ranks"), int(max(spec.generate.ranks.values)), len(slots))
            sizes.update(dict.fromkeys(("generate", int(each)) for each in spec.generate.ranks.values))
        if spec.trace is not None and kinds:
            trace = _Trace(beside(self._file, spec.trace.file), kinds["trace"], len(slots))
            try:
                lines, ranks = trace.checked(MOST_JOBS - many)
                many += lines
                sizes.update(dict.fromkeys(("trace", each) for each in ranks))
            except InputError as error:
                where = self._document.where(("trace",))
                problems.found += [each if each.where else replace(each, where=where) for each in error.problems]
        if many > MOST_JOBS:
            self._wrong(("generate", "count"), f"makes more than {MOST_JOBS:,} jobs", "use a smaller count")
        problems.raise_if_any()
        if fabric is None:
            raise RuntimeError("a cluster without a fabric has problems")
        return LoadedCluster(
            spec, Path(self._file).stem, self._file, fabric, slots, kinds, many,
            tuple({(id(kinds[word]), ranks): (kinds[word], ranks) for word, ranks in sizes}.values()),
        )  # fmt: skip

    def _wrong(self, trail: Trail, why: str, hint: str) -> None:
        text = self._document.text(trail)
        what = f"{dotted(trail)}: {text}" if text else dotted(trail)
        self._problems.add(where=self._document.where(trail), what=what, why=why, hint=hint)

    def _fits(self, trail: Trail, ranks: int, nics: int) -> None:
        if nics and ranks > nics:
            why = f"has {ranks:,} ranks, but the fabric has {nics:,} NICs: it can never start"
            self._wrong(trail, why, f"use {nics} ranks at most, or a larger fabric")

    def _fabric(self) -> Fabric | None:
        use = self._spec.fabric
        at = {path: self._place_of(path) for path, _ in settings_of(use.set)}
        overrides = [f"{path}={value_text(path, value)}" for path, value in settings_of(use.set)]
        try:
            return load_fabric(
                beside(self._file, use.use) if _is_path(use.use) else use.use, overrides=overrides
            ).fabric
        except InputError as error:
            for each in error.problems:
                trail = at.get(each.what.partition(":")[0], ("fabric",))
                where = self._document.where(trail) if each.where in ("", "--set") else each.where
                self._problems.found.append(replace(each, where=where))
            return None

    def _place_of(self, path: str) -> Trail:
        nested = ("fabric", "set", *path.split("."))  # the file may have groups, or one word with dots
        return nested if nested in self._document.marks else ("fabric", "set", path)

    def _slots(self, fabric: Fabric) -> tuple[Endpoint, ...]:
        try:
            return place(fabric)
        except InputError as error:
            self._problems.found += [replace(each, where=self._document.where(("fabric",))) for each in error.problems]
            return ()

    def _failures(self, fabric: Fabric) -> None:
        for number, each in enumerate(self._spec.failures):
            key = "down" if each.down else "drain"
            try:
                trouble_of(fabric, [each.down] if each.down else [], [each.drain] if each.drain else [])
            except InputError as error:
                trail = ("failures", number, key)
                self._wrong(trail, error.problems[0].why, error.problems[0].hint)

    def _kinds(self) -> Mapping[str, JobKind]:
        """By `j0` for the first job of the list, `generate`, `trace`: what they do; equal ones are one object."""
        spec, document = self._spec, self._document
        works: dict[str, tuple[Trail, Any]] = {f"j{at}": (("jobs", at), job) for at, job in enumerate(spec.jobs)}
        works |= {key: ((key,), work) for key in ("generate", "trace") if (work := getattr(spec, key)) is not None}
        marks: dict[Trail, Mark] = {(): Mark(document.where(("workload",)))}
        jobs = {}
        for trail, keys in ((("workload",), spec.workload), *((at, work.sends) for at, work in works.values())):
            for key in [key for key in keys if key in _OTHERS]:
                self._wrong((*trail, key), "is not a key of a cluster's jobs", "remove it")
        for word, (trail, work) in works.items():
            jobs[word] = {key: value for key, value in work.sends.items() if key not in _OTHERS}
            self._marks(marks, trail, ("jobs", word))
        top = {key: value for key, value in spec.workload.items() if key not in _OTHERS}
        self._marks(marks, ("workload",), ())
        try:
            found = read_workload(Document({**top, "jobs": jobs}, self._file, marks), self._file, "").jobs
        except InputError as error:
            self._problems.found += [replace(each, what=self._named(each.what, works)) for each in error.problems]
            return {}
        kinds: dict[str, JobKind] = {}
        seen: dict[str, JobKind] = {}
        for word, job in zip(works, found, strict=True):
            work = works[word][1]
            places = {key: (where, self._named(path, works)) for key, (where, path) in job.keys.places.items()}
            named = replace(job, keys=replace(job.keys, name=getattr(work, "name", job.name), places=places))
            if (sizes := len(job.options.sizes)) > 1:
                why = f"has {sizes} sizes, but each iteration has one"
                self._problems.found.append(named.problem("size", "", why, "write one size"))
            compute = spec.compute if work.compute is None else work.compute
            kind = JobKind(named, compute, work.checkpoint or spec.checkpoint or 0)
            kinds[word] = seen.setdefault(f"{job.options} {kind.compute_s} {kind.checkpoint}", kind)
        return kinds

    def _marks(self, marks: dict[Trail, Mark], trail: Trail, new: Trail) -> None:
        old = len(trail)
        marks.update({(*new, *key[old:]): mark for key, mark in self._document.marks.items() if key[:old] == trail})

    @staticmethod
    def _named(what: str, works: Mapping[str, tuple[Trail, Any]]) -> str:
        """What a problem of the workload is about, with the names of the cluster file."""

        def name(found: re.Match[str]) -> str:
            trail, work = works[found[2]]
            return dotted(trail) if found[1] != "job " else f"job {work.name}" if len(trail) > 1 else f"{trail[0]}"

        return re.sub(r"^(jobs\.|job )(j[0-9]+|generate|trace)\b", name, what)


def _listed(number: int, job: ClusterJob, kind: JobKind) -> JobArrival:
    return JobArrival(job.name, job.ranks, job.arrives, float(job.iterations or 0), job.lasts or 0.0, kind)


def _drawn(spec: Generated, kind: JobKind) -> Iterator[JobArrival]:
    random, now = np.random.default_rng(spec.seed), 0.0
    for number in range(1, spec.count + 1):
        now += spec.every.one(random)
        ranks = round(spec.ranks.one(random))
        many = float(max(1, round(spec.iterations.one(random)))) if spec.iterations else 0.0
        yield JobArrival(f"g{number}", ranks, now, many, spec.lasts.one(random) if spec.lasts else 0.0, kind)


class _Trace:
    """A CSV file of jobs of a kind."""

    _NEEDS: Final[Sequence[str]] = ("arrival_s", "ranks")

    def __init__(self, file: str, kind: JobKind, nics: int) -> None:
        self._file, self._kind, self._nics = file, kind, nics
        self._problems = Problems()

    def checked(self, most: int) -> tuple[int, list[int]]:
        """The number of jobs and their different numbers of ranks. InputError with the first wrong lines."""
        many, ranks = 0, dict[int, None]()
        for each in self.rows():
            many += 1
            ranks[each.ranks] = None
            if many > most:
                raise InputError(Problem("", self._file, f"has more than {most:,} jobs", "use fewer lines"))
        self._problems.raise_if_any()
        if not many:
            raise InputError(Problem("", self._file, "has no jobs", "add a line for each job"))
        return many, [*ranks]

    def rows(self) -> Iterator[JobArrival]:
        """Its jobs, one after the other; problems of lines are kept, and their lines left out."""
        try:
            with open_regular(real(self._file)) as file:
                head = self._cells(file.readline(_LINE), 1) or []
                ends = [key for key in ("iterations", "duration_s") if key in head]
                if missing := [key for key in self._NEEDS if key not in head]:
                    self._head(f"has no column {missing[0]}")
                if len(ends) != 1:
                    self._head(
                        "has both iterations and duration_s" if ends else "has neither iterations nor duration_s"
                    )
                last = 0.0
                for number, line in enumerate(iter(lambda: file.readline(_LINE), b""), 2):
                    if (cells := self._cells(line, number)) is None:
                        continue
                    row = dict(zip(head, cells, strict=False))
                    if (found := self._row(number, row, ends[0], last)) is not None:
                        last = found.at_s
                        yield found
                    elif len(self._problems.found) == _SHOWN:
                        return
        except OSError as error:
            raise InputError(Problem("", self._file, f"cannot be read: {error.strerror}", "check the path")) from None

    def _head(self, why: str) -> None:
        hint = "begin it with arrival_s,ranks,iterations or arrival_s,ranks,duration_s"
        raise InputError(Problem(f"{self._file}:1", "the first line", why, hint))

    def _cells(self, line: bytes, number: int) -> list[str] | None:
        if len(line) >= _LINE:
            raise InputError(Problem(f"{self._file}:{number}", "the line", f"is longer than {_LINE} characters"))
        text = line.decode("utf-8-sig", "replace").strip()  # spreadsheets begin a file with a mark
        try:
            return [each.strip() for each in next(csv.reader([text]))] if text else None
        except csv.Error:
            where, hint = f"{self._file}:{number}", "write the file with Unix line ends"
            raise InputError(Problem(where, "the line", "has a carriage return inside", hint)) from None

    def _row(self, number: int, row: Mapping[str, str], end: str, last: float) -> JobArrival | None:
        values: dict[str, float] = {}
        for key in (*self._NEEDS, end):
            try:
                values[key] = float(row.get(key, ""))
            except ValueError:
                values[key] = -1.0
            if not 0 <= values[key] < 1e12 or (key == end and not values[key]):
                why = "is not a number above 0" if key == end else "is not a number of 0 or more"
                return self._skip(number, key, row, why, "write 60.5")
        if values["ranks"] < 2 or values["ranks"] % 1:
            return self._skip(number, "ranks", row, "is not a whole number of 2 or more", "write ranks as 64")
        if values["ranks"] > self._nics > 0:
            why = f"is more than the {self._nics:,} NICs of the fabric: the job can never start"
            return self._skip(number, "ranks", row, why, f"use {self._nics} ranks at most, or a larger fabric")
        if values["arrival_s"] < last:
            return self._skip(number, "arrival_s", row, "is before the line above", "sort the file by arrival_s")
        counted = end == "iterations"
        name = row.get("name", "")[:24] or f"t{number - 1}"
        return JobArrival(
            name, int(values["ranks"]), values["arrival_s"], values[end] if counted else 0.0,
            0.0 if counted else values[end], self._kind,
        )  # fmt: skip

    def _skip(self, number: int, key: str, row: Mapping[str, str], why: str, hint: str) -> JobArrival | None:
        what = f"{key}: {row.get(key, '')[:40]}".strip(" :")
        self._problems.add(where=f"{self._file}:{number}", what=what, why=why, hint=hint)
        return None
