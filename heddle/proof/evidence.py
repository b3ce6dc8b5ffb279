"""The evidence of a run: its paths can be proven after its end, even if the fabric has changed since.

Evidence is two snapshots of the lab, before and after the run, the counts of every sender and every receiving NIC, and
the oracle's answers. Everything else is derived from them: counts and drops of the run, and switches that changed
during the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from heddle.lab.snapshot import LabPart, Snapshot
from heddle.switch.counters import SwitchCounters
from heddle.traffic.flow import Sent

PARTS: Final = LabPart.FIBS | LabPart.HASHING | LabPart.COUNTERS | LabPart.DROPS  # of both snapshots
Path = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """The evidence of one run. before, after: with PARTS; both without counters of flows that the run did not touch.

    oracle: the kernels' answers after the run, a path for each flow, in the order of `sent`.
    received: packets of each flow that the receiving NIC took, in the same order; empty if no NIC reported.
    seconds: from the first packet until the last rank finished; None if not known.
    choices: the source of the oracle's choices (oracle.py) -> their number; empty if not known.
    """

    before: Snapshot
    after: Snapshot
    sent: tuple[Sent, ...]
    oracle: tuple[Path, ...]
    received: tuple[int, ...] = ()
    seconds: float | None = None
    choices: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, before: Snapshot, after: Snapshot, sent: Sequence[Sent], oracle: Sequence[Path],
        received: Sequence[int] = (), seconds: float | None = None, choices: Mapping[str, int] | None = None,
    ) -> Evidence:  # fmt: skip
        """From two snapshots. Only flows whose counters moved are kept: a long-running lab has counted many others."""
        then, now = before.counters, after.counters
        return cls(
            before.with_counters({name: table.moved(now[name]) for name, table in then.items()}),
            after.with_counters({name: table.moved(then[name]) for name, table in now.items()}),
            tuple(sent),
            tuple(oracle),
            tuple(received),
            seconds,
            choices or {},
        )

    @cached_property
    def counters(self) -> Mapping[str, SwitchCounters]:
        """The counts of each switch over the run."""
        return {name: table.since(self.before.counters[name]) for name, table in self.after.counters.items()}

    @cached_property
    def drops(self) -> Mapping[str, int]:
        """`rtsw1:eth2` -> packets dropped by its queues over the run."""
        return {port: count - self.before.drops.get(port, 0) for port, count in self.after.drops.items()}

    def class_drops(self, port: str, number: int) -> int | None:
        """Packets of one class dropped by a port's queue over the run; None if only the sum of classes is known."""
        if not self.drops.get(port, 0):
            return 0
        node = port.partition(":")[0]
        if any(state.nodes[node].class_drops is None for state in (self.before, self.after)):
            return None
        before, after = (state.class_drops.get(port, {}) for state in (self.before, self.after))
        return after.get(number, 0) - before.get(number, 0)

    @property
    def backlog_drops(self) -> int:
        """Packets that this machine's receive backlog dropped over the run, in any namespace."""
        return self.after.backlog_drops - self.before.backlog_drops

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Switches whose routes or hashing differ between the two snapshots."""
        then, now = self.before, self.after
        return tuple(
            name for name in now.fibs if now.fibs[name] != then.fibs[name] or now.hashing[name] != then.hashing[name]
        )

    @cached_property
    def switched(self) -> tuple[str, ...]:
        """Switches whose hashing was changed between the two, also if the old mode was restored."""
        return tuple(name for name, epoch in self.after.epochs.items() if epoch != self.before.epochs[name])
