"""Find the ports of a node that carry no traffic: set down there, or without a carrier since the other end is down."""

from __future__ import annotations

from heddle.kernel.handle import NodeHandle
from heddle.kernel.netlink import ALL_LINKS, RTM_GETLINK, RouteSocket, attributes
from heddle.kernel.uapi import IFF_LOWER_UP, IFF_UP, IFINFOMSG, IFLA_IFNAME


def down_ports(handle: NodeHandle) -> dict[str, bool]:
    """Interfaces that carry no traffic -> whether they were set down at this end.

    Raises MachineError when the namespace does not exist.
    """
    with RouteSocket(handle.netns) as netlink:
        return ports_down(netlink)


def ports_down(netlink: RouteSocket) -> dict[str, bool]:
    """The same, read by an open socket."""
    found: dict[str, bool] = {}
    for message in netlink.dump(RTM_GETLINK, ALL_LINKS):
        flags = IFINFOMSG.unpack_from(message)[3]
        if flags & (IFF_UP | IFF_LOWER_UP) != IFF_UP | IFF_LOWER_UP:
            name = attributes(message, IFINFOMSG.size)[IFLA_IFNAME].rstrip(b"\0").decode()
            found[name] = not flags & IFF_UP
    return found
