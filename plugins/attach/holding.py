"""Hold what attached devices send, without loss: while the counters of the switches are read, no packet may be between
two of them.

In:  attachments. Out: the far end of each wire with a queue that passes nothing, and then everything again.
The queue is a TBF. Closed, each frame costs more than its bucket can have, as in the gates of PFC
(switch/pfc/gates.py).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from heddle.base.problems import HeddleError
from heddle.kernel import netlink as nl
from heddle.kernel import uapi
from heddle.kernel.namespace import inside
from heddle.lab.attached import Attachment
from heddle.switch.pfc.gates import KICK_ETHERTYPE
from heddle_plugins.attach import devices as dev
from heddle_plugins.attach.targets import spaces

_HANDLE: Final = 0x10000  # 1:
_OPEN: Final = (4_000_000_000, 0, 100_000)  # bytes a second, bytes that each frame costs at least, bytes of the bucket
_CLOSED: Final = (20_000, 65_535, 20_000)
_LIMIT: Final = 16_000_000  # bytes that wait: more than sockets hold
_TICK_NS: Final = 64
_SIZES: Final = struct.Struct("=III")  # of struct tc_tbf_qopt: limit, buffer, mtu
_RATE_AT: Final = 8  # in struct tc_ratespec


def _queue(index: int, rate: int, least: int, bucket: int) -> dev.LinkStep:
    spec = uapi.TC_RATESPEC.pack(0, uapi.TC_LINKLAYER_ETHERNET, 0, 0, least, rate)
    sizes = _SIZES.pack(_LIMIT, max(1, bucket * 10**9 // rate // _TICK_NS), 0)
    options = nl.attribute(uapi.TCA_TBF_PARMS, spec + bytes(uapi.TC_RATESPEC.size) + sizes)
    body = nl.qdisc_body(index, _HANDLE, uapi.TC_H_ROOT, "tbf", options)
    return dev.LinkStep("its queue", (nl.RTM_NEWQDISC, body, nl.NLM_F_CREATE | nl.NLM_F_REPLACE))


def set_queue(netlink: nl.RouteSocket, index: int, *, closed: bool) -> None:
    """The queue of an interface: it passes nothing, or everything, once `kick` wakes it."""
    dev.undo(netlink, [_queue(index, *(_CLOSED if closed else _OPEN))])


def is_held(netlink: nl.RouteSocket, index: int) -> bool:
    """Whether an interface passes nothing: after a `record` that was killed."""
    for each in nl.qdiscs(netlink):
        if each.ifindex == index and each.kind == "tbf" and each.parent == uapi.TC_H_ROOT:
            parms = nl.attributes(each.attrs.get(uapi.TCA_OPTIONS, b""), 0).get(uapi.TCA_TBF_PARMS, b"")
            return int(struct.unpack_from("=I", parms, _RATE_AT)[0]) == _CLOSED[0]
    return False


class Holds:
    """The far ends of wires. What is gone is left out: the fact `attached` names it."""

    def __init__(self, rows: Iterable[Attachment]) -> None:
        self._rows = [*rows]

    def close(self) -> None:
        """Nothing passes from now on. Frames wait, and then the sockets that send them."""
        self._set(closed=True)

    def open(self) -> None:
        """Everything passes again, at once."""
        self._set(closed=False)

    def _set(self, *, closed: bool) -> None:
        for row in self._rows:
            for space in spaces(row.space, row.identity):
                with suppress(HeddleError, OSError), inside(space):
                    with nl.RouteSocket(space, here=True) as netlink:
                        far = next((each for each in nl.interfaces(netlink) if each.name == row.far), None)
                        if far is not None:
                            set_queue(netlink, far.ifindex, closed=closed)
                    if not closed:
                        kick(row.far)
                break


def kick(name: str) -> None:
    """Make the queue serve: a change of a TBF does not wake it. The edge drops this frame, and does not count it."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sends:
        sends.bind((name, 0))
        sends.send(b"\2" * 12 + struct.pack("!H", KICK_ETHERTYPE) + bytes(46))


@contextmanager
def held(rows: Iterable[Attachment]) -> Iterator[Holds]:
    """Closed at the start of a with block, and open behind it."""
    found = Holds(rows)
    try:
        found.close()
        yield found
    finally:
        found.open()
