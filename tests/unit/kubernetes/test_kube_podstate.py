"""Why a shard does not run, from objects of the API as a cluster of Kubernetes 1.34 gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heddle_plugins.kubernetes.api import refused, unreachable
from heddle_plugins.kubernetes.podstate import chosen_address, ended_before, pod_state

QUOTA = (
    'create Pod heddle-zone-s1-0 in StatefulSet heddle-zone-s1 failed error: pods "heddle-zone-s1-0" is forbidden: '
    "exceeded quota: small, requested: requests.memory=536870912, used: requests.memory=0, limited: "
    "requests.memory=256Mi"
)
SECURITY = (
    'create Pod heddle-zone-s1-0 in StatefulSet heddle-zone-s1 failed error: pods "heddle-zone-s1-0" is forbidden: '
    'violates PodSecurity "baseline:latest": non-default capabilities (container "shard" must not include '
    '"NET_ADMIN", "SYS_ADMIN" in securityContext.capabilities.add)'
)
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def pod(status: dict[str, Any], container: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    own = {"name": "shard", "image": "heddle-fabric:latest", "ready": False, "restartCount": 0, **(container or {})}
    resources = {"limits": {"memory": "536870912"}}
    spec = {"nodeName": "n1", "containers": [{"image": own["image"], "resources": resources}]}
    return {
        "metadata": {"name": "heddle-zone-s1-0", "uid": "7d1", **metadata},
        "spec": spec,
        "status": {"phase": "Pending", "podIPs": [{"ip": "10.244.1.5"}], "containerStatuses": [own], **status},
    }


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


def event(reason: str, message: str, when: str = "2026-11-28T08:00:00Z") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": when, "metadata": {"uid": when}}


def test_a_pod_that_is_ready_has_an_address_and_a_text_for_its_incarnation() -> None:
    state = pod_state(pod({"phase": "Running"}, {"ready": True, "restartCount": 2}))
    assert state.ready
    assert (state.address, state.node, state.incarnation) == ("10.244.1.5", "n1", "7d1/2")


@pytest.mark.parametrize(
    ("status", "container", "fresh"),
    [
        ({}, waiting("ContainerCreating"), True),
        ({"containerStatuses": []}, None, True),
        ({}, waiting("ErrImageNeverPull"), False),
        ({}, waiting("ContainerCreating", lastState=KILLED), False),
        ({}, {"state": KILLED}, False),
        ({"phase": "Failed"}, None, False),
    ],
)
def test_a_container_that_was_never_seen_to_run_may_run_already(
    status: dict[str, Any], container: dict[str, Any] | None, fresh: bool
) -> None:
    state = pod_state(pod(status, container))
    assert (state.ready, state.fresh) == (False, fresh)


@pytest.mark.parametrize(
    ("found", "events", "words", "hint", "most_s"),
    [
        (pod({}, waiting("ErrImageNeverPull")), [], "image heddle-fabric:latest, which is not on node n1", "load", 0),
        (
            pod({}, waiting("ImagePullBackOff", 'Back-off pulling image "a.example/b:1"', image="a.example/b:1")),
            [],
            "needs image a.example/b:1, which cannot be pulled",
            "--pull-secret",
            30,
        ),
        (pod({}, waiting("InvalidImageName", "couldn't parse")), [], "cannot be pulled: couldn't parse", "", 0),
        (
            pod({}, waiting("CreateContainerError", "unable to apply caps: operation not permitted")),
            [],
            "cannot start on node n1: unable to apply caps",
            "does not allow a capability",
            5,
        ),
        (
            pod({}, waiting("CrashLoopBackOff", "back-off", lastState=KILLED)),
            [],
            "has ended on node n1: it was out of memory",
            "its limit is 536870912 bytes: use more --shards",
            5,
        ),
        (
            pod({}, {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "sysctls: read-only\n"}}}),
            [],
            "has ended on node n1: sysctls: read-only",
            "kubectl logs",
            5,
        ),
        (None, [event("FailedCreate", QUOTA)], "exceeds quota small: requested: requests.memory=5", "quota", 10),
        (None, [event("FailedCreate", SECURITY)], "refused by Pod Security level baseline", "setup kubernetes", 10),
        (None, [], "has no pod", "--repair", 60),
        (
            {**pod({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message":
            "0/2 nodes are available: 2 Insufficient memory. preemption: none"}], "containerStatuses": []}),
            "spec": {"containers": [{}]}},
            [],
            "fits no node: too little free memory",
            "more --shards",
            60,
        ),
        (
            {**pod({"conditions": [{"type": "PodScheduled", "status": "False", "message":
            "0/1 nodes are available: 1 node(s) were unschedulable."}], "containerStatuses": []}),
            "spec": {"containers": [{}]}},
            [],
            "finds no node: 0/1 nodes are available: 1 node(s) were unschedulable.",
            "uncordon",
            60,
        ),
        (
            pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
            [],
            "has failed on node n1: Evicted: The node was low on resource: memory.",
            "--repair",
            300,
        ),
        (
            pod({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
            deletionTimestamp="2026-11-28T08:00:00Z"),
            [],
            "is being removed: evicted, as when its node is drained",
            "--repair",
            300,
        ),
        (
            pod({"conditions": [{"type": "Ready", "status": "False", "reason": "NodeStatusUnknown"}]}, {"ready": True}),
            [],
            "is on node n1, which does not answer",
            "kubectl describe node",
            300,
        ),
        (pod({}, waiting("ContainerCreating")), [event("FailedCreatePodSandBox", "no IP")], "n1: no IP", "network", 30),
        (pod({}, waiting("ContainerCreating")), [], "is starting on node n1", "events", 300),
    ],
)  # fmt: skip
def test_the_reason_is_in_words(
    found: dict[str, Any] | None, events: list[dict[str, Any]], words: str, hint: str, most_s: float
) -> None:
    state = pod_state(found, events)
    assert not state.ready
    assert words in state.why
    assert hint in state.hint
    assert state.patience_s <= most_s


def test_a_container_that_starts_again_is_not_one_that_has_ended() -> None:
    found = pod({"phase": "Running"}, {"state": {"running": {}}, "lastState": KILLED, "restartCount": 1})
    assert pod_state(found).why == "is starting on node n1"
    assert ended_before(found, []) == "it was out of memory"


def test_the_last_event_counts_and_an_eviction_is_remembered_by_its_event() -> None:
    events = [
        event("Evicted", "The node was low on resource: memory.", "2026-11-28T08:00:09Z"),
        event("Evicted", "old", "2026-11-28T07:00:00Z"),
    ]
    assert ended_before(None, events) == "evicted, The node was low on resource: memory."
    assert pod_state(None, events).why.startswith("has no pod: evicted")


class RefusalError(Exception):
    """As the client's ApiException."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, "Reason"
        self.body = json.dumps({"kind": "Status", "message": message})


@pytest.mark.parametrize(
    ("status", "message", "text"),
    [
        (401, "Unauthorized", "https://c  does not accept the credentials of this context"),
        (
            403,
            'statefulsets.apps "heddle-zone-s1" is forbidden: User "ann" cannot patch resource "statefulsets" in API '
            'group "apps" in the namespace "labs"',
            "create StatefulSet x is forbidden: ann may not patch statefulsets in namespace labs",
        ),
        (404, 'namespaces "labs" not found', "namespace labs does not exist"),
        (422, "spec is wrong", "create StatefulSet x was refused (422): spec is wrong"),
    ],
)
def test_refusals_of_the_api_name_the_user_and_the_right(status: int, message: str, text: str) -> None:
    problem = refused(RefusalError(status, message), "create StatefulSet x", "https://c", "labs")
    assert f"{problem.what} {problem.why}" == text.replace("  ", " ")
    if status == 403:
        assert "setup kubernetes" in problem.hint


def test_a_pod_of_an_experiment_has_hints_for_fabrics_and_its_job_says_why_there_is_none() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: 2 Insufficient memory."}
    found = pod({"phase": "Pending", "conditions": [condition]}, {})
    found["spec"] |= {"restartPolicy": "Never", "nodeName": ""}
    state = pod_state(found)
    assert "too little free memory" in state.why and "smaller fabric" in state.hint and not state.gone
    said = 'Error creating: pods "heddle-exp-1-0-x" is forbidden: no such thing'
    assert pod_state(None, [event("FailedCreate", said)]).why == "is refused: no such thing"
    removed = pod({"phase": "Running"}, {"ready": True}, deletionTimestamp="2026-11-28T08:00:00Z")
    assert pod_state(removed).gone and not pod_state(pod({"phase": "Running"}, {"ready": True})).gone


def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    for said, why in {
        "HTTPSConnectionPool(...): [Errno 111] Connection refused": "refuses connections",
        "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed": "has a certificate that this context does not trust",
        "Read timed out. (read timeout=30)": "does not answer in time",
        "something else": "cannot be used: something else",
    }.items():
        assert unreachable(OSError(said), "https://c").why == why


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        ([], ""),
        (["10.0.0.1"], "10.0.0.1"),
        (["fd00::1"], "fd00::1"),
        (["10.0.0.1", "fd00::1"], "10.0.0.1"),
        (["fd00::1", "10.0.0.1"], "10.0.0.1"),
    ],
)
def test_tunnels_use_ipv4_where_a_pod_has_it(addresses: list[str], chosen: str) -> None:
    assert chosen_address(addresses) == chosen
