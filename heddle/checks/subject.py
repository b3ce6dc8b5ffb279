"""The input and output types of the checks of `validate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from heddle.base.problems import Problem
from heddle.kernel.handle import NodeHandle
from heddle.lab import facts
from heddle.lab.fabricstate import Fact
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, Snapshot

SHOWN: Final = 4  # faults named in one line
Found = tuple[str, list[str]]  # what was checked, and a line for each fault


class Answer(NamedTuple):
    """The result of a check that has notes; a check without notes returns a plain `Found`."""

    checked: str
    faults: list[str]
    notes: tuple[str, ...] = ()


class NothingError(Exception):
    """The lab has nothing that this check applies to."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A running lab, its handles, and one snapshot of it.

    now: read before the first check. A part that could not be read raises its error in the checks that use it.
    """

    lab: Lab
    handles: Mapping[str, NodeHandle]
    now: Snapshot

    @classmethod
    def of(cls, lab: Lab) -> Subject:
        """Read what several checks use. What only one check needs, that check reads itself."""
        wanted = LabPart.FIBS | LabPart.HASHING | LabPart.SESSIONS | LabPart.QUEUES | facts.parts(lab)
        return cls(lab, lab.handles(), lab.snapshot(wanted, keep_errors=True))

    def facts_of(self, check: str) -> tuple[Fact, ...]:
        """The facts that make a check fail."""
        kinds = [kind for kind, each in facts.FACTS.items() if each.check == check]
        found = facts.facts(self.lab, self.now, kinds) if kinds else ()
        return facts.as_set(self.lab, self.now, found) if found else ()


def first_line(problem: Problem) -> str:
    """A problem without its hint."""
    return str(problem).partition("\n")[0]


def shortened(lines: Sequence[str]) -> str:
    """The first few lines, and how many more there are."""
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more
