"""A third runtime: a node is one process with namespaces of its own, and nothing of it has a name on this machine.

It shares no code with Heddle's two: its nodes are found by the environment of their processes, their files are on file
systems that end with them, and links are created by process ID. It proves the contract of `Runtime`
(tests/netns/test_runtime_contract.py), and that no module above a runtime expects a node's place or name.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Journal, attached, end_all, first_lines, run
from heddle.fabric.model import Fabric
from heddle.kernel.namespace import NodeHandle
from heddle.render.dialects import RenderOptions, check_deployable
from heddle.runtimes.netns_topology import NodeDef, Topology, known_node, read_topology

NAME: Final = "processes"
_MARK: Final = "HEDDLE_TEST_NODE"
# Runs $0 $@. Daemons of FRR 10 keep the output of the command that starts them, and a pipe would not end before them.
_TO_FILE: Final = 'said=$(mktemp); "$0" "$@" >"$said" 2>&1; code=$?; cat "$said"; rm "$said"; exit $code'
_FRR: Final = ("/etc/frr", "/run/frr", "/var/log/frr")


class ProcessRuntime:
    """Implements heddle.runtimes.registry.Runtime."""

    name = NAME
    daemons_here = True
    here = True

    def shards(self, lab: str) -> None:
        """None: all nodes are on this machine."""

    def exists(self, lab: str) -> bool:
        """True when a node's process is running."""
        return bool(_processes(lab))

    def name_conflict(self, lab: str) -> Problem | None:
        """Always None: nothing has a name."""
        return None

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        """Nothing to prepare."""
        check_deployable(options, self.name, None)
        return options

    def create(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """A process for each node, then sysctls, links and addresses."""
        topo = read_topology(topology)
        observer.begin("create", len(topo.nodes))
        for node in topo.nodes.values():
            _begin(lab, node)
        self._configure(lab, topo, journal)
        observer.end("create", f"{len(topo.nodes)} processes, {len(topo.links)} links")

    def start(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Run the other commands of all nodes, one node after the other."""
        nodes = read_topology(topology).nodes
        observer.begin("start", len(nodes))
        for node in nodes.values():
            for argv in _commands(node, addresses=False):
                self._must(lab, topology, node.name, argv, journal)
        observer.end("start", f"{len(nodes)} nodes")

    def nodes(self, lab: str, topology: Path) -> Mapping[str, NodeHandle]:
        """Handles of all nodes; the path of one that is stopped does not exist."""
        here = _processes(lab)
        paths = {name: Path("/proc", str(here.get(name, "none")), "ns/net") for name in read_topology(topology).nodes}
        return {name: NodeHandle(name, path) for name, path in paths.items()}

    def missing_nodes(self, lab: str, topology: Path) -> list[Problem]:
        """Nodes without a process."""
        here = _processes(lab)
        return [_stopped(lab, name) for name in read_topology(topology).nodes if name not in here]

    def find(self, lab: str, topology: Path, node: str, path: str) -> Path | None:
        """The file below the root of the node's process."""
        spot = Path("/proc", str(_processes(lab).get(node, "none")), "root", path.lstrip("/"))
        return spot if spot.exists() else None

    def write_script(self, lab: str, topology: Path, journal: Journal) -> None:
        """Record the commands, with the node's name for its process."""
        topo = read_topology(topology)
        for node in topo.nodes.values():
            journal.note(_holder(node), "")
        for link in topo.links:
            journal.note(_link_argv(link.mtu, *((end.node, end.interface, end.mac) for end in (link.a, link.b))))

    def exec(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> int:
        """Run argv in the node with this terminal's streams and return its exit code, 128 + n after signal n."""
        return attached(self.command(lab, topology, node, argv))

    def command(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> list[str]:
        """The argument list that runs argv in the node; MachineError when the node is stopped."""
        known = known_node(lab, topology, node)
        if (pid := _processes(lab).get(node)) is None:
            raise MachineError(_stopped(lab, node))
        values = [f"{key}={value}" for key, value in known.env.items()]
        return [*_entering(pid), "-u", "--", "env", *values, *argv]

    def output(self, lab: str, topology: Path, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        """Run argv in the node and return its standard output; MachineError when it fails. timeout: seconds."""
        words = self.command(lab, topology, node, argv)
        return run(words, timeout=timeout, called=f"{node}: {shlex.join(argv)}").out

    def destroy(self, lab: str, observer: Observer) -> int:
        """End every process of the nodes' namespaces; links, files and namespaces end with the last of them."""
        spaces = {_space(pid) for pid in _processes(lab).values()} - {""}
        count = 0
        while pids := [int(each.name) for each in _numbers() if _space(int(each.name)) in spaces]:
            count += len(pids)
            fds = []
            for pid in pids:
                with suppress(ProcessLookupError):
                    fds.append(os.pidfd_open(pid))
            end_all(fds, 0.5)
        return count

    def _configure(self, lab: str, topo: Topology, journal: Journal) -> None:
        here = _processes(lab)
        for node in topo.nodes.values():
            enter = _entering(here[node.name])
            run([*enter, "ip", "link", "set", "lo", "up"], journal=journal)
            if node.sysctls:
                pairs = [f"{key}={value}" for key, value in node.sysctls.items()]
                run([*enter, "sysctl", "-q", "-w", *pairs], journal=journal)
        for link in topo.links:
            ends = [(str(here[end.node]), end.interface, end.mac) for end in (link.a, link.b)]
            run(_link_argv(link.mtu, *ends), journal=journal)
            for pid, interface, _ in ends:
                run(["nsenter", "-t", pid, "-n", "ip", "link", "set", interface, "up"], journal=journal)
        for node in topo.nodes.values():
            for argv in _commands(node, addresses=True):
                run([*_entering(here[node.name]), *argv], journal=journal)

    def _must(self, lab: str, topology: Path, node: str, argv: list[str], journal: Journal) -> None:
        done = run(self.command(lab, topology, node, ["sh", "-c", _TO_FILE, *argv]), check=False, journal=journal)
        if done.code != 0:
            why = f"failed with exit code {done.code}: {first_lines(done.out + done.err)}"
            raise MachineError(Problem(node, shlex.join(argv), why))


def _entering(pid: int) -> list[str]:
    """The beginning of a command in a node. Root and working directory are those of its process, also in a chroot."""
    return ["nsenter", "-t", str(pid), "-n", "-m", "-r", "-w"]


def _link_argv(mtu: int, *ends: tuple[str, str, str | None]) -> list[str]:
    """ends: (process, interface, MAC) of both."""
    one, other = (
        [name, "netns", space, *(["address", mac] if mac else []), "mtu", str(mtu)] for space, name, mac in ends
    )
    return ["ip", "link", "add", *one, "type", "veth", "peer", "name", *other]


def _commands(node: NodeDef, *, addresses: bool) -> list[list[str]]:
    """The node's `exec`: those of `ip`, or all others."""
    lines = [shlex.split(line) for line in node.exec]
    return [argv for argv in lines if (argv[0] == "ip") == addresses]


def _holder(node: NodeDef) -> list[str]:
    """The process that keeps a node's namespaces: it binds the node's files, says so, and waits for its end."""
    lines = ["set -e", f"hostname {node.name}", "mount -t sysfs sysfs /sys"]
    if node.binds:
        lines += ["mount -t tmpfs none /run"]
        lines += [f"mkdir -p {place}; mount -t tmpfs none {place}; chown frr: {place}" for place in _FRR]
    for bind in node.binds:
        source, target = shlex.quote(str(bind.source)), shlex.quote(bind.target)
        lines += [f"touch {target}; mount --bind {source} {target}"]
    lines += ["echo ready", "exec sleep infinity >/dev/null 2>&1"]
    return ["unshare", "--net", "--mount", "--uts", "sh", "-c", "\n".join(lines)]


def _begin(lab: str, node: NodeDef) -> None:
    """Start a node's process; MachineError with its reason when it does not get as far as waiting."""
    marked = {**os.environ, _MARK: f"{lab}/{node.name}"}
    process = subprocess.Popen(
        _holder(node),
        env=marked,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    select.select([process.stdout], [], [], 20.0)
    said = process.stdout.readline()
    if said != "ready\n":
        process.kill()
        raise MachineError(Problem(node.name, "its process", f"ended: {first_lines(said + process.stdout.read())}"))
    process.stdout.close()
    process.returncode = 0  # not waited for: it runs on when this program ends


def _stopped(lab: str, node: str) -> Problem:
    return Problem(node, "its process", "is missing: it was ended", f"run ./inv down {lab}, then up again")


def _processes(lab: str) -> dict[str, int]:
    """Node -> process, of those that are running."""
    found: dict[str, int] = {}
    for entry in _numbers():
        with suppress(OSError):
            marks = re.findall(rf"\b{_MARK}={lab}/([^\0]+)", (entry / "environ").read_text(errors="replace"))
            if marks and (entry / "comm").read_text() in ("sleep\n", "sh\n", "unshare\n"):
                found[marks[0]] = int(entry.name)
    return found


def _numbers() -> list[Path]:
    return [each for each in Path("/proc").iterdir() if each.name.isdigit()]


def _space(pid: int) -> str:
    """The network namespace of a process, as the kernel prints it; empty when the process has ended."""
    with suppress(OSError):
        return str(Path("/proc", str(pid), "ns/net").readlink())
    return ""
