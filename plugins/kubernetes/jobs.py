"""The pods of an experiment as one Indexed Job of Kubernetes: an index is a fabric, and has one pod at a time.

In:  a cluster, a name, and what the pods need. Out: the state of the pod of each index, in the words of podstate.py.
The Job names the process that needs it, so the Job of a killed one is known as a leftover.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from heddle.base.process import start_of
from heddle.runtimes.clusterkind import IndexPod, JobNeed, PodJob, PodJobs, PodState, ShardCommand
from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.kubecluster import KubeCluster, removed
from heddle_plugins.kubernetes.manifests import EXPERIMENT, EXPERIMENT_KINDS, INDEX, PROCESS
from heddle_plugins.kubernetes.podexec import PodProcess
from heddle_plugins.kubernetes.podstate import pod_state
from heddle_plugins.kubernetes.target import KubeTarget, owner
from heddle_plugins.kubernetes.watch import Watch

_DEADLINE_S: Final = 900.0  # from now: the Job's, which `renew` moves
_RENEW_S: Final = 300.0


class IndexedJob(PodJob):
    """One Job: see PodJob."""

    def __init__(self, cluster: KubeCluster, name: str, need: JobNeed) -> None:
        self._cluster, self._name, self._need = cluster, name, need
        self._begun = self._renewed = time.monotonic()
        self._selector = manifests.experiment_selector(owner(), name)
        self._pods = Watch(cluster.api, "Pod", self._selector)
        self._events = Watch(cluster.api, "Event", optional=True)
        self._watching = ExitStack()

    def create(self) -> None:
        """Make its objects: no pod starts before its policy. The cluster removes the policy with the Job."""
        for each in (self._pods, self._events):
            self._watching.enter_context(each)
        job, policy = self._objects()
        made = self._cluster.put(self._name, {**job, "spec": {**job["spec"], "suspend": True}})
        uid, name = made["metadata"]["uid"], job["metadata"]["name"]
        whose = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": uid}
        policy["metadata"]["ownerReferences"] = [whose]
        self._cluster.put(self._name, policy)
        self._cluster.api.apply(job)

    def _objects(self) -> list[dict[str, Any]]:
        deadline, pid = time.monotonic() - self._begun + _DEADLINE_S, os.getpid()
        process = f"{_boot()} {pid} {start_of(pid)}"
        return manifests.experiment_objects(
            self._name, owner(), self._need, self._cluster.target, deadline_s=deadline, process=process
        )

    def renew(self) -> None:
        if time.monotonic() - self._renewed > _RENEW_S:
            self._cluster.api.apply(self._objects()[0])
            self._renewed = time.monotonic()

    def pods(self) -> Mapping[int, IndexPod]:
        """Index -> its newest pod. Why one is not ready is in its state."""
        events, found = self._events.now(), {}
        for pod in sorted(self._pods.now(), key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
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
        return pod_state(None, _about(self._events.now(), name))

    def delete(self, pod: str) -> None:
        self._cluster.api.delete("Pod", pod, grace_s=0)

    def open(self, pod: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        return PodProcess(self._cluster.api, pod, argv, errors)

    def remove(self) -> None:
        self._watching.close()
        removed(self._cluster.api, EXPERIMENT_KINDS, self._selector)


def _about(events: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [each for each in events if (each.get("involvedObject") or {}).get("name") == name]


class KubeJobs(PodJobs):
    """The Jobs of this owner in a namespace."""

    def __init__(self, target: KubeTarget) -> None:
        self._cluster = KubeCluster(target)
        self.python: Sequence[str] = self._cluster.python

    def check(self) -> None:
        self._cluster.check_rights(manifests.EXPERIMENT_RULES)

    def remove_leftovers(self) -> int:
        jobs = self._cluster.api.all("Job", manifests.experiment_selector(owner()))
        lost = [each["metadata"]["labels"][EXPERIMENT] for each in jobs if _killed(each["metadata"].get("annotations"))]
        for name in lost:
            removed(self._cluster.api, EXPERIMENT_KINDS, manifests.experiment_selector(owner(), str(name)))
        return len(lost)

    def job(self, name: str, need: JobNeed) -> IndexedJob:
        return IndexedJob(self._cluster, name, need)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def _killed(annotations: Mapping[str, str] | None) -> bool:
    """Whether a Job names a process of this machine that has ended. The cluster removes those of other machines."""
    words = (annotations or {}).get(PROCESS, "").split()
    return len(words) == 3 and words[0] == _boot() and str(start_of(int(words[1]))) != words[2]
