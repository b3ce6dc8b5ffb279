"""Which binds and programs a node in a namespace can have, and what its commands reach of this machine.

It sees this machine's files in its own view (netns_space.py). Its programs are this machine's, not those of its image.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import printable
from heddle.base.tables import some_of
from heddle.host import packages
from heddle.lab.imported import frr
from heddle.lab.imported.grammar import DIRECTORIES, SHELLS, as_text, magic, only_waits, resolved
from heddle.runtimes.netns_space import DEVICES, PROVIDED, shown


def seen_anyway(source: Path, target: str) -> bool:
    """True for a bind of a file to its own path, where a node sees it without the bind."""
    if target == "/lib/modules":
        return True
    own = shown(source) or target.startswith(("/proc/", "/sys/")) or target.removeprefix("/dev/") in DEVICES
    return str(source) == os.path.normpath(target) and own


def no_view(source: Path, target: str, read_only: str) -> tuple[str, str] | None:
    """Why a namespace cannot see `source` at `target`, and a hint; None when it can.

    read_only: why nodes cannot create a mount point in their view; empty when they can.
    """
    there, engine = Path(target), "use --runtime containerlab"
    if not source.is_file() and not source.is_dir():
        return "is a socket or device of this machine, which nodes do not get", f"leave it out, or {engine}"
    if target.startswith(("/proc/", "/sys/")):
        return "covers a file of the kernel, which a namespace has in common with this machine", engine
    if any(target.startswith(f"{each}/") for each in PROVIDED):
        return None
    if there.exists() and there.is_dir() != source.is_dir():
        kinds = ("directory", "file") if there.is_dir() else ("file", "directory")
        why = f"is not possible: on this machine {target} is a {kinds[0]}, and {source} is a {kinds[1]}"
        return why, f"bind at another path, or {engine}"
    if not there.exists() and read_only:
        why = f"needs {target}, which this machine does not have; nodes cannot create it, since {read_only}"
        return why, f"load the kernel module overlay, use --on vm, or {engine}"
    return None


def absent_program(command: str, earlier: Sequence[str], targets: Iterable[str]) -> str:
    """The program of a command if a node in a namespace cannot have it; else empty.

    earlier: the node's commands before this one, which may create the program; targets: those of its binds. A path is
    not judged: more than these can create it. What Heddle needs itself is installed before a lab is created.
    """
    name = _not_here(command, os.environ.get("PATH", os.defpath))
    if not name or frr.is_service(command):
        return ""
    if any(name in packages.PARTS[part].programs for part in packages.FABRIC):
        return ""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    bound = any(target in places or os.path.basename(target) == name for target in targets)  # noqa: PTH119
    return "" if bound or any(re.search(rf"\b{re.escape(name)}\b", line) for line in earlier) else name


def absent_in_main(main: str, targets: Sequence[str]) -> str:
    """The program or script that a main process needs, and that no bind and not this machine has; else empty."""
    words = shlex.split(main)
    shell = words[0].rpartition("/")[2] in SHELLS
    for path in words[: 2 if shell else 1]:
        bound = path == frr.DOCKER_START or any(f"{path}/".startswith(f"{target}/") for target in targets)
        if path.startswith("/") and not bound and not Path(path).exists():
            return path
    return absent_program(main, (), targets)


@lru_cache(4096)  # all nodes often have the same commands
def _not_here(command: str, places: str) -> str:
    """The program of a command if it is in no directory of `places`, and not FRR's; empty for a path."""
    name = shlex.split(command)[0]
    if "/" in name or name in ("vtysh", "watchfrr", *frr.DAEMONS) or shutil.which(name, path=places):
        return ""
    return name


_KINDS: Final = ("bridge", "ovs-bridge")
_DEVICE: Final = "bridge0"


def with_bridges(topology: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The topology that the reader gets, and the names of the bridges."""
    names = [n for n, own in topology["nodes"].items() if isinstance(own, dict) and own.get("kind") in _KINDS]
    made = {name: _as_linux(topology["nodes"][name], _ports(topology.get("links"), name)) for name in names}
    return {**topology, "nodes": {**topology["nodes"], **made}}, names


def _as_linux(own: Mapping[str, Any], ports: Iterator[str]) -> dict[str, Any]:
    """The bridge forwards as soon as it is up: without STP it does not wait for the forward delay."""
    made = [f"ip link add {_DEVICE} type bridge", f"ip link set {_DEVICE} up"]
    return {**own, "kind": "linux", "exec": [*made, *(f"ip link set {port} master {_DEVICE}" for port in ports)]}


def _ports(links: Any, node: str) -> Iterator[str]:
    """The interfaces that links give a node."""
    for link in links if isinstance(links, list) else ():
        ends = link.get("endpoints") if isinstance(link, dict) else None
        for end in ends if isinstance(ends, list) else ():
            if isinstance(end, dict) and end.get("node") == node and end.get("interface"):
                yield str(end["interface"])
            elif isinstance(end, str) and end.partition(":")[0] == node:
                yield end.partition(":")[2]


Reach = tuple[str, str]  # what the file has, as `key: value`; and what that means
_SHOWN: Final = 100  # characters of a value
_TRUE: Final = frozenset({"true", "yes", "on", "y"})  # YAML 1.1
_KEYS: Final[Mapping[str, str]] = {
    "privileged": "root of the node is root of this machine",
    "pid-mode": "the node sees and ends this machine's processes",
    "cgroupns-mode": "the node sees this machine's control groups",
    "cap-add": "more rights of root than Docker's default",
    "security-opts": "changes what the engine keeps from a node",
    "devices": "devices of this machine",
}
_NO_EFFECT: Final = "has no effect in namespaces, where each command is root of this machine anyway"
_COMMAND: Final[Mapping[bool, str]] = {
    True: "runs as root of this machine: it reads all files; what it writes stays in the node",
    False: "runs as root of its container, which is no protection for this machine",
}
# Programs that work on the network of their own namespace only, unless one of the words below is there.
_NETWORK: Final = frozenset({"ip", "bridge", "ifconfig", "route", "sleep"})
_BEYOND: Final = ("netns", "exec", "-n", "-b", "-force", "-a")  # how ip's words begin that lead elsewhere


def reach_of(keys: Mapping[str, Any], node: str, lab: str, directory: Path, runtime: str) -> tuple[Reach, ...]:
    """What of a node reaches this machine. keys: with inherited values. directory: of the topology file."""
    here = runtime == "netns"
    found = [(f"{key}: {value}", _NO_EFFECT if here else _KEYS[key]) for key, value in _rights(keys)]
    for text in keys.get("binds", ()):
        source, _, rest = magic(text, lab, node).partition(":")
        if source and not any(word in source for word in DIRECTORIES) and _outside(source, directory):
            verb = "read" if here or "ro" in rest.partition(":")[2].split(",") else "read and write"
            found.append((f"binds: {text}", f"the node can {verb} what is outside the topology's directory"))
    mains = [(key, as_text(keys[key])) for key in ("entrypoint", "cmd") if keys.get(key)]
    for key, text in (*mains, *(("exec", text) for text in keys.get("exec", ()))):
        if not _only_network(text) and not (key != "exec" and only_waits(text)):
            found.append((f"{key}: {text}", _COMMAND[here]))
    return tuple((_line(what), why) for what, why in found)


def lines_of(reaches: Mapping[str, Sequence[Reach]]) -> list[str]:
    """A line for each thing: `privileged: true (r1, r2): root of the node is root of this machine`."""
    nodes: dict[Reach, list[str]] = {}
    for node, found in reaches.items():
        for each in dict.fromkeys(found):
            nodes.setdefault(each, []).append(node)
    return [f"{what} ({some_of(names)}): {why}" for (what, why), names in nodes.items()]


def _line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."


def _rights(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _KEYS:
        value = keys.get(key)
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
        wanted = _TRUE if key == "privileged" else {"host"} if key in ("pid-mode", "cgroupns-mode") else {text.lower()}
        if text and text.lower() in wanted:
            yield key, text


def _outside(source: str, directory: Path) -> bool:
    """True for a file or directory that is not below the topology's directory, also through a link."""
    root = os.path.realpath(directory)
    return not f"{os.path.realpath(resolved(source, directory))}/".startswith(f"{root.rstrip('/')}/")


@lru_cache(maxsize=4096)
def _only_network(command: str) -> bool:
    """True for a command that changes nothing but the network of its node, or starts FRR there."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if frr.is_service(command) or not words:
        return True
    if words[0] == "sysctl":
        return all(word in ("-w", "-q") or (word.startswith("net.") and "=" in word) for word in words[1:])
    return words[0] in _NETWORK and not any(word.startswith(_BEYOND) for word in words[1:])
