"""The cluster of this suite itself: its two nodes, pods that can do what a shard does, and nothing left at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.api import eventually
from tests.kube.cluster import IMAGE, ROOT, RealCluster, leftovers

CAPABILITIES = ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]
# What a shard does in its pod. Each command must succeed; the log names the one that did not.
TOOLS = """\
set -eux
mount -o remount,rw,bind /proc/sys
sysctl -w net.ipv4.ip_forward=1
mount -t bpf bpf /sys/fs/bpf
ip netns add a
ip netns add b
ip link add x netns a type veth peer name x netns b
nsenter --net=/run/netns/a sh -c 'ip addr add 192.0.2.1/24 dev x; ip link set x up'
nsenter --net=/run/netns/b sh -c 'ip addr add 192.0.2.2/24 dev x; ip link set x up'
nsenter --net=/run/netns/a ping -c 1 -W 2 192.0.2.2
ip link add v type vxlan external dstport 4790
ip link set v netns a
nsenter --net=/run/netns/a tc qdisc add dev v clsact
/usr/lib/frr/zebra --version
/usr/lib/frr/bgpd --version
iperf3 --version
tcpdump --version
python3 -c 'import heddle'
cd /
heddle --version
heddle up tiny
heddle run -b 64K -e 64K
heddle validate
heddle down
"""


def pod(name: str, node: str, script: str) -> dict[str, Any]:
    container = {
        "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        "securityContext": {"capabilities": {"add": CAPABILITIES}, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    spec = {
        "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
        "automountServiceAccountToken": False,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def pods(kube_cluster: RealCluster) -> Iterator[str]:
    """The path of the pods of the default namespace, where there are none after the test."""
    path = "/api/v1/namespaces/default/pods"
    yield path
    for name in kube_cluster.api.pods():
        kube_cluster.api.delete(f"{path}/{name}")
    eventually("no pod is left", lambda: not kube_cluster.api.pods())


def phase(cluster: RealCluster, name: str, *wanted: str) -> str:
    """Wait until a pod has one of these phases."""

    def now() -> str:
        found = str(cluster.api.pods()[name]["status"]["phase"])
        return found if found in wanted else ""

    return str(eventually(f"pod {name} is {' or '.join(wanted)}", now, 120))


def test_pods_of_both_nodes_can_do_what_a_shard_does(kube_cluster: RealCluster, pods: str) -> None:
    assert sorted(kube_cluster.api.ready_nodes()) == ["n1", "n2"]
    for node in kube_cluster.nodes:
        kube_cluster.api.post(pods, pod(f"tools-{node}", node, TOOLS))
    for node in kube_cluster.nodes:
        name = f"tools-{node}"
        ended = phase(kube_cluster, name, "Succeeded", "Failed")
        assert ended == "Succeeded", kube_cluster.api.ask("GET", f"{pods}/{name}/log")


@pytest.mark.parametrize("mtu", [9000, 1450])  # the last one is that of the other tests
def test_pods_of_different_nodes_reach_each_other_with_the_mtu_of_the_network(
    kube_cluster: RealCluster, pods: str, mtu: int
) -> None:
    kube_cluster.set_pod_mtu(mtu)
    kube_cluster.api.post(pods, pod("far", "n2", "exec sleep 600"))
    phase(kube_cluster, "far", "Running")
    address = kube_cluster.api.pods()["far"]["status"]["podIP"]
    fits, too_large = (f"ping -c 1 -W 2 -M do -s {size - 28} {address}" for size in (mtu, mtu + 1))
    kube_cluster.api.post(pods, pod("near", "n1", f"set -ex; {fits}; ! {too_large}"))
    ended = phase(kube_cluster, "near", "Succeeded", "Failed")
    assert ended == "Succeeded", kube_cluster.api.ask("GET", f"{pods}/near/log")


def test_killed_processes_end_a_pod_and_a_stopped_kubelet_makes_its_node_unready(
    kube_cluster: RealCluster, pods: str
) -> None:
    kube_cluster.api.post(pods, pod("victim", "n1", "ip netns add a; ip netns exec a sleep 600 & sleep 600"))
    phase(kube_cluster, "victim", "Running")
    assert kube_cluster.kill_pod("victim") >= 1
    phase(kube_cluster, "victim", "Failed")
    kube_cluster.stop_kubelet("n2")
    try:
        eventually("n2 is not Ready", lambda: kube_cluster.api.ready_nodes() == ["n1"])
    finally:
        kube_cluster.start_kubelet("n2")


def test_a_drained_node_loses_its_pods_and_takes_no_new_one(kube_cluster: RealCluster, pods: str) -> None:
    kube_cluster.api.post(pods, pod("stays", "n1", "exec sleep 600"))
    kube_cluster.api.post(pods, pod("goes", "n2", "exec sleep 600"))
    phase(kube_cluster, "goes", "Running")
    try:
        assert kube_cluster.api.drain("n2") == ["goes"]
        eventually("the pod is gone", lambda: set(kube_cluster.api.pods()) == {"stays"})
        new = pod("new", "n2", "exec sleep 600")
        del new["spec"]["nodeName"]
        kube_cluster.api.post(pods, new)
        phase(kube_cluster, "new", "Running")
        assert kube_cluster.api.pods()["new"]["spec"]["nodeName"] == "n1"
    finally:
        kube_cluster.api.uncordon("n2")


def test_a_user_without_rights_is_refused(kube_cluster: RealCluster) -> None:
    config = json.loads(kube_cluster.restricted.read_text())
    argv = [
        sys.executable,
        "-c",
        _ASKS,
        config["clusters"][0]["cluster"]["server"],
        config["users"][0]["user"]["token"],
    ]
    done = subprocess.run(
        [*argv, str(kube_cluster.api.authority)], capture_output=True, text=True, cwd=ROOT, check=True
    )  # fmt: skip
    assert done.stdout == "403\n"


_ASKS = """\
import sys, urllib.error
from pathlib import Path
from tests.kube.api import Api
server, token, authority = sys.argv[1:]
try:
    Api(server, Path(authority), token).pods()
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_a_cluster_ends_with_its_test_run_even_after_kill_9(kube_cluster: RealCluster) -> None:
    """A second one, without Heddle's image; the next start removes its directory and control groups."""
    argv = [sys.executable, "-c", _STARTS]
    run = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with run:
        assert run.stdout is not None
        work = run.stdout.readline().strip()
        own = [pid for pid in _pids() if work in _command(pid)]
        assert len(own) > 8, own
        os.kill(run.pid, signal.SIGKILL)
    eventually("its processes have ended", lambda: not [pid for pid in own if Path(f"/proc/{pid}").exists()])
    argv = [sys.executable, "-c", _STARTS_AND_ENDS]
    later = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    assert [each for place in (work, later) for each in leftovers(Path(place).name)] == []


_STARTS = """\
import sys
from tests.kube.cluster import started
with started(lambda text: None, image=False) as cluster:
    print(cluster.work, flush=True)
    sys.stdin.read()
"""
_STARTS_AND_ENDS = _STARTS.replace("    sys.stdin.read()\n", "")


def _pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
