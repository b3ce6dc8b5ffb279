"""What of a lab is still on this machine, for tests and `./inv soak`."""

from __future__ import annotations

import os
from pathlib import Path

from heddle.base import owners, state
from heddle.host.engine import docker as docker_engine
from heddle.kernel.namespace import NETNS_DIR
from heddle.runtimes.clab_deploy import CLAB_DIR, containers_of
from heddle.runtimes.netns_cleanup import BPF_DIR, namespaces_of
from heddle.runtimes.netns_space import RUN_DIR
from heddle.runtimes.registry import RUNTIMES, get_runtime


def leftovers_of(lab: str) -> list[str]:
    """Namespaces, containers, processes, directories, pins, locks and records, a line each. Empty: all is gone."""
    found = [f"namespace {path.name}" for path in namespaces_of(lab)]
    found += [f"namespace {path.name}" for path in NETNS_DIR.glob(f"clab-*{lab}-*")]
    found += [f"container {each.name}" for each in containers_of(lab)]
    found += _docker_networks(lab)
    found += [
        f"/etc/hosts: {line}" for line in Path("/etc/hosts").read_text().splitlines() if f"clab-{lab}-" in line.lower()
    ]
    found += [str(path) for path in Path("/etc/ssh/ssh_config.d").glob(f"clab-{lab}.conf")]
    found += [str(path) for path in (RUN_DIR / lab, CLAB_DIR / lab, BPF_DIR / lab, state.lab_dir(lab)) if path.exists()]
    found += [str(path) for name in (f"{lab}.*", f".{lab}.*") for path in owners.LOCKS.glob(name)]
    inodes = {path.stat().st_ino for path in namespaces_of(lab)}
    # Other labs' daemons see this one's namespaces come, and must see them go.
    marks = (f"/heddle/{lab}/",) if inodes else (f"/heddle/{lab}/", f"heddle-{lab}-")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            own = (entry / "ns/mnt").stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino
            mounts = "" if own else (entry / "mountinfo").read_text(errors="replace")
            stands = (entry / "ns/net").stat().st_ino in inodes
        except OSError:
            continue
        if stands or f"heddle-{lab}-" in command or any(mark in mounts for mark in marks):
            found.append(f"process {entry.name}: {command}")
    return found or [f"runtime {each}" for each in RUNTIMES if get_runtime(each).exists(lab)]


def _docker_networks(lab: str) -> list[str]:
    if docker_engine.trouble() is not None:
        return []
    names = docker_engine.docker(["network", "ls", "--format", "{{.Name}}"]).out.split()
    return [f"network {name}" for name in names if name == f"heddle-{lab}"]
