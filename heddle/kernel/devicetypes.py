"""Types of network devices (vlan, vrf, bond, ...): which a command of `ip` creates, and whether this kernel has it.

In:  a command, or the name of a type.
Out: the type, or why a command must fail. Each type is tried in a temporary namespace, so that no list of kernels and
of error texts is needed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from heddle.base.problems import MachineError
from heddle.base.process import run
from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.kernel.netlink import NLM_F_CREATE, RTM_NEWLINK, NetlinkError, RouteSocket, attribute
from heddle.kernel.uapi import IFINFOMSG, IFLA_INFO_KIND, IFLA_LINKINFO

HINT: Final = "run it with --on vm: that kernel has it (docs/kernels.md)"
# Where the module has another name than its type.
_MODULES: Final[Mapping[str, str]] = {
    "vlan": "8021q", "bond": "bonding", "gre": "ip_gre", "gretap": "ip_gre", "erspan": "ip_gre", "vti": "ip_vti",
    "ip6gre": "ip6_gre", "ip6gretap": "ip6_gre", "ip6tnl": "ip6_tunnel", "xfrm": "xfrm_interface",
}  # fmt: skip
_TYPE: Final = re.compile(r"[a-z][a-z0-9_]{0,14}")
SEPARATORS: Final = re.compile(r"[;&|\n]+")  # of a shell's commands
_WITHOUT_NETLINK: Final = frozenset({"tun", "tap"})  # made by ioctl; over netlink the kernel refuses the type


def created(words: Sequence[str]) -> tuple[str, ...]:
    """The type of the device that a command creates, and the options of the type where it needs no other device.

    `ip link add ... type TYPE ...`, `ip tunnel add ... mode TYPE` and `vconfig add`; empty for other commands.
    """
    program, plain = words[0].rpartition("/")[2] if words else "", [word for word in words[1:] if word[:1] != "-"]
    if program == "vconfig":
        return ("vlan",) if plain[:1] == ["add"] else ()
    if program != "ip" or len(plain) < 2 or not "add".startswith(plain[1]):
        return ()
    word = "type" if "link".startswith(plain[0]) else "mode" if plain[0] == "tunnel" else ""
    place = plain.index(word) + 1 if word in plain else len(plain)
    if place == len(plain) or not _TYPE.fullmatch(plain[place]):
        return ()
    own = word == "type" and not {"link", "dev", "peer"} & set(plain[2:])
    return tuple(plain[place:]) if own else (plain[place],)


@cache
def missing(kind: str, *options: str) -> str:
    """Why this kernel creates no such device: `this kernel has no 8021q`; empty where it does, or only root can try it.

    options: of the type, as `ip link add` has them.
    """
    if os.geteuid() != 0 or kind in _WITHOUT_NETLINK:
        return ""
    body = IFINFOMSG.pack(0, 0, 0, 0, 0) + attribute(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, kind.encode() + b"\0"))
    try:
        with nameless(), RouteSocket(THIS_NAMESPACE) as netlink:
            netlink.change(RTM_NEWLINK, body, NLM_F_CREATE)
    except NetlinkError as error:  # most types need options, and refuse without them
        if error.errno == errno.EOPNOTSUPP:
            return f"this kernel has no {_MODULES.get(kind, kind)}"
    except MachineError:  # no namespace: another check reports that
        return ""
    if options:
        argv = ["unshare", "--net", "env", "LC_ALL=C", "ip", "link", "add", "name", "heddle0", "type", kind, *options]
        if os.strerror(errno.EOPNOTSUPP) in run(argv, check=False, timeout=20).err:
            return f"this kernel's {kind} has no {' '.join(options)}"
    return ""


def explained(words: Sequence[str], said: str) -> tuple[str, str]:
    """Why a command that printed `said` failed, and a hint, if the reason is a type of device; else `said` alone."""
    parts = [words, *(part.split() for word in words for part in SEPARATORS.split(word))]  # also inside `sh -c`
    reasons = [why for part in parts if (kind := created(part)) and (why := missing(*kind))]
    return (f"{said}: {reasons[0]}", HINT) if reasons else (said, "")
