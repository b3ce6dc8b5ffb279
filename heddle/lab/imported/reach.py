"""What of a topology reaches this machine beyond its nodes: rights, files and commands, as its user should read first.

In:  the keys of a node with all inherited values, as the file has them.
Out: what reaches the machine and why, a pair each; and lines for the whole topology, with the nodes' names.
A node's process is root: of this machine in namespaces, and in containers wherever one of these keys says so.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import printable
from heddle.base.tables import some_of
from heddle.lab.imported import frr
from heddle.lab.imported.commands import as_text
from heddle.lab.imported.grammar import DIRECTORIES, magic, only_waits, resolved

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
