"""Features of interfaces by ethtool's netlink: all of a port's in one message, so in one turn of RTNL.

In:  a namespace, interface indexes, and features by the kernel's names (netdev_features_strings).
Out: the features as wanted; those that a device does not have stay off. Those that are on, of all interfaces.
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
_STRSET_GET, _FEATURES_GET, _FEATURES_SET = 1, 11, 12  # ETHTOOL_MSG_*
_HEADER, _STRINGSETS, _WANTED, _ACTIVE = 1, 2, 3, 4  # ETHTOOL_A_FEATURES_*, ETHTOOL_A_STRSET_*
_DEV_INDEX, _DEV_NAME, _FLAGS, _COMPACT, _OMIT_REPLY = 1, 2, 3, struct.pack("=I", 1), struct.pack("=I", 2)
_SET, _SET_ID, _STRINGS, _INDEX, _STRING = 1, 1, 3, 1, 2  # ETHTOOL_A_STRING*
_OF_FEATURES: Final = struct.pack("=I", 4)  # ETH_SS_FEATURES
_BITSET_VALUE: Final = 4
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


def active_features(netns: Path) -> dict[str, frozenset[str]]:
    """Interface -> its features that are on, of every interface of a namespace, by one dump.

    MachineError when the kernel has no netlink for ethtool.
    """
    with nl.RouteSocket(netns, protocol=_NETLINK_GENERIC) as netlink:
        names, header = _names(), nl.attribute(nl.NESTED | _HEADER, nl.attribute(_FLAGS, _COMPACT))
        found = dict[str, frozenset[str]]()
        for body in netlink.dump(_family(), _GENL.pack(_FEATURES_GET, 1) + header):
            attrs = nl.attributes(body, _GENL.size)
            device = nl.attributes(attrs[_HEADER], 0)[_DEV_NAME].rstrip(b"\0").decode()
            found[device] = _named(nl.attributes(attrs[_ACTIVE], 0)[_BITSET_VALUE], names)
    return found


@cache
def _named(bits: bytes, names: tuple[str, ...]) -> frozenset[str]:
    """bits: 32-bit words of this machine."""
    words = struct.unpack(f"={len(bits) // 4}I", bits)
    return frozenset(name for at, name in enumerate(names) if at // 32 < len(words) and words[at // 32] >> at % 32 & 1)


@cache
def _names() -> tuple[str, ...]:
    """The kernel's names of features, by the number of their bit."""
    wanted = nl.attribute(nl.NESTED | _SET, nl.attribute(_SET_ID, _OF_FEATURES))
    body = _GENL.pack(_STRSET_GET, 1) + nl.attribute(nl.NESTED | _HEADER, b"")
    body += nl.attribute(nl.NESTED | _STRINGSETS, wanted)
    with nl.RouteSocket(THIS_NAMESPACE, here=True, protocol=_NETLINK_GENERIC) as netlink:
        (answer,) = netlink.ask(_family(), [body])
    if isinstance(answer, int):
        raise MachineError(Problem("kernel", "ethtool", "does not report the names of features"))
    sets = nl.attributes(nl.attributes(answer, _GENL.size)[_STRINGSETS], 0)
    rows = (nl.attributes(each, 0) for _, each in nl.each_attribute(nl.attributes(sets[_SET], 0)[_STRINGS]))
    named = {struct.unpack("=I", row[_INDEX])[0]: row[_STRING].rstrip(b"\0").decode() for row in rows}
    return tuple(named.get(at, "") for at in range(max(named) + 1))
