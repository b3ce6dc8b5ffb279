"""What a part of a run has: what one mechanism did in it, as a frozen value with typed fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, runtime_checkable

from heddle.base.tables import Table
from heddle.host.capacity import Cause

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun

MARK: Final = "#UNRELIABLE:"
Card = tuple[str, str, str]  # name, value, what it means or whether it is good


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A time that pictures of a run mark, with its label. begin_s, end_s: wall time since the first barrier."""

    what: str
    begin_s: float
    end_s: float


@runtime_checkable
class Courses(Protocol):
    """What a part recorded over time: too large for the record, so it has a file of its own."""

    def write(self, directory: Path) -> None:
        """Write its file into the directory of the run."""

    def to_json(self) -> list[dict[str, Any]]:
        """Its rows of the run's document."""


@dataclass(frozen=True, slots=True)
class RunPart:
    """What one mechanism did in a run. Its fields are stored in run.json; the rest follows from them.

    A subclass is one file and one line of PARTS. It defines what the mechanism has.
    """

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self | None:
        """From the end of a run; None when the run did not use the mechanism."""
        raise NotImplementedError

    @classmethod
    def courses(cls, measured: MeasuredRun) -> tuple[str, Courses] | None:
        """What it recorded over time, with the key of its rows in the part's document."""
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Sequence[str]:
        """Lines of the table's footer."""
        return ()

    def doubt_lines(self) -> Sequence[str]:
        """Lines directly below the rows of the table, behind MARK: why its figures are unreliable."""
        return ()

    def doubts(self) -> Sequence[Cause]:
        """Causes why figures of the run are unreliable."""
        return ()

    def lost(self) -> Mapping[str, int] | None:
        """Cause -> lost packets, without causes that lost none; None for a part that counts no losses."""
        return None

    def cards(self) -> Sequence[Card]:
        """Figures at a glance, for the report."""
        return ()

    def times(self) -> Sequence[TimeSpan]:
        """Times that pictures over the run's time mark."""
        return ()

    def table(self) -> Table | None:
        """Its parameters, for the report."""
        return None
