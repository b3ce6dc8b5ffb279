"""Read the interfaces of a running node by netlink: IPv4 addresses and MACs.

In:  a node handle. Out: Interfaces. The topology's own daemons and commands may have set any address.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from heddle.kernel.handle import NodeHandle
from heddle.kernel.netlink import ALL_LINKS, RTM_GETLINK, RouteSocket, attributes
from heddle.kernel.uapi import IFADDRMSG, IFLA_ADDRESS, IFLA_IFNAME

_RTM_GETADDR: Final = 22
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_SECONDARY: Final = 0x01


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Interfaces of one node. addresses: interface -> its IPv4 addresses, primary first; macs: interface -> MAC."""

    addresses: Mapping[str, tuple[IPv4Interface, ...]]
    macs: Mapping[str, str]


def read_interfaces(handle: NodeHandle) -> Interfaces:
    """Read from the node's kernel. MachineError when its namespace is missing."""
    with RouteSocket(handle.netns) as netlink:
        names: dict[int, str] = {}
        macs: dict[str, str] = {}
        for message in netlink.dump(RTM_GETLINK, ALL_LINKS):
            attrs = attributes(message, 16)
            name = attrs[IFLA_IFNAME].rstrip(b"\0").decode()
            names[struct.unpack_from("=i", message, 4)[0]] = name
            macs[name] = attrs.get(IFLA_ADDRESS, b"").hex(":")
        found: dict[str, list[tuple[bool, IPv4Interface]]] = {}
        for message in netlink.dump(_RTM_GETADDR, IFADDRMSG.pack(socket.AF_INET, 0, 0, 0, 0)):
            _, length, flags, _, index = IFADDRMSG.unpack_from(message)
            attrs = attributes(message, IFADDRMSG.size)
            raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
            if raw:
                address = IPv4Interface((IPv4Address(raw), length))
                found.setdefault(names.get(index, ""), []).append((bool(flags & _IFA_F_SECONDARY), address))
    addresses = {n: tuple(a for _, a in sorted(rows, key=lambda row: row[0])) for n, rows in found.items()}
    return Interfaces(addresses, macs)
