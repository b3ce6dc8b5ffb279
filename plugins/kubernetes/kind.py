"""What verbs and experiments need of Kubernetes besides its runtime. Modules are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.events import Observer
from heddle.fabric.cutting import Cut
from heddle.fabric.model import Fabric
from heddle.runtimes.clusterkind import ClusterKind, ShardNeed
from heddle_plugins.kubernetes.target import NAMESPACE, KubeTarget, checked, owner

if TYPE_CHECKING:
    from heddle_plugins.kubernetes.jobs import KubeJobs
    from heddle_plugins.kubernetes.kubeprobe import ProbeReport


class Kubernetes(ClusterKind):
    """See ClusterKind."""

    def read_template(self, file: Path, name: str) -> str:
        from heddle_plugins.kubernetes.manifests import read_pod

        return read_pod(file, name)

    def check(self, target: Mapping[str, str]) -> None:
        checked(KubeTarget(**target))

    def manifests(self, fabric: Fabric, shards: Cut, target: Mapping[str, str]) -> Mapping[str, str]:
        from heddle_plugins.kubernetes.manifests import files

        needs = [ShardNeed(each.name, each.nodes, each.memory_bytes, each.cpus) for each in shards.shards]
        return files(fabric.name, owner(), needs, checked(KubeTarget.of({"namespace": NAMESPACE, **target})))

    def probe(self, target: Mapping[str, str], observer: Observer) -> ProbeReport:
        from heddle_plugins.kubernetes.kubeprobe import probe

        return probe(KubeTarget(**target), observer)

    def jobs(self, target: Mapping[str, str]) -> KubeJobs:
        from heddle_plugins.kubernetes.jobs import KubeJobs

        return KubeJobs(KubeTarget(**target))

    def renew_pod(self) -> None:
        from heddle_plugins.kubernetes.podinit import renew

        renew()

    def end_pod(self, *, done: bool) -> None:
        from heddle_plugins.kubernetes.podinit import end_pod

        end_pod(done=done)


KUBERNETES: Final = Kubernetes()
