"""A workload on a fabric: for each job the places of its ranks, the pairs with traffic, and the bytes of each QP.

In:  Fabric, Workload; of its options those that decide sender, receiver and bytes. Others have no effect here.
Out: Traffic of each job, columns only: one iteration of its largest size.
`check_memory` runs before anything large is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle.base.arrays import U32
from heddle.base.problems import InputError
from heddle.endpoints.transports import TRANSPORTS
from heddle.fabric.model import Fabric
from heddle.host.capacity import free_bytes
from heddle.offline import columns
from heddle.traffic.communicators import describe
from heddle.traffic.flow import Endpoint
from heddle.traffic.plan import grouped, rounded
from heddle.traffic.workload import Job, Workload


@dataclass(frozen=True)
class Traffic:
    """The traffic of a job. address: by rank, as in FlowArrays; volume: by kind of connection and flow.

    split: the communicators in words, if there are several.
    """

    job: Job
    endpoints: Sequence[Endpoint]
    address: U32
    connections: columns.Connections
    volume: columns.Volume
    split: str = ""

    @property
    def bytes(self) -> int:
        """Bytes on the wire that all ranks send."""
        return int(self.volume.wire.sum(axis=1)[self.connections.kind].sum())


def check_memory(job: Job, ranks: int, connections: int, lengths: int = 1) -> None:
    """InputError when the connections do not fit in memory; called before they are made. lengths: different ones."""
    each = job.options.qps * _spread(job)
    need = (
        connections * columns.CONNECTION_BYTES
        + min(connections * each, columns.BATCH) * columns.FLOW_BYTES
        + lengths * each * columns.LENGTH_BYTES
    )
    free = free_bytes()
    if need > free:
        size = f"{need / 1e9:.0f} GB, but {free / 1e9:.1f} GB are free"
        why = f"makes {connections:,} connections of {ranks:,} ranks, which need {size}"
        fit = int((free / columns.CONNECTION_BYTES) ** 0.5 * 0.9)
        key, value = job.runs
        raise InputError(job.problem(key, value, why, f"use fewer ranks, as ranks: {min(fit, ranks - 1)}"))


def traffic_of(fabric: Fabric, workload: Workload) -> tuple[Traffic, ...]:
    """Place the ranks and open the QPs. InputError if the fabric has too few NICs, or the machine too little memory."""
    for job in workload.jobs:
        if TRANSPORTS[job.options.transport].stack is not None:
            legal = sorted(name for name, each in TRANSPORTS.items() if each.stack is None)
            why = "is not predicted offline, because the kernel builds its packets"
            hint = f"use one of {', '.join(legal)}; sport: rxe predicts its source ports"
            raise InputError(job.problem("transport", job.options.transport, why, hint))
    return tuple(
        traffic_at(fabric, job, ends) for job, ends in zip(workload.jobs, workload.endpoints(fabric), strict=True)
    )


def _spread(job: Job) -> int:
    """The number of source ports of a queue pair."""
    return TRANSPORTS[job.options.transport].spread(job.options)


def traffic_at(fabric: Fabric, job: Job, endpoints: Sequence[Endpoint]) -> Traffic:
    """The traffic of one job with its ranks at these places. InputError for a pattern that they do not allow."""
    with job.keys.named():
        pattern, communicators, options = grouped(fabric, endpoints, job.options)
        groups = np.array(communicators)
        many, size = groups.shape
        check_memory(job, len(endpoints), many * pattern.connections(size))
        options = rounded(pattern, size, options)
    cut = columns.cutting(fabric, options.qps, options.qp_mode, options.chunk, options.transport, _spread(job))
    count = max(options.sizes) // pattern.element_bytes
    pairs, kinds, volume = columns.of_pattern(pattern, size, count, cut)
    check_memory(job, len(endpoints), many * len(pairs), len(volume.wire))
    src, dst = groups[:, pairs].reshape(-1, 2).T
    kinds = np.tile(kinds, many)
    if options.inside_gbps(pattern):
        hosts = np.unique([end.host for end in endpoints], return_inverse=True)[1]
        out = hosts[src] != hosts[dst]
        src, dst, kinds = src[out], dst[out], kinds[out]
    connections = columns.connect(
        endpoints, src, dst, kinds, options.qps, options.source_ports, _spread(job)
    )  # fmt: skip
    job = replace(job, options=options) if options.steps else job
    said = describe(fabric, endpoints, communicators)
    return Traffic(job, endpoints, columns.addresses(endpoints), connections, volume, said)
