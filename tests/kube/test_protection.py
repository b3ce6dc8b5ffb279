"""What an administrator wants of labs: where their pods run, that they stay, and that their users get no node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle.lab import lifecycle
from heddle.lab.status import status
from heddle.runtimes.clusterkind import JobNeed, ShardNeed
from heddle.switch.links.cuts import TUNNEL_PORT
from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.api import KubeApi
from heddle_plugins.kubernetes.jobs import IndexedJob
from heddle_plugins.kubernetes.kubecluster import KubeCluster
from heddle_plugins.kubernetes.kubeprobe import probe
from heddle_plugins.kubernetes.target import KubeTarget, owner
from tests.kube.api import Api, eventually
from tests.kube.cluster import IMAGE, RESTRICTED, ROOT, RealCluster
from tests.kube.spaces import RUNTIME, Space, refused, start
from tests.machine import until
from tests.netns.test_shards import ran, round_trips

PATHS: Final = {
    "Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/NS/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}  # fmt: skip
NAMED_S: Final = 8.0  # of which 3 are beats; the rest are commands in pods, on a machine with other work


def applied(api: Api, directory: Path, namespace: str) -> list[str]:
    """Make all objects of the files in a directory, in the order of their names, as kubectl apply; their kinds."""
    found = []
    for path in sorted(directory.iterdir()):
        for each in yaml.safe_load_all(path.read_text()):
            api.post(PATHS[each["kind"]].replace("NS", namespace), each)
            found.append(each["kind"])
    return found


@pytest.fixture
def policies(kube_cluster: RealCluster) -> Iterator[None]:
    """Objects of the whole cluster end with a test."""
    yield
    for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
        for each in kube_cluster.api.get(PATHS[kind])["items"]:
            if each["metadata"]["name"].startswith("heddle-"):
                kube_cluster.api.delete(f"{PATHS[kind]}/{each['metadata']['name']}")


def said(*words: str, code: int) -> str:
    with start(*words) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == code and "Traceback" not in err, out + err
    return out + err


@pytest.mark.usefixtures("policies")
def test_setup_in_a_namespace_that_does_not_exist_gives_all_that_makes_it_work(
    kube_cluster: RealCluster, tmp_path: Path
) -> None:
    words = ("setup", "kubernetes", "--namespace", "fresh", "--out", str(tmp_path / "d"))
    first = said(*words, code=3)
    assert "fresh does not exist" in first and "Missing in this cluster: namespace." in first
    assert "pod-security.kubernetes.io/enforce: privileged" in first
    assert applied(kube_cluster.api, tmp_path / "d", "fresh") == [
        "Namespace", "ServiceAccount", "Role", "RoleBinding",
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    ]  # fmt: skip
    account = "/api/v1/namespaces/fresh/serviceaccounts/default"
    eventually("pods can be made", lambda: kube_cluster.api.get(account))
    eventually("the policy is in force", lambda: _refuses(kube_cluster, "fresh"))
    second = said(*words, code=0)
    assert "This cluster can run fabrics." in second and "pods with a path of their node are refused" in second
    kube_cluster.api.delete("/api/v1/namespaces/fresh")


def _refuses(cluster: RealCluster, namespace: str) -> bool:
    return any(each.ok for each in probe_rows(cluster, namespace) if each.name == "policy")


def probe_rows(cluster: RealCluster, namespace: str, port: str = "") -> list[Any]:
    target = KubeTarget(cluster.context, namespace, tunnel_port=port)
    return list(probe(target, Silent()).report.checks)


SPECS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "a path of its node": lambda pod: pod.update(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
    "a Secret": lambda pod: pod.update(volumes=[{"name": "v", "secret": {"secretName": "s"}}]),
    "the host's network": lambda pod: pod.update(hostNetwork=True),
    "the host's processes": lambda pod: pod.update(hostPID=True),
    "the host's IPC": lambda pod: pod.update(hostIPC=True),
    "a node of its choice": lambda pod: pod.update(nodeName="n1"),
    "a token": lambda pod: pod.update(automountServiceAccountToken=True),
    "sysctls": lambda pod: pod.update(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]}),
    "two containers": lambda pod: pod["containers"].append({**pod["containers"][0], "name": "other"}),
    "a container before it": lambda pod: pod.update(
        initContainers=[{**pod["containers"][0], "name": "other", "startupProbe": None}]
    ),
    "privileged": lambda pod: pod["containers"][0]["securityContext"].update(privileged=True),
    "a capability": lambda pod: pod["containers"][0]["securityContext"]["capabilities"]["add"].append("SYS_PTRACE"),
    "all of /proc": lambda pod: [
        pod.update(hostUsers=False),
        pod["containers"][0]["securityContext"].update(procMount="Unmasked"),
    ],
    "no seccomp": lambda pod: pod["containers"][0]["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    "no security settings": lambda pod: pod["containers"][0].pop("securityContext"),
    "a key of a Secret": lambda pod: pod["containers"][0]["env"].append(
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    ),
    "all of a Secret": lambda pod: pod["containers"][0].update(envFrom=[{"secretRef": {"name": "s"}}]),
    "a port of its node": lambda pod: pod["containers"][0].update(ports=[{"containerPort": 80, "hostPort": 80}]),
    "a request of its node": lambda pod: pod["containers"][0].update(livenessProbe={"httpGet": {"port": 80}}),
    "no limit of disk": lambda pod: pod["containers"][0]["resources"]["limits"].pop("ephemeral-storage"),
    "no limit of memory": lambda pod: pod["containers"][0]["resources"]["limits"].pop("memory"),
    "a device": lambda pod: [
        pod["containers"][0]["resources"][key].update({"example.com/device": "1"}) for key in ("requests", "limits")
    ],
}


@pytest.mark.usefixtures("policies")
def test_the_policy_lets_labs_through_and_no_other_pod(space: Callable[[str], Space], name: str) -> None:
    there = space("guarded")
    api = there.cluster.api
    for path in ("2-access.yaml", "3-policy.yaml"):
        for each in yaml.safe_load_all(manifests.admin_files(there.name)[path]):
            if each["kind"] == "RoleBinding":
                each["subjects"] = [{"kind": "User", "name": RESTRICTED, "apiGroup": "rbac.authorization.k8s.io"}]
            if each["kind"] == "Role":  # more than labs need: also against those who may make pods
                more = {"apiGroups": [""], "resources": ["pods", "pods/ephemeralcontainers"], "verbs": ["*"]}
                each["rules"].append(more)
            api.post(PATHS[each["kind"]].replace("NS", there.name), each)
    there = there.with_kept("serviceaccounts heddle", "roles heddle", "rolebindings heddle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(there.cluster.restricted))
        student = KubeApi(KubeTarget(there.cluster.context, there.name))
        need = ShardNeed("s1", ("rtsw1",), 64 << 20, 0.1)
        lab = manifests.lab_objects("x", owner(), [need], student.target)
        job, _ = manifests.experiment_objects(
            "exp-1", owner(), JobNeed("t", 1, need), student.target, deadline_s=60, process="a 1 2"
        )  # fmt: skip
        shard = next(each for each in lab if each["kind"] == "StatefulSet")
        eventually("the policy is in force", lambda: _accepted(student, _changed(shard, "a token")))
        for each in (shard, job):
            assert _accepted(student, each) == "", "the shape of Heddle's pods"
            wrong = {what: _accepted(student, _changed(each, what)) for what in SPECS}
            assert [what for what, refusal in wrong.items() if not refusal] == []
            unlike = {what: text for what, text in wrong.items() if "not a shard of Heddle" not in text}
            assert unlike == {}, "the policy refuses it, and nothing else"
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", "namespace": there.name},
            "spec": shard["spec"]["template"]["spec"],
        }  # fmt: skip
        assert _accepted(student, pod) == ""
        for what in ("a path of its node", "the host's network", "privileged", "a token"):
            assert "not a shard of Heddle" in _accepted(student, _changed(pod, what)), what
        made = there.up(name)
        try:
            _, paths = ran(made)
            assert paths.agree
            debug = {"name": "d", "image": IMAGE, "securityContext": {"privileged": True}}
            path = there.path(f"pods/{manifests.pod_name(name, 's1')}/ephemeralcontainers")
            with pytest.raises(urllib.error.HTTPError, match=r"422|403"):
                api.patch(path, {"spec": {"ephemeralContainers": [debug]}})
        finally:
            assert lifecycle.down(name)
    assert there.is_empty()


def _changed(manifest: dict[str, Any], what: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(manifest))
    SPECS[what](made["spec"] if made["kind"] == "Pod" else made["spec"]["template"]["spec"])
    return made


def _accepted(api: KubeApi, manifest: dict[str, Any]) -> str:
    """Why an object is refused; empty when it would be made."""
    try:
        api.create(manifest, trial=True)
    except MachineError as error:
        return str(error)
    return ""


@contextmanager
def tainted(cluster: RealCluster, node: str) -> Iterator[None]:
    """No pod starts on a node without a toleration."""
    path = f"/api/v1/nodes/{node}"
    cluster.api.patch(path, {"spec": {"taints": [{"key": "lab", "value": "mine", "effect": "NoSchedule"}]}})
    try:
        yield
    finally:
        cluster.api.patch(path, {"spec": {"taints": None}})


ON_N2: Final = "spec:\n  nodeSelector: {kubernetes.io/hostname: n2}\n"
TOLERANT: Final = "  tolerations: [{key: lab, operator: Exists, effect: NoSchedule}]\n"
SPREAD: Final = """\
spec:
  topologySpreadConstraints:
    - {maxSkew: 1, minDomains: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
       nodeTaintsPolicy: Honor}
"""


def test_shards_run_where_the_template_says_and_the_reason_is_named_where_they_cannot(
    space: Callable[[str], Space], name: str, tmp_path: Path
) -> None:
    there, file = space("placed"), tmp_path / "pod.yml"
    with tainted(there.cluster, "n2"):
        file.write_text(ON_N2)
        lines = refused(there, name, "--pod", str(file))
        assert lines and all("finds no node" in each and "untolerated taint" in each for each in lines), lines
        file.write_text(SPREAD)
        lines = refused(there, name, "--pod", str(file))
        assert any("topology spread constraints" in each for each in lines), lines
        text = "metadata: {annotations: {team: nets}}\n" + ON_N2 + TOLERANT
        file.write_text(text + "  containers: [{resources: {limits: {ephemeral-storage: 64Mi}}}]\n")
        said(*there.argv(name), "--pod", str(file), code=0)
        try:
            pods = there.cluster.api.pods(there.name).values()
            assert {each["spec"]["nodeName"] for each in pods} == {"n2"}
            assert all(each["metadata"]["annotations"]["team"] == "nets" for each in pods)
            pod = manifests.pod_name(name, "s2")
            subprocess.run(there.exec(pod, "sh", "-c", "head -c 300M /dev/zero > /var/tmp/x"), check=False)
            until(lambda: "ephemeral" in " ".join(status(name)[0].faults), 180)
            print("a shard that fills its disk:", status(name)[0].faults, file=sys.stderr)
        finally:
            assert lifecycle.down(name)
    said(*there.argv(name), code=0)  # without a template: one shard on each node
    try:
        pods = there.cluster.api.pods(there.name).values()
        assert {each["spec"]["nodeName"] for each in pods} == {"n1", "n2"}
        for node in there.cluster.nodes:
            with pytest.raises(urllib.error.HTTPError, match="429"):
                there.cluster.api.drain(node)
    finally:
        for node in there.cluster.nodes:
            there.cluster.api.uncordon(node)
        assert lifecycle.down(name)
    assert there.is_empty()


def test_of_two_users_who_start_one_lab_at_the_same_moment_one_is_refused(
    space: Callable[[str], Space], name: str, tmp_path: Path
) -> None:
    there = space("twins")
    own = 'mount -t tmpfs none /run/heddle && exec "$@"'  # locks: the users have machines of their own
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", own, "sh"]
    argv = [*alone, sys.executable, str(ROOT / "tasks.py"), *there.argv(name)]
    Path("/run/heddle").mkdir(exist_ok=True)
    users = [{**os.environ, "HEDDLE_STATE_DIR": str(tmp_path / each)} for each in "ab"]
    both = [
        subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True)
        for env in users
    ]  # fmt: skip
    texts = [each.communicate(timeout=240)[0] for each in both]
    codes = [each.returncode for each in both]
    print("two users at once:", codes, [each.splitlines()[-3:] for each in texts], file=sys.stderr)
    assert sorted(codes) == [0, 2], texts
    assert "belongs to" in texts[codes.index(2)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tasks.py"), "down", name], env=users[codes.index(0)], check=False,
    )  # fmt: skip
    assert done.returncode == 0 and there.is_empty()


def test_objects_are_claimed_by_the_first_of_two_in_one_process_as_well(
    space: Callable[[str], Space], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there, found = space("claims"), list[object]()
    cluster = KubeCluster(KubeTarget(there.cluster.context, there.name))
    own = threading.local()
    monkeypatch.setattr("heddle_plugins.kubernetes.kubecluster.owner", lambda: own.name)
    gate = threading.Barrier(2)

    def claim(name: str) -> None:
        own.name = name
        objects = manifests.lab_objects("race", name, [ShardNeed("s1", ("rtsw1",), 1 << 20, 0.1)], cluster.target)
        gate.wait()
        try:
            found.append(cluster.put("race", objects[0]))
        except Exception as error:
            found.append(error)

    for _ in range(5):
        found.clear()
        threads = [threading.Thread(target=claim, args=(each,)) for each in ("ann", "bob")]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(type(each).__name__ for each in found) == ["InputError", "dict"], found
        cluster.api.delete("ConfigMap", "heddle-race")
    assert there.is_empty()


def test_pods_of_an_experiment_do_not_start_before_their_policy(
    space: Callable[[str], Space], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = space("suspended")
    cluster = KubeCluster(KubeTarget(there.cluster.context, there.name))
    job = IndexedJob(cluster, "exp-x1", JobNeed("t", 1, ShardNeed("f", (), 64 << 20, 0.1)))
    with monkeypatch.context() as patch:
        patch.setattr(cluster.api, "apply", lambda _: there.objects())  # in place of its last step
        job.create()
        time.sleep(2)
        assert {each for each in there.objects() if "exp-x1" in each} == {
            "jobs heddle-exp-x1", "networkpolicies heddle-exp-x1",
        }  # fmt: skip
    cluster.api.apply(job._objects()[0])
    eventually("its pod starts", lambda: there.cluster.api.pods(there.name))
    job.remove()
    assert there.is_empty()


def test_a_network_that_drops_the_port_of_tunnels_is_named_and_another_port_is_found(
    space: Callable[[str], Space], name: str
) -> None:
    there = space("calico")
    with there.cluster.dropped(TUNNEL_PORT):
        began = time.monotonic()
        lines = refused(there, name)
        print(f"a dead tunnel is named after {time.monotonic() - began:.1f} s of up", file=sys.stderr)
        for one, two in (("s1", "s2"), ("s2", "s1")):
            (line,) = (each for each in lines if each.startswith(f"shard {one} on node n"))
            assert f"the tunnel from shard {two} on node n" in line and f"UDP port {TUNNEL_PORT})" in line
            assert line.endswith("is dead: nothing comes through it")
        rows = {each.name: each for each in probe_rows(there.cluster, there.name)}
        assert [key for key, each in rows.items() if each.required and not each.ok] == ["network"]
        assert "use --tunnel-port 24789: UDP ports 24789, 4790, 8472, 4789 pass" in rows["network"].fix
        rows = {each.name: each for each in probe_rows(there.cluster, there.name, "24789")}
        assert rows["network"].ok and "UDP port 24789 passes" in rows["network"].detail
        said("up", "tiny", "--name", name, "--runtime", RUNTIME, "--shards", "2", "--namespace", there.name,
             "--tunnel-port", "24789", code=0)  # fmt: skip
        try:
            from heddle.lab.opening import open_lab

            lab = open_lab(name)
            assert all(each.alive and each.whole for each in round_trips(lab))
            _, paths = ran(lab)
            assert paths.agree and not paths.lost
        finally:
            assert lifecycle.down(name)
    assert there.is_empty()
