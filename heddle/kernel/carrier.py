"""Which ports of a node carry nothing: taken down there, or without a carrier because the other end is."""

from __future__ import annotations

import struct
from typing import Final

from heddle.kernel.handle import NodeHandle
from heddle.kernel.netlink import RTM_GETLINK, RouteSocket, attribute, attributes

_IFINFO: Final = struct.Struct("=BxHiII")
_IFLA_IFNAME, _IFLA_EXT_MASK = 3, 29
_SKIP_STATISTICS: Final = struct.pack("=I", 1 << 3)  # RTEXT_FILTER_SKIP_STATS
_UP: Final = 0x1  # IFF_UP: what `ip link set up` sets
_LOWER_UP: Final = 0x10000  # IFF_LOWER_UP: there is a carrier


def down_ports(handle: NodeHandle) -> dict[str, bool]:
    """Interfaces that carry nothing -> whether they were taken down at this end.

    Raises MachineError when the namespace is not there.
    """
    found: dict[str, bool] = {}
    with RouteSocket(handle.netns) as netlink:
        request = _IFINFO.pack(0, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, _SKIP_STATISTICS)
        for message in netlink.dump(RTM_GETLINK, request):
            flags = _IFINFO.unpack_from(message)[3]
            if flags & (_UP | _LOWER_UP) != _UP | _LOWER_UP:
                name = attributes(message, _IFINFO.size)[_IFLA_IFNAME].rstrip(b"\0").decode()
                found[name] = not flags & _UP
    return found
