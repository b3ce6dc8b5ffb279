"""What the agent knows by row of the maps, beside the maps: the active policies, and the state of pauses.

RowState has plain arrays, which the compiled loop uses as they are.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.frame import quanta_ns

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

LOSSLESS: Final = 2  # `kind` in queue.h
PFC: Final = 4  # POLICY_PFC in queue.h
DROP: Final = 1  # WATCHDOG_DROP in queue.h; 2 is forward
NOT_WATCHED: Final = -1
# Histogram of the times from crossing Xoff to the pause frame, in `spare` of the agent's rows (u32 each).
REACTION_BINS: Final = 10
REACTION_STEP_NS: Final = 62_500


def reaction_bin(reaction_ns: int) -> int:
    """The histogram bin of a reaction time: bin 0 ends at 62.5 us, and each next bin ends at twice the time."""
    return min(REACTION_BINS - 1, (reaction_ns // REACTION_STEP_NS).bit_length())


class PfcPolicies:
    """The active policies. Times in ns, quanta at the port's own rate."""

    def __init__(self, queues: LabQueues) -> None:
        self._queues = queues
        self._changes = -1
        rates = queues.links["rate"].tolist()
        self.quantum_ns = [quanta_ns(1 << 20, rate) / (1 << 20) if rate else 0.0 for rate in rates]  # by port
        self.pfc: list[bool] = []
        self.quanta: list[int] = []
        self.detect_ns: list[int] = []
        self.restore_ns: list[int] = []
        self.action: list[int] = []
        self.load()

    def load(self) -> bool:
        """Read the policies again if they have changed; return whether they have."""
        changes = self._queues.changes
        if changes == self._changes:
            return False
        self._changes = changes
        rows = self._queues.policies()
        self.pfc = ((rows["kind"] == LOSSLESS) & (rows["flags"] & PFC != 0)).tolist()
        self.quanta = rows["quanta"].tolist()
        self.detect_ns, self.restore_ns = rows["detect_ns"].tolist(), rows["restore_ns"].tolist()
        self.action = rows["action"].tolist()
        return True

    def pause_ns(self, index: int) -> int:
        """Duration of a pause that this port requests, in ns."""
        return int(self.quanta[index] * self.quantum_ns[index // CLASSES])


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
