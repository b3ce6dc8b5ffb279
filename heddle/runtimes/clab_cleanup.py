"""Remove a containerlab lab, including what `containerlab destroy` leaves after a kill or a manual change.

Only objects of Heddle are touched: containers with our label or from the topology in our marker, their namespaces'
names, the lab's management network, and the lines that containerlab wrote for this lab.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, machine_errors
from heddle.base.process import run
from heddle.host.engine import binary
from heddle.host.engine import docker as engine
from heddle.host.engine.lockfile import locked
from heddle.kernel.namespace import NETNS_DIR
from heddle.runtimes.clab_containers import (
    CLAB_DIR,
    Container,
    containers_of,
    marked_link,
    marked_nodes,
    marked_topology,
    marker,
    ours,
    own_namespaces,
)
from heddle.runtimes.clab_deploy import environment
from heddle.runtimes.netns_cleanup import BPF_DIR, end_processes, remove_directories, same_users

_HOSTS: Final = Path("/etc/hosts")
_HOSTS_LOCK: Final = Path("/run/lock/clab-hosts.lock")  # containerlab's own
_SSH_CONFIGS: Final = Path("/etc/ssh/ssh_config.d")
_UNMOVED: Final = re.compile(r"clab-[0-9a-f]{8}")
_MOVING_S: Final = 2.0  # moving a link takes milliseconds, on a busy machine some tenths of a second
_DEPLOY_ENDS_S: Final = 30.0  # time for a containerlab whose parent was killed to remove its objects
_DESTROY_S: Final = 120.0
_HOSTS_S: Final = 5.0  # containerlab needs milliseconds
_REMOVE_S: Final = 10.0


def remove_lab(lab: str, observer: Observer) -> int:
    """End the lab's processes, and remove its containers, network and records. Returns the number of objects."""
    if not lab.isalnum():  # a path or an empty name would remove files that belong to no lab
        raise ValueError(f"{lab!r} is not a lab's name")
    topology = marked_topology(lab)
    _await_deploy(lab)
    containers = [each for each in containers_of(lab) if ours(each, lab)]
    if not containers and not marker(lab).exists():
        return 0
    observer.begin("remove", len(containers))
    names = _links(lab, containers)
    parked = [path for name in names if (path := _parking(name)).exists()]
    spaces = [*own_namespaces([each for each in containers if each.running]).values(), *parked]
    count = len(containers) + end_processes(lab, spaces, of_containers=False)
    theirs = _theirs(names, containers)
    if not theirs:  # containerlab destroy selects by name only
        _destroy(lab, topology)
    _remove_containers(lab)
    _remove_network(lab)
    _remove_links([path for path in names if path.name not in theirs])
    if (newest := marked_link(lab)) is not None:
        _remove_orphans(newest)
    _forget(lab)
    count += remove_directories(CLAB_DIR / lab, BPF_DIR / lab)
    observer.end("remove", f"{len(containers)} containers")
    return count


def _links(lab: str, containers: list[Container]) -> list[Path]:
    """Names below /run/netns. No pattern is used: names of another lab `zone-a` have the same prefix as `zone`."""
    names = {each.name for each in containers} | {f"clab-{lab}-{node}" for node in marked_nodes(lab)}
    return sorted(NETNS_DIR / name for name in names)


def _parking(path: Path) -> Path:
    """The namespace in which containerlab parks a stopped node's ports."""
    return NETNS_DIR / f"clab-park-{path.name}"


def _theirs(names: list[Path], containers: list[Container]) -> set[str]:
    """Names that containers of other labs use: lab `zone-a` may have a node `b`, and this one, `zone`, an `a-b`."""
    have = set(engine.docker(["ps", "-a", "--format", "{{.Names}}"]).out.split())
    return {path.name for path in names} & have - {each.name for each in containers}


def _remove_links(names: list[Path]) -> None:
    """Names of namespaces that have ended, and parked ports."""
    for path in names:
        if (parked := _parking(path)).exists():
            run(["ip", "netns", "del", parked.name], check=False)
        if path.is_symlink():  # of a container that is gone; another process may have its PID now
            path.unlink(missing_ok=True)


def _remove_orphans(newest: int) -> None:
    """Remove links that a containerlab made but did not move before it ended: both ends are in this namespace.

    newest: the highest ifindex before this lab was made. Another containerlab that deploys now may be about to move a
    pair, so pairs are checked again after _MOVING_S.
    """
    found = _unmoved(newest)
    if found and _deploying():
        time.sleep(_MOVING_S)
        found &= _unmoved(newest)
    for name in sorted(found):
        run(["ip", "link", "del", name], check=False)  # the second end of a pair is removed with the first


def _unmoved(newest: int) -> set[str]:
    """Ends of veth pairs with containerlab's temporary names, with both ends here, newer than `newest`."""
    # Not by `ip link`: it fails when the namespace of any peer is being removed.
    made = {name: number for number, name in socket.if_nameindex() if number > newest and _UNMOVED.fullmatch(name)}
    peers = {name: _peer(name) for name in made}
    mutual = {(made[name], peer) for name, peer in peers.items()}
    return {name for name, peer in peers.items() if (peer, made[name]) in mutual}


def _peer(name: str) -> int:
    """The ifindex of a veth's other end, in its namespace; 0 if the veth is gone."""
    try:
        return int(Path("/sys/class/net", name, "iflink").read_text())
    except (OSError, ValueError):
        return 0


def _destroy(lab: str, topology: Path | None) -> None:
    """Run `containerlab destroy` if possible. A failure is ignored: the caller removes what is left."""
    program = binary.find()
    if program is None or topology is None or not topology.exists():
        return
    argv = [str(program), "destroy", "-t", str(topology), "--name", lab, "--cleanup", "--log-level", "error"]
    variables = [f"{name}={value}" for name, value in environment(lab).items()]
    with suppress(MachineError):
        run(["env", *variables, *argv], check=False, timeout=_DESTROY_S)


def _remove_containers(lab: str) -> None:
    """Remove the containers that are left. One that is ending refuses the removal, and is gone a moment later."""
    end = time.monotonic() + _REMOVE_S
    while left := [each.id for each in containers_of(lab) if ours(each, lab)]:
        engine.docker(["rm", "-f", "-v", *left], check=time.monotonic() > end, timeout=_DESTROY_S)
        time.sleep(0.1)


def _await_deploy(lab: str) -> None:
    """Wait for a `containerlab deploy` of this lab whose parent was killed; end it when it takes too long."""
    end = time.monotonic() + _DEPLOY_ENDS_S
    while pids := _deploying(lab):
        for fd in [os.pidfd_open(pid) for pid in pids if Path("/proc", str(pid)).exists()]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
            os.close(fd)
        time.sleep(0.2)


def _deploying(lab: str | None = None) -> list[int]:
    """Processes that run `containerlab deploy ... --name LAB` with our lab directory in their environment.

    Without a lab: those of all labs. Only root deploys: what other users call a deployment must not block a removal.
    """
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                # The real user: sudo and su run as root while they ask any user for a password.
                if "\nUid:\t0\t" not in Path(entry.path, "status").read_text() or not same_users(Path(entry.path)):
                    continue
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if not {b"deploy", b"apply"} & set(words):
                    continue
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
                by_name = words[0].endswith((b"containerlab", b"clab"))
                if by_name if lab is None else f"CLAB_LABDIR_BASE={CLAB_DIR / lab}".encode() in variables:
                    found.append(int(entry.name))
    return found


def _remove_network(lab: str) -> None:
    """Remove the lab's management network, unless a container uses it."""
    name = f"heddle-{lab}"
    found = engine.docker(["network", "ls", "--filter", f"name=^{name}$", "--filter", "label=containerlab", "-q"])
    if found.out.strip():
        engine.docker(["network", "rm", name], check=False)


def _forget(lab: str) -> None:
    """Remove containerlab's entries for the lab: its names in /etc/hosts and its hosts for ssh."""
    with suppress(FileNotFoundError):
        (_SSH_CONFIGS / f"clab-{lab}.conf").unlink()
    start, end = (f"###### CLAB-{lab}-{word} ######" for word in ("START", "END"))
    with machine_errors(str(_HOSTS)), _hosts_locked():
        text = _HOSTS.read_text(encoding="utf-8", errors="surrogateescape") if _HOSTS.exists() else ""
        kept = re.sub(f"{re.escape(start)}\n.*?{re.escape(end)}\n?", "", text, flags=re.DOTALL)
        if kept != text:
            # In place, as containerlab does: in a container this file is a mount, which cannot be replaced.
            _HOSTS.write_text(kept, encoding="utf-8", errors="surrogateescape")


@contextmanager
def _hosts_locked() -> Iterator[None]:
    """Have containerlab's lock for a with block, if it is free in _HOSTS_S.

    It is in a directory that every user can write to, and so every user can make it first and hold it. Without it, only
    a containerlab that writes the file in the same millisecond is in danger; `down` must not depend on other users.
    """
    end = time.monotonic() + _HOSTS_S
    with ExitStack() as stack:
        while time.monotonic() < end:
            try:
                stack.enter_context(locked(_HOSTS_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB))
                break
            except MachineError:
                time.sleep(0.05)
        yield
