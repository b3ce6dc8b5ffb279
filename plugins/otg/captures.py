"""Captures of Open Traffic Generator: packets at ports, kept in memory and returned as pcap.

In:  a port of a running lab. Out: the bytes of a pcap file, times in microseconds.
heddle/lab/capture.py captures, in a thread for each port. What a port may keep is bounded: then the oldest frames make
room, or with `overwrite: false` the newest are not kept.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.lab.capture import MOST_SECONDS, Bounds, Captured, capture, find_ports
from heddle.lab.lab import Lab
from heddle.wire.pcapng import SNAP_BYTES, Frame
from heddle_plugins.otg.flows import CaptureSetting

MOST_BYTES: Final = 32 << 20  # of each port
_MAGIC: Final = 0xA1B2C3D4
_ETHERNET: Final = 1
_HEADER = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_START_S: Final = 15.0


class PortCapture:
    """One capture. It has begun when this object is made; MachineError when it cannot."""

    def __init__(self, lab: Lab, setting: CaptureSetting) -> None:
        self._setting = setting
        self._taps = find_ports(lab, setting.port.end.nic)
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._stop, self._listening = threading.Event(), threading.Event()
        self._error: HeddleError | None = None
        self._result: Captured | None = None
        self._thread = threading.Thread(target=self._work, name="otg-capture", daemon=True)
        self._thread.start()
        if not self._listening.wait(_START_S) or self._error is not None:
            self.stop()
            late = MachineError(Problem("", f"the capture at {setting.port.end.nic}", "did not begin"))
            raise self._error or late

    def _work(self) -> None:
        try:
            self._result = capture(
                self._taps, "", Bounds(None, MOST_SECONDS), self._keep, whole=True, stop=self._stop.is_set,
                listening=self._listening.set,
            )  # fmt: skip
        except HeddleError as error:
            self._error = error
        finally:
            self._listening.set()

    def _keep(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if not self._setting.overwrite and self._bytes + len(frame.data) > MOST_BYTES:
                continue
            self._frames.append(frame)
            self._bytes += len(frame.data)
            while self._bytes > MOST_BYTES:
                self._bytes -= len(self._frames.popleft().data)

    @property
    def running(self) -> bool:
        """Whether it still captures."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it; its frames stay."""
        self._stop.set()
        self._thread.join()

    def pcap(self, first: int = 0, count: int | None = None) -> bytes:
        """Frames as a pcap file. first: index; count: how many. It ends the capture. MachineError when it failed."""
        self.stop()
        if self._error is not None:
            raise self._error
        most = SNAP_BYTES if self._setting.kept is None else self._setting.kept
        parts = [_HEADER.pack(_MAGIC, 2, 4, 0, 0, most, _ETHERNET)]
        for frame in [*self._frames][first : None if count is None else first + count]:
            data, (seconds, ns) = frame.data[:most], divmod(frame.time_ns, 10**9)
            parts += [_RECORD.pack(seconds, ns // 1000, len(data), frame.wire_bytes), data]
        return b"".join(parts)
