"""The namespace runtime: a fabric in seconds, without a container engine.

In:  a rendered containerlab topology.
Out: a namespace per node, `heddle-LAB-NODE`, with links, sysctls, addresses and running daemons.
A phase is one process for the whole lab if possible, else one per node; never one per link. A node needs no process to
keep it alive: its namespace is pinned by name, and each process that enters gets its own path space (enter.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, Journal, dying_with_us, first_lines, run
from heddle.fabric.model import Fabric
from heddle.kernel.devicetypes import explained
from heddle.kernel.namespace import NodeHandle, inside
from heddle.render.dialects import RenderOptions, check_deployable
from heddle.runtimes.netns_cleanup import namespaces_of, remove_lab
from heddle.runtimes.netns_space import RUN_DIR, Space, files_dir, job_root, make_space, make_views, netns_path
from heddle.runtimes.netns_topology import (
    OWN,
    READ_ONLY,
    NodeDef,
    Topology,
    known_node,
    read_topology,
    start_timeout,
)
from heddle.runtimes.registry import Runtime
from heddle.runtimes.vrf import vtysh_in_vrf
from heddle.switch.links.cuts import TUNNEL, stub_name, tunnel_line

EMPTY: Final[Mapping[str, NodeDef]] = MappingProxyType({})
CABLES: Final = "_cables"  # the namespace of the stubs of cut links; not a valid node name
_ENTER: Final = Path(__file__).with_name("enter.py")
# Isolated and without site-packages: the helper starts in about 15 ms.
HELPER: Final = (sys.executable, "-I", "-S", str(_ENTER))
_BATCH_LINE: Final = re.compile(r"Command failed -:(\d+)")
_WORKERS: Final = 4  # per-node batches wait for the kernel's single rtnl lock; more workers would only queue
# ip keeps what it opens for each `netns NAME` until it ends, two files a link: under the usual limit of 1,024 open
# files one batch could not make more than 500 links.
_LINKS_A_BATCH: Final = 100
_SHOWN: Final = 5  # failures that are printed in full


class NetnsRuntime(Runtime):
    """Namespaces of this machine."""

    name = "netns"
    daemons_here = True
    here = True

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        check_deployable(options, self.name, None)  # it needs only namespaces, and the preflight has checked them
        return options

    def missing_nodes(self, lab: str, topology: Path) -> list[Problem]:
        hint = f"run ./inv down {lab}, then up again, to recreate it"
        return [
            Problem(name, "its namespace", "is missing: it was removed", hint)
            for name in read_topology(topology).nodes
            if not netns_path(lab, name).exists()
        ]

    def exists(self, lab: str) -> bool:
        return bool(namespaces_of(lab)) or (RUN_DIR / lab).exists()

    def nodes(self, lab: str, topology: Path) -> Mapping[str, NodeHandle]:
        return {name: NodeHandle(name, netns_path(lab, name)) for name in read_topology(topology).nodes}

    def find(self, lab: str, topology: Path, node: str, path: str) -> Path | None:
        spot = Space(lab, read_topology(topology).home(node)).outside(path)
        return spot if spot is not None and spot.exists() else None

    def write_script(self, lab: str, topology: Path, journal: Journal) -> None:
        topo = read_topology(topology)
        topo.check_honoured()
        self._note_views(lab, topo, journal)
        journal.note(["ip", "-batch", "-"], "\n".join(line for line, _ in _namespace_lines(lab, topo)))
        for node in topo.spaces.values():
            if node.sysctls:
                journal.note(_sysctl_argv(lab, node))
        journal.note(["ip", "-batch", "-"], "\n".join(line for line, _ in _link_lines(lab, topo)))
        for name, lines in _node_lines(topo).items():
            journal.note(["ip", "-n", netns_path(lab, name).name, "-batch", "-"], "\n".join(line for line, _ in lines))
        for node in topo.spaces.values():
            self._note_commands(lab, node, journal)

    def create(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        topo = read_topology(topology)
        topo.check_honoured()
        self.create_part(lab, topo, journal, observer)

    def create_part(
        self, lab: str, topo: Topology, journal: Journal, observer: Observer, there: Mapping[str, NodeDef] = EMPTY
    ) -> None:
        """`create` of a part of a lab. there: further ends of its links: nodes that exist, with the commands to run."""
        observer.begin("create", len(topo.nodes) + len(topo.links))
        for node in topo.spaces.values():
            make_space(lab, node)
        make_views(lab, list(topo.nodes.values()))
        self._note_views(lab, topo, journal)
        _batch(["ip", "-batch", "-"], _namespace_lines(lab, topo), journal)
        observer.advance("create", len(topo.nodes))
        # Before the links: an interface takes its defaults (rp_filter, accept_dad) when it is created.
        for node in topo.nodes.values():
            _set_sysctls(lab, node, journal)
        links = _link_lines(lab, topo)
        for start in range(0, len(links), _LINKS_A_BATCH):
            _batch(["ip", "-batch", "-"], links[start : start + _LINKS_A_BATCH], journal)
            observer.advance("create", len(topo.nodes) + start)
        observer.advance("create", len(topo.nodes) + len(topo.links))
        lines = _node_lines(replace(topo, nodes={**topo.nodes, **there}))
        _in_parallel(
            lambda node: _batch(["ip", "-n", netns_path(lab, node).name, "-batch", "-"], lines[node], journal), lines
        )
        observer.end("create", f"{len(topo.nodes)} namespaces, {len(topo.links)} links")

    def start(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Run the rest of the nodes' `exec`, the start scripts, in one helper process."""
        self.start_part(lab, read_topology(topology), journal, observer)

    def start_part(self, lab: str, topo: Topology, journal: Journal, observer: Observer) -> None:
        """`start` of a part of a lab."""
        jobs = [self._job(lab, topo, node, commands) for node in topo.spaces.values() if (commands := _commands(node))]
        observer.begin("start", len(jobs))
        for node in topo.spaces.values():
            self._note_commands(lab, node, journal)
        if jobs:
            stdin, called = json.dumps(jobs), f"{lab}: the start of {len(jobs)} nodes"
            argv = [*HELPER, "many", str(os.getpid())]
            done = run(argv, stdin=stdin, timeout=start_timeout(len(jobs)), called=called)
            for line in _failures(json.loads(done.out), {job["node"]: job for job in jobs}):
                observer.warn(line)
        observer.end("start", f"{len(jobs)} nodes")

    def command(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> list[str]:
        known = known_node(lab, topology, node)
        if not netns_path(lab, node).exists():
            raise MachineError(Problem("", node, "is not running", f"run ./inv down {lab}, then up again"))
        words = vtysh_in_vrf(argv, node) if known.daemons_in else list(argv)
        return [*HELPER, "one", json.dumps(self._job(lab, read_topology(topology), known, [words]))]

    def destroy(self, lab: str, observer: Observer) -> int:
        return remove_lab(lab, RUN_DIR / lab, observer)

    @staticmethod
    def _note_views(lab: str, topo: Topology, journal: Journal) -> None:
        """Record how nodes get their own view of all files, as a comment: enter.py mounts it for each process."""
        for kind, how in ((OWN, "an overlay of this machine's root"), (READ_ONLY, "this machine's root, read-only")):
            if names := [node.name for node in topo.nodes.values() if node.own_files == kind]:
                journal.comment(f"The root of {len(names)} nodes is {how}: {files_dir(lab)}/NODE/%2F/view")

    @staticmethod
    def _note_commands(lab: str, node: NodeDef, journal: Journal) -> None:
        """Record the commands as `ip netns exec` instead of enter.py; a comment names the mounts."""
        commands = _commands(node)
        if commands and node.binds:
            journal.comment(f"{node.name} sees {RUN_DIR / lab / node.name}/{{etc,run,log}} as FRR's directories")
        if node.daemons_of:
            journal.comment(f"and in /run/netns the namespaces of {', '.join(node.daemons_of)}, by these names")
        for argv in commands:
            journal.note(["ip", "netns", "exec", netns_path(lab, node.name).name, *argv])

    @staticmethod
    def _job(lab: str, topo: Topology, node: NodeDef, commands: list[list[str]]) -> dict[str, Any]:
        space = Space(lab, topo.home(node.name))
        mounts = space.mounts(topo.spaces[space.node]) + space.vrf_mounts(node)
        netns = str(netns_path(lab, node.name))
        job = {"node": node.name, "netns": netns, "mounts": mounts, "env": dict(node.env), "commands": commands}
        return job | {"goes_on": bool(node.own_files), "needed": [list(node.start)]} | job_root(lab, node)


def cable_space(lab: str) -> Path:
    """The namespace of the stubs of a shard's cut links."""
    return netns_path(lab, CABLES)


def _namespace_lines(lab: str, topo: Topology) -> list[tuple[str, str]]:
    return [(f"netns add {netns_path(lab, node).name}", node) for node in (*topo.spaces, *[CABLES] * bool(topo.cuts))]


def _link_lines(lab: str, topo: Topology) -> list[tuple[str, str]]:
    """Each end is created in its namespace with its final name, MAC and MTU; nothing is moved or renamed later."""
    lines = []
    for link in topo.links:
        ends = []
        for end in (link.a, link.b):
            mac = f" address {end.mac}" if end.mac else ""
            ends.append(f"{end.interface} netns heddle-{lab}-{end.node}{mac} mtu {link.mtu}")
        what = f"{link.a.node}:{link.a.interface} to {link.b.node}:{link.b.interface}"
        lines.append((f"link add {ends[0]} type veth peer name {ends[1]}", what))
    if topo.cuts:
        lines.append(
            (tunnel_line(netns_path(lab, CABLES).name, topo.cuts[0].tunnel_port), "the tunnel to the other shards")
        )
    for cut in topo.cuts:
        mac = f" address {cut.end.mac}" if cut.end.mac else ""
        own = f"{cut.end.interface} netns heddle-{lab}-{cut.end.node}{mac} mtu {cut.mtu}"
        peer = f"{stub_name(cut.number)} netns heddle-{lab}-{CABLES} mtu {cut.mtu}"
        lines.append((f"link add {own} type veth peer name {peer}", f"{cut.end.node}:{cut.end.interface}"))
    return lines


def _node_lines(topo: Topology) -> dict[str, list[tuple[str, str]]]:
    """Node -> links up, then its leading `ip` commands."""
    lines = {name: [("link set lo up", name)] for name in topo.spaces}
    for link in topo.links:
        for end in (link.a, link.b):
            lines[end.node].append((f"link set {end.interface} up", f"{end.node}:{end.interface}"))
    for cut in topo.cuts:
        lines[cut.end.node].append((f"link set {cut.end.interface} up", f"{cut.end.node}:{cut.end.interface}"))
    if topo.cuts:
        devices = (TUNNEL, *(stub_name(cut.number) for cut in topo.cuts))
        # Without addresses: a stub that announced itself would be a second neighbour of the port.
        lines[CABLES] = [(f"link set {device} addrgenmode none up", device) for device in devices]
    for node in topo.nodes.values():
        lines[node.name] += [(line.removeprefix("ip "), node.name) for line in node.exec[: _leading_ip(node)]]
    return lines


def _leading_ip(node: NodeDef) -> int:
    """The number of plain `ip` commands at the start of the node's `exec`; one batch can run them."""
    count = 0
    if node.own_files:  # a batch would end with the first command that fails
        return 0
    while count < len(node.exec) and re.match(r"ip [a-z]", node.exec[count]):
        count += 1
    return count


def _commands(node: NodeDef) -> list[list[str]]:
    """The other commands, split as containerlab does (no shell)."""
    return [shlex.split(line) for line in node.exec[_leading_ip(node) :]]


def _sysctl_argv(lab: str, node: NodeDef) -> list[str]:
    pairs = [f"{key}={value}" for key, value in node.sysctls.items()]
    return ["ip", "netns", "exec", netns_path(lab, node.name).name, "sysctl", "-q", "-w", *pairs]


def _set_sysctls(lab: str, node: NodeDef, journal: Journal) -> None:
    """Write the node's sysctls from a thread inside it."""
    if not node.sysctls:
        return
    journal.note(_sysctl_argv(lab, node))
    with inside(netns_path(lab, node.name)):
        for key, value in node.sysctls.items():
            try:
                Path("/proc/sys", *key.split(".")).write_text(value, encoding="ascii")
            except OSError as error:
                what, why = f"{key}={value}", f"cannot be set: {error.strerror}"
                missing = isinstance(error, FileNotFoundError)
                hint = "run ./inv doctor to see what the kernel does not support" if missing else "use a valid value"
                raise MachineError(Problem(node.name, what, why, hint)) from None


def _batch(argv: list[str], lines: Iterable[tuple[str, str]], journal: Journal) -> None:
    """One `ip -batch`; MachineError names the node or link whose line failed, and the line.

    It dies with this process: a killed `up` must not create more objects while a later `down` removes them.
    """
    pairs = list(lines)
    text = "".join(line + "\n" for line, _ in pairs)
    journal.note(argv, text)
    seconds = 60 + len(pairs) / 10
    done = run(dying_with_us(argv, "KILL"), stdin=text, check=False, timeout=seconds, called=" ".join(argv))
    if done.code != 0:
        raise MachineError(_batch_problem(done, argv, pairs))


def _batch_problem(done: Done, argv: list[str], pairs: list[tuple[str, str]]) -> Problem:
    said = first_lines("\n".join(line for line in done.err.splitlines() if not _BATCH_LINE.match(line)))
    if match := _BATCH_LINE.search(done.err):
        culprits = pairs[int(match.group(1)) - 1 :]
    else:  # for a word that ip cannot read, it prints the word, but not the line number
        words = re.findall(r'"([^"]+)"', done.err)
        culprits = [pair for pair in pairs if any(word in pair[0].split() for word in words)]
    if not culprits:
        return Problem("", shlex.join(argv), f"failed with exit code {done.code}: {said}")
    line, where = culprits[0]
    return Problem(where, f"ip {line}", *explained(f"ip {line}".split(), f"failed: {said}"))


def _failures(failed: Mapping[str, Any], jobs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Commands that failed: warnings for those of a user, which containerlab reports and goes on; else MachineError."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for node, rows in failed.items():
        for row in rows:
            command = row["command"]
            why = f"failed with exit code {row['code']}: {first_lines(row['output'])}"
            found = Problem(node, shlex.join(command) or "entering", *explained(command, why))
            going_on = command and jobs[node]["goes_on"] and command not in jobs[node]["needed"]
            (warnings if going_on else problems).append(found)
    for rows in (problems, warnings):
        if len(rows) > _SHOWN:
            rows[_SHOWN:] = [Problem("", f"and {len(rows) - _SHOWN} more", "failed as well")]
    if problems:
        raise MachineError(*problems)
    lines = [str(each) for each in warnings]
    return [*lines, "the lab goes on without what failed, as containerlab does"] if lines else []


def _in_parallel(work: Callable[[str], None], nodes: Iterable[str]) -> None:
    """Run `work` for each node. The first error is raised when all started calls have ended."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        futures = [pool.submit(work, node) for node in nodes]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
