"""State of a fabric during a measurement: as configured or not, before it, after it, and in between.

In:  a Lab and a snapshot of it with `state_parts`, before and after; the switches whose routes or hashing changed.
Out: FabricState, typed and plain: it is part of a run's result, its JSON and its record.
A link that went down and came up again between the two snapshots is not detected, unless the run itself took it down
(runfaults.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from heddle.base.tables import some_of
from heddle.lab.fact import Fact

if TYPE_CHECKING:  # readers of kept runs need nothing of a running lab
    from heddle.lab.lab import Lab
    from heddle.lab.snapshot import LabPart, Snapshot

Word = Literal["converged", "degraded", "changed"]


@dataclass(frozen=True, slots=True)
class FabricReading:
    """A fabric at one moment, as `status` reports it. faults: all facts but missing next hops, a line each.

    gaps: routes that are missing, or have other next hops. link_faults: what links do to packets on request, a line
    each; a fabric with them can be converged. facts: what was read, without what the record says of it.
    """

    faults: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    link_faults: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    @classmethod
    def of(cls, lab: Lab, now: Snapshot) -> FabricReading:
        """now: a snapshot with `state_parts(lab)`, taken just now."""
        from heddle.lab.facts import NEXT_HOPS, as_set, facts
        from heddle.lab.faults.orders import fault_lines

        found = facts(lab, now)
        known = as_set(lab, now, found)
        faults, gaps = ([each.text for each in known if (each.kind == NEXT_HOPS) == gap] for gap in (False, True))
        return cls(tuple(faults), tuple(gaps), fault_lines(lab), found)

    @property
    def converged(self) -> bool:
        """True when every route is in every kernel and no other is, and all daemons, links and the PFC agent work."""
        return not self.faults and not self.gaps

    def text(self) -> str:
        """The faults in one line, or else the gaps: gaps follow from faults. Empty when there are neither."""
        return some_of(self.faults or self.gaps, joint="; ")

    def to_json(self) -> dict[str, Any]:
        links = {"link_faults": list(self.link_faults)} if self.link_faults else {}
        return {"converged": self.converged, "faults": list(self.faults), "gaps": list(self.gaps)} | links

    def link_text(self) -> str:
        """The faults of links in one line; empty when there are none."""
        return some_of(self.link_faults, joint="; ")


@dataclass(frozen=True, slots=True)
class FabricState:
    """A fabric before and after a run. changed: switches whose routes or hashing changed during the run."""

    before: FabricReading
    after: FabricReading
    changed: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        """`degraded`: not as configured before or after the run; `changed`: as configured then, but not in between."""
        if not (self.before.converged and self.after.converged):
            return "degraded"
        return "changed" if self.changed else "converged"

    def warnings(self) -> list[str]:
        """Warnings for the reader of the measurements, a sentence each; none for a converged fabric."""
        found = []
        if not self.before.converged:
            found.append(f"the fabric was degraded before the run: {self.before.text()}")
        if self.after.link_faults != self.before.link_faults:
            now = f"now set: {self.after.link_text()}" if self.after.link_faults else "now none is set"
            found.append(f"faults of links changed during the run; {now}")
        if (self.after.faults, self.after.gaps) != (self.before.faults, self.before.gaps):
            now = f"is degraded now: {self.after.text()}" if not self.after.converged else "has converged now"
            found.append(f"the fabric changed during the run, and {now}")
        if self.changed:
            found.append(f"routes or hashing changed during the run on {some_of(self.changed)}")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.word,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "changed": list(self.changed),
        }


def state_parts(lab: Lab) -> LabPart:
    """The parts of a snapshot that a reading needs."""
    from heddle.lab.facts import parts

    return parts(lab)
