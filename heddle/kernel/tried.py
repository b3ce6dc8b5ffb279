"""Check whether this kernel has a queueing discipline, by creating one in a temporary namespace.

In:  the discipline's name and its options, in netlink format. Out: an empty text, or the kernel's reason.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.kernel.netlink import NLM_F_CREATE, RTM_NEWQDISC, NetlinkError, RouteSocket, attribute
from heddle.kernel.uapi import TC_H_ROOT, TCA_KIND, TCA_OPTIONS, TCMSG

_NLA_F_NESTED: Final = 0x8000
_LOOPBACK: Final = 1  # a new namespace has `lo` and nothing else


def qdisc_body(ifindex: int, handle: int, parent: int, kind: str, options: bytes, *, nested: bool = True) -> bytes:
    """The body of RTM_NEWQDISC for one queueing discipline. nested: options are attributes, not a struct."""
    what = attribute(TCA_KIND, kind.encode() + b"\0")
    what += attribute(TCA_OPTIONS | (_NLA_F_NESTED if nested else 0), options)  # sch_ets requires the flag
    return TCMSG.pack(0, ifindex, handle, parent, 0) + what


def refusal(kind: str, options: bytes) -> str:
    """Empty when the kernel creates one with these options, else the reason: `this kernel has no sch_ets`.

    The namespace belongs to this thread alone and is removed afterwards.
    """
    if os.geteuid() != 0:
        return "only root can check this"
    with nameless(), RouteSocket(THIS_NAMESPACE) as netlink:
        try:
            netlink.change(RTM_NEWQDISC, qdisc_body(_LOOPBACK, 0x10000, TC_H_ROOT, kind, options), NLM_F_CREATE)
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return f"this kernel has no sch_{kind}"
            return f"this kernel's sch_{kind} refuses these options: {os.strerror(error.errno or errno.EIO)}"
    return ""
