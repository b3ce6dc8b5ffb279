"""Two namespaces and one link between them, whose ends have queues as Heddle's ports have, made by hand.

Class 0 is best effort, class 3 lossless behind a gate, class 6 control. No BPF: a socket's priority names the class.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from heddle.base.process import run
from tests.machine import meanwhile
from tests.netns.claimed import claimed, namespace_of
from tests.netns.sockets import packet_socket

MTU = 4028
FRAME = MTU + 14
_SO_TIMESTAMPNS = 35
_OWN_TYPE = 0x88B6  # of Ethernet, for experiments
_SPEC = struct.Struct("=qq")


def class_id(number: int) -> int:
    """The HTB class of one of our classes, as `skb->priority` takes it."""
    return 0x10000 | number + 1 << 4


def frame_of(number: int, size: int = FRAME) -> bytes:
    """A frame of so many bytes that says its class in the second byte of its payload."""
    return b"\2" * 12 + b"\x88\xb6" + bytes([0, number]) + bytes(size - 16)


def port_lines(dev: str, rate: str, mtu: int = MTU) -> list[str]:
    """tc's lines for one port."""
    burst = f"burst {2 * mtu}b cburst {2 * mtu}b"
    own = f"rate 8bit burst 1b ceil {rate} cburst {2 * mtu}b"
    leaves = {0: f"quantum {mtu + 14} prio 1", 3: f"quantum {mtu + 14} prio 1", 6: f"quantum {mtu + 14} prio 0"}
    lines = [f"qdisc add dev {dev} root handle 1: htb default 10 direct_qlen 0"]
    lines += [f"class add dev {dev} parent 1: classid 1:1 htb rate {rate} ceil {rate} {burst} quantum {mtu + 14}"]
    for number, words in leaves.items():
        minor = (number + 1) * 10
        lines += [f"class add dev {dev} parent 1:1 classid 1:{minor} htb {own} {words}"]
        if number == 3:
            gate = "tbf rate 40gbit burst 100000b limit 4000000b"
            lines += [f"qdisc add dev {dev} parent 1:{minor} handle {minor}: {gate}"]
            lines += [f"qdisc add dev {dev} parent {minor}: handle {minor + 1}: bfifo limit 4000000b"]
        else:
            lines += [f"qdisc add dev {dev} parent 1:{minor} handle {minor}: bfifo limit 4000000b"]
    return lines


def tc(netns: Path, lines: Sequence[str]) -> None:
    """One batch in a namespace."""
    run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n")


@dataclass
class Arrivals:
    """What a peer has received: (ns of CLOCK_REALTIME, class) a frame, as the kernel stamped it."""

    rows: list[tuple[int, int]] = field(default_factory=list)

    def times(self, number: int, start: int = 0, end: int = 1 << 62) -> list[int]:
        """When frames of a class came, between two moments."""
        return [when for when, which in list(self.rows) if which == number and start <= when < end]


@dataclass
class PortPair:
    """Port `pa` in namespace `a`, port `pb` in namespace `b`. priority: what leads to a class, as `skb->priority`."""

    a: Path
    b: Path
    priority: Callable[[int], int] = class_id

    @contextlib.contextmanager
    def listening(self) -> Iterator[Arrivals]:
        """Take down what comes to `pb`. The second byte of a frame's payload is its class."""
        found = Arrivals()
        taker = packet_socket(self.b, "pb", _OWN_TYPE, seconds=0.1, receive=1 << 25)
        taker.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

        def take() -> None:
            try:
                data, more, _, _ = taker.recvmsg(16, 64)
            except TimeoutError:
                return
            seconds, nanoseconds = _SPEC.unpack(more[0][2])
            found.rows.append((seconds * 10**9 + nanoseconds, data[15]))

        with taker, meanwhile(take):
            yield found

    def sender(self, number: int, seconds: float | None = None, send: int = 0) -> socket.socket:
        """A packet socket on `pa` whose frames are of a class. send: bytes of its buffer."""
        made = packet_socket(self.a, "pa", seconds=seconds, send=send)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, self.priority(number))
        return made

    @contextlib.contextmanager
    def loading(self, *classes: int) -> Iterator[dict[int, int]]:
        """Keep these classes of `pa` filled: each has a socket that waits when it has 200 KB under way.

        Gives class -> frames that were put in so far.
        """
        sent = dict.fromkeys(classes, 0)

        def fill(sender: socket.socket, number: int) -> None:
            with contextlib.suppress(TimeoutError, OSError):
                sender.send(frame_of(number))
                sent[number] += 1

        with contextlib.ExitStack() as stack:
            for number in classes:
                sender = stack.enter_context(self.sender(number, 0.05))
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
                stack.enter_context(meanwhile(partial(fill, sender, number)))
            yield sent


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """Go before what else this machine does: a load that is not put on a port says nothing of the port."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -15)  # this thread, and those that it starts
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextlib.contextmanager
def port_pair(
    rate: str = "100mbit",
    lines: Callable[[str, str], Sequence[str]] = port_lines,
    priority: Callable[[int], int] = class_id,
) -> Iterator[PortPair]:
    """A pair for the length of a with block. lines: tc's, for a port and its rate."""
    with first_in_line(), claimed() as name:
        pair = PortPair(namespace_of(name, "a"), namespace_of(name, "b"), priority)
        try:
            for netns in (pair.a, pair.b):
                run(["ip", "netns", "add", netns.name])
            ends = ["pa", "netns", pair.a.name, "mtu", str(MTU), "type", "veth", "peer", "name", "pb"]
            run(["ip", "link", "add", *ends, "netns", pair.b.name, "mtu", str(MTU)])
            for netns, dev in ((pair.a, "pa"), (pair.b, "pb")):
                run(["nsenter", f"--net={netns}", "ip", "link", "set", dev, "up"])
                tc(netns, lines(dev, rate))
            yield pair
        finally:
            for netns in (pair.a, pair.b):
                run(["ip", "netns", "del", netns.name], check=False)


def realtime() -> int:
    """Now, on the clock of `Arrivals`."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)
