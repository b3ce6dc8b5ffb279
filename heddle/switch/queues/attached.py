"""The programs at a port: which there are, and which are attached, as read from the kernel; and which gates are closed.

In:  a node; a namespace and its ports. Out: values; nothing is changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.fabric.model import Node, Role
from heddle.kernel.fib import read_names
from heddle.kernel.netlink import RTM_GETTFILTER, RouteSocket, attributes, qdiscs
from heddle.kernel.uapi import TCA_KIND, TCA_OPTIONS, TCA_TBF_PARMS, TCA_TBF_RATE64, TCMSG
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.disciplines import number_of
from heddle.switch.queues.portids import OWNER

HOSTS: Final = "_hosts"  # the owner of what all hosts share; not a valid node name
_HOOKS: Final = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}  # TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS), ..._EGRESS
_TCA_BPF_CLASSID, _TCA_BPF_NAME = 3, 7
_SLOW: Final = 10**6  # bytes/s: the rate of an open gate is far above this, that of a closed one far below (gates.py)


@dataclass(frozen=True, slots=True)
class PortProgram:
    """A BPF program for a clsact hook (`ingress`, `egress`); lower prefs run first. owner: of its pin.

    numbered: the program reads its port's id from the filter's classid.
    """

    hook: str
    pref: int
    owner: str
    name: str
    numbered: bool = False

    def pin(self, lab: str) -> Path:
        """Where it is pinned."""
        return pin_dir(lab, self.owner) / self.name


def programs_of(node: Node) -> tuple[PortProgram, ...]:
    """The programs of a node's ports, in the order in which they run, ingress first.

    `count` runs before `enqueue`, to count all packets that are sent, dropped or not.
    """
    own = [PortProgram("ingress", 10, HOSTS, "nic")]
    if node.role is Role.SWITCH:
        own = [PortProgram("ingress", 10, node.name, "hash"), PortProgram("egress", 10, OWNER, "count", numbered=True)]
    dequeue = PortProgram("ingress", 5, OWNER, "dequeue", numbered=True)
    return (dequeue, *own, PortProgram("egress", 20, OWNER, "enqueue", numbered=True))


@dataclass(frozen=True, slots=True)
class Attached:
    """A BPF program at a clsact hook. number: the port id configured for it; 0: none."""

    hook: str
    program: str
    number: int

    def text(self) -> str:
        """`ingress:dequeue as port 7`."""
        return f"{self.hook}:{self.program}" + (f" as port {self.number}" if self.number else "")


def expected(node: Node, number: int) -> tuple[Attached, ...]:
    """The programs that a port of a node has, in their order. number: the port's."""
    return tuple(Attached(each.hook, each.name, number if each.numbered else 0) for each in programs_of(node))


def read_attached(
    netlink: RouteSocket, names: Mapping[int, str], ports: Iterable[str]
) -> dict[str, tuple[Attached, ...]]:
    """Port -> its programs in the order in which they run, ingress first; an empty tuple if it has no programs.

    names: ifindex -> interface name.
    """
    indexes = {name: index for index, name in names.items()}
    found: dict[str, tuple[Attached, ...]] = {}
    for port in ports:
        rows: list[tuple[int, int, Attached]] = []
        for place, (hook, parent) in enumerate(_HOOKS.items()):
            request = TCMSG.pack(0, indexes.get(port, 0), 0, parent, 0)
            for body in netlink.dump(RTM_GETTFILTER, request):
                priority = TCMSG.unpack_from(body)[4] >> 16  # tcm_info: preference and protocol
                attrs = attributes(body, TCMSG.size)
                if attrs.get(TCA_KIND) == b"bpf\0" and TCA_OPTIONS in attrs:
                    options = attributes(attrs[TCA_OPTIONS], 0)
                    name = options.get(_TCA_BPF_NAME, b"").rstrip(bytes(1)).decode().split(":")[0]
                    number = struct.unpack("=I", options.get(_TCA_BPF_CLASSID, bytes(4)))[0]
                    if name:
                        rows.append((place, priority, Attached(hook, name, number)))
        found[port] = tuple(each for _, _, each in sorted(rows, key=lambda row: row[:2]))
    return found


def read_closed(netns: Path) -> set[tuple[str, int]]:
    """(port, class) of every gate that is closed now."""
    found: set[tuple[str, int]] = set()
    with RouteSocket(netns) as netlink:
        names = read_names(netlink)
        for each in qdiscs(netlink):
            number = number_of(each.handle >> 16)
            if number is None or each.kind != "tbf":
                continue
            options = attributes(each.attrs[TCA_OPTIONS], 0)
            (rate,) = struct.unpack_from("=8xI", options[TCA_TBF_PARMS])  # of struct tc_ratespec
            if TCA_TBF_RATE64 not in options and rate < _SLOW:
                found.add((names.get(each.ifindex, ""), number))
    return found
