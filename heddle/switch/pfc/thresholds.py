"""The active policies of each class of each port, in the form that the agent needs: plain lists, by row of the maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.frame import quanta_ns

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

LOSSLESS: Final = 2  # `kind` in queue.h
PFC: Final = 4  # POLICY_PFC in queue.h
DROP: Final = 1  # WATCHDOG_DROP in queue.h; 2 is forward


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
