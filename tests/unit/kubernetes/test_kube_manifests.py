"""Manifests of Kubernetes: every field is one of the API, and the objects are what docs/kubernetes.md promises."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from kubernetes import client

from heddle.base.problems import InputError
from heddle.runtimes.clusterkind import JobNeed, ShardNeed
from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.target import KubeTarget, checked
from tests.answers import Answers

TARGET = KubeTarget("lab", "labs", "registry.example/heddle:1", "password")
SHARDS = (
    ShardNeed("s1", ("rtsw1", "host1", "host2"), 300 << 20, 0.75),
    ShardNeed("s2", ("rtsw2", "host3"), 200 << 20, 0.0001),
)
MODELS = {
    "ConfigMap": client.V1ConfigMap,
    "Service": client.V1Service,
    "NetworkPolicy": client.V1NetworkPolicy,
    "PodDisruptionBudget": client.V1PodDisruptionBudget,
    "ValidatingAdmissionPolicy": client.V1ValidatingAdmissionPolicy,
    "ValidatingAdmissionPolicyBinding": client.V1ValidatingAdmissionPolicyBinding,
    "StatefulSet": client.V1StatefulSet,
    "Job": client.V1Job,
    "Namespace": client.V1Namespace,
    "ServiceAccount": client.V1ServiceAccount,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
}


def unknown(kind: str, value: Any, where: str = "") -> list[str]:
    """The paths of fields that the API's own model does not have, or that have another type there."""
    if kind.startswith("list["):
        return [each for index, item in enumerate(value) for each in unknown(kind[5:-1], item, f"{where}[{index}]")]
    if kind.startswith("dict("):
        return [] if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()) else [where]
    model = getattr(client, kind, None)
    if model is None:
        types: dict[str, type] = {"str": str, "int": int, "bool": bool, "object": object}
        return [] if isinstance(value, types[kind]) else [where]
    names = {json: name for name, json in model.attribute_map.items()}
    wrong = [f"{where}.{key}" for key in value if key not in names]
    for key in value.keys() & names.keys():
        wrong += unknown(model.openapi_types[names[key]], value[key], f"{where}.{key}")
    return wrong


def objects() -> list[dict[str, Any]]:
    return manifests.lab_objects("zone", "ann-1a2b", SHARDS, TARGET)


def experiment(parallel: int | None = None) -> list[dict[str, Any]]:
    need = JobNeed("sizes: 2 of them", 3, SHARDS[0], parallel)
    return manifests.experiment_objects("exp-1a", "ann-1a2b", need, TARGET, deadline_s=900.4, process="boot 1 2")


def test_every_field_is_one_of_the_api_with_its_type() -> None:
    texts = manifests.files("zone", "ann-1a2b", SHARDS, TARGET).values()
    found = [*experiment(), *(each for text in texts for each in yaml.safe_load_all(text))]
    assert {each["kind"] for each in found} == set(MODELS)
    assert [path for each in found for path in unknown(MODELS[each["kind"]].__name__, each, each["kind"])] == []


def test_the_check_of_fields_finds_a_wrong_one() -> None:
    pod = {"spec": {"containers": [{"name": "a", "securityContext": {"capabilites": {}, "runAsUser": "0"}}]}}
    assert sorted(unknown("V1Pod", pod)) == [
        ".spec.containers[0].securityContext.capabilites",
        ".spec.containers[0].securityContext.runAsUser",
    ]


def test_every_object_of_a_lab_carries_its_lab_and_its_owner_and_is_in_the_namespace() -> None:
    for each in objects():
        labels = each["metadata"]["labels"]
        assert each["metadata"]["namespace"] == "labs"
        assert labels["app.kubernetes.io/name"] == "heddle"
        assert (labels[manifests.LAB], labels[manifests.OWNER]) == ("zone", "ann-1a2b")
        assert each["kind"] in manifests.LAB_KINDS


def test_a_shard_is_a_pod_with_three_capabilities_and_its_own_memory() -> None:
    sets = [each for each in objects() if each["kind"] == "StatefulSet"]
    assert [each["metadata"]["name"] for each in sets] == ["heddle-zone-s1", "heddle-zone-s2"]
    memory = []
    for each in sets:
        assert each["spec"]["replicas"] == 1
        spec = each["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["securityContext"]["capabilities"] == {"add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]}
        assert container["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["imagePullSecrets"] == [{"name": "password"}]
        text = str(each)
        assert "privileged" not in text
        assert "host" not in text.replace("hostname", "")  # no host's network, path or process IDs
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests["memory"] == limits["memory"]
        memory.append((requests["memory"], requests["cpu"]))
    assert memory == [(str(300 << 20), "750m"), (str(200 << 20), "100m")]


@pytest.mark.parametrize(("cpus", "requested"), [(0.02, "100m"), (0.34, "340m"), (23.0, "1000m")])
def test_a_large_shard_requests_no_more_processors_than_a_small_node_has(cpus: float, requested: str) -> None:
    made = manifests.lab_objects("zone", "ann-1a2b", [ShardNeed("s1", ("rtsw1",), 1 << 30, cpus)], KubeTarget())
    (container,) = made[-1]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == requested
    assert "cpu" not in container["resources"]["limits"]


def test_an_experiment_is_an_indexed_job_whose_pods_are_as_shards_and_have_no_network() -> None:
    job, policy = experiment()
    spec, labels = job["spec"], {manifests.EXPERIMENT: "exp-1a", manifests.OWNER: "ann-1a2b"}
    for each in (job, policy, spec["template"]):
        assert labels.items() <= each["metadata"]["labels"].items()
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "heddle"
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert (spec["backoffLimitPerIndex"], spec["activeDeadlineSeconds"]) == (1, 900)
    assert policy["spec"] == {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress", "Egress"]}
    (shard, *_) = [each for each in objects() if each["kind"] == "StatefulSet"]
    own, other = spec["template"]["spec"], shard["spec"]["template"]["spec"]
    for key in ("automountServiceAccountToken", "enableServiceLinks", "imagePullSecrets"):
        assert own[key] == other[key]
    (container,), (of_shard,) = own["containers"], other["containers"]
    for key in ("securityContext", "resources", "image", "imagePullPolicy", "env"):
        assert container[key] == of_shard[key]
    assert own["restartPolicy"] == "Never"


def test_pods_of_an_experiment_share_a_node_only_where_their_number_is_given() -> None:
    alone, several = (experiment(parallel)[0]["spec"] for parallel in (None, 2))
    assert "podAntiAffinity" in alone["template"]["spec"]["affinity"]
    assert several["parallelism"] == 2 and "affinity" not in several["template"]["spec"]


def test_labs_do_not_need_the_rights_of_experiments() -> None:
    assert "jobs" not in {name for rule in manifests.LAB_RULES for name in rule.resources}
    assert {*manifests.LAB_RULES} | {*manifests.EXPERIMENT_RULES} == {*manifests.RULES}


def test_the_cut_is_in_a_config_map() -> None:
    config = next(each for each in objects() if each["kind"] == "ConfigMap")
    assert config["data"] == {"s1": "rtsw1 host1 host2", "s2": "rtsw2 host3"}


def test_a_policy_lets_the_shards_reach_each_other_and_nothing_else() -> None:
    policy = next(each for each in objects() if each["kind"] == "NetworkPolicy")["spec"]
    chosen = {manifests.LAB: "zone", manifests.OWNER: "ann-1a2b"}
    assert policy["podSelector"] == {"matchLabels": chosen}
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
    assert policy["egress"] == [{"to": [{"podSelector": {"matchLabels": chosen}}]}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_an_image_without_a_registry_is_never_pulled(answers: Answers) -> None:
    def policy(image: str) -> object:
        made = manifests.lab_objects("zone", "ann-1a2b", SHARDS, KubeTarget(image=image, namespace="labs"))
        return made[-1]["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"]

    answers(policy)


def test_names_that_cannot_be_in_a_manifest_are_refused() -> None:
    target = KubeTarget(namespace="Labs", image='a"\nprivileged: true', pull_secret="../x")
    with pytest.raises(InputError) as caught:
        checked(target)
    assert [each.what.split()[0] for each in caught.value.problems] == ["--namespace", "--pull-secret", "--image"]
    assert checked(TARGET) == TARGET


def test_a_target_passes_a_record() -> None:
    assert KubeTarget.of({**TARGET.to_json(), "dialect": "linux"}) == TARGET
