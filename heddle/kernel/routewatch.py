"""When the kernels of switches change their routes, by notification: nothing is read or asked meanwhile."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from heddle.base.families import Version
from heddle.kernel.namespace import inside

_GROUPS: Final[dict[Version, int]] = {4: 0x40, 6: 0x400}  # RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE
_LOOK_S: Final = 0.1


class RouteWatch:
    """Notes the time of each change in a with block, in a thread. changes: ns of CLOCK_MONOTONIC, in order.

    OSError when the kernel refuses a socket, MachineError without a namespace.
    """

    def __init__(self, spaces: Iterable[Path], version: Version) -> None:
        self.changes: list[int] = []
        self._sockets: list[socket.socket] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="routes", daemon=True)
        for netns in spaces:
            with inside(netns):
                made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            self._sockets.append(made)
            made.setblocking(False)
            made.bind((0, _GROUPS[version]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _work(self) -> None:
        with selectors.DefaultSelector() as waiting:
            for each in self._sockets:
                waiting.register(each, selectors.EVENT_READ)
            while not self._end.is_set():
                ready = waiting.select(_LOOK_S)
                if ready:
                    self.changes.append(time.monotonic_ns())
                for key, _ in ready:
                    with suppress(OSError):  # ENOBUFS: more changes than the socket holds; it is one change, too
                        while key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                            pass
