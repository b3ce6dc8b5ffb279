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
from tests.answers import Answers
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


def test_what_would_change_the_shape_of_pods_is_an_error_with_its_line(tmp_path: Path, answers: Answers) -> None:
    def read(text: str) -> object:
        (tmp_path / "p.yml").write_text(f"{text}\n")
        return read_pod(tmp_path / "p.yml", "p.yml")

    answers(read)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "4789x", "9" * 400])
def test_a_port_of_tunnels_that_is_none_is_refused(port: str) -> None:
    from heddle_plugins.kubernetes.target import checked

    with pytest.raises(InputError, match="is not a UDP port"):
        checked(KubeTarget(tunnel_port=port))
    assert checked(KubeTarget(tunnel_port="4789")).tunnel_port == "4789"
