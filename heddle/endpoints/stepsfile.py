"""Read the steps of a job in a workload file: what its ranks do in each iteration, one after the other or at once.

In:  the list of `steps`, a group of keys for each. Out: the text of RunOptions.steps (traffic/sequence.py), with times
of hardware; problems with file and line for everything that does not depend on the ranks.
A step is a collective, a matrix or a computation. It waits for the step before it, and for those that run with that
one, unless `after` or `with` names others. The files of a trace, also those of `--workload FILE`, become its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from heddle.base.declared import options_of
from heddle.base.problems import InputError, Problems, did_you_mean
from heddle.base.units import parse_size
from heddle.endpoints.runoptions import own_fields
from heddle.traffic.collectives import file_options, find_pattern
from heddle.traffic.collectives.pattern import Pattern
from heddle.traffic.matrixrows import is_matrix_file, names_bytes
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import is_rank_file
from heddle.traffic.readers import MOST_SIZE
from heddle.traffic.sequence import STEPS, PartSequence, steps_text
from heddle.traffic.traces import Reading, read_trace, trace_files
from heddle.traffic.workload import Keys

if TYPE_CHECKING:
    from heddle.endpoints.workloadspec import WorkloadStep
    from heddle.spec.yamlfile import Document, Trail

# Keys whose value may be a file, whose name is relative to that of the workload.
FILES: Final[Mapping[str, Callable[[str], bool]]] = {
    "matrix": is_matrix_file, "counts": is_matrix_file, "placement": is_rank_file,
    **{word: of.is_file for word, of in file_options().items()},
}  # fmt: skip
_KEYS: Final = ("collective", "algorithm", "size", "ranks", "groups", "name", "after", "with")


def steps_of(
    document: Document, trail: Trail, keys: Keys, values: dict[str, Any], problems: Problems,
    beside: Callable[[str], str],
) -> str:  # fmt: skip
    """The steps of a job, as text; empty if it has none. trail: of them. values: of the job, without them afterwards.

    beside: the path of another file that this one names.
    """
    scale = values.pop("scale", None)
    if "steps" not in values:
        if scale is not None and not (keys.name and keys.places["scale"][1] == "scale"):
            problems.found.append(keys.problem("scale", scale, "is for a job with steps", "remove it, or write steps"))
        return ""
    steps = values.pop("steps")
    for key in dict.fromkeys(("collective", "matrix", "algorithm", "split", *apart_from_steps())):
        if key in values:
            why = "does not go together with steps"
            hint = "write groups in a step" if key == "split" else "write it in a step"
            problems.found.append(keys.problem(key, str(values.pop(key)), why, hint))
    size = 0
    if "size" in values:
        try:
            size = parse_size(str(values["size"]))
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            problems.found.append(keys.problem("size", values["size"], why, hint))
            size = MOST_SIZE  # so that steps do not miss one
    return _StepsReader(document, trail, problems, size, scale or Fraction(1), beside).text(steps)


def apart_from_steps() -> list[str]:
    """The keys of one collective, as op and root, which a job with steps or a trace cannot have."""
    return [each.word for kind, _, each in own_fields() if kind == "collective" and each.word != "datatype"]


def with_steps(options: RunOptions, steps: str) -> RunOptions:
    """Options of a job with these steps; unchanged without steps."""
    if not steps:
        return options
    return replace(options, collective=STEPS, algorithm=PartSequence.algorithm, steps=steps)


class _StepsReader:
    """Reads the steps of one job. size: default of their bytes, or 0; beside: as of steps_of."""

    def __init__(
        self, document: Document, trail: Trail, problems: Problems, size: int, scale: Fraction,
        beside: Callable[[str], str],
    ) -> None:  # fmt: skip
        self._document, self._trail, self._problems = document, trail, problems
        self._size, self._scale, self._beside = size, scale, beside
        self._names: dict[str, int] = {}
        self._afters: list[list[int]] = []
        self._last: list[int] = []  # the step before, and those that run with it

    def text(self, steps: Sequence[WorkloadStep]) -> str:
        """The option; after an error something that is not used."""
        found = [self._step(number, step) for number, step in enumerate(steps)]
        note = f"sizes and times are those of the file x {self._scale}" if self._scale != 1 else ""
        return steps_text(found, note)

    def _wrong(self, trail: Trail, why: str, hint: str = "") -> None:
        (where, path), text = self._place(trail), self._document.text(trail)
        self._problems.add(where=where, what=f"{path}: {text}" if text else path, why=why, hint=hint)

    def _step(self, number: int, step: WorkloadStep) -> dict[str, Any]:
        """One step as plain data."""
        from heddle.endpoints.workloadspec import KINDS

        trail = (*self._trail, number)
        found: dict[str, Any] = {"name": step.name, "through": True}
        if step.compute:
            found["seconds"] = float(step.compute * self._scale) / 1e9
        elif step.collective or "matrix" in step.given:
            self._transfer(trail, step, found)
        elif not any((*trail, key) in self._document.marks for key in KINDS):
            unknown = next(iter(step.model_extra or ()), "")
            hint = did_you_mean(unknown, KINDS) if unknown else f"write {', '.join(KINDS[:-1])} or {KINDS[-1]}"
            self._wrong((*trail, unknown) if unknown else trail, "names nothing to do", hint)
        self._order(number, trail, step, found)
        found |= {"ranks": step.ranks} if step.ranks else {}
        found |= {"groups": step.groups} if step.groups else {}
        return found | {"places": {"": self._place(trail), **{key: self._place((*trail, key)) for key in step.given}}}

    def _transfer(self, trail: Trail, step: WorkloadStep, found: dict[str, Any]) -> None:
        options = {**({"matrix": step.matrix} if "matrix" in step.given else {}), **(step.model_extra or {})}
        name = step.collective or "matrix"
        places = {each: self._place((*trail, each)) for each in (*step.given, "collective", "algorithm")}
        keys = Keys("", self._document.where(trail), places)
        try:
            usual = find_pattern(name, step.algorithm)
            declared = {each.word: each for each in options_of(type(usual)) if each.word != "datatype"}
            for each in options:
                if each == "datatype":
                    self._wrong((*trail, each), "is not of one step", "write it beside steps: all have one type")
                elif each not in declared:
                    hint = did_you_mean(each, [*declared, *_KEYS])
                    self._wrong((*trail, each), "is not a key of this step", hint)
            given = {word: value for word, value in options.items() if word in declared}
            given |= {key: self._beside(given[key]) for key, is_file in FILES.items() if is_file(given.get(key, ""))}
            pattern = find_pattern(name, step.algorithm, **{declared[word].name: each for word, each in given.items()})
        except InputError as error:
            self._problems.found += map(keys.located, error.problems)
            return
        found |= {"collective": pattern.collective, "algorithm": pattern.algorithm}
        found["parameters"] = {declared[word].name: getattr(pattern, declared[word].name) for word in given}
        self._bytes(trail, step, found, pattern)

    def _place(self, trail: Trail) -> tuple[str, str]:
        from heddle.spec.yamlfile import dotted

        return self._document.where(trail), dotted(trail)

    def _bytes(self, trail: Trail, step: WorkloadStep, found: dict[str, Any], pattern: Pattern) -> None:
        """The size of a rank's array; a matrix may have bytes of its own."""
        size = step.size or self._size
        own = pattern.collective == "matrix" and names_bytes(found["parameters"].get("matrix", ""))
        if own and self._scale != 1:
            hint = "write a name as shift:4, and its bytes as size"
            self._wrong((*trail, "matrix"), "has bytes of its own, which scale does not change", hint)
        elif not own and not size and (*trail, "size") not in self._document.marks:
            self._wrong(trail, "needs a size", "write size: 4M")
        elif not own and size and not int(size * self._scale):
            self._wrong((*trail, "size"), f"is scaled down to 0 bytes by {self._scale}", "use a larger scale")
        found["size"] = int(size * self._scale)

    def _order(self, number: int, trail: Trail, step: WorkloadStep, found: dict[str, Any]) -> None:
        """What it waits for: steps by their names, or by default the one before."""
        after, last = [*self._last], [number]
        if "after" in step.given:
            after = self._named((*trail, "after"), step.after)
        elif step.beside:
            beside = self._named((*trail, "with"), step.beside)
            after = sorted({each for at in beside for each in self._afters[at]})
            last = [*self._last, number]
        self._afters.append(after)
        self._last = last
        found["after"] = after
        if step.name in self._names:
            self._wrong((*trail, "name"), "is the name of an earlier step, too", "name each step once")
        if name := step.name or self._document.text((*trail, "name")):  # also a wrong one, which later steps may name
            self._names.setdefault(name, number)

    def _named(self, trail: Trail, names: Sequence[str]) -> list[int]:
        """The numbers of earlier steps."""
        for name in names:
            if name not in self._names:
                hint = did_you_mean(name, self._names) if self._names else "give that step a name: key"
                before = "" if self._document.text(trail) else f"has {name}, which "
                self._wrong(trail, f"{before}is not the name of an earlier step", hint)
        return [self._names[name] for name in names if name in self._names]


_INSTEAD: Final = ("collective", "matrix", "algorithm", "steps", "size", "split")  # what a trace states


TRACE_KEYS: Final[Sequence[str]] = ("trace", "time_scale", "trace_groups", "storage", "skip_idle")


def trace_names(keys: Mapping[str, Any], beside: Callable[[str], str]) -> list[str]:
    """The files that a job with a trace reads. keys: of a job, as in its file."""
    trace, groups = keys.get("trace"), keys.get("trace_groups")
    named = [each for each in (trace if isinstance(trace, list) else [trace]) if isinstance(each, str)]
    found = [name for each in named for name in trace_files(beside(each))]
    return [*found, *([beside(groups)] if named and isinstance(groups, str) else [])]


def names_of(data: Mapping[str, Any], beside: Callable[[str], str]) -> list[str]:
    """The files that a workload names, in any of its keys. beside: see trace_of. Any error for data of another form."""
    jobs = [data, *(data.get("jobs") or {}).values()]
    groups = [group for job in jobs for group in (job, *(job.get("steps") or ()))]
    named = [beside(each) for group in groups for each in typed_files(group)]
    return [*named, *(name for job in jobs for name in trace_names({**data, **job}, beside))]


def typed_files(typed: Mapping[str, Any]) -> list[str]:
    """The user's files among the options of a run, by word."""
    values = ((is_file, typed.get(key)) for key, is_file in FILES.items())
    return [value for is_file, value in values if isinstance(value, str) and is_file(value)]


def trace_of(
    keys: Keys, trace: Mapping[str, Any], values: dict[str, Any], slots: Sequence[int] | None, problems: Problems,
    beside: Callable[[str], str],
) -> tuple[str, int]:  # fmt: skip
    """The steps of a job's trace, as text, and the number of its ranks.

    trace: the keys of TRACE_KEYS. values: the others of the job; scale is removed. slots: the job's NICs, if it names
    them. beside: the path of a file that the job names.
    """
    before = len(problems.found)
    for key in (*_INSTEAD, *apart_from_steps()):
        if key in values:
            why = "does not go together with trace, which states it"
            problems.found.append(keys.problem(key, "", why, "remove it"))
    scale, time_scale = values.pop("scale", Fraction(1)), trace.get("time_scale", Fraction(1))
    wanted = len(slots) if slots is not None else values.get("ranks")
    groups = trace.get("trace_groups", "")
    reading = Reading(
        scale, time_scale, wanted if isinstance(wanted, int) and wanted > 1 else None, trace.get("storage", 1),
        beside(groups) if groups else "", trace.get("skip_idle", False),
    )  # fmt: skip
    if len(problems.found) > before:
        return "", 0
    files = [name for each in trace["trace"] for name in trace_files(beside(each))]
    try:
        found = read_trace(files, reading)
    except InputError as error:
        problems.found += error.problems
        return "", 0
    if reading.ranks is not None and reading.ranks not in (found.ranks, found.ranks - found.storage):
        why = f"has {reading.ranks} ranks, but its trace has {found.ranks}"
        problems.found.append(keys.problem("ranks", "", why, "leave ranks out, or name as many NICs"))
    factors = f"{files[0]}: sizes x {scale}, times x {time_scale}"
    return steps_text(found.parts, "; ".join([factors, *reading.noted()])), found.ranks
