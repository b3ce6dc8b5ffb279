"""Whether a fabric was as its file says while something was measured on it: before, after, and in between.

In:  a Lab and a snapshot of it with `state_parts`, before and after; the switches that moved between them.
Out: FabricState, typed and plain: it goes into a run's result, its JSON and its record.
A link that went down and came up again between the two snapshots is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from heddle.base.problems import Problem
from heddle.lab import health
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, Snapshot

_SHOWN: Final = 4  # faults named in one sentence
Word = Literal["converged", "degraded", "changed"]


@dataclass(frozen=True, slots=True)
class FabricReading:
    """A fabric at one moment, as `status` has it. faults: daemons, links, a line each; gaps: routes."""

    faults: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @classmethod
    def of(cls, lab: Lab, now: Snapshot) -> FabricReading:
        """now: a snapshot with `state_parts(lab)`, taken just now."""
        found = [*health.silent_daemons(now), *health.lost_agent(lab), *health.down_or_drained(lab, now)]
        return cls(_lines(found), tuple(lab.made.gaps(now)))

    @property
    def converged(self) -> bool:
        """Every route is in every kernel, and everything runs that should keep it there."""
        return not self.faults and not self.gaps

    def text(self) -> str:
        """What is wrong, in one line; empty when nothing is. Gaps follow from faults, so faults alone are named."""
        lines = self.faults or self.gaps
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        return "; ".join(lines[:_SHOWN]) + more

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"converged": self.converged, "faults": list(self.faults), "gaps": list(self.gaps)}


@dataclass(frozen=True, slots=True)
class FabricState:
    """A fabric before and after a run. changed: switches whose routes or hashing were not the same all the time."""

    before: FabricReading
    after: FabricReading
    changed: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        """`degraded`: not as its file says, before or after; `changed`: as it says then, but not the same between."""
        if not (self.before.converged and self.after.converged):
            return "degraded"
        return "changed" if self.changed else "converged"

    def warnings(self) -> list[str]:
        """What a reader of the figures has to know, a sentence each; none for a converged fabric."""
        found = []
        if not self.before.converged:
            found.append(f"the fabric was degraded before the run: {self.before.text()}")
        if self.after != self.before:
            now = f"is degraded now: {self.after.text()}" if not self.after.converged else "has converged now"
            found.append(f"the fabric changed during the run, and {now}")
        if self.changed:
            more = f" and {len(self.changed) - _SHOWN} more" if len(self.changed) > _SHOWN else ""
            where = f"{', '.join(self.changed[:_SHOWN])}{more}"
            found.append(f"routes or hashing changed during the run on {where}")
        return found

    def to_json(self) -> dict[str, Any]:
        """`fabric_state` of a run's document."""
        return {
            "state": self.word,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "changed": list(self.changed),
        }


def state_parts(lab: Lab) -> LabPart:
    """The parts of a snapshot that a reading needs, all of switches. Queues are looked at before a run starts."""
    return (health.parts(lab) | lab.made.gap_parts) & ~LabPart.ROOTS


def _lines(problems: Sequence[Problem]) -> tuple[str, ...]:
    return tuple(str(problem).partition("\n")[0] for problem in problems)
