"""Shards as pods of a real cluster: they start, run commands, are lost for a reason, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError, Problem
from heddle.runtimes.clusterkind import ShardNeed
from heddle_plugins.kubernetes import manifests, podexec, podstart
from heddle_plugins.kubernetes.kubecluster import KubeCluster
from heddle_plugins.kubernetes.kubeprobe import probe
from heddle_plugins.kubernetes.target import KubeTarget, owner
from heddle_plugins.kubernetes.watch import Watch
from tests.kube.api import eventually
from tests.kube.cluster import ROOT, RealCluster

LAB = "kc"
NEEDS = (
    ShardNeed("s1", ("rtsw1", "host1"), 160 << 20, 0.05),
    ShardNeed("s2", ("rtsw2", "host2"), 160 << 20, 0.05),
)
NAMESPACE = "labs"


def namespace(cluster: RealCluster, name: str, **labels: str) -> None:
    metadata = {"name": name, "labels": labels}
    if name not in {each["metadata"]["name"] for each in cluster.api.get("/api/v1/namespaces")["items"]}:
        cluster.api.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


@pytest.fixture
def target(kube_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> KubeTarget:
    monkeypatch.setenv("KUBECONFIG", str(kube_cluster.kubeconfig))
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    namespace(kube_cluster, NAMESPACE)
    return KubeTarget(kube_cluster.context, NAMESPACE)


@pytest.fixture
def shards(target: KubeTarget) -> Iterator[KubeCluster]:
    """Two shards that run; nothing of them is left after the test."""
    cluster = KubeCluster(target)
    cluster.create(LAB, NEEDS, Silent())
    yield cluster
    cluster.remove(LAB, Silent())


def ran(cluster: KubeCluster, *argv: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(cluster.argv(LAB, "s1", argv), input=data, capture_output=True, check=False, timeout=60)


def objects(cluster: RealCluster) -> list[str]:
    """All objects of Heddle's in the namespace."""
    found = []
    for group in ("api/v1", "apis/apps/v1", "apis/networking.k8s.io/v1", "apis/policy/v1"):
        for kind in cluster.api.get(f"/{group}")["resources"]:
            if "list" in kind["verbs"] and kind["namespaced"]:
                path = f"/{group}/namespaces/{NAMESPACE}/{kind['name']}?labelSelector=app.kubernetes.io/name=heddle"
                found += [f"{kind['name']} {each['metadata']['name']}" for each in cluster.api.get(path)["items"]]
    return found


def problems(cluster: KubeCluster, needs: tuple[ShardNeed, ...] = NEEDS) -> tuple[Problem, ...]:
    """Why the shards cannot be created. What was made of them is removed."""
    try:
        with pytest.raises(MachineError) as caught:
            cluster.create(LAB, needs, Silent())
        return caught.value.problems
    finally:
        cluster.remove(LAB, Silent())


def test_commands_pass_their_streams_unchanged_and_their_exit_codes(shards: KubeCluster) -> None:
    data = os.urandom(9 << 20)
    assert ran(shards, "cat", data=data).stdout == data
    done = ran(shards, "sh", "-c", "cat; echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert ran(shards, "nonesuch").returncode == 127
    assert ran(shards, "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    done = ran(shards, *shards.python, "heddle.cli", "--version")
    assert done.returncode == 0, done.stderr
    script = "import os; from heddle.shards import agent; print(os.path.getmtime(agent.__cached__))"
    done = ran(shards, "python3", "-P", "-c", script)
    assert done.stdout == b"0.0\n", "the image brings the bytecode; a pod that compiles gives its file a time"


def test_a_command_with_pipes_needs_no_process_here(shards: KubeCluster, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    with (tmp_path / "errors").open("w+b") as errors:
        command = shards.open(LAB, "s1", ["sh", "-c", "cat; echo err >&2; exit 7"], errors)
        assert command.stdin is not None and command.stdout is not None

        def write() -> None:
            assert command.stdin is not None
            with command.stdin:
                command.stdin.write(data)

        writer = threading.Thread(target=write)
        writer.start()
        assert command.stdout.read() == data
        assert (command.wait(20), command.poll()) == (7, 7)
        writer.join()
        errors.seek(0)
        assert errors.read() == b"err\n"
        endless = shards.open(LAB, "s1", ["sleep", "1000"], errors)
        with pytest.raises(subprocess.TimeoutExpired):
            endless.wait(1)
        endless.kill()
        assert endless.wait(20) == podexec.LOST


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_passes_to_the_command(shards: KubeCluster, number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 5' {number.value}; echo ready; while :; do sleep 0.1; done"
    argv = shards.argv(LAB, "s1", ["sh", "-c", script])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.read() == b"got it\n"
        assert process.wait(20) == 5


def test_a_killed_server_starts_again_in_its_pod_and_the_pod_goes_on(shards: KubeCluster) -> None:
    before = shards.states(LAB)["s1"].incarnation
    version = (*shards.python, "heddle.cli", "--version")
    for _ in range(3):
        assert ran(shards, "sh", "-c", "kill -9 $(pgrep -P 1 -f podinit)").returncode == 0
        done = ran(shards, *version)
        assert done.returncode == 0 and done.stdout.startswith(b"Heddle"), done
    assert shards.states(LAB)["s1"].incarnation == before


def test_a_pod_that_is_deleted_while_it_is_watched_is_seen_to_go(
    kube_cluster: RealCluster, shards: KubeCluster
) -> None:
    name = manifests.pod_name(LAB, "s1")
    with Watch(shards.api, "Pod", manifests.selector(LAB, owner())) as pods:

        def now() -> dict[str, str]:
            return {each["metadata"]["name"]: each["metadata"]["uid"] for each in pods.now()}

        uids = now()
        assert len(uids) == 2
        kube_cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        eventually("there is a new pod", lambda: now().get(name, uids[name]) != uids[name])
        assert now()[manifests.pod_name(LAB, "s2")] == uids[manifests.pod_name(LAB, "s2")]


def test_a_command_whose_reader_has_gone_ends(shards: KubeCluster) -> None:
    with subprocess.Popen(shards.argv(LAB, "s1", ["yes"]), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(20) == 128 + signal.SIGPIPE


def test_a_terminal_has_the_size_of_ours(shards: KubeCluster) -> None:
    inner = shlex.join(shards.argv(LAB, "s1", ["stty", "size"], tty=True))
    argv = ["script", "-qec", f"stty rows 33 cols 77; {inner}", "/dev/null"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    assert "33 77" in done.stdout, done


def test_shards_have_addresses_and_a_second_create_leaves_them_alone(
    kube_cluster: RealCluster, shards: KubeCluster
) -> None:
    before = {name: each.incarnation for name, each in shards.states(LAB).items()}
    addresses = shards.addresses(LAB)
    assert set(addresses) == {"s1", "s2"}
    assert len(set(addresses.values())) == 2
    shards.create(LAB, NEEDS, Silent())
    assert {name: each.incarnation for name, each in shards.states(LAB).items()} == before
    assert shards.lost(LAB) == []
    assert len(objects(kube_cluster)) >= 7


def test_two_labs_of_two_users_do_not_touch_each_other(
    kube_cluster: RealCluster, shards: KubeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "other"))
    with pytest.raises(InputError) as caught:
        shards.create(LAB, NEEDS, Silent())
    assert "belongs to" in caught.value.problems[0].why
    assert not shards.exists(LAB)
    assert shards.remove(LAB, Silent()) == 0
    shards.create("kd", NEEDS[:1], Silent())
    assert shards.remove("kd", Silent()) >= 5
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    assert set(shards.addresses(LAB)) == {"s1", "s2"}
    assert shards.remove(LAB, Silent()) >= 7
    assert objects(kube_cluster) == []


def test_what_a_killed_start_has_made_is_removed(kube_cluster: RealCluster, target: KubeTarget) -> None:
    script = (
        "from tests.kube.test_kubecluster import *\n"
        f"KubeCluster(KubeTarget(*{[target.context, target.namespace]!r})).create(LAB, NEEDS, Silent())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    eventually("the first shard is there", lambda: [each for each in objects(kube_cluster) if "pods" in each])
    process.kill()
    process.wait()
    assert KubeCluster(target).remove(LAB, Silent()) >= 4
    assert objects(kube_cluster) == []


def test_a_shard_that_has_started_again_is_lost_until_it_is_created_again(
    kube_cluster: RealCluster, shards: KubeCluster
) -> None:
    ran(shards, "kill", "-TERM", "1")

    def reason() -> str:
        found = shards.lost(LAB)
        return str(found[0]) if found and "is empty" in found[0].why else ""

    said = eventually("the shard runs again", reason)
    assert said.startswith("shard s1  (rtsw1, host1) has started again, and is empty")
    shards.create(LAB, NEEDS, Silent())
    assert shards.lost(LAB) == []


def test_a_drained_node_loses_its_shard(kube_cluster: RealCluster, shards: KubeCluster) -> None:
    node = shards.states(LAB)["s2"].node
    path = f"/api/v1/nodes/{node}"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": manifests.pod_name(LAB, "s2")}}
    try:
        kube_cluster.api.patch(path, {"spec": {"unschedulable": True}})
        kube_cluster.api.delete(f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/heddle-{LAB}")
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{manifests.pod_name(LAB, 's2')}"
        kube_cluster.api.post(f"{pod}/eviction", eviction)
        lost = eventually("shard s2 is lost", lambda: [each for each in shards.lost(LAB) if each.where == "shard s2"])
        assert "rtsw2" in lost[0].what
        shards.create(LAB, NEEDS, Silent())
        assert shards.states(LAB)["s2"].node != node
    finally:
        kube_cluster.api.uncordon(node)


@pytest.mark.parametrize(
    ("image", "words"),
    [("nonesuch:1", "which is not on node n"), ("10.88.0.1:5000/nonesuch:1", "cannot be pulled: failed to")],
)
def test_an_image_that_is_missing_is_named(target: KubeTarget, image: str, words: str) -> None:
    found = problems(KubeCluster(KubeTarget(target.context, target.namespace, image)))
    assert any(each.where.startswith("shard s") and words in each.why and image in each.why for each in found), found


def test_a_pod_that_is_never_ready_for_a_shard_is_named(target: KubeTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image of another version: its first process does something else."""
    monkeypatch.setattr(manifests, "_INIT", "http.server")
    monkeypatch.setattr(podstart, "_SILENT_S", 2.0)
    found = problems(KubeCluster(target))
    assert re.fullmatch(r"runs on node n\d, but is not ready for a shard: its image may be of .*", found[0].why), found


def test_a_shard_that_fits_no_node_is_named_with_its_nodes(target: KubeTarget) -> None:
    found = problems(KubeCluster(target), (ShardNeed("s1", ("rtsw1", "host1"), 1 << 40, 0.1),))
    assert str(found[0]).startswith("shard s1  (rtsw1, host1) fits no node: too little free memory")
    assert "--shards" in found[0].hint


def test_a_quota_is_named(kube_cluster: RealCluster, target: KubeTarget) -> None:
    namespace(kube_cluster, "small")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}}
    hard = {"hard": {"limits.memory": "200Mi"}}
    if not kube_cluster.api.get("/api/v1/namespaces/small/resourcequotas")["items"]:
        kube_cluster.api.post("/api/v1/namespaces/small/resourcequotas", {**quota, "spec": hard})
    found = problems(KubeCluster(KubeTarget(target.context, "small")))
    assert "exceeds quota tight: requested: limits.memory=167772160" in found[0].why


def test_pod_security_is_named_and_setup_prints_the_manifest(kube_cluster: RealCluster, target: KubeTarget) -> None:
    namespace(kube_cluster, "strict", **{"pod-security.kubernetes.io/enforce": "baseline"})
    strict = KubeTarget(target.context, "strict")
    assert "is refused by Pod Security level baseline" in problems(KubeCluster(strict))[0].why
    report = probe(strict, Silent())
    assert [each.name for each in report.report.checks if not each.ok] == ["namespace"]
    assert "pod-security.kubernetes.io/enforce: privileged" in report.manifests["1-namespace.yaml"]


def test_setup_finds_that_the_cluster_can_run_fabrics_and_removes_its_pods(
    kube_cluster: RealCluster, target: KubeTarget
) -> None:
    report = probe(target, Silent())
    assert report.report.ok and not report.manifests, report.text()
    rows = {each.name: each for each in report.report.checks}
    assert {"api", "rights", "pods", "sysctls", "bpffs", "tunnel", "network", "fabric"} <= rows.keys()
    assert "MTU 1450" in rows["network"].detail
    assert objects(kube_cluster) == []


def test_the_printed_rights_are_enough_and_without_one_of_them_it_is_named(
    kube_cluster: RealCluster, target: KubeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    config = json.loads(kube_cluster.restricted.read_text())
    user, context = config["users"][0]["name"], config["current-context"]
    monkeypatch.setenv("KUBECONFIG", str(kube_cluster.restricted))
    student = KubeCluster(KubeTarget(context, NAMESPACE))
    with pytest.raises(MachineError) as caught:
        student.create(LAB, NEEDS, Silent())
    assert f"{user} may not" in caught.value.problems[0].why
    made: list[str] = []
    try:
        for each in yaml.safe_load_all(manifests.access_text(NAMESPACE)):
            if each["kind"] == "RoleBinding":
                each["subjects"].append({"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"})
            made.append(_posted(kube_cluster, each))
        eventually("the rights are in force", lambda: student.api.may("create", "", "pods", "exec"))
        student.create(LAB, NEEDS, Silent())
        assert ran(student, "true").returncode == 0
        assert student.lost(LAB) == []
        assert student.remove(LAB, Silent()) >= 7
    finally:
        for path in made:
            kube_cluster.api.delete(path)


def _posted(cluster: RealCluster, manifest: dict[str, Any]) -> str:
    """Create an object; its path."""
    kind = {"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}[manifest["kind"]]
    group = "api/v1" if kind == "serviceaccounts" else "apis/rbac.authorization.k8s.io/v1"
    path = f"/{group}/namespaces/{NAMESPACE}/{kind}"
    cluster.api.post(path, manifest)
    return f"{path}/{manifest['metadata']['name']}"


def test_a_node_that_does_not_answer_is_named_and_down_does_not_wait_for_it(
    kube_cluster: RealCluster, shards: KubeCluster
) -> None:
    node = shards.states(LAB)["s1"].node
    kube_cluster.stop_kubelet(node)
    try:

        def said() -> str:
            lost = [each for each in shards.lost(LAB) if each.where == "shard s1"]
            return lost[0].why if lost else ""

        assert f"node {node}" in eventually("the node is not ready", said, 90)
        begun = time.monotonic()
        assert shards.remove(LAB, Silent()) >= 7
        assert time.monotonic() - begun < 80
        assert objects(kube_cluster) == []
    finally:
        kube_cluster.start_kubelet(node)
