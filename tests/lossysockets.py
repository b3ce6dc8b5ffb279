"""A worker whose sockets lose packets at first: `python -m tests.lossysockets`. What a filter drops, a host has got.

Rank 0 does not get the answers to its SYNs, rank 1 no SYN, and rank 2 only SYNs. With VANISH, no rank does, but what
rank 3 gets on its first accepted connection disappears for a while: no counter of TCP has it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Final

from heddle.endpoints import worker
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.ranks import Rank
from heddle_plugins.storage import tcploop

VANISH: Final = "LOSSY_SOCKETS_VANISH"
_ATTACH, _DETACH, _LOST_S = 26, 27, 0.7  # below a second, in which the kernel sends a SYN again
_ALL: Final = [(0x06, 0, 0, 0)]
_ALL_BUT_SYNS: Final = [(0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]  # flags, SYN?


def lose(sock: socket.socket, program: list[tuple[int, int, int, int]]) -> None:
    """Drop what a classic BPF program does not accept."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH, struct.pack("HP", len(program), ctypes.addressof(code)))


def find(sock: socket.socket) -> None:
    """From now on drop nothing."""
    sock.setsockopt(socket.SOL_SOCKET, _DETACH, 0)


if __name__ == "__main__":
    _loop, _sender, _receiver = tcploop.TcpLoop, tcploop.Sender, tcploop.Receiver
    _bound, _receive, _begin = _loop._bound, _loop.receiver, _loop.begin
    _connect, _accept = _sender.connect, _receiver._accept
    _lossy: list[socket.socket] = []
    _rank = [-1]  # of the sender that connects

    def bound(self: tcploop.TcpLoop, netns: Path, qp: QpInfo, port: int) -> socket.socket:
        sock = _bound(self, netns, qp, port)
        if VANISH not in os.environ and _rank[0] == 0:
            lose(sock, _ALL)
            _lossy.append(sock)
        return sock

    def connect(self: tcploop.Sender) -> None:
        _rank[0] = self.rank
        _connect(self)

    def receive(self: tcploop.TcpLoop, rank: int, qp: QpInfo, memory: Rank) -> None:
        _receive(self, rank, qp, memory)
        if VANISH not in os.environ and rank in (1, 2):
            _lossy.append(self._receivers[-1]._sock)
            lose(_lossy[-1], _ALL if rank == 1 else _ALL_BUT_SYNS)

    def begin(self: tcploop.TcpLoop) -> None:
        _begin(self)
        for sock in _lossy:
            threading.Timer(_LOST_S, find, [sock]).start()

    def accept(self: tcploop.Receiver) -> None:
        _accept(self)
        if VANISH in os.environ and self._accepted and self.rank == 3 and not _lossy:
            _lossy.append(self._sock)
            lose(self._sock, _ALL)
            threading.Timer(_LOST_S, find, [self._sock]).start()

    for kind, name, new in (
        (_loop, "_bound", bound), (_loop, "receiver", receive), (_loop, "begin", begin), (_sender, "connect", connect),
        (_receiver, "_accept", accept),
    ):  # fmt: skip
        setattr(kind, name, new)
    sys.exit(worker.main())
