"""A WebSocket with the channels of Kubernetes' exec, as bytes: frames in, frames out, never blocking.

In:  the socket of a finished handshake. Out: (channel, bytes) pairs.
The official client's own loop copies all data through strings, and cannot end standard input. This one sends frames as
large as what is there, and speaks v5.channel.k8s.io, which has a message that closes a channel (Kubernetes 1.30).
Framing: RFC 6455, 5.2.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from heddle.base.untrusted import LINE_BYTES

PROTOCOL: Final = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
_CLOSE_CHANNEL: Final = 255
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_FINAL, _MASKED = 0x80, 0x80
_READ: Final = 1 << 18
_MOST_UNREAD: Final = 1 << 24  # bytes: far more than a caller queues, so they are answers to pings
WouldBlock: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ChannelSocket:
    """One connection. The caller polls `fileno` for reading, and for writing while `unsent` is not 0."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._in, self._out = bytearray(), bytearray()
        self._message = bytearray()  # of a message in several frames
        self.closed = False

    def fileno(self) -> int:
        """For poll(2)."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the network."""
        return len(self._out)

    def send(self, channel: int, data: bytes) -> None:
        """Queue data for a channel; `flush` sends it."""
        self._frame(_BINARY, bytes((channel,)) + data)

    def close_channel(self, channel: int) -> None:
        """End a channel: the process reads the end of its standard input."""
        self._frame(_BINARY, bytes((_CLOSE_CHANNEL, channel)))

    def ping(self) -> None:
        """Ask for an answer, which also keeps proxies between from closing an idle connection."""
        self._frame(_PING, b"")

    def flush(self) -> None:
        """Send what the network takes now. OSError when the connection is broken."""
        while self._out:
            try:
                sent = self._socket.send(memoryview(self._out)[:_READ])
            except WouldBlock:
                return
            del self._out[:sent]

    def receive(self, end: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """What has come: all that can be read without waiting. OSError when the connection is broken.

        end: TimeoutError from then on (time.monotonic), also while data come.
        """
        while not self.closed:
            if time.monotonic() >= end:
                raise TimeoutError("timed out")
            try:
                data = self._socket.recv(_READ)
            except WouldBlock:
                return
            self.closed = not data
            self._in += data
            yield from self._messages()
            if len(self._in) + len(self._message) > LINE_BYTES or len(self._out) > _MOST_UNREAD:
                raise ConnectionError("the other end sends more than fits, and does not read")

    def until_closed(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """All that comes until the other end closes the connection. TimeoutError after some seconds."""
        end = time.monotonic() + seconds
        while not self.closed:
            self.flush()
            if not select.select([self], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("timed out")
            yield from self.receive(end)

    def shut(self) -> None:
        """End the connection, in both directions: who waits for it goes on."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        while (frame := self._next()) is not None:
            code, final, payload = frame
            if code == _PING:
                self._frame(_PONG, payload)
            elif code == _CLOSE:
                self.closed = True
            elif code in (_CONTINUATION, 0x1, _BINARY):
                self._message += payload
                if final:
                    message, self._message = bytes(self._message), bytearray()
                    if len(message) > 1:  # the first message of each channel is empty
                        yield message[0], message[1:]

    def _next(self) -> tuple[int, bool, bytes] | None:
        """The next whole frame: opcode, whether it ends its message, payload."""
        data = self._in
        if len(data) < 2:
            return None
        size, head = data[1] & 0x7F, 2
        if size >= 126:
            form = ">H" if size == 126 else ">Q"
            head += struct.calcsize(form)
            if len(data) < head:
                return None
            (size,) = struct.unpack_from(form, data, 2)
        if len(data) < head + size:
            return None
        frame = data[0] & 0x0F, bool(data[0] & _FINAL), bytes(memoryview(data)[head : head + size])
        del data[: head + size]
        return frame

    def _frame(self, code: int, payload: bytes) -> None:
        size = len(payload)
        self._out.append(_FINAL | code)
        if size < 126:
            self._out.append(_MASKED | size)
        elif size < 1 << 16:
            self._out += struct.pack(">BH", _MASKED | 126, size)
        else:
            self._out += struct.pack(">BQ", _MASKED | 127, size)
        key = os.urandom(4)
        repeated = (key * (size // 4 + 1))[:size]
        masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
        self._out += key + masked.to_bytes(size, "big")
