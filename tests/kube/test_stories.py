"""Fabrics over the pods of a real cluster: the verbs, what goes wrong, and what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.base import state
from heddle.base.problems import CheckError, InputError, MachineError
from heddle.checks.validate import validate
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.cutlinks import round_trips, tunnels
from heddle.lab.lab import Lab
from heddle.lab.nearnodes import down_of
from heddle.lab.status import status
from heddle.render.dialects import RenderOptions
from heddle.runtimes.kube import manifests
from tests.kube.api import eventually
from tests.kube.cluster import RESTRICTED, ROOT, RealCluster
from tests.machine import child, until
from tests.netns.test_shards import captured_at_both_ends, ran, shown_by_the_page, taken

RUNTIME = "kubernetes"
SHARDS = {"shards": "2"}
LINKS = ("link.host=40mbit", "link.fabric=40mbit")


@dataclass(frozen=True)
class Space:
    """A namespace of the cluster, with the level and the rights that its manifests give. kept: what it had at first."""

    cluster: RealCluster
    name: str
    kept: frozenset[str] = frozenset()

    def path(self, plural: str, group: str = "api/v1") -> str:
        return f"/{group}/namespaces/{self.name}/{plural}"

    def with_kept(self, *objects: str) -> Space:
        return Space(self.cluster, self.name, self.kept | {*objects})

    def objects(self) -> set[str]:
        """All objects of every kind, but events: `pods heddle-a-s1-0`."""
        api, found = self.cluster.api, set()
        groups = [each["preferredVersion"]["groupVersion"] for each in api.get("/apis")["groups"]]
        for group in ("api/v1", *(f"apis/{each}" for each in groups)):
            for kind in api.get(f"/{group}")["resources"]:
                if kind["namespaced"] and "list" in kind["verbs"] and kind["kind"] != "Event":
                    items = api.get(self.path(kind["name"], group))["items"]
                    found |= {f"{kind['name']} {each['metadata']['name']}" for each in items}
        return found - self.kept

    def is_empty(self) -> bool:
        """Whether nothing was added to it. The cluster removes what a Service has made a moment later than that."""
        eventually("nothing is left in the namespace", lambda: not self.objects())
        return True

    def up(self, name: str, fabric: str = "tiny", *overrides: str, shards: int = 2) -> Lab:
        options = RenderOptions(target={"namespace": self.name, "shards": str(shards)})
        return lifecycle.up(load_fabric(fabric, name=name, overrides=overrides), runtime=RUNTIME, options=options).lab


@pytest.fixture(scope="module")
def space(kube_cluster: RealCluster) -> Callable[[str], Space]:
    """Makes namespaces."""

    def make(name: str) -> Space:
        found = Space(kube_cluster, name)
        kube_cluster.api.post("/api/v1/namespaces", yaml.safe_load(manifests.namespace_text(name)))
        eventually("pods can be made", lambda: kube_cluster.api.get(found.path("serviceaccounts/default")))
        eventually("it has its certificates", lambda: kube_cluster.api.get(found.path("configmaps/kube-root-ca.crt")))
        return Space(kube_cluster, name, frozenset(found.objects()))

    return make


@pytest.fixture(autouse=True)
def administrator(kube_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kube_cluster.kubeconfig))


def start(*words: str, config: Path | None = None) -> subprocess.Popen[str]:
    """A verb in a process of its own. config: another kubeconfig."""
    env = {**os.environ, **({"KUBECONFIG": str(config)} if config else {})}
    argv = [sys.executable, str(ROOT / "tasks.py"), *words]
    return subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def refused(space: Space, *words: str, code: int = 3, config: Path | None = None) -> list[str]:
    """The lines of the error of `up`, without hints and progress. Nothing is left: no object, no record."""
    argv = ("up", "tiny", "--name", "refused", "--runtime", RUNTIME, "--shards", "2", "--namespace", space.name)
    with start(*argv, *words, config=config) as process:
        _, said = process.communicate(timeout=240)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert "refused" not in state.labs()
    assert space.is_empty()
    return [line for line in said.splitlines() if not line.startswith((" ", "pods:", "warning:"))]


def test_zone_over_two_shards_takes_the_paths_that_it_takes_on_one_machine(space: Callable[[str], Space]) -> None:
    there, found, seconds = space("zone"), [], {}
    for runtime in ("netns", RUNTIME):
        began = time.monotonic()
        if runtime == RUNTIME:
            lab = there.up("kzone", "zone", *LINKS)
        else:
            lab = lifecycle.up(load_fabric("zone", name="kzone", overrides=LINKS)).lab
        seconds[runtime] = round(time.monotonic() - began, 1)
        try:
            before = {each.port: each for each in tunnels(lab)}
            result, paths = ran(lab, sizes=(1 << 17,), iters=1)
            assert result.wrong == 0 and paths.agree and not paths.lost
            assert all(each.lost == before[each.port].lost for each in tunnels(lab)), "the tunnel is a wire"
            crossed = sum(each.sent - before[each.port].sent for each in tunnels(lab))
            assert (crossed > 1000) == (runtime == RUNTIME)
            assert [each for each in validate(lab) if not each.ok] == []
            print(runtime, "up", seconds[runtime], "s, busbw", result.largest.busbw, file=sys.stderr)
            found.append(taken(paths))
        finally:
            lifecycle.down("kzone")
    assert found[0] == found[1]
    assert there.is_empty()


def test_captures_and_the_page_follow_all_pods(space: Callable[[str], Space]) -> None:
    there = space("seen")
    lab = there.up("kseen")
    try:
        captured_at_both_ends(lab)
        shown_by_the_page(lab)
    finally:
        lifecycle.down("kseen")
    assert there.is_empty()


def test_down_removes_what_a_killed_up_has_made(space: Callable[[str], Space]) -> None:
    there = space("killed")
    argv = ("up", "tiny", "--name", "kkilled", "--runtime", RUNTIME, "--shards", "2", "--namespace", there.name)
    with start(*argv) as process:
        eventually("a shard runs", lambda: _running(there))
        process.send_signal(signal.SIGKILL)
    assert {each.split()[0] for each in there.objects()} >= {"statefulsets", "pods", "services", "configmaps"}
    (found,) = status("kkilled")
    assert found.state == "broken"
    assert lifecycle.down("kkilled")
    assert there.is_empty()
    assert "kkilled" not in state.labs()


def test_down_finds_a_lab_whose_record_is_damaged_or_gone(
    space: Callable[[str], Space], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = space("damaged")
    for damage in ("truncated", "gone", "plan, too"):
        there.up("kdamaged")
        directory = state.lab_dir("kdamaged")
        (directory / "lab.json").write_text("{")
        if damage != "truncated":
            (directory / "lab.json").unlink()
        if damage == "plan, too":
            shutil.rmtree(directory)
            assert not lifecycle.down("kdamaged")
            with monkeypatch.context() as patch:
                patch.setenv("HEDDLE_STATE_DIR", str(tmp_path))  # another owner
                with pytest.raises(
                    InputError, match=r"(?s)belongs to .*kubectl delete statefulset,.*-l heddle.lab=kdamag"
                ):
                    lifecycle.down("kdamaged", cluster={"namespace": there.name})
            with pytest.raises(InputError, match="has nothing in namespace default"):
                lifecycle.down("kdamaged", cluster={"namespace": "default"})
        assert lifecycle.down("kdamaged", cluster={"namespace": there.name} if damage == "plan, too" else None)
        assert there.is_empty()
        assert not directory.exists()


def _running(space: Space) -> bool:
    pods = space.cluster.api.pods(space.name).values()
    return any(each["status"]["phase"] == "Running" for each in pods)


def test_an_api_that_is_lost_during_up_is_named_and_down_works_when_it_answers_again(
    space: Callable[[str], Space], tmp_path: Path
) -> None:
    there, port = space("unreachable"), free_port()
    far = json.loads(there.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"].rpartition(":")[2]
    argv = ("up", "tiny", "--name", "kapi", "--runtime", RUNTIME, "--shards", "2", "--namespace", there.name)
    with child([sys.executable, "-c", _FORWARD, str(port), far], stdout=subprocess.PIPE) as forwarder:
        assert forwarder.stdout is not None
        assert forwarder.stdout.readline() == b"ready\n"
        with start(*argv, config=_config(there.cluster, tmp_path, port)) as process:
            eventually("there is a pod", lambda: there.cluster.api.pods(there.name))
            forwarder.kill()
            _, said = process.communicate(timeout=240)
    lines = [line for line in said.splitlines() if line.startswith(("kubernetes", "shard"))]
    assert process.returncode == 3 and "Traceback" not in said, said
    assert lines and f"https://localhost:{port} refuses connections" in lines[0], said
    assert "warning: lab kapi is not removed:" in said
    assert lifecycle.down("kapi")
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


def test_a_shard_whose_pod_is_killed_is_named_and_its_neighbours_lose_the_carrier(
    space: Callable[[str], Space],
) -> None:
    there = space("lost")
    lab = there.up("klost")
    try:
        assert [each for each in validate(lab) if not each.ok] == []
        (near,) = {each.port.partition(":")[2] for each in tunnels(lab) if each.port.startswith("rtsw1:")}
        assert near not in down_of(lab, ["rtsw1"])["rtsw1"]
        assert there.cluster.kill_pod(manifests.pod_name("klost", "s2"), there.name) > 4
        took = until(lambda: near in down_of(lab, ["rtsw1"])["rtsw1"])
        assert took < 10, took  # it is 2 s on an idle machine
        print(f"carrier lost after {took:.2f} s", file=sys.stderr)
        words = "shard s2  (rtsw2, ctsw2, host3, host4) has started again, and is empty"
        until(lambda: words in " ".join(status("klost")[0].faults))
        (found,) = status("klost")
        assert (found.state, found.switches, found.hosts) == ("broken", 4, 4)
        with pytest.raises((MachineError, CheckError), match="shard s2") as caught:
            ran(lab)
        assert "rtsw2, ctsw2, host3, host4" in str(caught.value)
    finally:
        lifecycle.down("klost")
    assert there.is_empty()


def test_a_user_without_rights_gets_their_names_and_with_those_of_the_manifest_all_works(
    space: Callable[[str], Space],
) -> None:
    there = space("student")
    api, config = there.cluster.api, there.cluster.restricted
    (line,) = refused(there, config=config)
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
    (line,) = refused(there, config=config)
    assert line.endswith("this user may not: get pods/exec, create pods/exec")
    api.patch(there.path("roles/heddle", rbac), {"rules": rules})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(config))
        lab = there.up("kstudent")
        try:
            _, paths = ran(lab)
            assert paths.agree
        finally:
            assert lifecycle.down("kstudent")
    assert there.is_empty()


def test_what_the_cluster_does_not_have_is_one_line_for_each_shard(
    space: Callable[[str], Space], tmp_path: Path
) -> None:
    there = space("refused")
    nodes = ("shard s1  (rtsw1, ctsw1, host1, host2)", "shard s2  (rtsw2, ctsw2, host3, host4)")
    assert refused(there, "--context", "nosuch", code=2) == ["kubernetes  --context nosuch is not in the kubeconfig"]
    (line,) = refused(there, config=_config(there.cluster, tmp_path, free_port()))
    assert line.endswith("refuses connections")
    lines = refused(there, "--image", "nothere:1")
    assert lines and all("needs image nothere:1, which is not on node n" in each for each in lines)
    assert all(each.startswith(nodes) for each in lines)
    with _quota(there) as limited:
        lines = refused(limited)
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


def test_a_shard_for_which_no_node_has_the_memory_is_named(space: Callable[[str], Space]) -> None:
    there, other = space("memory"), space("ballast")
    api = there.cluster.api
    for node in there.cluster.nodes:
        api.post(other.path("pods"), _ballast(node, api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]))
    eventually("the ballast runs", lambda: _all_run(other))
    lines = refused(there)
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


def _all_run(space: Space) -> bool:
    pods = space.cluster.api.pods(space.name).values()
    return all(each["status"]["phase"] == "Running" for each in pods)


def test_labs_of_one_namespace_and_of_two_do_not_touch_each_other(space: Callable[[str], Space]) -> None:
    there, other = space("one"), space("two")
    labs = [there.up("kone"), there.up("ktwo"), other.up("kthree")]
    try:
        for lab in labs:
            _, paths = ran(lab)
            assert paths.agree and not paths.lost
            assert all(each.alive for each in round_trips(lab))
        lifecycle.down("kone")
        eventually("nothing of it is left", lambda: not [each for each in there.objects() if "kone" in each])
        lifecycle.down("kthree")
        assert other.is_empty()
        (found,) = status("ktwo")
        assert found.state == "up" and found.converged, found
        _, paths = ran(labs[1])
        assert paths.agree
    finally:
        for lab in labs:
            lifecycle.down(lab.name)
    assert there.is_empty()
