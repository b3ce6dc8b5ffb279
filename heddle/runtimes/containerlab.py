"""The containerlab runtime: the same rendered topology, deployed by the real `containerlab` into containers.

In:  a containerlab topology, rendered or user-supplied.
Out: a container per node, `clab-LAB-NODE`, whose network namespace has that name below /run/netns.
Other rooms work on that namespace and do not depend on containers. containerlab makes links, sets sysctls and runs
`exec`. Heddle chooses its flags, reads its output, and removes what is left after a kill or a manual change: only what
is Heddle's, and the lines that containerlab wrote for this lab.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import Journal, attached, run
from heddle.fabric.model import Fabric
from heddle.host.engine import binary, images
from heddle.host.engine import docker as engine
from heddle.host.engine.docker import docker
from heddle.host.engine.lockfile import locked
from heddle.kernel.namespace import NETNS_DIR, NodeHandle
from heddle.render.dialects import RenderOptions, check_deployable
from heddle.render.render import mgmt_subnet
from heddle.runtimes import clab_deploy as clab
from heddle.runtimes.netns_cleanup import BPF_DIR, end_processes, remove_directories, same_users
from heddle.runtimes.netns_topology import known_node, read_topology
from heddle.runtimes.registry import Runtime

_SHOWN: Final = 5  # nodes that are listed by name
_MOST_PROCESSES: Final = 4096  # and threads, of a node: a switch has less than 100, and the machine usually 32,768
_PROC: Final = Path("/proc")
_SPACES: Final = (IPv4Network("172.24.0.0/13"), IPv4Network("192.168.0.0/16"))  # of management networks
# The node's shell starts the command: for a missing command, engines print to stdout and use their own exit codes.
_AS_SHELL: Final = ("sh", "-c", 'exec "$0" "$@"')


class ContainerlabRuntime(Runtime):
    """Containers of this machine."""

    name = "containerlab"
    daemons_here = False
    here = True

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        """Check engine and containerlab, build missing images, and choose a free management network."""
        if (fault := engine.trouble()) is not None:
            raise MachineError(fault)
        version = binary.version(binary.require())
        check_deployable(options, self.name, version)
        images.ensure_images(observer, Journal())
        if options.mgmt == "own" and options.subnet is None:
            options = replace(options, subnet=free_subnet(mgmt_subnet(fabric), _networks(fabric)))
        return replace(options, version=version)

    def exists(self, lab: str) -> bool:
        return clab.marker(lab).exists() or any(clab.ours(each, lab) for each in clab.containers_of(lab))

    def name_conflict(self, lab: str) -> Problem | None:
        for each in clab.containers_of(lab):
            if not clab.ours(each, lab):
                why = f"is already a containerlab lab that Heddle did not deploy, from {each.topology}"
                hint = f"use another --name, or run containerlab destroy -t {shlex.quote(each.topology)}"
                return Problem("", f"lab {lab}", why, hint)
        return None

    def nodes(self, lab: str, topology: Path) -> Mapping[str, NodeHandle]:
        return {name: NodeHandle(name, _netns(lab, name)) for name in read_topology(topology).nodes}

    def missing_nodes(self, lab: str, topology: Path) -> list[Problem]:
        """Nodes that are not running, one problem per node: stopped or removed by hand, or crashed."""
        here = {each.node: each for each in clab.containers_of(lab)}
        nodes = read_topology(topology).nodes
        spaces = clab.own_namespaces([each for each in here.values() if each.running])
        found = [name for name, each in here.items() if _is_up(each, spaces.get(each.name))]
        return [_why_not(lab, name, here.get(name)) for name in nodes if name not in found]

    def find(self, lab: str, topology: Path, node: str, path: str) -> Path | None:
        """The path of a node's file on this machine, below the root of its first process; None if it does not exist."""
        try:
            process = _netns(lab, node).readlink().parent.parent  # /proc/PID of /proc/PID/ns/net
        except OSError:
            return None
        spot = process / "root" / path.lstrip("/")
        return spot if process.parent == _PROC and spot.exists() else None

    def write_script(self, lab: str, topology: Path, journal: Journal) -> None:
        journal.comment("containerlab makes the containers and links, and runs each node's exec, daemons included.")
        clab.note(lab, topology, journal)
        journal.note(["docker", *_limit(lab, read_topology(topology).nodes)])

    def create(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Deploy containers, links, sysctls, and every node's `exec`, so that daemons are running when this returns."""
        topo = read_topology(topology)
        total = len(topo.nodes) + len(topo.links)
        observer.begin("create", total)
        clab.mark(lab, topology, topo.nodes)
        clab.note(lab, topology, journal)
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            observer.advance("create", min(done, total))

        clab.deploy(lab, topology, step)
        limit = _limit(lab, topo.nodes)
        journal.note(["docker", *limit])
        if (done_update := docker(limit, check=False)).code != 0:
            observer.warn(f"a node can start any number of processes: this engine sets no limit: {done_update.reason}")
        if lost := self.missing_nodes(lab, topology):
            raise MachineError(*lost[:_SHOWN])
        observer.end("create", f"{len(topo.nodes)} containers, {len(topo.links)} links")

    def start(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Nothing to do: containerlab has run every node's `exec`."""

    def exec(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> int:
        self._check(lab, topology, node)
        flags = ["-i", "-t"] if sys.stdin.isatty() and os.isatty(1) else ["-i"]
        return attached([*engine.client(), "exec", *flags, _container(lab, node), *_AS_SHELL, *argv])

    def command(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> list[str]:
        self._check(lab, topology, node)
        return [*engine.client(), "exec", _container(lab, node), *_AS_SHELL, *argv]

    def output(self, lab: str, topology: Path, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        done = docker(["exec", _container(lab, node), *_AS_SHELL, *argv], check=False, timeout=timeout)
        if done.code != 0:
            self._check(lab, topology, node)  # the node may not be running
            why = f"failed with exit code {done.code}: {done.reason}"
            raise MachineError(Problem("", f"{node}: {shlex.join(argv)}", why))
        return done.out

    def destroy(self, lab: str, observer: Observer) -> int:
        return remove_lab(lab, observer)

    def _check(self, lab: str, topology: Path, node: str) -> None:
        known_node(lab, topology, node)
        if lost := [problem for problem in self.missing_nodes(lab, topology) if problem.where == node]:
            raise MachineError(*lost)


def _networks(fabric: Fabric) -> set[IPv4Network]:
    """IPv4 networks of a fabric, as the engine's are: its pool, and the ports' networks of imported topologies."""
    ports = (port.address.network for node in fabric.nodes for port in node.ports if port.address is not None)
    return {each for each in (*fabric.policy.pools, *ports) if isinstance(each, IPv4Network)}


def _limit(lab: str, nodes: Iterable[str]) -> list[str]:
    """The docker command that limits the processes of each node; a topology has no key for that."""
    return ["update", f"--pids-limit={_MOST_PROCESSES}", *(_container(lab, node) for node in nodes)]


def _container(lab: str, node: str) -> str:
    return f"clab-{lab}-{node}"


def _netns(lab: str, node: str) -> Path:
    return NETNS_DIR / _container(lab, node)


def _is_up(container: clab.Container, space: Path | None) -> bool:
    """Whether a node is running, and its name below /run/netns leads to its namespace, where Heddle works."""
    return container.running and space is not None and clab.same_space(clab.namespace_of(container), space)


def _why_not(lab: str, node: str, container: clab.Container | None) -> Problem:
    """The reason that a node is not running. If started by hand it has its links, but not Heddle's settings on them."""
    hint = f"run ./inv down {lab}, then up again, to recreate it"
    if container is None:
        return Problem(node, "its container", "is missing: it was removed", hint)
    if container.running:
        return Problem(node, "its container", f"is running, but its namespace is not at {_netns(lab, node)}", hint)
    why = f"is not running: {container.status}"
    return Problem(node, "its container", why, f"check docker logs {container.name}; {hint}")


def free_subnet(wanted: IPv4Network, inside: Iterable[IPv4Network]) -> IPv4Network:
    """The first free network from `wanted` on, of its size, in its own space and then in the other.

    wanted: the network derived from the lab's name. inside: networks of the lab itself. MachineError when all networks
    overlap with others of this machine.
    """
    taken = [*inside, *_networks_of_the_engine(), *_routes_of_the_machine()]
    for candidate in _candidates(wanted):
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    spaces = " and ".join(map(str, _SPACES))
    why = f"for a /{wanted.prefixlen} in {spaces}: networks and routes of this machine use it all"
    hint = "remove unused networks (docker network ls), or use --mgmt none"
    raise MachineError(Problem("", "management network", f"has no room {why}", hint))


def _candidates(wanted: IPv4Network) -> Iterator[IPv4Network]:
    size = wanted.num_addresses
    for space in sorted(_SPACES, key=lambda each: not wanted.subnet_of(each)):
        slots = space.num_addresses // size
        first = (int(wanted.network_address) - int(space.network_address)) // size if wanted.subnet_of(space) else 0
        for number in range(slots):
            base = int(space.network_address) + (first + number) % slots * size
            yield IPv4Network((base, wanted.prefixlen))


def _networks_of_the_engine() -> list[IPv4Network]:
    """Subnets of all docker networks, with or without a running container."""
    names = docker(["network", "ls", "-q"]).out.split()
    if not names:
        return []
    # A network that is removed meanwhile is not an error: the output has the others.
    done = docker(["network", "inspect", *names], check=False)
    found = (json.loads(done.out or "[]")) or []
    texts = [row.get("Subnet", "") for net in found for row in (net.get("IPAM") or {}).get("Config") or []]
    return [IPv4Network(text, strict=False) for text in texts if text and ":" not in text]


def _routes_of_the_machine() -> list[IPv4Network]:
    """Destinations of this machine's routes, without the default route."""
    rows = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]).out or "[]")
    texts = [str(row.get("dst", "default")) for row in rows]
    return [IPv4Network(text, strict=False) for text in texts if text[:1].isdigit() and text != "0.0.0.0/0"]


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
    topology = clab.marked_topology(lab)
    _await_deploy(lab)
    containers = [each for each in clab.containers_of(lab) if clab.ours(each, lab)]
    if not containers and not clab.marker(lab).exists():
        return 0
    observer.begin("remove", len(containers))
    names = _links(lab, containers)
    parked = [path for name in names if (path := _parking(name)).exists()]
    spaces = [*clab.own_namespaces([each for each in containers if each.running]).values(), *parked]
    count = len(containers) + end_processes(lab, spaces, of_containers=False)
    theirs = _theirs(names, containers)
    if not theirs:  # containerlab destroy selects by name only
        _destroy(lab, topology)
    _remove_containers(lab)
    _remove_network(lab)
    _remove_links([path for path in names if path.name not in theirs])
    if (newest := clab.marked_link(lab)) is not None:
        _remove_orphans(newest)
    _forget(lab)
    count += remove_directories(clab.CLAB_DIR / lab, BPF_DIR / lab)
    observer.end("remove", f"{len(containers)} containers")
    return count


def _links(lab: str, containers: list[clab.Container]) -> list[Path]:
    """Names below /run/netns. No pattern is used: names of another lab `zone-a` have the same prefix as `zone`."""
    names = {each.name for each in containers} | {f"clab-{lab}-{node}" for node in clab.marked_nodes(lab)}
    return sorted(NETNS_DIR / name for name in names)


def _parking(path: Path) -> Path:
    """The namespace in which containerlab parks a stopped node's ports."""
    return NETNS_DIR / f"clab-park-{path.name}"


def _theirs(names: list[Path], containers: list[clab.Container]) -> set[str]:
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
    variables = [f"{name}={value}" for name, value in clab.environment(lab).items()]
    with suppress(MachineError):
        run(["env", *variables, *argv], check=False, timeout=_DESTROY_S)


def _remove_containers(lab: str) -> None:
    """Remove the containers that are left. One that is ending refuses the removal, and is gone a moment later."""
    end = time.monotonic() + _REMOVE_S
    while left := [each.id for each in clab.containers_of(lab) if clab.ours(each, lab)]:
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
                if by_name if lab is None else f"CLAB_LABDIR_BASE={clab.CLAB_DIR / lab}".encode() in variables:
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
