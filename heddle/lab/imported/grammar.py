"""Which keys of containerlab's grammar a user-supplied topology may use, and what becomes of each.

In:  a key and the runtime. Out: KeySupport: taken over, left out (and said once), or refused with the reason.
A key that a runtime cannot honour is refused: a lab that starts with half its meaning would be a lie. Left out is only
what makes no difference to a lab that stands in namespaces, or what Heddle decides itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from heddle.runtimes.netns_topology import HONOURED

Fate = Literal["taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class KeySupport:
    """What becomes of a key. why: the rest of the sentence for what is left out or refused."""

    fate: Fate
    why: str = ""
    hint: str = ""


_TAKEN: Final = KeySupport("taken")

# What only an engine does to a process, a file system or its own network: in a namespace there is nothing to do it to.
_ENGINE_ONLY: Final = frozenset(
    [
        *("image", "image-pull-policy", "restart-policy", "auto-remove", "startup-delay", "healthcheck", "type"),
        *("cap-add", "privileged", "security-opts", "user", "cpu", "cpu-set", "memory", "shm-size"),
        *("cgroupns-mode", "cgroup-parent", "pid-mode", "hostname", "aliases", "dns", "link-apply-mode", "position"),
        *("credentials", "username", "password", "config", "certificate"),
    ]
)
_NO_FILES: Final = "is a file system of a container's own; a namespace sees this machine's files"
_IN_ENGINE: Final = "--runtime containerlab can"
_REFUSED_IN_NAMESPACES: Final[Mapping[str, KeySupport]] = {
    "volumes": KeySupport("refused", _NO_FILES, f"use binds; {_IN_ENGINE}"),
    "tmpfs": KeySupport("refused", _NO_FILES, _IN_ENGINE),
    "devices": KeySupport("refused", "is about a container's own /dev; a namespace has this machine's", _IN_ENGINE),
    "stages": KeySupport(
        "refused", "makes nodes wait for each other, and namespaces start together", f"leave it out; {_IN_ENGINE}"
    ),
    "env-files": KeySupport("refused", "is not read for namespaces", f"write them as env; {_IN_ENGINE}"),
}
# Whatever the runtime: these belong to other kinds than linux, or to another engine.
_REFUSED: Final[Mapping[str, KeySupport]] = {
    "startup-config": KeySupport("refused", "means nothing to kind: linux", "bind the file below /etc/frr"),
    "enforce-startup-config": KeySupport("refused", "means nothing to kind: linux", "leave it out"),
    "suppress-startup-config": KeySupport("refused", "means nothing to kind: linux", "leave it out"),
    "license": KeySupport("refused", "means nothing to kind: linux", "leave it out"),
    "components": KeySupport("refused", "means nothing to kind: linux", "leave it out"),
    "extras": KeySupport("refused", "means nothing to kind: linux", "leave it out"),
    "runtime": KeySupport("refused", "names an engine of its own; Heddle's labs have one runtime", "leave it out"),
}
# Heddle gives every lab a management network of its own, without a way out.
_LEFT: Final[Mapping[str, KeySupport]] = {
    "ports": KeySupport("left", "Heddle's labs publish no ports"),
    "mgmt-ipv4": KeySupport("left", "the management network is Heddle's"),
    "mgmt-ipv6": KeySupport("left", "the management network is Heddle's"),
}
NODE_KEYS: Final = HONOURED | _ENGINE_ONLY | {"cmd", "entrypoint", "network-mode"} | set(_REFUSED_IN_NAMESPACES)
ALL_NODE_KEYS: Final = NODE_KEYS | set(_REFUSED) | set(_LEFT)

# Lists and groups that are put together from all levels; of everything else the nearest level's is taken.
LISTS: Final = frozenset({"exec", "binds", "cap-add", "devices", "env-files", "volumes"})
GROUPS: Final = frozenset({"sysctls", "labels", "env"})


def node_key(key: str, runtime: str) -> KeySupport | None:
    """What becomes of a key of a node; None when containerlab has no such key."""
    if key in _REFUSED:
        return _REFUSED[key]
    if key in _LEFT:
        return _LEFT[key]
    if key not in NODE_KEYS:
        return None
    if runtime != "netns" or key in HONOURED:
        return _TAKEN
    if key in _REFUSED_IN_NAMESPACES:
        return _REFUSED_IN_NAMESPACES[key]
    return KeySupport("left", "namespaces have this machine's files and programs") if key in _ENGINE_ONLY else _TAKEN


TOP_KEYS: Final = ("name", "prefix", "mgmt", "topology", "settings", "debug")
TOP_LEFT: Final[Mapping[str, str]] = {
    "prefix": "containers are called clab-LAB-NODE, which is how Heddle finds them",
    "mgmt": "the management network is Heddle's, of the lab alone and without a way out",
    "settings": "it is about certificates",
    "debug": "it is about containerlab itself",
}
TOPOLOGY_KEYS: Final = ("defaults", "kinds", "groups", "nodes", "links")
LINK_KEYS: Final = frozenset({"type", "endpoints", "mtu", "vars", "labels", "ipv4", "ipv6"})
END_KEYS: Final = frozenset({"node", "interface", "mac", "ipv4", "ipv6", "vars"})
# Words in the place of a node, or types of links, that lead to somewhere else.
OUTSIDE: Final[Mapping[str, str]] = {
    "host": "leads to this machine",
    "macvlan": "leads to an interface of this machine",
    "mgmt-net": "leads to the management network",
    "vxlan": "leads to another machine",
    "vxlan-stitch": "leads to another machine",
    "veth-stitch": "leads through this machine",
    "dummy": "has one end only",
}

LINUX: Final = "linux"


def kind_refused(kind: str) -> tuple[str, str]:
    """Why a kind other than linux cannot be, and what to try."""
    if kind in ("bridge", "ovs-bridge", "host", "ext-container"):
        return "is something of this machine, which Heddle's labs leave alone", "a node of kind: linux can be a bridge"
    if kind == "frr":
        return "is containerlab's own FRR node, which 0.80 brought", "kind: linux, and binds of frr.conf and daemons"
    why = "is a system of its own; Heddle runs kind: linux, in every runtime"
    return why, "containerlab deploy takes it, without Heddle"
