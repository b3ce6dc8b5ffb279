"""Turn the nodes of a shard into switches and hosts, as heddle/switch/install.py does on one machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from heddle.base.events import Observer
from heddle.base.process import Journal
from heddle.base.tables import some_of
from heddle.lab.cutlinks import cut_ends, keep_carriers, wait_for_carriers
from heddle.lab.spread import nothing, spread
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
