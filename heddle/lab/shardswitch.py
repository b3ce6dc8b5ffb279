"""Turn the nodes of a shard into switches and hosts, as heddle/switch/install.py does on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.base.events import Observer
from heddle.base.process import Journal
from heddle.lab.cutlinks import cut_ends, keep_carriers
from heddle.lab.spread import nothing, spread
from heddle.runtimes.netns import cable_space
from heddle.switch import install as switch
from heddle.switch.links import cuts
from heddle.switch.queues import disciplines

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@spread(nothing)
def install_in_shard(lab: Lab, observer: Observer) -> None:
    """Queues, programs, cut links, the process of their carriers and the PFC agent, in each shard."""
    disciplines.load()
    journal, handles = Journal(), lab.handles()
    switch.apply(lab.fabric, handles, journal, observer, lab.blueprint.own_hashing())
    if ends := cut_ends(lab):
        cuts.attach(lab.fabric, cable_space(lab.name), ends)
        keep_carriers(lab)
    switch.start_agent(lab.fabric, handles, lab.dir, journal)
