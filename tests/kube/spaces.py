"""Namespaces of the cluster for tests, verbs in processes of their own, and what these leave in a namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base import state
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.lab import Lab
from heddle.render.dialects import RenderOptions
from heddle_plugins.kubernetes import podexec
from heddle_plugins.kubernetes.target import KubeTarget
from tests.kube.api import eventually
from tests.kube.cluster import ROOT, RealCluster

RUNTIME: Final = "kubernetes"
LINKS: Final = ("link.host=40mbit", "link.fabric=40mbit")


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

    def argv(self, name: str, fabric: str = "tiny", shards: int = 2) -> tuple[str, ...]:
        """The words of `up`."""
        words = ("--name", name, "--runtime", RUNTIME, "--shards", str(shards), "--namespace", self.name)
        return ("up", fabric, *words)

    def exec(self, pod: str, *argv: str) -> list[str]:
        """The command that runs argv in a pod."""
        return podexec.argv_of(KubeTarget(self.cluster.context, self.name), pod, argv, tty=False)

    def up(self, name: str, fabric: str = "tiny", *overrides: str, shards: int = 2) -> Lab:
        options = RenderOptions(target={"namespace": self.name, "shards": str(shards)})
        return lifecycle.up(load_fabric(fabric, name=name, overrides=overrides), runtime=RUNTIME, options=options).lab


def start(*words: str, config: Path | None = None) -> subprocess.Popen[str]:
    """A verb in a process of its own, the first of a group as in a terminal. config: another kubeconfig."""
    env = {**os.environ, **({"KUBECONFIG": str(config)} if config else {})}
    argv = [sys.executable, str(ROOT / "tasks.py"), *words]
    return subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip


def refused(space: Space, name: str, *words: str, code: int = 3, config: Path | None = None) -> list[str]:
    """The lines of the error of `up`, without hints and progress. Nothing is left: no object, no record."""
    with start(*space.argv(name), *words, config=config) as process:
        _, said = process.communicate(timeout=240)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert name not in state.labs()
    assert space.is_empty()
    return [line for line in said.splitlines() if not line.startswith((" ", "pods:", "shards:", "start:", "warning:"))]


def all_run(space: Space) -> bool:
    """Whether all pods of a namespace run."""
    pods = space.cluster.api.pods(space.name).values()
    return all(each["status"]["phase"] == "Running" for each in pods)


@contextmanager
def quota(space: Space, memory: str = "64Mi") -> Iterator[Space]:
    """With a quota of memory for all pods."""
    path, api = space.path("resourcequotas"), space.cluster.api
    api.post(path, {"metadata": {"name": "small"}, "spec": {"hard": {"requests.memory": memory}}})
    eventually("the quota is in force", lambda: api.get(f"{path}/small")["status"].get("hard"))
    yield space.with_kept("resourcequotas small")
    api.delete(f"{path}/small")
