"""The messages of a forecast as flows of other tools: each part on a queue pair, with its begin and its end.

In:  Network, the flows of its jobs, and the columns of an Engine that kept them.
Out: FlowColumns (flowfiles.py), in seconds of hardware. Nodes are NICs, from 0 in the fabric's order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.problems import InputError, Problem
from heddle.offline.columns import flows_of
from heddle.wire.layout import ROCE_PORT
from heddle_plugins.time.flowfiles import FlowColumns, fct_text, flow_text, htsim_text
from heddle_plugins.time.network import Network
from heddle_plugins.time.tasks import JobFlows

KINDS = ("fct.txt", "flow.txt", ".htsim")


def messages_of(network: Network, jobs: Sequence[JobFlows], kept: tuple[I64, F64, F64, F64]) -> FlowColumns:
    """All messages that pass NICs. kept: as of Engine.messages."""
    number = {port.ref: at for at, port in enumerate(network.wires.fabric.nics)}
    paths, k = network.paths, network.wires.fabric.policy.k
    begins = np.flatnonzero(np.diff(paths.flow, prepend=-1))
    slowest = np.full(paths.flows, np.inf)
    slowest[paths.flow[begins]] = np.minimum.reduceat(network.capacity[paths.link] / paths.share, begins)
    found = []
    for job, first in zip(jobs, network.first.tolist(), strict=False):
        traffic, connections = job.traffic, job.traffic.connections
        on = np.flatnonzero((kept[0] >= first) & (kept[0] < first + connections.flows))
        flow, bits, begin, end = (column[on] for column in kept)
        row = (flow - first) // connections.each
        nodes = np.array([number[each.nic] for each in traffic.endpoints])
        sport = np.concatenate([flows_of(connections, part, traffic.address).sport for part in connections.batches()])
        size = [job.payloads[each] for each in np.rint(bits * connections.sports).astype(np.int64).tolist()]
        found.append((
            nodes[connections.src[row]], nodes[connections.dst[row]], sport[flow - first],
            np.full(len(flow), ROCE_PORT), np.array(size, dtype=np.int64) // connections.sports,
            begin / k, (end - begin) / k, bits / slowest[flow] / k,
        ))  # fmt: skip
    return FlowColumns(*(np.concatenate(column) for column in zip(*found, strict=True)))


def file_of(name: str, flows: FlowColumns, mtu: int) -> str:
    """The text of a file, by the end of its name. mtu: bytes of a packet. InputError for another name."""
    check_name(name)
    if name.endswith(KINDS[2]):
        return htsim_text(flows, mtu)
    return fct_text(flows) if name.endswith(KINDS[0]) else flow_text(flows)


def check_name(name: str) -> None:
    """InputError for a name whose end is no kind."""
    if not name.endswith(KINDS):
        hint = "end it with fct.txt or flow.txt (HPCC), or .htsim (htsim's output)"
        raise InputError(Problem("", f"--flows {name}", "does not say what to write", hint))
