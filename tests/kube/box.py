"""A control plane and its nodes in namespaces that end with this process: process 1 of a PID namespace.

    unshare --net --mount --pid --fork --kill-child --mount-proc python -m tests.kube.box FILE

FILE has a Box as JSON. Standard output: the line "started" when all processes run. Standard input: `["stop", "n1", 0]`
and `["start", "n1", 0]` for a node's kubelet, and `["mtu", "n1", 9000]` for its new pods, a line each, which is
answered with a line; its end ends the cluster. `["bpf", "n1", 0]`: new containers of the node may not use bpf(2);
`["pods", "n1", 0]`: pods of the node do not reach those of others; both with 1 end that. `["drop", "n1", 4789]`: what
pods of the node send to this UDP port is dropped; -4789 ends that.
Nothing is in the machine's network namespace, except a socket that listens on its loopback: it is inherited, and
connections are passed to the API server from here.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

API: Final = "10.88.0.1"
API_PORT: Final = 6443
NODES: Final = {"n1": 1, "n2": 2}
_SERVICES: Final = "10.96.0.0/16"
_PODS: Final = "10.244.0.0/16"
_WIRE_MTU: Final = 9000
_WAIT_S: Final = 60.0
# Four times the default, in versions 1 and 2: a node stands for a machine. Else all of its pods together have the
# weight of one process of this machine.
_WEIGHT: Final = {"cpu.shares": 4096, "cpu.weight": 400}
# A kubelet sets these of the whole machine when it starts. Files with the values that it wants take their places.
_SYSCTLS: Final = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}


@dataclass(frozen=True)
class Box:
    """The directories and names of one cluster.

    work: with `bin`, `pki`, and a directory for each node. listens: the descriptor of the socket for users of the API.
    cgroup: the prefix of the nodes' control groups. mtu: of pods' interfaces. images: archives that each node imports.
    """

    work: str
    listens: int
    cgroup: str
    mtu: int
    images: tuple[str, ...]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def at(self) -> Path:
        return Path(self.work)


def cgroup_roots() -> list[Path]:
    """The hierarchies of control groups: one for each controller, or the unified one."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top]
    return [each for each in sorted(top.iterdir()) if each.is_dir() and not each.is_symlink()]


def pod_network(node: str, mtu: int) -> str:
    """The configuration of a node's pod network, as CNI has it."""
    subnet = f"10.244.{NODES[node]}.0/24"
    bridge = {
        "type": "bridge", "bridge": "cni0", "isGateway": True, "isDefaultGateway": True, "ipMasq": False, "mtu": mtu,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "dataDir": "/run/cni-ipam"},
    }  # fmt: skip
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")


class Cluster:
    """The processes of the box. Each writes to `work/log/NAME.log`."""

    def __init__(self, box: Box) -> None:
        self.box, self.at = box, box.at
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.holders: dict[str, int] = {}

    def go(self, name: str, *argv: str) -> None:
        with (self.at / "log" / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def inside(self, node: str) -> Sequence[str]:
        """The words before a command in a node's namespaces."""
        return ("nsenter", f"--target={self.holders[node]}", "--net", "--mount", f"--wd={self.at}")

    def start(self) -> None:
        _do("ip", "link", "set", "lo", "up")
        _do("ip", "link", "add", "br0", "type", "bridge")
        _do("ip", "addr", "add", f"{API}/24", "dev", "br0")
        _do("ip", "link", "set", "br0", "up")
        _do("sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._control_plane()
        for node in NODES:
            self._namespaces(node)
            self._files(node)
            self.set_mtu(node, self.box.mtu)
            self.go(f"containerd-{node}", *self.inside(node), "containerd", "-c", str(self.at / node / "cri.toml"))
        importing = [threading.Thread(target=self._import, args=(node,)) for node in NODES]
        for each in importing:
            each.start()
        for node in NODES:
            self.kubelet(node)
        for each in importing:
            each.join()

    def _control_plane(self) -> None:
        at, pki = self.at, self.at / "pki"
        etcd = "http://127.0.0.1:2379"
        self.go(
            "etcd", "etcd", f"--data-dir={at / 'etcd'}", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync",
        )  # fmt: skip
        self.go(
            "apiserver", str(at / "bin/kube-apiserver"), f"--etcd-servers={etcd}", f"--advertise-address={API}",
            "--allow-privileged=true",
            "--bind-address=0.0.0.0", f"--secure-port={API_PORT}", f"--cert-dir={pki}", "--authorization-mode=RBAC",
            f"--token-auth-file={pki / 'tokens.csv'}", f"--service-cluster-ip-range={_SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={pki / 'sa.key'}", f"--service-account-key-file={pki / 'sa.key'}",
            "--kubelet-preferred-address-types=InternalIP", "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
        )  # fmt: skip
        self._await((pki / "apiserver.crt").exists, "apiserver")
        config = f"--kubeconfig={pki / 'inside.json'}"
        self._inside_config(pki)
        self.go(
            "controller-manager", str(at / "bin/kube-controller-manager"), config, "--leader-elect=false",
            f"--service-account-private-key-file={pki / 'sa.key'}", f"--root-ca-file={pki / 'apiserver.crt'}",
            "--bind-address=127.0.0.1", "--node-monitor-grace-period=10s", "--node-monitor-period=1s",
        )  # fmt: skip
        self.go("scheduler", str(at / "bin/kube-scheduler"), config, "--leader-elect=false", "--bind-address=127.0.0.1")

    def _inside_config(self, pki: Path) -> None:
        """The access of the cluster's own parts, to the address of the API server."""
        token = (pki / "tokens.csv").read_text().split(",", 1)[0]
        cluster = {"server": f"https://{API}:{API_PORT}", "certificate-authority": str(pki / "apiserver.crt")}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        (pki / "inside.json").write_text(json.dumps(config))

    def _namespaces(self, node: str) -> None:
        number, own = NODES[node], self.at / node
        ready = own / "ready"
        script = 'mount --make-rshared / && : > "$1" && exec sleep infinity'
        self.go(node, "unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(ready))
        self._await(ready.exists, node)
        holder = self.holders[node] = self.running[node].pid
        _do(
            "ip",
            "link",
            "add",
            node,
            "mtu",
            str(_WIRE_MTU),
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(holder),
        )
        _do("ip", "link", "set", node, "mtu", str(_WIRE_MTU), "master", "br0", "up")
        _do("ip", "route", "add", f"10.244.{number}.0/24", "via", f"10.88.0.1{number}")
        inside = self.inside(node)
        commands = [
            f"ip link set lo up|ip addr add 10.88.0.1{number}/24 dev eth0|ip link set eth0 mtu {_WIRE_MTU} up",
            f"ip route add default via {API}|sysctl -qw net.ipv4.ip_forward=1",
            *(
                f"ip route add 10.244.{other}.0/24 via 10.88.0.1{other}"
                for other in NODES.values() if other != number
            ),
            f"mount -t tmpfs -o mode=755 tmpfs /run|mount --bind {own}/lib /var/lib|mount --bind {own}/log /var/log",
            "mkdir -p /run/netns /var/log/pods /var/log/containers",
            *(f"mount --bind {own}/sysctl/{name.replace('/', '.')} /proc/sys/{name}" for name in _SYSCTLS),
            "mount --make-rshared /",
        ]  # fmt: skip
        for command in "|".join(commands).split("|"):
            _do(*inside, *command.split())

    def _files(self, node: str) -> None:
        own, number = self.at / node, NODES[node]
        for root in cgroup_roots():
            group = root / f"{self.box.cgroup}-{node}"
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):  # of version 1: empty ones accept no process
                if (group / name).exists() and (root / name).read_text().strip():
                    (group / name).write_text((root / name).read_text())
            for name, weight in _WEIGHT.items():
                if (group / name).exists():
                    (group / name).write_text(str(weight))
        (own / "cri.toml").write_text(_CONTAINERD.format(cni=own / "cni", runc=own / "runc"))
        (own / "runc").write_text(_RUNC.format(mark=own / _NO_BPF))
        (own / "runc").chmod(0o755)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": f"10.88.0.1{number}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"}, "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.box.cgroup}-{node}", "failSwapOn": False, "failCgroupV1": False,
            "makeIPTablesUtilChains": False, "oomScoreAdj": 0,
            "resolvConf": "", "imageGCHighThresholdPercent": 100, "volumePluginDir": str(own / "plugins"),
            "evictionHard": {f"{of}.available": "0%" for of in ("memory", "nodefs", "imagefs")},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8, "syncFrequency": "10s",
        }  # fmt: skip
        (own / "kubelet.json").write_text(json.dumps(config))

    def _import(self, node: str) -> None:
        """Wait until containerd answers, then import the images; the first one is that of each pod's first process."""
        ctr = (*self.inside(node), "ctr", "-n", "k8s.io")
        self._await(lambda: subprocess.run((*ctr, "version"), capture_output=True, check=False).returncode == 0, node)
        for image in self.box.images:
            _do(*ctr, "images", "import", image)

    def kubelet(self, node: str) -> None:
        own = self.at / node
        self.go(
            f"kubelet-{node}", *self.inside(node), str(self.at / "bin/kubelet"), f"--config={own / 'kubelet.json'}",
            f"--kubeconfig={self.at / 'pki/inside.json'}", f"--hostname-override={node}",
            f"--node-ip=10.88.0.1{NODES[node]}", "--root-dir=/var/lib/kubelet",
        )  # fmt: skip

    def stop_kubelet(self, node: str) -> None:
        """SIGKILL, as with a node that loses its power: containers go on."""
        process = self.running[f"kubelet-{node}"]
        process.kill()
        process.wait()

    def set_mtu(self, node: str, mtu: int) -> None:
        """The MTU of pods that start from now on; containerd sees that the file has changed."""
        path = self.at / node / "cni" / "10-pods.conflist"
        path.with_suffix(".new").write_text(pod_network(node, mtu))
        path.with_suffix(".new").replace(path)
        # The bridge exists if a pod has started; without this it keeps the MTU with which it was made.
        argv = [*self.inside(node), "ip", "link", "set", "cni0", "mtu", str(mtu)]
        subprocess.run(argv, capture_output=True, check=False)

    def set_bpf(self, node: str, allowed: int) -> None:
        """Whether containers that start on the node from now on may use bpf(2)."""
        mark = self.at / node / _NO_BPF
        mark.unlink(missing_ok=True) if allowed else mark.touch()

    def set_pods(self, node: str, joined: int) -> None:
        """Whether pods of the node reach those of other nodes, as where a policy denies it: packets are dropped."""
        rule = ("blackhole", "from", _PODS, "to", _PODS)
        _do(*self.inside(node), "ip", "rule", "delete" if joined else "add", *rule)

    def set_drop(self, node: str, port: int) -> None:
        """Drop what pods send to a UDP port, as Calico drops 4789; no longer for a negative one."""
        rule = ("from", _PODS, "ipproto", "17", "dport", str(abs(port)), "blackhole")
        _do(*self.inside(node), "ip", "rule", "add" if port > 0 else "delete", *rule)

    def _await(self, done: object, name: str) -> None:
        assert callable(done)
        end = time.monotonic() + _WAIT_S
        while not done():
            process = self.running.get(name)
            if time.monotonic() > end or (process is not None and process.poll() is not None):
                raise RuntimeError(f"{name} did not start; see its log in {self.at / 'log'}")
            time.sleep(0.05)

    def reap(self) -> None:
        """Containers' shims leave their processes to process 1: this one."""
        while True:
            with suppress(ChildProcessError):
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                own = next((each for each in self.running.values() if found and each.pid == found.si_pid), None)
                if own is not None:
                    own.poll()
                elif found:
                    os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
            time.sleep(0.01)


_CONTAINERD: Final = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [{{}}]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "{runc}"
""".replace("{{}}", '"io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"')

# The profile RuntimeDefault allows bpf(2) to containers with SYS_ADMIN. On a node with the mark it allows another, long
# removed system call in its place, so the kernel answers EPERM as where an administrator has forbidden it.
_NO_BPF: Final = "no-bpf"
_RUNC: Final = """\
#!/bin/sh
before=
for word in "$@"; do
    if [ "$before" = --bundle ] && [ -e "{mark}" ]; then sed -i 's/"bpf"/"sysfs"/g' "$word/config.json"; fi
    before=$word
done
exec runc "$@"
"""


async def _forward(listens: int) -> None:
    """Pass connections of users to the API server."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(API, API_PORT)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    server = await asyncio.start_server(both, sock=socket.socket(fileno=listens))
    await server.serve_forever()


def main() -> None:
    box = Box(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    cluster = Cluster(box)
    threading.Thread(target=lambda: asyncio.run(_forward(box.listens)), daemon=True).start()
    cluster.start()
    threading.Thread(target=cluster.reap, daemon=True).start()
    print("started", flush=True)
    for line in sys.stdin:
        action, node, value = json.loads(line)
        if action in ("start", "stop"):
            (cluster.kubelet if action == "start" else cluster.stop_kubelet)(node)
        else:
            of = {"mtu": cluster.set_mtu, "bpf": cluster.set_bpf, "pods": cluster.set_pods, "drop": cluster.set_drop}
            of[action](node, value)
        print("done", flush=True)


if __name__ == "__main__":
    main()
