"""What a namespace has learned or was told of its neighbours: MAC addresses, and MTUs of paths.

In:  an open netlink socket.
Out: the entries of the neighbour tables of IPv4 and IPv6, and the exceptions of routes with an MTU of their own
     (struct fib_nh_exception; IPv6: RTF_CACHE), which an ICMP message "fragmentation needed" leaves for ten minutes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final, NamedTuple

from heddle.kernel.netlink import RTM_GETROUTE, RouteSocket, attributes
from heddle.kernel.uapi import RTA_DST, RTMSG

_RTM_GETNEIGH: Final = 30
_NDMSG: Final = struct.Struct("=B3xiHBB")  # family, ifindex, state, flags, type
_NDA_DST, _NDA_LLADDR = 1, 2
_NUD_PERMANENT: Final = 0x80
_UNUSED: Final = 0x01 | 0x20 | 0x40  # INCOMPLETE, FAILED, NOARP: no frame goes to a neighbour's MAC
_RTM_F_CLONED: Final = 0x200
_RTA_METRICS, _RTAX_MTU = 8, 2
_MAC_BYTES: Final = 6


class Neighbour(NamedTuple):
    """One usable entry. permanent: set by hand or by a daemon, so the kernel never asks again."""

    ifindex: int
    address: str
    mac: str
    permanent: bool


def neighbours(netlink: RouteSocket) -> Iterator[Neighbour]:
    """Every entry with a MAC of Ethernet, of all interfaces of the socket's namespace."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for body in netlink.dump(_RTM_GETNEIGH, _NDMSG.pack(family, 0, 0, 0, 0)):
            _, ifindex, state, _, _ = _NDMSG.unpack_from(body)
            attrs = attributes(body, _NDMSG.size)
            mac = attrs.get(_NDA_LLADDR, b"")
            if state and not state & _UNUSED and len(mac) == _MAC_BYTES and _NDA_DST in attrs:
                address = str(ip_address(attrs[_NDA_DST]))
                yield Neighbour(ifindex, address, mac.hex(":"), bool(state & _NUD_PERMANENT))


def path_mtus(netlink: RouteSocket) -> dict[str, int]:
    """Address -> the MTU that was learned for the path there, in bytes."""
    found = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for body in netlink.dump(RTM_GETROUTE, RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, _RTM_F_CLONED)):
            attrs = attributes(body, RTMSG.size)
            metrics = attributes(attrs.get(_RTA_METRICS, b""), 0)
            if RTA_DST in attrs and _RTAX_MTU in metrics:
                found[str(ip_address(attrs[RTA_DST]))] = struct.unpack("=I", metrics[_RTAX_MTU])[0]
    return found
