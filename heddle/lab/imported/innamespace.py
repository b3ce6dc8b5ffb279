"""Which binds and programs a node in a namespace can have.

It sees this machine's files in its own view (netns_root.py). Its programs are this machine's, not those of its image.
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

from heddle.host import packages
from heddle.lab.imported import frr
from heddle.lab.imported.commands import SHELLS
from heddle.runtimes.netns_root import DEVICES
from heddle.runtimes.netns_space import PROVIDED, shown


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
        return why, f"load the kernel module overlay, use --place vm, or {engine}"
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
