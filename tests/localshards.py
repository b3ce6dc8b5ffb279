"""Shards on this machine: each is a process with namespaces of its own for networks, mounts and processes.

As pods have, they have a network, a /run, a BPF file system and processes of their own, and an overlay of MTU 1450
between them: veths to a bridge, in a namespace that ends with its process. Nothing of them is in the machine's network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import pytest

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.fabric.cutting import Cut, cut
from heddle.fabric.model import Fabric
from heddle.runtimes import registry
from heddle.runtimes.clusterkind import Cluster, ShardCommand, ShardNeed
from heddle.runtimes.sharded import ShardedRuntime
from heddle.shards.server import RELAY
from tests.objects.shared import ROOT

NAME: Final = "localshards"
MTU: Final = 1450
_WIRE: Final = "wire"
_SERVER: Final = "heddle.shards.server"
_ALONE: Final = (
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
)
_SETUP: Final = (
    "mount -t tmpfs none /run && mkdir -p /run/netns /run/lock && mount -t bpf none /sys/fs/bpf && "
    'ip link set lo up && exec "$@"'
)


class LocalCluster:
    """Implements heddle.runtimes.clusterkind.Cluster."""

    name = NAME
    python: Sequence[str] = (RELAY,)

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.prefix = "10.88.0."  # of the shards' addresses, or one of IPv6
        self.mtu = MTU
        self._holders: dict[str, dict[str, subprocess.Popen[str]]] = {}  # lab -> shard

    def create(self, lab: str, shards: Sequence[ShardNeed], observer: Observer) -> None:
        """Start the shards that do not run, and wire them."""
        held = self._holders.setdefault(lab, {})
        if _WIRE not in held:
            held[_WIRE] = _hold(["sh", "-c", "echo ready; exec sleep infinity"])
            self._on(held[_WIRE], "ip", "link", "add", "bridge", "mtu", str(self.mtu), "type", "bridge")
            self._on(held[_WIRE], "ip", "link", "set", "bridge", "up")
        for at, shard in enumerate(shards, 1):
            if shard.name in held and held[shard.name].poll() is None:
                continue
            holder = held[shard.name] = _hold([*self._own(lab, shard.name), sys.executable, "-P", "-m", _SERVER])
            veth = f"to-{shard.name}"
            with suppress(Exception):
                self._on(held[_WIRE], "ip", "link", "del", veth)
            peer = ("peer", "name", "eth0", "netns", str(_inside(holder)), "mtu", str(self.mtu))
            self._on(held[_WIRE], "ip", "link", "add", veth, "mtu", str(self.mtu), "type", "veth", *peer)
            self._on(held[_WIRE], "ip", "link", "set", veth, "master", "bridge", "up")
            words = (f"{self.prefix}{at}/64", "nodad") if ":" in self.prefix else (f"{self.prefix}{at}/24",)
            self._on(holder, "ip", "addr", "add", *words, "dev", "eth0")
            self._on(holder, "ip", "link", "set", "eth0", "up")

    def addresses(self, lab: str) -> Mapping[str, str]:
        """10.88.0.1 for s1, and so on."""
        return {name: f"{self.prefix}{name.removeprefix('s')}" for name, _ in self._running(lab)}

    def argv(self, lab: str, shard: str, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """nsenter, with a state directory of the shard's own."""
        if lost := [each for each in self.lost(lab) if each.where == f"shard {shard}"]:
            raise MachineError(*lost)
        return [*self._enter(self._holders[lab][shard]), *self._own(lab, shard), *argv]

    def _own(self, lab: str, shard: str) -> list[str]:
        place = self._directory / lab / shard
        place.mkdir(parents=True, exist_ok=True)
        return ["env", f"HEDDLE_STATE_DIR={place}", f"PYTHONPATH={ROOT}"]

    def open(self, lab: str, shard: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        """A process of this machine."""
        pipe, words = subprocess.PIPE, self.argv(lab, shard, argv)
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)

    def place(self, lab: str, shard: str) -> str:
        """All are on this machine."""
        return ""

    def lost(self, lab: str) -> list[Problem]:
        """Shards whose process has ended."""
        running = dict(self._running(lab))
        return [
            Problem(f"shard {name}", "its process", "has ended", f"./inv up --repair --name {lab}")
            for name in self._holders.get(lab, {})
            if name not in running and name != _WIRE
        ]

    def exists(self, lab: str) -> bool:
        """True while a process of it runs."""
        return any(each.poll() is None for each in self._holders.get(lab, {}).values())

    def remove(self, lab: str, observer: Observer) -> int:
        """End the processes: the kernel ends all that they hold."""
        held = self._holders.pop(lab, {})
        for holder in held.values():
            holder.kill()
            holder.wait()
        return len(held)

    def close(self) -> None:
        """End all shards."""
        for lab in [*self._holders]:
            self.remove(lab, Observer())

    def kill(self, lab: str, shard: str) -> None:
        """End one shard, as a node that fails does."""
        os.kill(self._holders[lab][shard].pid, signal.SIGKILL)
        self._holders[lab][shard].wait()

    def drop_udp(self, lab: str, shard: str, port: int, *, end: bool = False) -> None:
        """Drop what a shard sends to a UDP port, as Calico drops VXLAN of pods; or no longer."""
        for family in ("-4", "-6"):
            rule = ("ipproto", "17", "dport", str(port), "blackhole")
            self._on(self._holders[lab][shard], "ip", family, "rule", "delete" if end else "add", *rule)

    def _running(self, lab: str) -> list[tuple[str, subprocess.Popen[str]]]:
        held = self._holders.get(lab, {})
        return [(name, each) for name, each in held.items() if name != _WIRE and each.poll() is None]

    def _on(self, holder: subprocess.Popen[str], *argv: str) -> None:
        run(["nsenter", f"--net=/proc/{_inside(holder)}/ns/net", *argv])

    @staticmethod
    def _enter(holder: subprocess.Popen[str]) -> list[str]:
        # --root: a mount namespace has the root of the machine, also where the tests run in a chroot.
        return ["nsenter", f"--target={_inside(holder)}", "--net", "--mount", "--pid", "--root"]


def _hold(argv: Sequence[str]) -> subprocess.Popen[str]:
    """Namespaces whose first process is this command, which says when it is ready."""
    words = [*_ALONE, "sh", "-c", _SETUP, "sh", *argv]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert holder.stdout is not None
    if holder.stdout.readline().strip() != "ready":
        raise RuntimeError("a shard did not start")
    return holder


def _inside(holder: subprocess.Popen[str]) -> int:
    """The first process of the namespaces: the child of unshare."""
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    until = time.monotonic() + 5
    while not (found := children.read_text().split()) and time.monotonic() < until:
        time.sleep(0.01)
    return int(found[0])


class LocalShards(ShardedRuntime):
    """Implements heddle.runtimes.registry.Runtime, with shards on this machine."""

    name = NAME
    shards_wanted = 2
    on: LocalCluster | None = None

    def cluster(self, lab: str) -> Cluster:
        """The one of this test session."""
        assert self.on is not None, "a test sets it"
        return self.on

    def cut_of(self, fabric: Fabric, options: Mapping[str, str]) -> Cut:
        """What the test wants."""
        return cut(fabric, self.shards_wanted)


def registered(directory: Path) -> Iterator[LocalCluster]:
    """For a fixture: the runtime of shards on this machine, until the fixture ends."""
    made = LocalCluster(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.RUNTIMES.core, NAME, LocalShards)
        patch.setattr(LocalShards, "on", made)
        yield made
    made.close()
