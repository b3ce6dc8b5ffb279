"""The runtime `kubernetes`: a fabric over the pods of a cluster, a shard a pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heddle.base import state
from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem
from heddle.fabric.cutting import Cut, cut, fitting_cut
from heddle.fabric.model import Fabric
from heddle.render.dialects import RenderOptions
from heddle.runtimes.cluster import Cluster
from heddle.runtimes.kube.kubecluster import KubeCluster
from heddle.runtimes.kube.target import KubeTarget
from heddle.runtimes.sharded import ShardedRuntime

SHARDS = "shards"  # the key of a record's options


class KubernetesRuntime(ShardedRuntime):
    """Implements heddle.runtimes.registry.Runtime with pods. Where a lab runs is in the options of its record."""

    name = "kubernetes"

    def __init__(self) -> None:
        super().__init__()
        self._clusters: dict[str, KubeCluster] = {}

    def cluster(self, lab: str) -> Cluster:
        """The namespace of the lab's record."""
        if lab not in self._clusters:
            record = state.read_record(lab)
            if record is None:
                raise InputError(Problem("", f"lab {lab}", "is not running", "run ./inv up zone to start one"))
            self._clusters[lab] = KubeCluster(KubeTarget.of(record.options))
        return self._clusters[lab]

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        """Connect, choose the number of shards, and write both into the options. Errors as of KubeApi and of `cut`."""
        options = super().prepare(fabric, options, observer)
        cluster = KubeCluster(KubeTarget.of(options.target))
        target = cluster.target
        cluster.check_rights()
        count = len(self.cut_of(fabric, options.target).shards)
        return replace(options, target={**target.to_json(), SHARDS: str(count)})

    def cut_of(self, fabric: Fabric, options: Mapping[str, str]) -> Cut:
        """Into as many shards as asked, else as few as fit into usual machines."""
        count = options.get(SHARDS, "")
        return cut(fabric, int(count)) if count else fitting_cut(fabric)
