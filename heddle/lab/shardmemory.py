"""Shards at their limit of memory: errors name them when the kernel has ended one of their processes for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.base.problems import HeddleError, Problem
from heddle.base.tables import many, some_of
from heddle.base.units import format_size
from heddle.host.capacity import memory_kills
from heddle.lab.spread import concat, spread
from heddle.runtimes.sharded import ShardPlan

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@spread(concat)
def _kills(lab: Lab) -> list[tuple[int, int]]:
    """Of each shard: processes that were ended, and the limit in bytes."""
    return [memory_kills()]


def memory_problems(lab: Lab, before: Sequence[tuple[int, int]] = ()) -> list[Problem]:
    """Shards that were out of memory since `before`; none on one machine, whose kernel has its own log."""
    if lab.runtime.here:
        return []
    plan, found = ShardPlan.read(lab.name).shards, list[Problem]()
    for number, (name, (kills, limit)) in enumerate(zip(plan, _kills(lab), strict=True)):
        count = kills - (before[number][0] if before else 0)
        if count > 0:
            why = f"was out of memory: the kernel ended {many(count, 'process')} at its limit of {format_size(limit)}"
            hint = "use smaller sizes of runs, or more --shards"
            found.append(Problem(f"shard {name}", f"({some_of(plan[name])})", why, hint))
    return found


@contextmanager
def memory_named(lab: Lab) -> Iterator[None]:
    """An error in the with block names the shards that were out of memory meanwhile, before anything else."""
    before = list[tuple[int, int]]() if lab.runtime.here else _kills(lab)
    try:
        yield
    except HeddleError as error:
        raise type(error)(*memory_problems(lab, before), *error.problems) from None
