"""The parts of a job's iteration: collectives among its ranks, transfers and computations, with what each waits for.

In:  parts, as a workload file's `steps`, or an importer of traces, states them.
Out: their text, which is an option of a job (`RunOptions.steps`): plain data, for records and workers.
Times in the text of an option are those of hardware until the job is planned: `bound_steps` multiplies them by k.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from heddle.base.declared import options_of
from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.collectives.pattern import DType


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that some ranks of a job do in an iteration: a collective or transfer, or a computation.

    ranks: of the job; their order is that of the pattern's own ranks. pattern: what they run; None: each of them
    computes for `seconds` (emulated time). size_bytes: of a rank's array, as --size. after: indices of earlier parts;
    a rank begins its sends, or its computation, when it has done those of them in which it takes part. (Receives are
    always posted.)
    """

    name: str
    ranks: tuple[int, ...]
    pattern: Pattern | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    after: tuple[int, ...] = ()


def parts_text(parts: Sequence[Part], note: str = "") -> str:
    """Parts as text. The type of elements is not in it: a job has one for all its parts. note: as in `steps_text`."""
    return _dumped({"parts": [_plain(part) for part in parts], "note": note})


def steps_text(steps: Sequence[Mapping[str, Any]] | Sequence[Part], note: str = "") -> str:
    """The option `steps` of a job: parts, or the steps of a file, with times of hardware. note: for the run's head."""
    plain = [_plain(each) if isinstance(each, Part) else each for each in steps]
    return _dumped({"steps": plain, "note": note})


def _dumped(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _plain(part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {"name": part.name, "ranks": part.ranks}
    if part.pattern is not None:
        pattern = part.pattern
        found |= {"collective": pattern.collective, "algorithm": pattern.algorithm, "size": part.size_bytes}
        values = {each.name: (getattr(pattern, each.name), each.usual) for each in options_of(type(pattern))}
        parameters = {name: value for name, (value, usual) in values.items() if name != "dtype" and value != usual}
        found |= {"parameters": parameters} if parameters else {}
    if part.seconds:
        found["seconds"] = part.seconds
    return found | ({"after": part.after} if part.after else {})


@lru_cache(maxsize=8)
def parts_of(text: str, dtype: DType) -> tuple[Part, ...]:
    """The parts of a text of `parts_text`, with elements of a type. InputError for another text."""
    try:
        return tuple(
            Part(
                str(each["name"]), tuple(map(int, each["ranks"])), pattern_of(each, dtype), int(each.get("size", 0)),
                float(each.get("seconds", 0.0)), tuple(map(int, each.get("after", ()))),
            )
            for each in json.loads(text)["parts"]
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(Problem("", "steps", f"are damaged: {error!r}", "run the workload again")) from None


def note_of(text: str) -> str:
    """What a user should know of the parts of a text; empty if nothing."""
    return str(json.loads(text).get("note", ""))


def pattern_of(step: Mapping[str, Any], dtype: DType) -> Pattern | None:
    """The pattern of a step in plain data; None: it computes. InputError for wrong parameters."""
    if "collective" not in step:
        return None
    parameters = {**step.get("parameters", {}), "dtype": dtype}
    return find_pattern(step["collective"], step.get("algorithm", ""), **parameters)
