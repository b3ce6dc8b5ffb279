"""What a job does on the NICs that it has: its bits by link and iteration, and its time alone.

In:  a cluster, the NICs of a job, what is down or drained. Out: Shape, of the real routed paths of all its flows.
Equal ones are computed once: the same NICs and failures; the same paths; or the same hosts of another switch, if no
path leaves it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Generic, TypeVar

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.problems import InputError
from heddle.fabric.pathdelay import PathDelays
from heddle.offline.loads import traffic_at
from heddle.offline.wires import Trouble, Wires
from heddle.traffic.inflight import delay_between
from heddle_plugins.time.clusterfile import JobKind, LoadedCluster
from heddle_plugins.time.engine import Course, Engine
from heddle_plugins.time.forecast import TIMED, iteration_s, network_state
from heddle_plugins.time.network import Network, Router
from heddle_plugins.time.tasks import MOST_MESSAGES, JobFlows, tasks_of

_SHAPES: Final = 512  # shapes, of each kind of key
_ROUTERS: Final = 8
Kept = TypeVar("Kept")


class _Recent(OrderedDict[Hashable, Kept], Generic[Kept]):
    """The values that were used last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def find(self, key: Hashable) -> Kept | None:
        """The value of a key, if it is kept."""
        if key in self:
            self.move_to_end(key)
        return super().get(key)

    def keep(self, key: Hashable, value: Kept) -> Kept:
        """Keep one more, instead of the one that was not used for longest."""
        self[key] = value
        if len(self) > self._most:
            self.popitem(last=False)
        return value


@dataclass(frozen=True, eq=False)
class Shape:
    """links: ports that carry bits of the job, sorted; bits: of each in an iteration. sent: bits of all its ranks.

    alone_s: seconds of an iteration without other jobs, computation included; infinite without a path.
    """

    links: I64
    bits: F64
    sent: float
    alone_s: float


class JobShapes:
    """JobShapes of a cluster's jobs. waves: whether steps of some jobs were computed as waves."""

    def __init__(self, cluster: LoadedCluster, wires: Wires) -> None:
        self._cluster, self._wires, self._k = cluster, wires, cluster.fabric.policy.k
        self._delays = PathDelays(cluster.fabric)
        # Of one job as in `predict --time`; else jobs have shapes after each failure, too.
        self._most = MOST_MESSAGES if cluster.jobs == 1 else MOST_MESSAGES // (4 * cluster.jobs)
        self._routers = _Recent[Router](_ROUTERS)
        self._by_slots, self._by_paths = _Recent[Shape](_SHAPES), _Recent[Shape](_SHAPES)
        self._by_hosts = _Recent[tuple[F64, float, float]](_SHAPES)
        ids = [wires.id_of[end.first_hop] for end in cluster.slots]
        self._down = np.array(ids, dtype=np.int64)
        self._up = wires.other[self._down].astype(np.int64)
        self._host = np.unique([end.host for end in cluster.slots], return_inverse=True)[1]
        self.waves, self.mode, self.computed = False, "", 0

    def of(self, kind: JobKind, slots: I64, trouble: Trouble) -> Shape:
        """The shape of a job. slots: by rank. InputError for a pattern that does not allow the ranks."""
        key = id(kind), slots.tobytes(), trouble.down, trouble.drained
        if (found := self._by_slots.find(key)) is not None:
            return found
        local = self._local_key(kind, slots)
        if local is not None and (parts := self._by_hosts.find(local)) is not None:
            return self._by_slots.keep(key, self._at(slots, *parts))
        shape = self._routed(kind, slots, trouble)
        if local is not None and np.isfinite(shape.alone_s):
            bits = np.zeros(len(self._wires.ports))
            bits[shape.links] = shape.bits
            ends = np.concatenate([bits[self._up[slots]], bits[self._down[slots]]])
            self._by_hosts.keep(local, (ends, shape.sent, shape.alone_s))
        return self._by_slots.keep(key, shape)

    def _local_key(self, kind: JobKind, slots: I64) -> Hashable | None:
        """What decides the shape of a job whose ranks are all at one switch; None for others."""
        if (self._wires.owner[self._down[slots]] != self._wires.owner[self._down[slots[0]]]).any():
            return None
        _, hosts = np.unique(self._host[slots], return_inverse=True)
        rates = self._wires.rate[np.concatenate([self._up[slots], self._down[slots]])]
        ends = [self._cluster.slots[int(slot)] for slot in slots[:2]]
        return id(kind), hosts.tobytes(), rates.tobytes(), delay_between(self._delays, *ends)

    def _at(self, slots: I64, ends: F64, sent: float, alone_s: float) -> Shape:
        links = np.concatenate([self._up[slots], self._down[slots]])
        order = np.argsort(links)
        order = order[ends[order] > 0]
        return Shape(links[order], ends[order], sent, alone_s)

    def _router(self, trouble: Trouble) -> Router:
        key = trouble.down, trouble.drained
        found = self._routers.find(key)
        return self._routers.keep(key, Router(self._wires, None, trouble)) if found is None else found

    def _routed(self, kind: JobKind, slots: I64, trouble: Trouble) -> Shape:
        cluster, job = self._cluster, kind.job
        ends = [replace(cluster.slots[slot], rank=rank) for rank, slot in enumerate(slots.tolist())]
        traffic = traffic_at(cluster.fabric, job, ends)
        if not traffic.connections.flows:
            why = "sends nothing over the network: its ranks copy inside their hosts"
            raise InputError(job.problem(*job.runs, why, "use more ranks, or leave inside-host copies out"))
        with job.keys.named():
            network = self._router(trouble).network([traffic])
        self.mode = network.mode
        amount = traffic.volume.wire[traffic.connections.kind].ravel().astype(np.float64) * 8
        if (amount[~network.arrives] > 0).any():
            none = np.zeros(0, dtype=np.int64)
            return Shape(none, none.astype(np.float64), 0.0, np.inf)
        paths, sent = network.paths, float(amount.sum())
        digest = blake2b(
            b"".join(np.ascontiguousarray(each).tobytes() for each in (paths.flow, paths.link, paths.share))
        )
        key = id(kind), slots.tobytes(), digest.digest()
        found = self._by_paths.find(key)
        return (
            self._by_paths.keep(key, Shape(*_loads(network, amount), sent, self._alone_s(kind, network)))
            if found is None
            else found
        )

    def _alone_s(self, kind: JobKind, network: Network) -> float:
        """As `predict --time` of this job alone, from emulated to hardware time; and its computation."""
        self.computed += 1
        flows = JobFlows(self._cluster.fabric, network.traffic[0], 0, network.paths.flows)
        options = flows.options
        warmup = min(1, options.warmup)
        tasks = tasks_of(flows, max(options.sizes), warmup + min(TIMED, options.iters), True, self._most)
        self.waves |= tasks.waves
        course = Course(kind.job.name, [tasks])
        # Waves by their busiest link, where that is exact: flows of a wave have equal bits.
        times = None if self._cluster.jobs == 1 else Engine([network_state(network)], [course], many=0).run()
        if times is None or times.at_most > 1 + 1e-9:
            times = Engine([network_state(network)], [course]).run()
        return iteration_s(times.iterations[0][0], warmup) / self._k + kind.compute_s


def _loads(network: Network, amount: F64) -> tuple[I64, F64]:
    """The links that carry bits, and the bits of each."""
    bits = network.paths.load(amount)
    links = np.flatnonzero(bits)
    return links, bits[links]
