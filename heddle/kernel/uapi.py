"""Structures and numbers of the kernel's headers (include/uapi/linux) that several modules use.

The layouts are ABI: native byte order, and fixed. Numbers that only one module uses are defined in that module.
"""

from __future__ import annotations

import struct
from typing import Final

NLMSGHDR: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
IFINFOMSG: Final = struct.Struct("=BxHiII")  # family, type, index, flags, change
IFADDRMSG: Final = struct.Struct("=4BI")  # family, prefix length, flags, scope, index
NHMSG: Final = struct.Struct("=4BI")  # family, scope, protocol, reserved, flags
RTMSG: Final = struct.Struct("=8BI")  # family, lengths of dst and src, tos, table, protocol, scope, type, flags
RTNEXTHOP: Final = struct.Struct("=HBBi")  # length, flags, weight - 1, ifindex
NDMSG: Final = struct.Struct("=B3xiHBB")  # family, ifindex, state, flags, type
TCMSG: Final = struct.Struct("=B3xiIII")  # family, ifindex, handle, parent, info

CLONE_NEWNET: Final = 0x40000000
CLONE_NEWNS: Final = 0x00020000
IFF_UP: Final = 0x1  # set by `ip link set up`
IFF_NOARP: Final = 0x80
IFF_LOWER_UP: Final = 0x10000  # there is a carrier
IFLA_ADDRESS: Final = 1
IFLA_IFNAME: Final = 3
IFLA_MTU: Final = 4
IFLA_MASTER: Final = 10
IFLA_LINKINFO: Final = 18
IFLA_INFO_KIND: Final = 1  # inside IFLA_LINKINFO
IFLA_EXT_MASK: Final = 29  # bits RTEXT_FILTER_*
IFLA_CARRIER_CHANGES: Final = 35  # how often the carrier was lost or found, since the port was made
IFLA_GRO_MAX_SIZE: Final = 58  # bytes; of IPv6
IFLA_GRO_IPV4_MAX_SIZE: Final = 64
RTA_DST: Final = 1
RTA_SRC: Final = 2
RTA_IIF: Final = 3
RTA_OIF: Final = 4
RTA_IP_PROTO: Final = 27
RTA_SPORT: Final = 28
RTA_DPORT: Final = 29
SOL_PACKET: Final = 263
PACKET_QDISC_BYPASS: Final = 20
TC_RATESPEC: Final = struct.Struct("=BBHhHI")  # cell_log, linklayer, overhead, cell_align, mpu, rate
TC_LINKLAYER_ETHERNET: Final = 1  # the kernel needs no table of times
TC_H_ROOT: Final = 0xFFFFFFFF
TCA_KIND: Final = 1
TCA_OPTIONS: Final = 2
TCA_STATS2: Final = 7
TCA_STATS_QUEUE: Final = 3  # struct gnet_stats_queue: qlen, backlog, drops, ...
TCA_TBF_PARMS: Final = 1
TCA_TBF_RATE64: Final = 4
