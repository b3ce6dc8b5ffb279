"""Mode `te` of a prediction: central traffic engineering as `./inv te plan` does it, for fabrics of any size.

In:  Wires, the next hops after failures, the flows of all jobs. Out: the tables by which switches steer.
The controller knows all flows and all failures, so its plan is for the state after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from heddle.offline.columns import flows_of
from heddle.offline.demand import Traffic
from heddle.offline.loads import Nics
from heddle.offline.wires import Wires
from heddle.predict.cspf import Demands, cspf
from heddle.predict.forwarding import NOWHERE, Forwarding
from heddle.predict.rules import SteeringTables, exact_keys

QUICK: Final = 8_192  # flows that are placed in a second or two; for more, the user asks for the mode


def engineered(
    wires: Wires, jobs: Sequence[tuple[Traffic, Nics]], forwarding: Forwarding, steering: SteeringTables
) -> SteeringTables:
    """The tables with an entry for each flow that has a choice. forwarding: after failures."""
    entries = cspf(forwarding, wires.rate, demands_of(jobs)).entries
    keys = exact_keys(entries.switch, entries.destination, entries.sport, forwarding.group.shape[1])
    backup = np.where(entries.backup == NOWHERE, entries.port, entries.backup)
    return replace(steering, exact_key=keys, exact_port=np.stack([entries.port, backup], axis=1))


def demands_of(jobs: Sequence[tuple[Traffic, Nics]]) -> Demands:
    """The flows of all jobs that carry bytes between live NICs."""
    columns = []
    for traffic, nics in jobs:
        connections = traffic.connections
        for part in connections.batches():
            src, dst = (np.repeat(column[part], connections.each) for column in (connections.src, connections.dst))
            amount = traffic.volume.wire[connections.kind[part]].ravel().astype(np.float64)
            sport = flows_of(connections, part, traffic.address).sport
            rows = np.flatnonzero(nics.alive[src] & nics.alive[dst] & (amount > 0))
            src, dst = src[rows], dst[rows]
            columns.append((nics.switch[src], nics.switch[dst], nics.edge[dst], sport[rows], amount[rows]))
    return Demands(*(np.concatenate(column) for column in zip(*columns, strict=True)))
