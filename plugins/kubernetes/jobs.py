"""The pods of an experiment as one Indexed Job of Kubernetes: an index is a fabric, and has one pod at a time.

In:  a cluster, a name, and what the pods need. Out: the state of the pod of each index, in the words of podstate.py.
The Job names the process that needs it, so the Job of a killed one is known as a leftover.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from heddle.base.process import start_of
from heddle.runtimes.cluster import ShardCommand
from heddle.runtimes.clusterkind import IndexPod, JobNeed, PodJob, PodState
from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.kubecluster import KubeCluster, removed
from heddle_plugins.kubernetes.manifests import EXPERIMENT, EXPERIMENT_KINDS, INDEX, PROCESS
from heddle_plugins.kubernetes.podexec import PodProcess
from heddle_plugins.kubernetes.podstate import pod_state
from heddle_plugins.kubernetes.target import owner

_DEADLINE_S: Final = 900.0  # from now: the Job's, which `renew` moves
_RENEW_S: Final = 300.0


class IndexedJob(PodJob):
    """One Job: see PodJob."""

    def __init__(self, cluster: KubeCluster, name: str, need: JobNeed) -> None:
        self._cluster, self._name, self._need = cluster, name, need
        self._begun = self._renewed = time.monotonic()
        self._selector = manifests.experiment_selector(owner(), name)

    def create(self) -> None:
        """Make its objects: no pod starts before its policy. The cluster removes the policy with the Job."""
        job, policy = self._objects()
        made = self._cluster.put(self._name, {**job, "spec": {**job["spec"], "suspend": True}})
        uid, name = made["metadata"]["uid"], job["metadata"]["name"]
        whose = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": uid}
        policy["metadata"]["ownerReferences"] = [whose]
        self._cluster.put(self._name, policy)
        self._cluster.api.apply(job)

    def _objects(self) -> list[dict[str, Any]]:
        deadline = time.monotonic() - self._begun + _DEADLINE_S
        return manifests.experiment_objects(
            self._name, owner(), self._need, self._cluster.target, deadline_s=deadline, process=_this_process()
        )

    def renew(self) -> None:
        """Move its deadline, from time to time: this process still needs it."""
        if time.monotonic() - self._renewed > _RENEW_S:
            self._cluster.api.apply(self._objects()[0])
            self._renewed = time.monotonic()

    def pods(self) -> Mapping[int, IndexPod]:
        """Index -> its newest pod. Why one is not ready is in its state; events are read only while one starts."""
        pods = self._cluster.api.all("Pod", self._selector)
        starting = any((pod.get("status") or {}).get("phase") == "Pending" for pod in pods)
        events = self._cluster.events() if starting else []
        found = {}
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
            name, uid = str(pod["metadata"]["name"]), str(pod["metadata"]["uid"])
            index = int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))
            found[index] = IndexPod(name, uid, pod_state(pod, _about(events, name)))
        return found

    def absent(self) -> PodState:
        """Why there is no pod: the Job's end, or why the cluster makes none."""
        name = manifests.object_name(self._name)
        jobs = self._cluster.api.all("Job", self._selector)
        if not jobs:
            return PodState(False, "has no pod: its Job was deleted", patience_s=0.0)
        for each in (jobs[0].get("status") or {}).get("conditions") or []:
            if each.get("type") in ("Failed", "FailureTarget") and each.get("status") == "True":
                return PodState(False, f"has no pod: its Job has ended: {each.get('message')}", patience_s=0.0)
        return pod_state(None, _about(self._cluster.events(), name))

    def delete(self, pod: str) -> None:
        """Remove a pod at once; its index gets a new one, but only once."""
        self._cluster.api.delete("Pod", pod, grace_s=0)

    def open(self, pod: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        """Start argv in a pod, with pipes. errors: see heddle.runtimes.cluster.Cluster."""
        return PodProcess(self._cluster.api, pod, argv, errors)

    def remove(self) -> None:
        """Remove all of it; it returns when the last pod has ended."""
        removed(self._cluster.api, EXPERIMENT_KINDS, self._selector)


def _about(events: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [each for each in events if (each.get("involvedObject") or {}).get("name") == name]


def remove_leftovers(cluster: KubeCluster) -> int:
    """Remove the Jobs of this owner in the namespace whose process on this machine was killed, with all they have made.

    Returns their number.
    """
    jobs = cluster.api.all("Job", manifests.experiment_selector(owner()))
    lost = [each["metadata"]["labels"][EXPERIMENT] for each in jobs if _killed(each["metadata"].get("annotations"))]
    for name in lost:
        removed(cluster.api, EXPERIMENT_KINDS, manifests.experiment_selector(owner(), str(name)))
    return len(lost)


def _this_process() -> str:
    return f"{_boot()} {os.getpid()} {start_of(os.getpid())}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _killed(annotations: Mapping[str, str] | None) -> bool:
    """Whether a Job names a process of this machine that has ended. The cluster removes those of other machines."""
    words = (annotations or {}).get(PROCESS, "").split()
    return len(words) == 3 and words[0] == _boot() and str(start_of(int(words[1]))) != words[2]
