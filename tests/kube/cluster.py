"""A Kubernetes of this test run: one control plane and two nodes on this machine, in namespaces of their own.

    with started(say) as cluster:
        heddle("up", "zone", "--runtime", "kubernetes", env={"KUBECONFIG": str(cluster.kubeconfig)})

All its processes end with the test run, however that ends: they are in a PID namespace whose first process the kernel
kills then. Its directory and control groups are removed at the end, or by the next test run.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base.events import Silent
from heddle.base.mounts import TEMPORARY, scratch
from heddle.base.process import dying_with_us, run
from heddle.host.fabricarchive import NAME, write_docker_archive, write_fabric_image
from tests.kube.api import Api, eventually
from tests.kube.box import NODES, Box, cgroup_roots
from tests.kube.programs import PAUSE, ensure_programs

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGE: Final = NAME
CONTEXT: Final = "heddle-test"
RESTRICTED: Final = "student"
_PREFIX: Final = "heddle-kube-"
_END_S: Final = 20.0


@dataclass(frozen=True)
class RealCluster:
    """A running cluster. kubeconfig: of an administrator; restricted: of a user who may do nothing until RBAC says so.

    nodes: their names. seconds: how long each step of the start took.
    """

    work: Path
    kubeconfig: Path
    restricted: Path
    api: Api
    seconds: dict[str, float]
    process: subprocess.Popen[str]
    context: str = CONTEXT
    nodes: tuple[str, ...] = tuple(NODES)

    def log(self, name: str) -> str:
        """What a part has written: apiserver, scheduler, kubelet-n1, containerd-n1."""
        return (self.work / "log" / f"{name}.log").read_text(errors="replace")

    def set_pod_mtu(self, mtu: int) -> None:
        """The MTU of pods that start from now on; the wires between nodes carry 9000."""
        for node in self.nodes:
            self._tell("mtu", node, mtu)

    def stop_kubelet(self, node: str) -> None:
        """Kill a node's kubelet: its containers go on, and the node is NotReady after 10 s."""
        self._tell("stop", node)

    def start_kubelet(self, node: str) -> None:
        self._tell("start", node)
        eventually(f"{node} is Ready", lambda: node in self.api.ready_nodes())

    @contextmanager
    def without_bpf(self, node: str) -> Iterator[None]:
        """Containers that start on a node meanwhile may not use bpf(2)."""
        self._tell("bpf", node, 0)
        try:
            yield
        finally:
            self._tell("bpf", node, 1)

    @contextmanager
    def pods_apart(self) -> Iterator[None]:
        """Pods of different nodes do not reach each other meanwhile, as where a policy denies it."""
        for node in self.nodes:
            self._tell("pods", node, 0)
        try:
            yield
        finally:
            for node in self.nodes:
                self._tell("pods", node, 1)

    @contextmanager
    def dropped(self, port: int) -> Iterator[None]:
        """Datagrams of pods to a UDP port are dropped meanwhile, as Calico drops those to 4789."""
        for node in self.nodes:
            self._tell("drop", node, port)
        try:
            yield
        finally:
            for node in self.nodes:
                self._tell("drop", node, -port)

    def kill_pod(self, name: str, namespace: str = "default") -> int:
        """Kill the processes of a pod's containers, also those in namespaces of its own; how many."""
        status = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
        ids = [each["containerID"].partition("://")[2] for each in status["containerStatuses"]]
        found = [pid for pid in _processes() if any(identity in cgroup_of(pid) for identity in ids)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def _tell(self, action: str, node: str, value: int = 0) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        print(json.dumps([action, node, value]), file=stdin, flush=True)
        assert stdout.readline() == "done\n"


@contextmanager
def started(say: Callable[[str], None], *, mtu: int = 1450, image: bool = True) -> Iterator[RealCluster]:
    """A cluster for a with block. mtu: of pods' interfaces. image: whether the nodes have Heddle's image."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        seconds[step] = round(time.monotonic() - began, 1)

    with scratch(_PREFIX) as work:
        _sweep()
        for each in ("bin", "log", "pki"):
            (work / each).mkdir(mode=0o700)
        with timed("programs"):
            ensure_programs(work / "bin", say)
        with timed("image"):
            archives = [_pause(work), *([_fabric(work, say)] if image else [])]
        tokens = {user: secrets.token_hex(16) for user in ("admin", RESTRICTED)}
        _keys(work / "pki", tokens)
        for node in NODES:
            for each in ("cni", "lib", "log", "sysctl"):
                (work / node / each).mkdir(parents=True)
            for name, value in (("vm.overcommit_memory", 1), ("kernel.panic", 10), ("kernel.panic_on_oops", 1)):
                (work / node / "sysctl" / name).write_text(f"{value}\n")
        with socket.socket() as listens:
            listens.bind(("127.0.0.1", 0))
            listens.listen(64)
            server = f"https://localhost:{listens.getsockname()[1]}"
            box = Box(str(work), listens.fileno(), work.name, mtu, tuple(map(str, archives)))
            box.write(work / "box.json")
            process = _boxed(work, listens.fileno())
        try:
            with timed("processes and images"):
                assert process.stdout is not None
                said = process.stdout.readline()
                assert said == "started\n", (work / "log" / "box.log").read_text()
            for archive in archives:
                archive.unlink()
            authority = work / "pki" / "apiserver.crt"
            configs = {user: work / f"{user}.kubeconfig" for user in tokens}
            for user, path in configs.items():
                path.write_text(json.dumps(_kubeconfig(server, authority, user, tokens[user])))
                path.chmod(0o600)
            api = Api(server, authority, tokens["admin"])
            with timed("nodes ready"):
                eventually("all nodes are Ready", lambda: len(api.ready_nodes()) == len(NODES))
                account = "/api/v1/namespaces/default/serviceaccounts/default"
                eventually("pods can be made", lambda: api.get(account))
            yield RealCluster(work, configs["admin"], configs[RESTRICTED], api, seconds, process)
        finally:
            _end(process)
            eventually("the control groups are removed", lambda: _remove_groups(work.name), _END_S)


def _boxed(work: Path, listens: int) -> subprocess.Popen[str]:
    """Start tests/kube/box.py as process 1; killing the process that this returns kills it, and so does our end."""
    own = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    python = (sys.executable, "-m", "tests.kube.box", str(work / "box.json"))
    with (work / "log" / "box.log").open("wb") as log:
        return subprocess.Popen(
            dying_with_us([*own, *python], "KILL"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, cwd=ROOT, pass_fds=(listens,), start_new_session=True,
        )  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    """Its process 1 ends with its standard input; before it is gone, the kernel ends all others (pid_namespaces(7))."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _pause(work: Path) -> Path:
    """The image of the first process of each pod."""
    layer, archive = work / "pause.layer", work / "pause.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(work / "bin" / PAUSE, PAUSE)
    with archive.open("wb") as stream:
        write_docker_archive(stream, "localhost/pause:1", [layer], {"Entrypoint": [f"/{PAUSE}"]})
    return archive


def _fabric(work: Path, say: Callable[[str], None]) -> Path:
    class Told(Silent):
        def say(self, text: str) -> None:
            say(text)

    return write_fabric_image(work / "heddle.tar", Told(), yes=True).path


def _keys(pki: Path, tokens: dict[str, str]) -> None:
    """The key of service accounts, and a token for each user; the server makes its own certificate."""
    run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-f", str(pki / "sa.key")])
    groups = {"admin": ",system:masters"}
    rows = [f"{token},{user},{user}{groups.get(user, '')}\n" for user, token in tokens.items()]
    (pki / "tokens.csv").write_text("".join(rows))


def _kubeconfig(server: str, authority: Path, user: str, token: str) -> dict[str, Any]:
    data = base64.b64encode(authority.read_bytes()).decode()
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": CONTEXT,
        "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority-data": data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
    }  # fmt: skip


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def cgroup_of(pid: int) -> str:
    """The control groups of a process, as text; empty when it has ended."""
    try:
        return Path("/proc", str(pid), "cgroup").read_text()
    except OSError:
        return ""


def _groups(prefix: str) -> list[Path]:
    return [group for root in cgroup_roots() for group in root.glob(f"{prefix}*")]


def _remove_groups(prefix: str) -> bool:
    """Remove control groups without processes; whether none of this prefix is left."""
    for group in _groups(prefix):
        for path in (*sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True), group):
            with suppress(OSError):
                path.rmdir()
    return not _groups(prefix)


def _sweep() -> None:
    """Remove the control groups of test runs that were killed; their directories are removed already."""
    for group in _groups(_PREFIX):
        owner = group.name.rpartition("-")[0]
        if not (TEMPORARY / owner).exists():
            _remove_groups(owner)


def leftovers(name: str) -> list[str]:
    """What the cluster in the directory of this name has left: directory, control groups, processes in these."""
    found = [*TEMPORARY.glob(name), *_groups(name)]
    return [*map(str, found), *(f"process {pid}" for pid in _processes() if name in cgroup_of(pid))]
