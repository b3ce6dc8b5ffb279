"""Why a shard does not run: what a pod's status and the events of the cluster say, in words.

In:  objects of the API as dicts. Out: PodState. Nothing is asked here.
Sources: the API reference of PodStatus, the reasons in k8s.io/kubernetes/pkg/kubelet/{container,images,events}, and
StatefulSet's event FailedCreate, which carries the refusals of admission: quota and Pod Security.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from heddle.runtimes.clusterkind import USUAL_S, PodState
from heddle_plugins.kubernetes.api import quota_words
from heddle_plugins.kubernetes.manifests import is_local

_LOAD: Final = "docs/kubernetes.md: load the image into the nodes, or push it to a registry and use --image"
_PRIVILEGED: Final = "run ./inv setup kubernetes: it prints the manifest that allows it"
_AGAIN: Final = "./inv up --repair"
_FEWER: Final = "use more --shards, so that each is smaller, or larger nodes"
_LARGER: Final = "use larger nodes, or a smaller fabric"
# A reason of a container that waits -> how long it may last (s), and the words for it.
_IMAGE: Final = {
    "ErrImageNeverPull": 0.0,
    "InvalidImageName": 0.0,
    "ErrImagePull": 20.0,
    "ImagePullBackOff": 5.0,
    "RegistryUnavailable": 20.0,
    "ImageInspectError": 5.0,
}
_START: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "PostStartHookError"}
)
_CREATING: Final = "ContainerCreating"
_CAPABILITY: Final = "this node's container runtime does not allow a capability: use other nodes"
_NO_NODE: Final = {  # words of the scheduler -> hint
    "unschedulable": "kubectl uncordon NODE when its maintenance has ended",
    "untolerated taint": "use tolerations in --pod FILE",
    "affinity/selector": "use nodeSelector in --pod FILE: kubectl get nodes --show-labels (also kubernetes.io/arch)",
    "topology spread": "shards are spread evenly: free a node, or use topologySpreadConstraints in --pod FILE",
}
_MEMORY: Final = re.compile(r"Insufficient (memory|cpu|pods|ephemeral-storage)")


def pod_state(pod: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]] = ()) -> PodState:
    """The state of a shard from its pod, which may be missing, and the events of the pod and of its StatefulSet."""
    if pod is None:
        return _absent(events)
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    containers = status.get("containerStatuses") or [{}]
    own: Mapping[str, Any] = containers[0]
    facts: dict[str, Any] = {
        "uid": str(pod["metadata"].get("uid", "")),
        "restarts": int(own.get("restartCount") or 0),
        "address": chosen_address([str(each.get("ip") or "") for each in status.get("podIPs") or []]),
        "node": str(spec.get("nodeName") or ""),
    }
    if pod["metadata"].get("deletionTimestamp"):
        return PodState(False, f"is being removed{_disruption(status)}", _AGAIN, gone=True, **facts)
    if status.get("phase") == "Failed":
        said = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        why = f"has failed{_on(facts)}: {said or _ended(own) or 'no reason is given'}"
        return PodState(False, why, _AGAIN, gone=True, **facts)
    if own.get("ready") and facts["address"]:
        gone = next((each for each in _conditions(status, "Ready") if each.get("status") != "True"), None)
        if gone is not None and gone.get("reason") != "ContainersNotReady":
            why = f"is on node {facts['node']}, which does not answer the cluster"
            return PodState(False, why, "check the node: kubectl describe node", gone=True, **facts)
        return PodState(True, **facts)
    why, hint, patience = _not_ready(own, status, spec, events)
    state: Mapping[str, Any] = own.get("state") or {}
    waits = (state.get("waiting") or {}).get("reason", _CREATING) == _CREATING and "terminated" not in state
    return PodState(
        False, why, hint, patience, **facts, fresh=bool(facts["node"]) and waits and not own.get("lastState")
    )


def chosen_address(addresses: Sequence[str]) -> str:
    """Of a pod's addresses the one for tunnels: IPv4 if there is one, since it fragments frames. Empty without any."""
    return next((each for each in addresses if ":" not in each), next(iter(addresses), ""))


def _absent(events: Sequence[Mapping[str, Any]]) -> PodState:
    said = _last(events, "FailedCreate")
    if not said:
        return PodState(False, f"has no pod{_eviction(events)}", _AGAIN, 60.0)
    if "exceeded quota" in said:
        return PodState(False, quota_words(said), "raise the quota, or use another --namespace or fewer nodes", 8.0)
    if "violates PodSecurity" in said:
        found = re.search(r'violates PodSecurity "([^":]+)', said)
        level = found[1] if found else "restricted"
        return PodState(False, f"is refused by Pod Security level {level} of the namespace", _PRIVILEGED, 4.0)
    if "failed quota" in said or "must specify" in said:
        return PodState(False, f"is refused by the quota: {_short(said)}", "ask who set the quota", 8.0)
    return PodState(False, f"is refused: {_short(said)}", "kubectl get events shows it", 8.0)


def _not_ready(
    own: Mapping[str, Any], status: Mapping[str, Any], spec: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> tuple[str, str, float]:
    """Words, hint and patience for a pod that is not ready."""
    waiting: Mapping[str, Any] = (own.get("state") or {}).get("waiting") or {}
    reason, said = str(waiting.get("reason") or ""), " ".join(str(waiting.get("message") or "").split())
    image = str(own.get("image") or (spec.get("containers") or [{}])[0].get("image") or "")
    node = str(spec.get("nodeName") or "")
    if reason in _IMAGE:
        at = said.rfind("failed to ")  # the last of several is the cause
        pulled = f"cannot be pulled: {said[max(0, at) :] or reason}"
        detail = f"is not on node {node}" if reason == "ErrImageNeverPull" else pulled
        hint = _LOAD if is_local(image) else "check the name (--image) and the registry's password (--pull-secret)"
        return f"needs image {image}, which {detail}", hint, _IMAGE[reason]
    if reason in _START:
        hint = (
            _CAPABILITY if "apply caps" in said or "capabilit" in said else f"kubectl describe pod shows it ({reason})"
        )
        return f"cannot start on node {node}: {said or reason}", hint, 3.0
    if "running" not in (own.get("state") or {}) and (ended := _ended(own)):
        memory = (spec.get("containers") or [{}])[0].get("resources", {}).get("limits", {}).get("memory", "")
        again = _LARGER if _of_job(spec) else "use more --shards"
        hint = f"its limit is {memory} bytes: {again}" if "memory" in ended else "kubectl logs shows more"
        return f"has ended on node {node}: {ended}", hint, 3.0
    for each in _conditions(status, "PodScheduled"):
        if each.get("status") == "False":
            return _unscheduled(
                str(each.get("message") or each.get("reason") or ""), _LARGER if _of_job(spec) else _FEWER
            )
    if mounted := _last(events, "FailedCreatePodSandBox") or _last(events, "FailedMount"):
        return f"cannot start on node {node}: {_short(mounted)}", "the node's network or storage: see its logs", 30.0
    return f"is starting on node {node}" if node else "waits for a node", "kubectl get events shows more", USUAL_S


def _of_job(spec: Mapping[str, Any]) -> bool:
    """Whether a pod is one of an experiment: a shard's starts again."""
    return bool(spec.get("restartPolicy") == "Never")


def _unscheduled(said: str, hint: str) -> tuple[str, str, float]:
    short = sorted(set(_MEMORY.findall(said)))
    if short:
        return f"fits no node: too little free {' and '.join(short)} ({_short(said)})", hint, 45.0
    hints = [text for word, text in _NO_NODE.items() if word in said]
    return f"finds no node: {_short(said)}", "; ".join(hints) or "kubectl get nodes shows their states", 45.0


def ended_before(pod: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]]) -> str:
    """Why the former container or pod of a shard ended; empty when nothing says it."""
    if pod is not None:
        own: Mapping[str, Any] = ((pod.get("status") or {}).get("containerStatuses") or [{}])[0]
        if ended := _ended(own):
            return ended
    return _eviction(events).removeprefix(": ")


def _ended(own: Mapping[str, Any]) -> str:
    """How the container ended, now or before its last restart; empty when it did not."""
    for key in ("state", "lastState"):
        ended: Mapping[str, Any] = (own.get(key) or {}).get("terminated") or {}
        if not ended:
            continue
        reason, code = str(ended.get("reason") or ""), ended.get("exitCode")
        if reason == "OOMKilled":
            return "it was out of memory"
        said = _short(str(ended.get("message") or ""))
        return said or f"exit code {code}" + (f" ({reason})" if reason not in ("", "Error") else "")
    return ""


_CAUSES: Final = {
    "EvictionByEvictionAPI": "evicted, as when its node is drained",
    "DeletionByTaintManager": "its node has a taint, as when it does not answer",
    "PreemptionByScheduler": "a pod with a higher priority needs its place",
    "TerminationByKubelet": "evicted by its node, which is short of memory or disk, or shuts down",
    "DeletionByPodGC": "its node is gone",
}


def _disruption(status: Mapping[str, Any]) -> str:
    for each in _conditions(status, "DisruptionTarget"):
        if each.get("status") == "True":
            return ": " + _CAUSES.get(str(each.get("reason")), _short(str(each.get("message") or "")))
    return ""


def _eviction(events: Sequence[Mapping[str, Any]]) -> str:
    for reason in ("Evicted", "TaintManagerEviction", "Preempted", "NodeNotReady"):
        if said := _last(events, reason):
            return f": {reason.lower()}, {_short(said)}"
    return ""


def _last(events: Sequence[Mapping[str, Any]], reason: str) -> str:
    found = [each for each in events if each.get("reason") == reason]
    return str(max(found, key=when).get("message") or "") if found else ""


def when(event: Mapping[str, Any]) -> str:
    """The time of an event, as RFC 3339 text: newer ones have only some of the fields."""
    series: Mapping[str, Any] = event.get("series") or {}
    found = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, found), ""))


def _conditions(status: Mapping[str, Any], kind: str) -> Iterable[Mapping[str, Any]]:
    return [each for each in status.get("conditions") or [] if each.get("type") == kind]


def _on(facts: Mapping[str, Any]) -> str:
    return f" on node {facts['node']}" if facts["node"] else ""


def _short(said: str) -> str:
    """One line, without the names of objects that the cluster repeats."""
    line = " ".join(said.split())
    line = line.partition(" no new claims to deallocate")[0]
    made = r"(create Pod \S+ in StatefulSet \S+ failed error|Error creating)"  # by a StatefulSet, by a Job
    line = re.sub(rf'^{made}: (pods "[^"]*" is forbidden: )?', "", line)
    return line if len(line) <= 300 else line[:297] + "..."
