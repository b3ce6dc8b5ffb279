"""The steps of a job, bound to its ranks and to the scale of a fabric.

In:  RunOptions whose `steps` are those of a file or an importer (`steps_text`); the endpoints of the job; k.
Out: the same options with the parts that ranks run (`parts_text`): groups as ranks, times multiplied by k.
InputError with every step that cannot run, by its place in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives.pattern import MAX_STEPS, DType
from heddle.traffic.communicators import colors_of
from heddle.traffic.parts import Part, parts_text, pattern_of
from heddle.traffic.sequence import STEPS, PartSequence

if TYPE_CHECKING:
    from heddle.traffic.flow import Endpoint
    from heddle.traffic.options import RunOptions


def bound_steps(options: RunOptions, endpoints: Sequence[Endpoint], k: int) -> RunOptions:
    """Options with parts; options without steps, or with parts, are returned unchanged."""
    data = json.loads(options.steps) if options.steps else {}
    if "steps" not in data:
        return options
    dtype: DType = dict(options.parameters).get("dtype", "float32")  # type: ignore[assignment]
    problems: list[Problem] = []
    parts: list[Part] = []
    # By step: the part of a rank. Where a step of a file has none, the parts for which the step waits (`through`).
    of_step: list[dict[int, set[int]]] = []
    for number, step in enumerate(data["steps"]):
        before: dict[int, set[int]] = {}
        for each in step.get("after", ()):
            for rank, found in of_step[each].items():
                before.setdefault(rank, set()).update(found)
        try:
            groups = _groups(number, step, endpoints)
            made = [_part(number, step, group, endpoints, dtype, k) for group in groups]
        except InputError as error:
            problems += error.problems
            made = []
        own: dict[int, set[int]] = {}
        for part in made:
            own |= {rank: {len(parts)} for rank in part.ranks}
            parts.append(replace(part, after=tuple(sorted(_union(before.get(rank, ()) for rank in part.ranks)))))
        of_step.append(before | own if step.get("through") else own)
    if not problems and not any(part.pattern is not None for part in parts):
        problems.append(Problem("", STEPS, "have no collective, so no rank sends anything", "add a step that sends"))
    if problems:
        raise InputError(*problems)
    bound = replace(options, steps=parts_text(parts, data.get("note", "")))
    sequence = PartSequence(steps=bound.steps, dtype=dtype)
    if (many := sequence.most_steps(len(endpoints))) > MAX_STEPS:
        why = f"make {many:,} steps of one rank in an iteration; the limit is {MAX_STEPS:,}"
        raise InputError(Problem("", STEPS, why, "use fewer parts, or algorithms with fewer steps"))
    return replace(bound, sizes=(sequence.whole(len(endpoints), 0) * sequence.element_bytes,))


def _union(found: Iterable[Iterable[int]]) -> set[int]:
    return {each for part in found for each in part}


def _problem(number: int, step: Mapping[str, Any], key: str, why: str, hint: str = "") -> Problem:
    """A problem with a key of a step, or with the step as a whole."""
    places = step.get("places", {})
    where, path = places.get(key) or places.get("") or ("", f"step {number + 1} ({step['name']})")
    return Problem(where, path, why, hint)


def _groups(number: int, step: Mapping[str, Any], endpoints: Sequence[Endpoint]) -> list[tuple[int, ...]]:
    """The ranks of each part of a step. InputError for ranks that the job does not have, and for lonely ones."""
    groups = step.get("groups")
    if isinstance(groups, list):
        found, key = [tuple(group) for group in groups], "groups"
    else:
        found, key = [tuple(step["ranks"]) if "ranks" in step else tuple(range(len(endpoints)))], "ranks"
    if beyond := [rank for group in found for rank in group if rank >= len(endpoints)]:
        why = f"names rank {beyond[0]}, which this job does not have"
        raise InputError(_problem(number, step, key, why, f"ranks are 0 to {len(endpoints) - 1}"))
    if isinstance(groups, str):
        colors, (ranks,), key = colors_of(groups, len(endpoints)), found, "groups"
        by_color: dict[int, list[int]] = {}
        for rank in ranks:
            by_color.setdefault(colors[rank], []).append(rank)
        found = [tuple(by_color[color]) for color in sorted(by_color)]
    if "collective" in step and (lonely := [group for group in found if len(group) < 2]):
        why = f"make a group of rank {lonely[0][0]} alone" if key == "groups" else "are one rank"
        raise InputError(_problem(number, step, key, f"{why}, but a collective needs two", "use other ranks"))
    return found


def _part(
    number: int, step: Mapping[str, Any], ranks: tuple[int, ...], endpoints: Sequence[Endpoint], dtype: DType, k: int
) -> Part:
    size, seconds = step.get("size", 0), step.get("seconds", 0.0) * k
    asked = pattern_of(step, dtype)
    if asked is None:
        return Part(step["name"], ranks, seconds=seconds)
    ends = [replace(endpoints[rank], rank=place) for place, rank in enumerate(ranks)]
    try:
        pattern = asked.bound(ends, (size,)).hosted([end.host for end in ends])
    except InputError as error:
        raise InputError(*(_located(number, step, each) for each in error.problems)) from None
    if why := pattern.unfit(len(ranks)):
        why, _, hint = why.partition("; ")
        raise InputError(_problem(number, step, "collective", why, hint or "use other ranks"))
    if not pattern.whole(len(ranks), size // pattern.element_bytes):
        why = f"is rounded down to 0 bytes by {pattern.collective} over {len(ranks)} ranks"
        raise InputError(_problem(number, step, "size", why, "use a larger size, or fewer ranks"))
    return Part(step["name"], ranks, pattern, size, seconds)


def _located(number: int, step: Mapping[str, Any], problem: Problem) -> Problem:
    """A problem with a parameter, at the step's place; one that has a place of its own stays there."""
    if problem.where:
        return problem
    own = _problem(number, step, "", problem.why, problem.hint)
    return replace(own, what=f"{own.what} {problem.what}")
