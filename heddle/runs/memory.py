"""Whether the arrays of a run fit into memory: of this machine, or of each shard that has ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.base.problems import MachineError, Problem
from heddle.base.units import format_size
from heddle.host import capacity
from heddle.lab.spread import concat, spread
from heddle.runtimes.sharded import ShardPlan
from heddle.traffic.plan import Plan

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@spread(concat)
def free_memory(lab: Lab) -> list[int]:
    """Bytes that are free, in each shard: below the limit of its pod, and on its node."""
    return [capacity.free_bytes()]


def check_memory(lab: Lab, plans: Sequence[Plan], workers: Sequence[int]) -> None:
    """MachineError when they do not fit: a worker killed by the kernel could not report it.

    workers: of each plan. Problems name the shards.
    """
    shards = {} if lab.runtime.here else ShardPlan.read(lab.name).shards
    home = {node: name for name, nodes in shards.items() for node in nodes}
    problems = []
    for name, free in zip(shards or [""], free_memory(lab), strict=True):
        needs = [(_bytes_at(each, number, name, home), each) for each, number in zip(plans, workers, strict=True)]
        if (needed := sum(each for each, _ in needs)) > free:
            largest = max(needs, key=lambda each: each[0])[1]
            what = f"--size {max(largest.options.sizes)} on {len(largest.endpoints)} ranks"
            of_them = " for the arrays of its ranks" if name else " for its arrays"
            why = f"needs {format_size(needed)} of memory{of_them}, but only {format_size(free)} are free"
            hint = "lower --size or --ranks" + (", or bring the lab up with more --shards" if name else "")
            problems.append(Problem(f"shard {name}" if name else "", what, why, hint))
    if problems:
        raise MachineError(*problems)


def _bytes_at(plan: Plan, workers: int, shard: str, home: dict[str, str]) -> int:
    """Bytes of a plan's arrays in one shard. home: host -> its shard; shard: empty for this machine."""
    places = [home.get(end.host, "") for end in plan.endpoints]
    if not (ranks := places.count(shard)):
        return 0
    return array_bytes(plan, max(1, workers // len({*places})), ranks)


def array_bytes(plan: Plan, workers: int, ranks: int | None = None) -> int:
    """Bytes of a plan's arrays, for so many of its ranks (default: all) in so many processes."""
    pattern = plan.pattern
    width, in_place = pattern.element_bytes, all(placed for _, placed in plan.passes)
    held = [width * pattern.held(plan.size, size // width) for size in plan.options.sizes]
    return capacity.memory_bytes(held, len(plan.endpoints) if ranks is None else ranks, workers, in_place)
