"""The port of a bridge behind which the kernel expects an address: its neighbour table, then the bridge's own table.

In:  a socket in the node's namespace, the bridge, an address.
Out: the port's ifindex, as ip_finish_output2 (neigh_lookup) and br_dev_xmit (br_fdb_find_rcu) find it.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address
from typing import Final

from heddle.kernel.netlink import ALL_LINKS, RTM_GETLINK, RouteSocket, attribute, attributes
from heddle.kernel.uapi import IFLA_MASTER

_NDA_DST, _NDA_LLADDR, _NDA_MASTER = 1, 2, 9


def port_behind(netlink: RouteSocket, bridge: int, address: str) -> int:
    """The ifindex of the only port to which the bridge sends a packet for an address; 0 if it is not known or floods.

    Entries of the bridge end after 300 s without a packet from there. Without one it floods, which leads to one port if
    it has only one.
    """
    target = ip_address(address)
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    asked = _NDMSG.pack(family, bridge, 0, 0, 0) + attribute(_NDA_DST, target.packed)
    (neighbour,) = netlink.ask(_RTM_GETNEIGH, [asked])
    mac = b"" if isinstance(neighbour, int) else attributes(neighbour, _NDMSG.size).get(_NDA_LLADDR, b"")
    if not mac:
        return 0
    asked = _NDMSG.pack(socket.AF_BRIDGE, 0, 0, 0, 0) + attribute(_NDA_LLADDR, mac)
    (entry,) = netlink.ask(_RTM_GETNEIGH, [asked + attribute(_NDA_MASTER, struct.pack("=I", bridge))])
    if not isinstance(entry, int):
        return int(_NDMSG.unpack_from(entry)[1])
    rows = list(netlink.dump(RTM_GETLINK, ALL_LINKS))
    members = [row for row in rows if attributes(row, 16).get(IFLA_MASTER) == struct.pack("=I", bridge)]
    return int(struct.unpack_from("=i", members[0], 4)[0]) if len(members) == 1 else 0
