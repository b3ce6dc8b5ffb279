"""Raw flows under way: frames at their times, and their count at the receiver, which the kernel makes.

A sender has a schedule: packet n of a burst leaves n / pps after its start, a burst after the gap. A port that takes no
frame delays them; a sender that is late by more than _LATE_S moves its schedule, so it does not send a flood later.
A counter is a packet socket whose filter accepts the frames of one flow: nothing reads it, the kernel counts. A sink
keeps the host's own stack from answering: a socket of the destination port that accepts nothing.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from heddle.endpoints.nic.frames import SendBatch, frame_bytes_for
from heddle.endpoints.nic.packetsocket import PacketSocket, attach_filter, filter_count
from heddle.kernel.namespace import inside
from heddle.wire.layout import LAYOUTS
from heddle_plugins.otg.flows import RawFlow
from heddle_plugins.otg.frames import PROTOCOLS

BATCH: Final = 32
_LATE_S: Final = 0.1
_BUSY_S: Final = 0.001
_DOWN_S: Final = 0.02
_MOST_SINKS: Final = 64  # destination ports of one flow
_NOTHING: Final = [(0x06, 0, 0, 0)]  # classic BPF: accept no packet


class RawSender:
    """The sending side of one flow. sent: frames that the port took. due: when the next one leaves; None: never."""

    def __init__(self, flow: RawFlow, port: PacketSocket) -> None:
        self.flow = flow
        self._port = port
        room = max(0, flow.frames.size - frame_bytes_for(0))
        self._batch = SendBatch(room, BATCH)
        self.sent = 0
        self.error = ""
        self._from = self._until = 0.0  # of the schedule: when packet `_first` leaves; when the flow ends
        self._first = 0
        self.due: float | None = None

    def start(self, now: float) -> None:
        """Begin at the first packet."""
        self.sent = self._first = 0
        self._from = now + self.flow.delay_s
        self._until = float("inf") if self.flow.seconds is None else self._from + self.flow.seconds
        self._plan_next()

    def pause(self) -> None:
        """Send nothing until `go_on`."""
        self.due = None

    def go_on(self, now: float) -> None:
        """Continue with the packet at which it was paused."""
        self._move(now)

    def stop(self) -> None:
        """The flow ends."""
        self.due = None

    def _time_of(self, number: int) -> float:
        flow = self.flow
        gaps = number // flow.burst - self._first // flow.burst if flow.burst else 0
        return self._from + (number - self._first) / flow.pps + gaps * flow.gap_s

    def _move(self, now: float) -> None:
        """The schedule goes on from now."""
        self._until += max(0.0, now - self._time_of(self.sent))
        self._from, self._first = now, self.sent
        self._plan_next()

    def _plan_next(self) -> None:
        at = self._time_of(self.sent)
        ended = self.sent >= self.flow.packets if self.flow.packets is not None else at >= self._until
        self.due = None if ended else at

    def turn(self, now: float) -> None:
        """Send the frames that are due; OSError when the port is gone."""
        if self.due is not None and now - self.due > _LATE_S:
            self._from += now - self.due  # late frames are not made up for; the end of the flow does not move
            self._plan_next()
        while self.due is not None and self.due <= now:
            count = 0
            first = self.sent
            while count < BATCH and self.due is not None and self.due <= now:
                self._batch.put_frame(count, self.flow.frames.frame(self.sent))
                count += 1
                self.sent += 1
                self._plan_next()
            took = self._port.send(self._batch, count)
            if took < count:
                self.sent = first + took
                self._plan_next()
                # The port is busy; or its link is down, and nothing says when it is up.
                self.due = now + (_BUSY_S if self._port.errno == errno.EAGAIN else _DOWN_S)
                return


class RawCounter:
    """Frames of one flow that arrived at its receiver. OSError when its port cannot be used."""

    def __init__(self, flow: RawFlow, netns: Path) -> None:
        assert flow.rx is not None and flow.signature is not None  # noqa: S101  (the caller chose it)
        with inside(netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        try:
            # Nothing is kept: one byte of room.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            self._socket.bind((flow.rx.end.port, 0))
            attach_filter(self._socket, flow.signature.program())
            # After the programs of the port, as PacketSocket.
            self._socket.bind((flow.rx.end.port, LAYOUTS[flow.signature.version].ethertype))
        except OSError:
            self.close()
            raise
        self._passed = self._base = 0

    def clear(self) -> None:
        """Count from 0 again."""
        self._base = self._total()

    def _total(self) -> int:
        self._passed += filter_count(self._socket)[0]
        return self._passed

    @property
    def count(self) -> int:
        """Frames since the last `clear`."""
        return self._total() - self._base

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def sinks(flow: RawFlow, netns: Path) -> Iterator[socket.socket]:
    """Sockets that take the packets of a flow from the host's stack, which else answers with ICMP or a TCP reset."""
    layers = dict(flow.frames.headers)
    name = next((each for each in PROTOCOLS if each in layers), None)
    if flow.rx is None or name is None:
        return
    family = socket.AF_INET if "ipv4" in layers else socket.AF_INET6
    kind = socket.SOCK_DGRAM if name == "udp" else socket.SOCK_STREAM
    for number in sorted({*layers[name]["dst_port"]} - {0})[:_MOST_SINKS]:
        with inside(netns):
            made = socket.socket(family, kind)
        try:
            attach_filter(made, _NOTHING)
            made.bind(("", number))
            if kind == socket.SOCK_STREAM:
                made.listen(1)
        except OSError:  # a program of the host has the port: that one gets the packets
            made.close()
            continue
        yield made
