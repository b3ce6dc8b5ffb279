"""Why a shard does not run, from objects of the API as a cluster of Kubernetes 1.34 gives them."""

from __future__ import annotations

import json
from typing import Any

from heddle_plugins.kubernetes.api import refused, unreachable
from heddle_plugins.kubernetes.podstate import chosen_address, ended_before, pod_state
from tests.answers import Answers

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


def test_a_container_that_was_never_seen_to_run_may_run_already(answers: Answers) -> None:
    def fresh(status: dict[str, Any], container: dict[str, Any] | None) -> bool:
        state = pod_state(pod(status, container))
        assert not state.ready
        return state.fresh

    answers(fresh)


def test_the_reason_is_in_words(answers: Answers) -> None:
    def reason(found: dict[str, Any] | None, events: list[dict[str, Any]]) -> str:
        state = pod_state(found, events)
        assert not state.ready
        return f"{state.why}\nhint: {state.hint}\npatience: {state.patience_s:g} s"

    answers(reason)


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


def test_refusals_of_the_api_name_the_user_and_the_right(answers: Answers) -> None:
    answers(
        lambda status, message: str(refused(RefusalError(status, message), "create StatefulSet x", "https://c", "labs"))
    )


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


def test_tunnels_use_ipv4_where_a_pod_has_it(answers: Answers) -> None:
    answers(lambda line: chosen_address(line.split()))
