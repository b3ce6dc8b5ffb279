"""Support for the keys of containerlab's grammar in user-supplied topologies.

In:  a key and the runtime. Out: KeySupport: taken, left out (reported once), or refused with the reason.
A key that a runtime cannot honour is refused: a lab must not start with part of its configuration. A key is left out
only if it makes no difference to a lab in namespaces, or if Heddle decides its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from heddle.runtimes.netns_topology import HONOURED

Fate = Literal["taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class KeySupport:
    """How a key is handled. why: the reason why it is left out or refused."""

    fate: Fate
    why: str = ""
    hint: str = ""


_TAKEN: Final = KeySupport("taken")

# Keys that only a container engine applies to processes, file systems or its own network. No effect in namespaces.
_ENGINE_ONLY: Final = frozenset(
    [
        *("image", "image-pull-policy", "restart-policy", "auto-remove", "startup-delay", "healthcheck", "type"),
        *("cap-add", "privileged", "security-opts", "user", "cpu", "cpu-set", "memory", "shm-size"),
        *("cgroupns-mode", "cgroup-parent", "pid-mode", "hostname", "aliases", "dns", "link-apply-mode", "position"),
        *("credentials", "username", "password", "config", "certificate"),
    ]
)
_NO_FILES: Final = "needs a container's file system; a namespace uses this machine's files"
_IN_ENGINE: Final = "or use --runtime containerlab"
_REFUSED_IN_NAMESPACES: Final[Mapping[str, KeySupport]] = {
    "volumes": KeySupport("refused", _NO_FILES, f"use binds, {_IN_ENGINE}"),
    "tmpfs": KeySupport("refused", _NO_FILES, f"leave it out, {_IN_ENGINE}"),
    "devices": KeySupport(
        "refused", "needs a container's /dev; a namespace uses this machine's", f"leave it out, {_IN_ENGINE}"
    ),
    "stages": KeySupport(
        "refused", "makes nodes wait for each other, but namespaces start together", f"leave it out, {_IN_ENGINE}"
    ),
    "env-files": KeySupport("refused", "is not supported for namespaces", f"use env, {_IN_ENGINE}"),
}
# For all runtimes: these belong to other kinds than linux, or to another engine.
_REFUSED: Final[Mapping[str, KeySupport]] = {
    "startup-config": KeySupport("refused", "has no meaning for kind: linux", "bind the file below /etc/frr"),
    "enforce-startup-config": KeySupport("refused", "has no meaning for kind: linux", "leave it out"),
    "suppress-startup-config": KeySupport("refused", "has no meaning for kind: linux", "leave it out"),
    "license": KeySupport("refused", "has no meaning for kind: linux", "leave it out"),
    "components": KeySupport("refused", "has no meaning for kind: linux", "leave it out"),
    "extras": KeySupport("refused", "has no meaning for kind: linux", "leave it out"),
    "runtime": KeySupport("refused", "selects an engine for one node; a Heddle lab has one runtime", "leave it out"),
}
# Heddle gives every lab its own management network, without access to the outside.
_LEFT: Final[Mapping[str, KeySupport]] = {
    "ports": KeySupport("left", "Heddle's labs publish no ports"),
    "mgmt-ipv4": KeySupport("left", "the management network is Heddle's"),
    "mgmt-ipv6": KeySupport("left", "the management network is Heddle's"),
}
NODE_KEYS: Final = HONOURED | _ENGINE_ONLY | {"cmd", "entrypoint", "network-mode"} | set(_REFUSED_IN_NAMESPACES)
ALL_NODE_KEYS: Final = NODE_KEYS | set(_REFUSED) | set(_LEFT)

# Lists and groups that are merged from all levels; for all other keys the nearest level's value is used.
LISTS: Final = frozenset({"exec", "binds", "cap-add", "devices", "env-files", "volumes"})
GROUPS: Final = frozenset({"sysctls", "labels", "env"})


def node_key(key: str, runtime: str) -> KeySupport | None:
    """How a key of a node is handled; None when containerlab has no such key."""
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
    return KeySupport("left", "namespaces use this machine's files and programs") if key in _ENGINE_ONLY else _TAKEN


TOP_KEYS: Final = ("name", "prefix", "mgmt", "topology", "settings", "debug")
TOP_LEFT: Final[Mapping[str, str]] = {
    "prefix": "Heddle finds containers by the name clab-LAB-NODE",
    "mgmt": "the management network is Heddle's: one per lab, without access to the outside",
    "settings": "it configures certificates",
    "debug": "it configures containerlab itself",
}
TOPOLOGY_KEYS: Final = ("defaults", "kinds", "groups", "nodes", "links")
LINK_KEYS: Final = frozenset({"type", "endpoints", "mtu", "vars", "labels", "ipv4", "ipv6"})
END_KEYS: Final = frozenset({"node", "interface", "mac", "ipv4", "ipv6", "vars"})
# Special node names and link types that lead outside of the lab.
OUTSIDE: Final[Mapping[str, str]] = {
    "host": "leads to this machine",
    "macvlan": "leads to an interface of this machine",
    "mgmt-net": "leads to the management network",
    "vxlan": "leads to another machine",
    "vxlan-stitch": "leads to another machine",
    "veth-stitch": "leads through this machine",
    "dummy": "has only one end",
}

LINUX: Final = "linux"


def kind_refused(kind: str) -> tuple[str, str]:
    """(why, hint) for a kind other than linux."""
    if kind in ("bridge", "ovs-bridge", "host", "ext-container"):
        return "is an object of this machine, which Heddle does not change", "use a node of kind: linux as a bridge"
    if kind == "frr":
        return "is containerlab's FRR node, new in 0.80", "use kind: linux, and bind frr.conf and daemons"
    why = "is not supported: Heddle runs only kind: linux, in every runtime"
    return why, "use containerlab deploy, without Heddle"
