"""Read the steps of a job in a workload file: what its ranks do in each iteration, one after the other or at once.

In:  the list of `steps`, a group of keys for each. Out: the text of RunOptions.steps (traffic/sequence.py), with times
of hardware; problems with file and line for everything that does not depend on the ranks.
A step is a collective, a matrix or a computation. It waits for the step before it, and for those that run with that
one, unless `after` or `with` names others. The files of a trace, also those of `--workload FILE`, become its steps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final

from heddle.base.declared import Declared, Wrong, on_off, options_of, read_options
from heddle.base.problems import InputError, Problems, did_you_mean
from heddle.base.units import parse_duration, parse_size
from heddle.endpoints.runoptions import own_fields
from heddle.traffic.collectives import file_options, find_pattern
from heddle.traffic.collectives.pattern import Pattern
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.matrixrows import is_matrix_file, names_bytes, slice_of
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import is_rank_file
from heddle.traffic.readers import MOST_SIZE
from heddle.traffic.sequence import STEPS, PartSequence, steps_text
from heddle.traffic.traces import Reading, read_trace, trace_files
from heddle.traffic.workload import Keys

if TYPE_CHECKING:
    from heddle.spec.yamlfile import Document, Trail

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")
# Keys whose value may be a file, whose name is relative to that of the workload.
FILES: Final[Mapping[str, Callable[[str], bool]]] = {
    "matrix": is_matrix_file, "counts": is_matrix_file, "placement": is_rank_file,
    **{word: of.is_file for word, of in file_options().items()},
}  # fmt: skip
_MOST_RANKS: Final = 1 << 20
_KEYS: Final = ("compute", "collective", "matrix", "algorithm", "size", "ranks", "groups", "name", "after", "with")
_SCALE: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,9})|[0-9]{1,6}(\.[0-9]{1,9})?")
_EXAMPLE: Final = "write each as - {collective: all-reduce, size: 4M}, or - {compute: 10us}"
_MOST_NS: Final = 3600 * 10**9


def read_scale(text: str) -> Fraction:
    """`1/1000` or `0.5`; ValueError with the reason."""
    if _SCALE.fullmatch(text) is None or (text.partition("/")[2].strip("0") == "" and "/" in text):
        raise ValueError("is not a factor; write scale: 1/1000 or 0.5")
    if not 0 < (scale := Fraction(text)) <= 1000:
        raise ValueError("is not between 0 and 1000; write scale: 1/1000 or 0.5")
    return scale


def numbers_of(value: Any) -> list[int]:
    """Numbers of a slice `0:16:2`, or of a list of numbers and slices; ValueError with the text that is neither."""
    found: list[int] = []
    for each in value if isinstance(value, list) else str(value).split(","):
        text = str(each).strip()
        if text.isdecimal() and text.isascii() and len(text) < 8:
            found.append(int(text))
        elif (part := slice_of(text, _MOST_RANKS)) is not None:
            found += part
        else:
            raise ValueError(text)
    return found


def steps_of(
    document: Document, trail: Trail, keys: Keys, values: dict[str, Any], problems: Problems,
    beside: Callable[[str], str],
) -> str:  # fmt: skip
    """The steps of a job, as text; empty if it has none. trail: of them. values: of the job, without them afterwards.

    beside: the path of another file that this one names.
    """
    scale = _scale(keys, values, problems)
    if "steps" not in values:
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
    return _StepsReader(document, trail, problems, size, scale, beside).text(steps)


def apart_from_steps() -> list[str]:
    """The keys of one collective, as op and root, which a job with steps or a trace cannot have."""
    return [each.word for kind, _, each in own_fields() if kind == "collective" and each.word != "datatype"]


def _scale(keys: Keys, values: dict[str, Any], problems: Problems) -> Fraction:
    if "scale" not in values:
        return Fraction(1)
    text = str(values.pop("scale"))
    beside_jobs = keys.name and keys.places["scale"][1] == "scale"
    if "steps" not in values and not beside_jobs:
        problems.found.append(keys.problem("scale", text, "is for a job with steps", "remove it, or write steps"))
    try:
        return read_scale(text)
    except ValueError as error:
        why, _, hint = str(error).partition("; ")
        problems.found.append(keys.problem("scale", text, why, hint))
    return Fraction(1)


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

    def text(self, steps: Any) -> str:
        """The option; after an error something that is not used."""
        if not isinstance(steps, list) or not steps:
            self._wrong(self._trail, "has no step" if not steps else "is not a list of steps", _EXAMPLE)
            return ""
        found = [self._step(number, step) for number, step in enumerate(steps)]
        note = f"sizes and times are those of the file x {self._scale}" if self._scale != 1 else ""
        return steps_text(found, note)

    def _wrong(self, trail: Trail, why: str, hint: str = "") -> None:
        from heddle.spec.yamlfile import dotted

        text = self._document.text(trail)
        what = dotted(trail) + (f": {text}" if text else "")
        self._problems.add(where=self._document.where(trail), what=what, why=why, hint=hint)

    def _step(self, number: int, step: Any) -> dict[str, Any]:
        """One step as plain data."""
        trail = (*self._trail, number)
        found: dict[str, Any] = {"name": "", "through": True}
        if not isinstance(step, dict) or not step:
            self._wrong(trail, "is empty" if not step else "is not a group of keys", _EXAMPLE)
            step = {}
        elif (kinds := [key for key in ("compute", "collective", "matrix") if key in step]) and len(kinds) > 1:
            self._wrong((*trail, kinds[1]), f"does not go together with {kinds[0]}", "write two steps")
        elif not kinds:
            unknown = next((key for key in step if key not in _KEYS), "")
            hint = did_you_mean(unknown, _KEYS) if unknown else _EXAMPLE
            self._wrong((*trail, unknown) if unknown else trail, "names nothing to do", hint)
        elif "compute" in step:
            self._compute(trail, step, found)
        else:
            self._transfer(trail, step, found)
        self._order(number, trail, step, found)
        self._ranks(trail, step, found)
        return found | {"places": {"": self._place(trail), **{key: self._place((*trail, key)) for key in step}}}

    def _plain(self, trail: Trail, step: dict[str, Any], key: str) -> str:
        """A value as typed; empty, with an error, for one that has no text."""
        value = step[key]
        if value is None or isinstance(value, dict | list):
            self._wrong((*trail, key), "has no value" if value is None else "must be one value")
            return ""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)

    def _compute(self, trail: Trail, step: dict[str, Any], found: dict[str, Any]) -> None:
        for key in step:
            if key not in ("compute", "name", "ranks", "after", "with"):
                self._wrong((*trail, key), "is not a key of a computation", "remove it")
        if not (text := self._plain(trail, step, "compute")):
            return
        try:
            ns = parse_duration(text)
        except ValueError as error:
            self._wrong((*trail, "compute"), *str(error).split("; ", 1))
            return
        if not 0 < ns <= _MOST_NS:
            self._wrong((*trail, "compute"), "is not between 0 and 3600 s", "write a time of hardware, as 10us")
        found["seconds"] = float(ns * self._scale) / 1e9

    def _transfer(self, trail: Trail, step: dict[str, Any], found: dict[str, Any]) -> None:
        key = "matrix" if "matrix" in step else "collective"
        name = "matrix" if key == "matrix" else self._plain(trail, step, key)
        algorithm = self._plain(trail, step, "algorithm") if "algorithm" in step else ""
        places = {each: self._place((*trail, each)) for each in (*step, "collective", "algorithm")}
        keys = Keys("", self._document.where(trail), places)
        try:
            usual = find_pattern(name, algorithm)
            declared = {each.word: each for each in options_of(type(usual)) if each.word != "datatype"}
            legal = [*declared, *(each for each in _KEYS if each not in ("compute", "matrix"))]
            for each in step:
                if each == "datatype":
                    self._wrong((*trail, each), "is not of one step", "write it beside steps: all have one type")
                elif each not in legal:
                    self._wrong((*trail, each), "is not a key of this step", did_you_mean(each, legal))
            given = {word: self._plain(trail, step, word) for word in declared if word in step}
            given |= {key: self._beside(given[key]) for key, is_file in FILES.items() if is_file(given.get(key, ""))}
            pattern = find_pattern(name, algorithm, **{declared[word].name: value for word, value in given.items()})
        except InputError as error:
            self._problems.found += map(keys.located, error.problems)
            return
        found |= {"collective": pattern.collective, "algorithm": pattern.algorithm}
        found["parameters"] = {declared[word].name: getattr(pattern, declared[word].name) for word in given}
        self._bytes(trail, step, found, pattern)

    def _place(self, trail: Trail) -> tuple[str, str]:
        from heddle.spec.yamlfile import dotted

        return self._document.where(trail), dotted(trail)

    def _bytes(self, trail: Trail, step: dict[str, Any], found: dict[str, Any], pattern: Pattern) -> None:
        """The size of a rank's array; a matrix may have bytes of its own."""
        size = self._size
        if "size" in step and (text := self._plain(trail, step, "size")):
            try:
                size = parse_size(text)
            except ValueError as error:
                self._wrong((*trail, "size"), *str(error).split("; ", 1))
                return
            if size > MOST_SIZE:
                self._wrong((*trail, "size"), "is above 1 TiB")
        own = pattern.collective == "matrix" and names_bytes(found["parameters"].get("matrix", ""))
        if own and self._scale != 1:
            hint = "write a name as shift:4, and its bytes as size"
            self._wrong((*trail, "matrix"), "has bytes of its own, which scale does not change", hint)
        elif not own and size < 1:
            self._wrong((*trail, "size") if "size" in step else trail, "needs a size", "write size: 4M")
        elif not own and not int(size * self._scale):
            self._wrong((*trail, "size"), f"is scaled down to 0 bytes by {self._scale}", "use a larger scale")
        found["size"] = int(size * self._scale)

    def _order(self, number: int, trail: Trail, step: dict[str, Any], found: dict[str, Any]) -> None:
        """What it waits for: steps by their names, or by default the one before."""
        after, last = [*self._last], [number]
        if "after" in step and "with" in step:
            self._wrong((*trail, "with"), "does not go together with after", "keep one of the two")
        elif "after" in step:
            after = [at for at in self._named(trail, step, "after") if at is not None]
        elif "with" in step:
            beside = [at for at in self._named(trail, step, "with") if at is not None]
            after = sorted({each for at in beside for each in self._afters[at]})
            last = [*self._last, number]
        self._afters.append(after)
        self._last = last
        found["after"] = after
        if "name" in step and (name := self._plain(trail, step, "name")):
            if not NAME.fullmatch(name):
                self._wrong((*trail, "name"), "is not a name of a step", "use up to 24 letters, digits, - and _")
            elif name in self._names:
                self._wrong((*trail, "name"), "is the name of an earlier step, too", "name each step once")
            self._names.setdefault(name, number)
            found["name"] = name

    def _named(self, trail: Trail, step: dict[str, Any], key: str) -> list[int | None]:
        """The numbers of earlier steps."""
        value = step[key]
        names = value if isinstance(value, list) else [value]
        if key == "with" and not names:
            self._wrong((*trail, key), "names no step", "write the name of an earlier step")
        for name in names:
            if str(name) not in self._names:
                hint = did_you_mean(str(name), self._names) if self._names else "give that step a name: key"
                before = "" if self._document.text((*trail, key)) else f"has {name}, which "
                self._wrong((*trail, key), f"{before}is not the name of an earlier step", hint)
        return [self._names.get(str(name)) for name in names]

    def _ranks(self, trail: Trail, step: dict[str, Any], found: dict[str, Any]) -> None:
        """The ranks of the job that take part; groups of them."""
        if "ranks" in step and (ranks := self._numbers((*trail, "ranks"), step["ranks"])):
            found["ranks"] = ranks
        if "groups" not in step:
            return
        value, own = step["groups"], (*trail, "groups")
        if isinstance(value, list):
            if "ranks" in step:
                self._wrong(own, "has ranks of its own", "remove ranks")
            groups = [self._numbers((*own, at), each) for at, each in enumerate(value)]
            every = [rank for group in groups for rank in group]
            if twice := [rank for rank, many in Counter(every).items() if many > 1]:
                self._wrong(own, f"names rank {twice[0]} twice", "put each rank into one group")
            elif not value:
                self._wrong(own, "has no group", "write groups: DIV 4, or lists of ranks")
            found["groups"] = groups
            return
        try:
            found["groups"] = parse_split(self._plain(trail, step, "groups"))
        except ValueError:
            found["groups"] = AUTO
        if found["groups"] == AUTO:
            hint = "write 'DIV 8', 'MOD 8', 'AND 0x7' or 'OR 0x7', or lists of ranks"
            self._wrong(own, "is not an operation and a number", hint)

    def _numbers(self, trail: Trail, value: Any) -> Sequence[int]:
        hint = "write a number, 0:16:2 (from, to, step) or [0, 2, 4]; ranks are numbered from 0"
        try:
            found = numbers_of(value)
        except ValueError as error:
            self._wrong(trail, f"has {error or 'nothing'}, which names no ranks", hint)
            return ()
        if not found:
            self._wrong(trail, "names no ranks", hint)
        elif len({*found}) < len(found):
            self._wrong(trail, "names a rank twice", "name each rank once")
        return found


_INSTEAD: Final = ("collective", "matrix", "algorithm", "steps", "size", "split")  # what a trace states


def _names(typed: Sequence[str], wrong: Wrong) -> tuple[str, ...]:
    if not all(typed):
        wrong("--trace", "has an empty name", "write the name of a file, or the prefix of the files of all ranks")
    return tuple(typed)


@dataclass(frozen=True)
class TraceKeys:
    """The keys of a job with a trace, as in Reading."""

    trace: Annotated[tuple[str, ...], Declared("files of another tool", gathers=_names)] = ()
    time_scale: Annotated[Fraction, Declared("factor of its times", reads=read_scale, typed="1")] = Fraction(1)
    trace_groups: Annotated[str, Declared("JSON file with the ranks of each group")] = ""
    storage: Annotated[int, Declared("ranks of storage", least=1, most=1024, hint="the default is 1")] = 1
    skip_idle: Annotated[bool, Declared("without ranks that send nothing", reads=on_off, typed="off")] = False


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
    keys: Keys,
    typed: Mapping[str, Any],
    values: dict[str, Any],
    slots: Sequence[int] | None,
    problems: Problems,
    beside: Callable[[str], str],
) -> tuple[str, int]:
    """The steps of a job's trace, as text, and the number of its ranks.

    typed: the keys of TraceKeys. values: the others of the job; scale is removed. slots: the job's NICs, if it names
    them. beside: the path of a file that the job names.
    """
    wrong, before = Problems(), len(problems.found)
    kept = read_options(TraceKeys, typed, wrong)
    if not kept.trace and not wrong.found:
        found = (keys.problem(key, typed[key], "is for a job with a trace", "write trace: FILE") for key in typed)
        problems.found += found
        return "", 0
    for key in (*_INSTEAD, *apart_from_steps()):
        if key in values:
            why = "does not go together with trace, which states it"
            problems.found.append(keys.problem(key, "", why, "remove it"))
    scale = Fraction(1)
    if "scale" in values:
        try:
            scale = read_scale(text := str(values.pop("scale")))
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            problems.found.append(keys.problem("scale", text, why, hint))
    wanted = len(slots) if slots is not None else values.get("ranks")
    reading = Reading(
        scale, kept.time_scale, wanted if isinstance(wanted, int) and wanted > 1 else None, kept.storage,
        beside(kept.trace_groups) if kept.trace_groups else "", kept.skip_idle,
    )  # fmt: skip
    problems.found += map(keys.located, wrong.found)
    if len(problems.found) > before:
        return "", 0
    files = [name for each in kept.trace for name in trace_files(beside(each))]
    try:
        trace = read_trace(files, reading)
    except InputError as error:
        problems.found += error.problems
        return "", 0
    if reading.ranks is not None and reading.ranks not in (trace.ranks, trace.ranks - trace.storage):
        why = f"has {reading.ranks} ranks, but its trace has {trace.ranks}"
        problems.found.append(keys.problem("ranks", "", why, "leave ranks out, or name as many NICs"))
    factors = f"{files[0]}: sizes x {scale}, times x {kept.time_scale}"
    return steps_text(trace.parts, "; ".join([factors, *reading.noted()])), trace.ranks
