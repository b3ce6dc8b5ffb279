"""What holds for each class of each port, as the agent needs it: plain lists, by row of the maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from topologies.switch.pfc.frame import CLASSES, quanta_ns

if TYPE_CHECKING:
    from topologies.switch.cells import LabQueues

LOSSLESS: Final = 2  # `kind` in queue.h
PFC: Final = 4  # POLICY_PFC in queue.h
DROP: Final = 1  # WATCHDOG_DROP in queue.h; 2 is forward


class Rules:
    """The policies that hold now. Times in ns, quanta at the port's own rate."""

    def __init__(self, queues: LabQueues) -> None:
        self._queues = queues
        self._rows = queues.policies()[:0]
        self._half = -1
        rates = queues.links["rate"].tolist()
        self.quantum_ns = [quanta_ns(1 << 20, rate) / (1 << 20) if rate else 0.0 for rate in rates]  # by port
        self.pfc: list[bool] = []
        self.quanta: list[int] = []
        self.detect_ns: list[int] = []
        self.restore_ns: list[int] = []
        self.action: list[int] = []
        self.load(every=True)

    def load(self, *, every: bool) -> bool:
        """Read them again; True when they have changed. every: compare all rows, else only which half holds.

        Of two changes within one turn the half alone does not tell.
        """
        half = self._queues.half
        if half == self._half and not every:
            return False
        rows = self._queues.policies()
        same = np.array_equal(rows, self._rows)
        self._half, self._rows = half, rows
        if same:
            return False
        self.pfc = ((rows["kind"] == LOSSLESS) & (rows["flags"] & PFC != 0)).tolist()
        self.quanta = rows["quanta"].tolist()
        self.detect_ns, self.restore_ns = rows["detect_ns"].tolist(), rows["restore_ns"].tolist()
        self.action = rows["action"].tolist()
        return True

    def pause_ns(self, index: int) -> int:
        """How long a pause lasts that this port asks for."""
        return int(self.quanta[index] * self.quantum_ns[index // CLASSES])
