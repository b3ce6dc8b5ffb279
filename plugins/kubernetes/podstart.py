"""The start of a lab's pods: apply the manifests, then ask the pods until all have answered, or one never will.

In:  a KubeApi, and what each shard needs. Out: their addresses, or a Problem for each shard that has none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.tables import some_of
from heddle.runtimes.clusterkind import USUAL_S, PodState, ShardNeed, UnreachableError
from heddle_plugins.kubernetes import manifests, podexec
from heddle_plugins.kubernetes.api import KubeApi
from heddle_plugins.kubernetes.manifests import READY, SHARD
from heddle_plugins.kubernetes.podstate import chosen_address, pod_state, when
from heddle_plugins.kubernetes.target import owner
from heddle_plugins.kubernetes.watch import Watch

Put = Callable[[str, Mapping[str, Any]], object]
STARTED: Final = "heddle.started"  # annotation: which pod, and which start of its container, the lab was made in
_STEP: Final = "pods"
_TRIES_S: Final = (0.1, 0.5)  # between two tries of a command in a pod: at first, and after some seconds
_PATIENCE_S: Final = 20.0  # for an API that does not answer in the middle of `up`
_SILENT_S: Final = 20.0  # for a pod that runs, and refuses commands or is not ready for a shard
_IMAGE_HINT: Final = "make the image again: ./inv image --archive FILE; kubectl logs shows what the pod says"
_AT_ONCE: Final = 16
_LOOK_S: Final = 1.0  # at the clock, while nothing changes


def by_shard(pods: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Shard -> its pod."""
    return {(pod["metadata"].get("labels") or {}).get(SHARD, ""): pod for pod in pods}


def about(events: Sequence[Mapping[str, Any]], lab: str, shard: str) -> list[Mapping[str, Any]]:
    """The events of a shard's pod and of its StatefulSet."""
    names = {manifests.pod_name(lab, shard), f"{manifests.object_name(lab)}-{shard}"}
    return [each for each in events if (each.get("involvedObject") or {}).get("name") in names]


def problem_of(shard: str, nodes: Sequence[str], why: str, hint: str) -> Problem:
    """`shard s1  (rtsw1, host1, ...) needs image ...`."""
    return Problem(f"shard {shard}", f"({some_of(nodes)})" if nodes else "", why, hint)


class Start:
    """One `create`: apply the manifests, then ask the pods until all have answered, or one never will.

    The first process of a pod says by a file that it is ready. An exec reads it: a kubelet tells the API of a container
    that runs up to a second later, and a probe would begin only then.
    """

    def __init__(
        self, api: KubeApi, lab: str, shards: Sequence[ShardNeed], options: Sequence[str], put: Put, observer: Observer
    ) -> None:
        """options: of the first process of the pods. put: creates an object of the lab, or changes it."""
        self._api, self._lab, self._shards, self._put, self._observer = api, lab, shards, put, observer
        self._objects = manifests.lab_objects(lab, owner(), shards, api.target, options=options)
        changed = threading.Event()
        self._pods = Watch(api, "Pod", manifests.selector(lab, owner()), changed=changed)
        self._events = Watch(api, "Event", changed=changed, optional=True)
        self._old: set[tuple[str, str]] = set()
        self._addresses: dict[str, str] = {}  # of shards that have answered
        self._since: dict[str, tuple[tuple[str, float], float]] = {}  # shard -> its state, and since when

    def __enter__(self) -> Start:
        self._pods.__enter__()
        self._events.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pods.__exit__()
        self._events.__exit__()

    def apply(self) -> None:
        """Create all objects, or change them: the first one is the claim on the lab's name."""
        self._old = {_occurrence(each) for each in self._events.now()}
        for each in self._objects:
            self._put(self._lab, each)

    def wait(self) -> dict[str, str]:
        """Incarnation -> address, when all shards have answered.

        MachineError with one problem for each shard that has not, when one never will.
        """
        self._observer.begin(_STEP, len(self._shards))
        begun = answered = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pods") as pool:
            while True:
                try:
                    states = self._look()
                    states |= dict(pool.map(self._tried, states, states.values()))
                    answered = time.monotonic()
                except UnreachableError:
                    if time.monotonic() - answered > _PATIENCE_S:
                        raise
                    self._pods.wait(_LOOK_S)
                    continue
                waiting = [each for each in self._shards if each.name not in self._addresses]
                self._observer.advance(_STEP, len(self._shards) - len(waiting))
                if not waiting:
                    break
                first = states[waiting[0].name]
                self._observer.waiting(_STEP, f"shard {waiting[0].name} {first.why}")
                if any(self._overdue(each.name, states[each.name]) for each in waiting):
                    wrong = [each for each in waiting if states[each.name].patience_s < USUAL_S] or waiting
                    raise MachineError(*(self._problem(each, states[each.name]) for each in wrong))
                first_s, last_s = _TRIES_S
                tried = any(states[each.name].ready or states[each.name].fresh for each in waiting)
                self._pods.wait(min(last_s, first_s + (time.monotonic() - begun) / 10) if tried else _LOOK_S)
        self._record({shard: each.incarnation for shard, each in states.items()})
        self._observer.end(_STEP, ", ".join(f"{name} on {each.node}" for name, each in sorted(states.items())))
        return {states[shard].incarnation: address for shard, address in self._addresses.items()}

    def _look(self) -> dict[str, PodState]:
        pods = by_shard(self._pods.now())
        new = [each for each in self._events.now() if _occurrence(each) not in self._old]
        names = (each.name for each in self._shards)
        return {name: pod_state(pods.get(name), about(new, self._lab, name)) for name in names}

    def _tried(self, shard: str, state: PodState) -> tuple[str, PodState]:
        """The shard, which may have answered now, and its state: why not, for one that runs and does not answer."""
        if shard in self._addresses or not (state.ready or state.fresh):
            return shard, state
        pod = manifests.pod_name(self._lab, shard)
        why, hint = "is not ready for a shard: its image may be of another version", _IMAGE_HINT
        try:
            said = podexec.answer(self._api, pod, ["sh", "-c", f"cat {READY} || true"])
        except UnreachableError:
            raise
        except MachineError as error:
            said, why, hint = "", error.problems[0].why, error.problems[0].hint
        if said:
            self._addresses[shard] = chosen_address(said.split(","))
        elif state.ready:
            state = replace(state, why=f"runs on node {state.node}, but {why}", hint=hint, patience_s=_SILENT_S)
        return shard, state

    def _overdue(self, shard: str, state: PodState) -> bool:
        key, now = (state.hint, state.patience_s), time.monotonic()
        if self._since.get(shard, ((), 0.0))[0] != key:
            self._since[shard] = key, now
        return now - self._since[shard][1] >= state.patience_s

    def _problem(self, shard: ShardNeed, state: PodState) -> Problem:
        if not state.uid:  # the cluster may not have tried again since the start: what it said before is the reason
            state = pod_state(None, about(self._events.now(), self._lab, shard.name))
        return problem_of(shard.name, shard.nodes, state.why, state.hint)

    def _record(self, started: Mapping[str, str]) -> None:
        """Keep which pods, and which starts of them, have the lab."""
        config = next(each for each in self._objects if each["kind"] == "ConfigMap")
        metadata = {**config["metadata"], "annotations": {STARTED: json.dumps(dict(started))}}
        self._put(self._lab, {**config, "metadata": metadata})


def _occurrence(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event["metadata"].get("uid")), when(event)
