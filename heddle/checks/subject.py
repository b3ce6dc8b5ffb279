"""What every check of `validate` is given: a running lab, its handles, and one snapshot of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heddle.kernel.handle import NodeHandle
from heddle.lab import health
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, Snapshot

Found = tuple[str, list[str]]  # what was looked at, and everything that is wrong, in lines


class NothingError(Exception):
    """A check finds nothing to look at."""


@dataclass(frozen=True, slots=True)
class Subject:
    """now: read before the first check. A part that could not be read raises its error in the checks that use it."""

    lab: Lab
    handles: Mapping[str, NodeHandle]
    now: Snapshot

    @classmethod
    def of(cls, lab: Lab) -> Subject:
        """Read all that checks share; what one check alone looks at it reads itself."""
        wanted = (
            LabPart.FIBS | LabPart.HASHING | LabPart.SESSIONS | LabPart.QUEUES | health.parts(lab) | lab.made.gap_parts
        )
        return cls(lab, lab.handles(), lab.snapshot(wanted, keep_errors=True))
