"""Read the trace of a job in a workload file, or of `--workload FILE`: files of another tool become its steps.

In:  the keys of TraceKeys, and `scale`, as typed. Out: the text of RunOptions.steps, and the number of ranks.
Problems with file and line for everything that does not depend on the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final

from heddle.base.declared import Declared, Wrong, on_off, read_options
from heddle.base.problems import InputError, Problems
from heddle.endpoints.stepsfile import FILES, apart_from_steps, read_scale
from heddle.traffic.sequence import steps_text
from heddle.traffic.traces import Reading, read_trace, trace_files
from heddle.traffic.workload import Keys

_INSTEAD: Final = ("collective", "matrix", "msccl", "algorithm", "steps", "size", "split")  # what a trace states


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
