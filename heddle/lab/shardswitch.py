"""Turn the nodes of a shard into switches and hosts, as heddle/switch/install.py does on one machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.base.events import Observer
from heddle.base.problems import HeddleError, Problem
from heddle.base.process import Journal
from heddle.base.tables import many, some_of
from heddle.base.units import format_size
from heddle.host.capacity import memory_kills
from heddle.lab.cutlinks import cut_ends, keep_carriers, wait_for_carriers
from heddle.lab.spread import concat, nothing, spread
from heddle.runtimes.netns import cable_space
from heddle.runtimes.sharded import ShardedRuntime, ShardPlan
from heddle.switch import install as switch
from heddle.switch.links import cuts
from heddle.switch.queues import disciplines

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@spread(nothing, nodes=lambda _, nodes=None: nodes)
def install_in_shard(lab: Lab, observer: Observer, nodes: Collection[str] | None = None) -> None:
    """Queues, programs, cut links, the process of their carriers and the PFC agent, in each shard."""
    disciplines.load()
    journal, handles = Journal(), lab.handles()
    cables = cable_space(lab.name)
    switch.apply(lab.fabric, handles, journal, observer, lab.blueprint.own_hashing(), cables)
    if ends := cut_ends(lab):
        cuts.attach(lab.fabric, cables, ends)
        keep_carriers(lab)
    switch.start_agent(lab.fabric, handles, lab.dir, journal)


def install_over_shards(lab: Lab, observer: Observer, nodes: Collection[str] | None = None) -> None:
    """`install_in_shard` in the shards of these nodes, by default in all; return when all shards hear each other."""
    install_in_shard(lab, observer, nodes)
    wait_for_carriers(lab)


def restore_shards(lab: Lab, observer: Observer) -> list[str]:
    """Bring lost shards up again, with empty queues and new daemons. A line for each; none on one machine."""
    runtime = lab.runtime
    if not isinstance(runtime, ShardedRuntime):
        return []
    lost = runtime.restore(lab.name, lab.topology, observer)
    if not lost:
        return []
    shards = ShardPlan.read(lab.name).shards
    nodes = [node for name in lost for node in shards[name]]
    install_over_shards(lab, observer, nodes)
    runtime.start_in(lab.name, lost, observer)
    return [f"shard {name}: started again ({some_of(shards[name])})" for name in lost]


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
