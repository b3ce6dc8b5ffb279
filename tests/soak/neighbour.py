"""A lab beside those that are killed: its traffic must not lose a packet, whatever happens to the other ones.

A thread sends numbered UDP packets from one rack to another, and counts each number that arrives.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from heddle.kernel.namespace import inside
from heddle.lab.lab import Lab

EVERY_S: Final = 0.002  # between two packets
_ARRIVES_S: Final = 3.0  # within which a packet comes, also where the processors are busy
_PORT: Final = 7
_NUMBER: Final = struct.Struct("=Q")
_BUFFER: Final = 8 << 20
_PADDING: Final = bytes(200)


class Neighbour:
    """Counted traffic between the first and the last host of a lab, for a with block."""

    def __init__(self, lab: Lab) -> None:
        first, last = lab.fabric.hosts[0], lab.fabric.hosts[-1]
        address = last.ports[0].address
        assert address is not None
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        self._to = (str(address.ip), _PORT)
        self._out, self._in = (_udp(lab.handle(host.name).netns, family) for host in (first, last))
        self._in.bind(self._to)
        self._out.setblocking(False)
        self.sent = 0
        self.refused = 0  # by the kernel of the sender: such a packet counts as lost
        self._missing: set[int] = set()
        self._end = Event()
        self._thread = Thread(target=self._work, name="neighbour", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._out.close()
        self._in.close()

    def lost(self) -> int:
        """The packets that were lost since the last call."""
        until, last = time.monotonic() + _ARRIVES_S, self.sent
        while any(number <= last for number in list(self._missing)) and time.monotonic() < until:
            time.sleep(EVERY_S)
        gone = {number for number in list(self._missing) if number <= last}
        self._missing -= gone
        refused, self.refused = self.refused, 0
        return len(gone) + refused

    def _work(self) -> None:
        while not self._end.is_set():
            self._missing.add(self.sent + 1)
            self.sent += 1
            try:
                self._out.sendto(_NUMBER.pack(self.sent) + _PADDING, self._to)
            except OSError:
                self._missing.discard(self.sent)
                self.refused += 1
            until = time.monotonic() + EVERY_S
            while (rest := until - time.monotonic()) > 0:
                if select.select([self._in], [], [], rest)[0]:
                    self._missing.discard(_NUMBER.unpack_from(self._in.recv(2048))[0])


def _udp(netns: Path, family: socket.AddressFamily) -> socket.socket:
    with inside(netns):
        made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    made.setsockopt(socket.SOL_SOCKET, 33, _BUFFER)  # SO_RCVBUFFORCE: what waits while this process does not run
    return made
