"""What the namespaces of a running lab say of their interfaces: IPv4 addresses and MACs, by netlink.

In:  a node handle. Out: Interfaces. The topology's own daemons and commands may have set anything; the kernel knows.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Final

from heddle.kernel.handle import NodeHandle
from heddle.kernel.netlink import RTM_GETLINK, RouteSocket, attribute, attributes

_RTM_GETADDR: Final = 22
_IFADDRMSG: Final = struct.Struct("=4BI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_EXT_MASK = 1, 3, 29
_IFA_F_SECONDARY: Final = 0x01
_SKIP_STATISTICS: Final = 1 << 3  # RTEXT_FILTER_SKIP_STATS


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Of one node. addresses: interface -> its IPv4 addresses, primary ones first; macs: interface -> MAC."""

    addresses: Mapping[str, tuple[IPv4Interface, ...]]
    macs: Mapping[str, str]


def read_interfaces(handle: NodeHandle) -> Interfaces:
    """Ask the node's kernel. MachineError when its namespace is gone."""
    with RouteSocket(handle.netns) as netlink:
        names: dict[int, str] = {}
        macs: dict[str, str] = {}
        body = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATISTICS))
        for message in netlink.dump(RTM_GETLINK, body):
            attrs = attributes(message, 16)
            name = attrs[_IFLA_IFNAME].rstrip(b"\0").decode()
            names[struct.unpack_from("=i", message, 4)[0]] = name
            macs[name] = attrs.get(_IFLA_ADDRESS, b"").hex(":")
        found: dict[str, list[tuple[bool, IPv4Interface]]] = {}
        for message in netlink.dump(_RTM_GETADDR, _IFADDRMSG.pack(socket.AF_INET, 0, 0, 0, 0)):
            _, length, flags, _, index = _IFADDRMSG.unpack_from(message)
            attrs = attributes(message, _IFADDRMSG.size)
            raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
            if raw:
                address = IPv4Interface((IPv4Address(raw), length))
                found.setdefault(names.get(index, ""), []).append((bool(flags & _IFA_F_SECONDARY), address))
    addresses = {n: tuple(a for _, a in sorted(rows, key=lambda row: row[0])) for n, rows in found.items()}
    return Interfaces(addresses, macs)
