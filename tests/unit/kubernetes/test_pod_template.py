"""`--pod FILE`: what it may say, what it may not, and what becomes of it in manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.runtimes.clusterkind import JobNeed
from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.manifests import read_pod
from heddle_plugins.kubernetes.target import KubeTarget
from tests.unit.kubernetes.test_kube_manifests import MODELS, SHARDS, unknown

WHOLE = """\
metadata:
  annotations: {team: "nets", karpenter.sh/do-not-disrupt: "false"}
  labels: {cost-centre: "17"}
spec:
  nodeSelector: {pool: labs, kubernetes.io/arch: arm64}
  tolerations:
    - {key: lab, operator: Equal, value: mine, effect: NoSchedule}
    - {key: gone, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  topologySpreadConstraints:
    - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, minDomains: 1}
  priorityClassName: batch
  runtimeClassName: runc
  schedulerName: other
  imagePullSecrets: [{name: second}]
  containers:
    - resources:
        requests: {cpu: 250m, ephemeral-storage: 1Gi}
        limits: {cpu: 2, memory: 2Gi}
"""


def pods(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    """The pods' templates of a lab and of an experiment."""
    file = tmp_path / "pod.yml"
    file.write_text(text)
    target = KubeTarget("c", "labs", pull_secret="first", pod=read_pod(file, "pod.yml"))
    job = JobNeed("t", 2, SHARDS[0], 2)
    made = [
        *manifests.lab_objects("zone", "ann", SHARDS[:1], target),
        *manifests.experiment_objects("exp-1", "ann", job, target, deadline_s=9, process="a 1 2"),
    ]
    assert [path for each in made for path in unknown(MODELS[each["kind"]].__name__, each)] == []
    return [each["spec"]["template"] for each in made if each["kind"] in ("StatefulSet", "Job")]


def test_what_a_template_has_is_in_all_pods_and_their_shape_stays(tmp_path: Path) -> None:
    plain = pods(tmp_path, "spec: {}\n")
    for before, made in zip(plain, pods(tmp_path, WHOLE), strict=True):
        labels, spec, own = made["metadata"]["labels"], made["spec"], before["spec"]
        assert labels == {**before["metadata"]["labels"], "cost-centre": "17"}
        assert made["metadata"]["annotations"] == {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "false",
            "team": "nets",
        }  # fmt: skip
        assert spec["nodeSelector"] == {"pool": "labs", "kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux"}
        assert [each["key"] for each in spec["tolerations"]] == ["lab", "gone"]
        assert spec["imagePullSecrets"] == [{"name": "first"}, {"name": "second"}]
        words = ("priorityClassName", "runtimeClassName", "schedulerName")
        assert [spec[word] for word in words] == ["batch", "runc", "other"]
        (container,), (usual,) = spec["containers"], own["containers"]
        assert container["resources"] == {
            "requests": {"memory": "2Gi", "cpu": "250m", "ephemeral-storage": "1Gi"},
            "limits": {"memory": "2Gi", "cpu": "2", "ephemeral-storage": "1Gi"},
        }
        assert {**container, "resources": 0} == {**usual, "resources": 0}
    assert pods(tmp_path, WHOLE)[0]["spec"]["topologySpreadConstraints"] == [
        {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1,
         "labelSelector": {"matchLabels": {"heddle.lab": "zone", "heddle.owner": "ann"}}}
    ]  # fmt: skip


def test_without_a_template_shards_are_spread_and_kept_and_have_all_limits(tmp_path: Path) -> None:
    (made, _) = pods(tmp_path, "metadata: {}\n")
    (spread,) = made["spec"]["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["whenUnsatisfiable"]) == (1, "DoNotSchedule")
    assert spread["nodeTaintsPolicy"] == "Honor", "a node that takes no shard does not count"
    assert set(made["metadata"]["annotations"].values()) == {"false", "true"}
    assert made["spec"]["nodeSelector"]["kubernetes.io/arch"] in ("amd64", "arm64")
    (container,) = made["spec"]["containers"]
    assert {*container["resources"]["requests"]} == {"cpu", "memory", "ephemeral-storage"}
    assert {*container["resources"]["limits"]} == {"memory", "ephemeral-storage"}
    assert (container["resources"]["requests"]["memory"], container["resources"]["limits"]["memory"]) == (
        str(SHARDS[0].memory_bytes), str(SHARDS[0].memory_bytes),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec: {hostNetwork: true}", "p.yml:1  spec.hostNetwork: true is not a key of a pod's template"),
        ("spec: {hostPID: true}", "spec.hostPID: true is not a key"),
        ("spec:\n  volumes: [{name: v, hostPath: {path: /}}]", "p.yml:2  spec.volumes is not a key"),
        ("spec: {serviceAccountName: admin}", "spec.serviceAccountName: admin is not a key"),
        ("spec: {automountServiceAccountToken: true}", "is not a key"),
        ("spec: {nodeName: n1}", "spec.nodeName: n1 is not a key"),
        ("spec: {containers: [{command: [sh]}]}", "spec.containers[0].command is not a key"),
        ("spec: {containers: [{image: x}]}", "spec.containers[0].image: x is not a key"),
        ("spec: {containers: [{securityContext: {privileged: true}}]}", "containers[0].securityContext is not a key"),
        ("spec: {containers: [{}, {}]}", "spec.containers is not one container"),
        ("spec: {containers: []}", "spec.containers is not one container"),
        ("spec: {initContainers: []}", "spec.initContainers is not a key"),
        ("spec: {restartPolicy: Never}", "spec.restartPolicy: Never is not a key"),
        ("spec: {tolerations: {key: a}}", "spec.tolerations is not a list"),
        ("spec: {tolerations: [{keys: a}]}", "spec.tolerations[0].keys: a is not a key"),
        ("spec: {tolerations: [{key: a, tolerationSeconds: x}]}", "is not a whole number"),
        ("spec: {nodeSelector: {a: true}}", "spec.nodeSelector.a: true is not a text"),
        ("spec: {nodeSelector: [a]}", "spec.nodeSelector is not keys and values"),
        ("spec: {priorityClassName: 5}", "spec.priorityClassName: 5 is not a text"),
        ("spec: {priorityClassName: [a]}", "spec.priorityClassName is not a text"),
        ("spec: {containers: [{resources: {limits: {memory: lots}}}]}", "memory: lots is not a quantity of Kubernetes"),
        ("spec: {containers: [{resources: {limits: {memory: -1}}}]}", "memory: -1 is not a quantity"),
        ("spec: {containers: [{resources: {limits: {memory: true}}}]}", "memory: true is not a quantity"),
        ("spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}", "nvidia.com/gpu: 1 is not a key"),
        ("spec: {containers: [{resources: {claims: []}}]}", "resources.claims is not a key"),
        ("spec: 5", "spec: 5 is not keys and values"),
        ("metadata: {labels: {heddle.owner: me}}", "metadata.labels.heddle.owner: me is a label of Heddle"),
        ("metadata: {labels: {app.kubernetes.io/name: x}}", "is a label of Heddle"),
        ("metadata: {name: x}", "metadata.name: x is not a key"),
        ("metadata: {annotations: {a: 1}}", "metadata.annotations.a: 1 is not a text"),
        ("kind: Pod", "kind: Pod is not a key"),
        ("[1]", "holds a list"),
        ("", "is empty"),
        ("a: [", "p.yml"),
        ("a: &a {b: *a}", "p.yml"),
    ],
)
def test_what_would_change_the_shape_of_pods_is_an_error_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text(f"{text}\n")
    with pytest.raises(InputError) as caught:
        read_pod(file, "p.yml")
    assert said in str(caught.value)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "4789x", "9" * 400])
def test_a_port_of_tunnels_that_is_none_is_refused(port: str) -> None:
    from heddle_plugins.kubernetes.target import checked

    with pytest.raises(InputError, match="is not a UDP port"):
        checked(KubeTarget(tunnel_port=port))
    assert checked(KubeTarget(tunnel_port="4789")).tunnel_port == "4789"
