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
from heddle.runtimes.kube import manifests
from heddle.runtimes.kube.api import UnreachableError
from heddle.runtimes.kube.kubecluster import KubeCluster
from heddle.runtimes.kube.target import KubeTarget
from heddle.runtimes.sharded import ShardedRuntime

SHARDS = "shards"  # the key of a record's options


class KubernetesRuntime(ShardedRuntime):
    """Shards are pods. Where a lab runs is in the options of its record."""

    name = "kubernetes"

    def __init__(self, place: Mapping[str, str] | None = None) -> None:
        super().__init__(place)
        self._clusters: dict[str, KubeCluster] = {}

    def cluster(self, lab: str) -> KubeCluster:
        if lab not in self._clusters:
            place = self.place_of(lab)
            if place is None:
                raise InputError(Problem("", f"lab {lab}", "is not running", "run ./inv up zone to start one"))
            self._clusters[lab] = KubeCluster(KubeTarget.of(place))
        return self._clusters[lab]

    def destroy(self, lab: str, observer: Observer) -> int:
        """See Runtime. InputError when a place was named that has nothing of the lab: the user looks for it.

        MachineError of a cluster that cannot be reached also says what to do when it is gone for good.
        """
        try:
            count = super().destroy(lab, observer)
        except (UnreachableError, InputError) as error:
            kept, hint = state.lab_dir(lab), "if its cluster is gone for good, remove that directory"
            if not kept.exists():
                raise
            raise type(error)(*error.problems, Problem("", f"lab {lab}", f"is kept in {kept}", hint)) from None
        if count or self._place is None:
            return count
        cluster = self.cluster(lab)
        cluster.check_owner(lab, f"its owner can remove it; or: {manifests.removal(lab, cluster.target.namespace)}")
        where = f"namespace {cluster.target.namespace} of context {cluster.target.context or '(in a pod)'}"
        hint = f"kubectl get pods --all-namespaces -l {manifests.LAB}={lab} finds it"
        raise InputError(Problem("kubernetes", f"lab {lab}", f"has nothing in {where}", hint))

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
