"""What a cluster refuses, does not have, or loses: named by `up` and `setup kubernetes`, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.host.doctor import Check
from heddle.lab import lifecycle
from heddle.lab.cutlinks import cut_counts
from heddle.lab.lab import Lab
from heddle.lab.status import status
from heddle.runtimes.sharded import ShardPlan
from heddle_plugins.kubernetes import manifests
from heddle_plugins.kubernetes.kubecluster import KubernetesRuntime
from heddle_plugins.kubernetes.kubeprobe import probe
from heddle_plugins.kubernetes.target import KubeTarget
from tests.kube.api import eventually
from tests.kube.cluster import RESTRICTED, RealCluster
from tests.kube.spaces import Space, all_run, refused, start
from tests.machine import child, until
from tests.netns.test_shards import ran


def test_down_removes_what_a_killed_up_has_made(space: Callable[[str], Space], name: str) -> None:
    there = space("killed")
    with start(*there.argv(name)) as process:
        eventually("a shard runs", lambda: _running(there))
        process.send_signal(signal.SIGKILL)
    assert {each.split()[0] for each in there.objects()} >= {"statefulsets", "pods", "services", "configmaps"}
    (found,) = status(name)
    assert found.state == "broken"
    assert lifecycle.down(name)
    assert there.is_empty()
    assert name not in state.labs()


IN_PODS = (  # LAB: in place of its name
    ("run", "--lab", "LAB", "--size", "16M", "--iters", "50"),
    ("capture", "rtsw1,rtsw2", "--lab", "LAB", "--seconds", "600"),
    ("exec", "--lab", "LAB", "rtsw1", "sleep", "600"),
    ("validate", "LAB"),
)
_LIST = "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline 2>/dev/null; echo; done"


def _inside(lab: Lab) -> dict[str, list[str]]:
    """The processes of each pod, without those that look for them."""
    cluster, found = KubernetesRuntime().cluster(lab.name), {}
    for name in ShardPlan.read(lab.name).shards:
        argv = cluster.argv(lab.name, name, ["sh", "-c", _LIST])
        lines = map(str.strip, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines())
        found[name] = sorted(line for line in lines if line and not line.startswith("tr ") and "cmdline" not in line)
    return found


@contextmanager
def _working(lab: Lab, words: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """A verb that has processes in a pod, until they are gone after the with block."""
    before = _inside(lab)
    with start(*words) as process:
        eventually(f"{words[0]} works in a pod", lambda: process.poll() is not None or _inside(lab) != before)
        yield process
    eventually(f"nothing of {words[0]} is left in the pods", lambda: _inside(lab) == before)


def test_ctrl_c_leaves_no_process_in_a_pod(space: Callable[[str], Space], name: str) -> None:
    there = space("interrupt")
    lab = there.up(name)
    try:
        for words in IN_PODS:
            with _working(lab, tuple(name if word == "LAB" else word for word in words)) as process:
                os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of the group
                _, err = process.communicate(timeout=60)
            assert process.returncode in (130, -signal.SIGINT, 0), (words, err)
            assert "Traceback" not in err
        _, paths = ran(lab)
        assert paths.agree
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def test_down_finds_a_lab_whose_record_is_damaged_or_gone(
    space: Callable[[str], Space], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = space("damaged")
    for damage in ("truncated", "gone", "plan, too"):
        there.up(name)
        directory = state.lab_dir(name)
        (directory / "lab.json").write_text("{")
        if damage != "truncated":
            (directory / "lab.json").unlink()
        if damage == "plan, too":
            shutil.rmtree(directory)
            assert not lifecycle.down(name)
            with monkeypatch.context() as patch:
                patch.setenv("HEDDLE_STATE_DIR", str(tmp_path))  # another owner
                with pytest.raises(
                    InputError, match=rf"(?s)belongs to .*kubectl delete statefulset,.*-l heddle.lab={name}"
                ):
                    lifecycle.down(name, cluster={"namespace": there.name})
            with pytest.raises(InputError, match="has nothing in namespace default"):
                lifecycle.down(name, cluster={"namespace": "default"})
        assert lifecycle.down(name, cluster={"namespace": there.name} if damage == "plan, too" else None)
        assert there.is_empty()
        assert not directory.exists()


def _running(space: Space) -> bool:
    pods = space.cluster.api.pods(space.name).values()
    return any(each["status"]["phase"] == "Running" for each in pods)


def test_an_api_that_is_lost_during_up_is_named_and_down_works_when_it_answers_again(
    space: Callable[[str], Space], name: str, tmp_path: Path
) -> None:
    there, port = space("unreachable"), free_port()
    far = json.loads(there.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"].rpartition(":")[2]
    with child([sys.executable, "-c", _FORWARD, str(port), far], stdout=subprocess.PIPE) as forwarder:
        assert forwarder.stdout is not None
        assert forwarder.stdout.readline() == b"ready\n"
        with start(*there.argv(name), config=_config(there.cluster, tmp_path, port)) as process:
            eventually("there is a pod", lambda: there.cluster.api.pods(there.name))
            forwarder.kill()
            _, said = process.communicate(timeout=240)
    lines = [line for line in said.splitlines() if line.startswith(("kubernetes", "shard"))]
    assert process.returncode == 3 and "Traceback" not in said, said
    assert lines and f"https://localhost:{port} refuses connections" in lines[0], said
    assert f"warning: lab {name} is not removed:" in said
    assert lifecycle.down(name)
    assert there.is_empty()


_FORWARD = """\
import asyncio, sys
async def copy(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
async def both(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(both, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def free_port() -> int:
    with socket.socket() as listens:
        listens.bind(("127.0.0.1", 0))
        return int(listens.getsockname()[1])


def test_a_user_without_rights_gets_their_names_and_with_those_of_the_manifest_all_works(
    space: Callable[[str], Space], name: str
) -> None:
    there = space("student")
    api, config = there.cluster.api, there.cluster.restricted
    (line,) = refused(there, name, config=config)
    assert "namespace student this user may not: get configmaps, list configmaps" in line
    role, binding = [
        each for each in yaml.safe_load_all(manifests.access_text(there.name)) if "rbac" in each["apiVersion"]
    ]
    rules = list(role["rules"])
    binding["subjects"] = [{"kind": "User", "name": RESTRICTED, "apiGroup": "rbac.authorization.k8s.io"}]
    role["rules"] = [each for each in rules if "pods/exec" not in each["resources"]]
    rbac = "apis/rbac.authorization.k8s.io/v1"
    api.post(there.path("roles", rbac), role)
    api.post(there.path("rolebindings", rbac), binding)
    there = there.with_kept("roles heddle", "rolebindings heddle")
    (line,) = refused(there, name, config=config)
    assert line.endswith("this user may not: get pods/exec, create pods/exec")
    api.patch(there.path("roles/heddle", rbac), {"rules": rules})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(config))
        lab = there.up(name)
        try:
            _, paths = ran(lab)
            assert paths.agree
        finally:
            assert lifecycle.down(name)
    assert there.is_empty()


def test_what_the_cluster_does_not_have_is_one_line_for_each_shard(
    space: Callable[[str], Space], name: str, tmp_path: Path
) -> None:
    there = space("refused")
    nodes = ("shard s1  (rtsw1, ctsw1, host1, host2)", "shard s2  (rtsw2, ctsw2, host3, host4)")
    assert refused(there, name, "--context", "nosuch", code=2) == [
        "kubernetes  --context nosuch is not in the kubeconfig"
    ]
    (line,) = refused(there, name, config=_config(there.cluster, tmp_path, free_port()))
    assert line.endswith("refuses connections")
    lines = refused(there, name, "--image", "nothere:1")
    assert lines and all("needs image nothere:1, which is not on node n" in each for each in lines)
    assert all(each.startswith(nodes) for each in lines)
    with _quota(there) as limited:
        lines = refused(limited, name)
    assert [each.partition(" exceeds quota small: requested: requests.memory=")[0] for each in lines] == list(nodes)


def _config(cluster: RealCluster, directory: Path, port: int) -> Path:
    """The administrator's kubeconfig, with the server at another port of this machine."""
    config = json.loads(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://localhost:{port}"
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@contextmanager
def _quota(space: Space) -> Iterator[Space]:
    path, api = space.path("resourcequotas"), space.cluster.api
    api.post(path, {"metadata": {"name": "small"}, "spec": {"hard": {"requests.memory": "64Mi"}}})
    eventually("the quota is in force", lambda: api.get(f"{path}/small")["status"].get("hard"))
    yield space.with_kept("resourcequotas small")
    api.delete(f"{path}/small")


def test_a_shard_for_which_no_node_has_the_memory_is_named(space: Callable[[str], Space], name: str) -> None:
    there, other = space("memory"), space("ballast")
    api = there.cluster.api
    for node in there.cluster.nodes:
        api.post(other.path("pods"), _ballast(node, api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]))
    eventually("the ballast runs", lambda: all_run(other))
    lines = refused(there, name)
    assert lines and all("fits no node: too little free memory" in each for each in lines)
    assert all(each.startswith("shard s") and "rtsw" in each for each in lines)
    for node in there.cluster.nodes:
        api.delete(other.path(f"pods/{node}"))
    assert other.is_empty()


def _ballast(node: str, free: Mapping[str, str]) -> dict[str, Any]:
    """A pod that requests nearly all memory of a node, and uses none."""
    memory = {"memory": f"{int(free['memory'].removesuffix('Ki')) - (64 << 10)}Ki"}
    container = {
        "name": "c",
        "image": "localhost/pause:1",
        "imagePullPolicy": "Never",
        "resources": {"requests": memory},
    }
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node}, "spec": spec}


def test_a_node_without_bpf_is_named_with_the_shard_that_is_on_it(space: Callable[[str], Space], name: str) -> None:
    there = space("nobpf")
    with there.cluster.without_bpf("n2"):
        (line,) = refused(there, name)
        assert re.fullmatch(r"shard s\d on node n2  \(rtsw\d, .*\) bpf .* refused .*: Operation not permitted", line)
        rows = tried(there)
        assert {key for key, each in rows.items() if each.required and not each.ok} == {"bpf", "fabric"}
        assert rows["bpf"].detail == "node n2: Operation not permitted" and "CAP_BPF" in rows["bpf"].fix
    assert there.is_empty()


def test_pods_that_do_not_reach_each_other_are_named(space: Callable[[str], Space], name: str) -> None:
    there = space("denied")
    with there.cluster.pods_apart():
        began = time.monotonic()
        lines = refused(there, name)
        took = time.monotonic() - began
        print(f"shards that do not reach each other are named after {took:.1f} s", file=sys.stderr)
        assert took < 120, took
        said = r"shard s\d on node n\d  the tunnel from shard s\d on node n\d \(\S+, UDP port \d+\) is dead: .*"
        assert lines and all(re.fullmatch(said, each) for each in lines), lines
        rows = tried(there)
        assert [key for key, each in rows.items() if each.required and not each.ok] == ["network"]
        assert "0 of 20 small datagrams" in rows["network"].detail and "NetworkPolicies" in rows["network"].fix
    assert there.is_empty()


def tried(space: Space) -> dict[str, Check]:
    """What `setup kubernetes` finds."""
    return {each.name: each for each in probe(KubeTarget(space.cluster.context, space.name), Silent()).report.checks}


def test_a_shard_that_is_out_of_memory_is_named(space: Callable[[str], Space], name: str) -> None:
    there = space("oom")
    lab = there.up(name)
    try:
        with start("run", "--lab", name, "-b", "1M", "-e", "1M", "-n", "1000") as process:
            before = sum(each.sent for each in cut_counts(lab))
            until(lambda: sum(each.sent for each in cut_counts(lab)) > before + 500, process=process)
            eaten(there, manifests.pod_name(name, "s2"), "$(pgrep -of heddle.endpoints.worke[r])")
            _, said = process.communicate(timeout=120)
        assert process.returncode == 3 and "Traceback" not in said, said
        lines = said.splitlines()
        was = r"shard s2  \(rtsw2, .*\) was out of memory: the kernel ended \d+ process(es)? at its limit of \S+ MiB"
        assert any(re.fullmatch(was, each) for each in lines), said
        assert any("rank 2 on host3:eth1" in each and "was ended by SIGKILL" in each for each in lines), said
        lifecycle.repair_lab(name)  # the kernel may have ended others, too
        _, paths = ran(lab)
        assert paths.agree
        eaten(there, manifests.pod_name(name, "s2"), "1")  # the first process of the pod: the container ends
        until(lambda: "is empty: it was out of memory" in " ".join(status(name)[0].faults))
        assert status(name)[0].faults[0].startswith("shard s2  (rtsw2, ctsw2, host3, host4) has started again")
        assert lifecycle.repair_lab(name).converged
        _, paths = ran(lab)
        assert paths.agree
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def eaten(space: Space, pod: str, process: str) -> None:
    """Use the memory of a pod until the kernel has ended a process there.

    Files in memory count for the pod, but for no process, so the kernel chooses by the adjustment of processes.
    """
    script = (
        f"set -- {process} && echo 1000 > /proc/$1/oom_score_adj && mkdir -p /tmp/eaten && "
        "mount -t tmpfs none /tmp/eaten && while [ -e /proc/$1 ]; do head -c 1M /dev/zero >> /tmp/eaten/all; done; "
        "umount /tmp/eaten"
    )
    subprocess.run(space.exec(pod, "sh", "-c", script), capture_output=True, check=False, timeout=120)
