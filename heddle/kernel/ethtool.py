"""Features of interfaces by ethtool's netlink: all of a port's in one message, so in one turn of RTNL.

In:  a namespace, interface indexes, and features by the kernel's names (netdev_features_strings).
Out: the features as wanted; those that a device does not have stay off.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel import netlink as nl
from heddle.kernel.namespace import THIS_NAMESPACE

_NETLINK_GENERIC: Final = 16
_CONTROL: Final = 0x10  # GENL_ID_CTRL
_GENL: Final = struct.Struct("=BBxx")  # command, version
_GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_FEATURES_SET: Final = 12  # ETHTOOL_MSG_FEATURES_SET
_HEADER, _WANTED = 1, 3  # ETHTOOL_A_FEATURES_*
_DEV_INDEX, _FLAGS, _OMIT_REPLY = 1, 3, struct.pack("=I", 2)
_BITS, _BIT, _NAME, _VALUE = 3, 1, 2, 3  # ETHTOOL_A_BITSET_*, ETHTOOL_A_BITSET_BIT_*


@cache
def _family() -> int:
    body = _GENL.pack(_GETFAMILY, 1) + nl.attribute(_FAMILY_NAME, b"ethtool\0")
    with nl.RouteSocket(THIS_NAMESPACE, here=True, protocol=_NETLINK_GENERIC) as netlink:
        (answer,) = netlink.ask(_CONTROL, [body])
    if isinstance(answer, int):
        raise MachineError(Problem("kernel", "ethtool", "has no netlink", "use a kernel with CONFIG_ETHTOOL_NETLINK"))
    return int(struct.unpack("=H", nl.attributes(answer, _GENL.size)[_FAMILY_ID])[0])


def set_features(
    netns: Path, indexes: Sequence[int], wanted: Mapping[str, bool], refused: Callable[[int, nl.NetlinkError], None]
) -> None:
    """Switch features of these interfaces on or off. refused: see RouteSocket.change_all.

    MachineError when the kernel has no netlink for ethtool.
    """
    bits = b"".join(
        nl.attribute(
            nl.NESTED | _BIT, nl.attribute(_NAME, name.encode() + b"\0") + (nl.attribute(_VALUE, b"") if on else b"")
        )
        for name, on in wanted.items()
    )
    features = nl.attribute(nl.NESTED | _WANTED, nl.attribute(nl.NESTED | _BITS, bits))
    family, start = _family(), _GENL.pack(_FEATURES_SET, 1)
    flags = nl.attribute(_FLAGS, _OMIT_REPLY)
    heads = [
        nl.attribute(nl.NESTED | _HEADER, nl.attribute(_DEV_INDEX, struct.pack("=I", index)) + flags)
        for index in indexes
    ]
    with nl.RouteSocket(netns, protocol=_NETLINK_GENERIC) as netlink:
        netlink.change_all([(family, start + head + features, 0) for head in heads], refused)
