"""What the agent keeps by row of the maps, beside the maps: plain arrays, which the compiled loop uses as they are."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

NOT_WATCHED: Final = -1


class RowState:
    """Times in ns of CLOCK_MONOTONIC, 0: none. It ends with the process: another agent rebuilds it from the maps.

    asked: the port of this row has sent a pause frame, and a deadline repeats it. For a closed gate, checked: its
    deadline; arrived: when its pause frame came; shut: when it was closed; waiting: since when packets wait, 0 when
    none did at the last check, NOT_WATCHED when the watchdog does not look. heard: the last pause frame. storming: the
    watchdog ignores pause frames.
    """

    def __init__(self, rows: int) -> None:
        self.asked, self.storming = (ctypes.c_uint8 * rows)(), (ctypes.c_uint8 * rows)()
        self.heard, self.waiting = (ctypes.c_int64 * rows)(), (ctypes.c_int64 * rows)(*[NOT_WATCHED] * rows)
        self.checked, self.arrived, self.shut = ((ctypes.c_int64 * rows)() for _ in range(3))
        self._asked, self._storming = np.ctypeslib.as_array(self.asked), np.ctypeslib.as_array(self.storming)

    def asking(self) -> list[int]:
        """The rows whose ports have requested a pause that has not ended."""
        return np.flatnonzero(self._asked).tolist()

    def storms(self) -> list[int]:
        """The rows of which the watchdog ignores pause frames."""
        return np.flatnonzero(self._storming).tolist()
