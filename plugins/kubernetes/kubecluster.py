"""The runtime `kubernetes`: a fabric over the pods of a cluster, one StatefulSet a shard.

In:  a target, and what each shard needs. Out: pods that accept commands, or Problems that name the shard and its nodes.
All objects carry the lab and its owner as labels, so `remove` needs no record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any, Final

from heddle.base import state
from heddle.base.events import Observer
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.tables import some_of
from heddle.fabric.cutting import Cut, cut, fitting_cut
from heddle.fabric.model import Fabric
from heddle.render.dialects import RenderOptions
from heddle.runtimes.clusterkind import Cluster, PodState, ShardCommand, ShardNeed, UnreachableError
from heddle.runtimes.sharded import ShardedRuntime
from heddle.shards.server import RELAY
from heddle_plugins.kubernetes import manifests, podexec
from heddle_plugins.kubernetes.api import RIGHTS, ConflictError, ForbiddenError, KubeApi
from heddle_plugins.kubernetes.manifests import LAB_RULES, OWNER, RULES, AccessRule
from heddle_plugins.kubernetes.podstart import STARTED, Start, about, by_shard, problem_of
from heddle_plugins.kubernetes.podstate import ended_before, pod_state
from heddle_plugins.kubernetes.target import KubeTarget, owner
from heddle_plugins.kubernetes.watch import Watch

_LOOK_S: Final = 1.0  # at the clock, while nothing changes
_GONE_S: Final = 90.0  # until all pods of a removed lab have ended
_FORCE_S: Final = 30.0  # then pods are removed without their nodes: one that does not answer would keep them


class KubeCluster(Cluster):
    """The cluster of a target. The kubeconfig is read when it is first needed."""

    name = "kubernetes"
    python: Sequence[str] = (RELAY,)

    def __init__(self, target: KubeTarget, *, options: Sequence[str] = ()) -> None:
        self._asked, self.options = target, options
        self._answered: dict[str, str] = {}  # incarnation of a pod that has answered -> its address
        self._connection: KubeApi | None = None

    @property
    def api(self) -> KubeApi:
        """The connection."""
        if self._connection is None:
            self._connection = KubeApi(self._asked)
        return self._connection

    @property
    def target(self) -> KubeTarget:
        """The target with the kubeconfig's own context and namespace where none was named: for a lab's record."""
        return self.api.target

    def missing_rights(self, rules: Sequence[AccessRule] = RULES) -> list[str]:
        """The rights that Heddle needs and this user does not have: `create pods/exec`.

        One request lists what a user has; only what is not in there is asked one by one.
        """
        asked = [(verb, rule.group, each) for rule in rules for each in rule.resources for verb in rule.verbs]
        known = self.api.rights()
        absent = [right for right in asked if not any(_allows(rule, *right) for rule in known)]
        return [f"{verb} {each}" for verb, group, each in absent if not self.api.may(verb, group, *each.split("/"))]

    def check_rights(self, rules: Sequence[AccessRule] = LAB_RULES) -> None:
        """MachineError that names all missing rights: before anything is made, which this user could not remove."""
        if absent := self.missing_rights(rules):
            what = f"namespace {self.target.namespace}"
            raise ForbiddenError(Problem("kubernetes", what, f"this user may not: {some_of(absent, 6)}", RIGHTS))

    def create(self, lab: str, shards: Sequence[ShardNeed], observer: Observer) -> None:
        """See Cluster. InputError when the lab's objects are of another owner."""
        with Start(self.api, lab, shards, self.options, self.put, observer) as start:
            start.apply()
            self._answered.update(start.wait())

    def put(self, lab: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or change this user's of that name; as the cluster has it then.

        InputError for one of another user, also where both create theirs at the same moment: one of them is first.
        """
        kind, metadata = manifest["kind"], manifest["metadata"]
        while (made := self.api.create(manifest)) is None:
            found = self.api.get(kind, metadata["name"])
            if found is not None:
                self._check_owner(found, kind, lab, "choose another lab name (--name), or another --namespace")
                with suppress(ConflictError):  # it was replaced meanwhile
                    return self.api.apply({**manifest, "metadata": {**metadata, "uid": found["metadata"]["uid"]}})
        return made

    def check_owner(self, lab: str, hint: str) -> None:
        """InputError when the objects of the lab's name are not this user's."""
        found = self.api.get("ConfigMap", manifests.object_name(lab))
        if found is not None:
            self._check_owner(found, "ConfigMap", lab, hint)

    def _check_owner(self, found: Mapping[str, Any], kind: str, lab: str, hint: str) -> None:
        if (whose := _labels(found).get(OWNER)) != owner():
            place = f"in namespace {self.target.namespace}"
            name = f"has the name of a {kind} {place} ({found['metadata']['name']})"
            why = f"belongs to {whose} {place}" if whose else name
            raise InputError(Problem("kubernetes", f"lab {lab}", why, hint))

    def addresses(self, lab: str) -> Mapping[str, str]:
        states, known = self.states(lab), self._answered
        found = {
            shard: each.address if each.ready else known.get(each.incarnation, "")
            for shard, each in states.items()
            if each.ready or each.fresh
        }
        return {shard: address for shard, address in found.items() if address}

    def argv(self, lab: str, shard: str, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """See Cluster. It needs no connection when the target is complete, as in a lab's record."""
        complete = self._asked.context and self._asked.namespace
        target = self._asked if complete else self.target
        return podexec.argv_of(target, manifests.pod_name(lab, shard), argv, tty=tty)

    def open(self, lab: str, shard: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        """See Cluster. In a thread of this process: one of its own would take 34 MB and a quarter of a second."""
        return podexec.PodProcess(self.api, manifests.pod_name(lab, shard), argv, errors)

    def states(self, lab: str, events: Sequence[Mapping[str, Any]] = ()) -> dict[str, PodState]:
        """Shard -> the state of its pod, of shards that have one."""
        return {shard: pod_state(pod, about(events, lab, shard)) for shard, pod in self.pods(lab).items()}

    def pods(self, lab: str) -> dict[str, dict[str, Any]]:
        """Shard -> its pod."""
        return by_shard(self.api.all("Pod", manifests.selector(lab, owner())))

    def place(self, lab: str, shard: str) -> str:
        found = self.states(lab).get(shard)
        return f" on node {found.node}" if found is not None and found.node else ""

    def events(self) -> list[dict[str, Any]]:
        """The events of the namespace; none when this user may not read them."""
        return list((self.api.read(self.api.path("Event"), "list events") or {}).get("items") or [])

    def lost(self, lab: str) -> list[Problem]:
        """See Cluster. A shard whose container has started again runs, but has nothing of the lab: it is lost, too."""
        config = self.api.get("ConfigMap", manifests.object_name(lab))
        if config is None or _labels(config).get(OWNER) != owner():
            return []
        nodes = {shard: tuple(text.split()) for shard, text in (config.get("data") or {}).items()}
        started = json.loads((config["metadata"].get("annotations") or {}).get(STARTED) or "{}")
        pods = self.pods(lab)
        again = f"./inv up --repair --name {lab}"
        problems, events = [], None
        for shard, its_nodes in nodes.items():
            state = pod_state(pods.get(shard))
            same = started.get(shard, state.incarnation if state.ready else "") == state.incarnation
            if same and (state.ready or state.fresh):
                wrong = None if state.ready else self._refusal(lab, shard)
                if wrong is not None:
                    problems.append(problem_of(shard, its_nodes, f"on node {state.node} {wrong.why}", wrong.hint))
                continue
            events = self.events() if events is None else events
            own = about(events, lab, shard)
            if state.ready:
                reason = ended_before(pods.get(shard), own)
                replaced = not started[shard].startswith(state.uid)
                what = f"has a new pod, on node {state.node}" if replaced else "has started again"
                why = f"{what}, and is empty" + (f": {reason}" if reason else "")
                problems.append(problem_of(shard, its_nodes, why, again))
            else:
                state = pod_state(pods.get(shard), own)
                problems.append(problem_of(shard, its_nodes, state.why, state.hint))
        return problems

    def _refusal(self, lab: str, shard: str) -> Problem | None:
        """Why a shard runs no command; None when it does. Asked while its node has not reported that it runs."""
        try:
            podexec.answer(self.api, manifests.pod_name(lab, shard), ["true"])
        except UnreachableError:
            raise
        except MachineError as error:
            return error.problems[0]
        return None

    def exists(self, lab: str) -> bool:
        chosen = manifests.selector(lab, owner())
        return any(self.api.all(kind, chosen) for kind in manifests.LAB_KINDS)

    def remove(self, lab: str, observer: Observer) -> int:
        """See Cluster. It returns when the last pod has ended. MachineError when pods cannot be ended."""
        return removed(self.api, manifests.LAB_KINDS, manifests.selector(lab, owner()))


def removed(api: KubeApi, kinds: Sequence[str], chosen: str) -> int:
    """Remove all objects of these kinds and labels; their number. It returns when the last pod has ended.

    MachineError when pods cannot be ended.
    """
    count = 0
    for kind in kinds:
        names = [str(each["metadata"]["name"]) for each in api.all(kind, chosen)]
        count += sum(api.delete(kind, name) for name in names)
    begun, forced = time.monotonic(), False
    with Watch(api, "Pod", chosen) as pods:  # from now on: an earlier list may not have all that were made
        while left := [str(each["metadata"]["name"]) for each in pods.now()]:
            waited = time.monotonic() - begun
            if waited > _GONE_S:
                hint = "kubectl delete pod --force removes it; its node may be lost"
                raise MachineError(Problem("kubernetes", f"pod {some_of(left)}", "does not end", hint))
            if waited > _FORCE_S and not forced:
                forced = True
                for name in left:
                    api.delete("Pod", name, grace_s=0)
            pods.wait(_LOOK_S)
    return count


def _labels(each: Mapping[str, Any]) -> Mapping[str, str]:
    return each["metadata"].get("labels") or {}


def _allows(rule: Mapping[str, Any], verb: str, group: str, resource: str) -> bool:
    """Whether a rule of a Role allows this for objects of any name."""
    pairs = (("verbs", verb), ("apiGroups", group), ("resources", resource))
    return not rule.get("resourceNames") and all({word, "*"} & set(rule.get(key) or ()) for key, word in pairs)


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
