"""What a user asks of the figures of a run, beside the run itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heddle.base.units import format_size
from heddle.runs.runtable import SizeRow


@dataclass(frozen=True, slots=True)
class Asked:
    """skip: leading iterations that statistics leave out. min_busbw: the least busbw of each size, in GB/s."""

    skip: int = 0
    min_busbw: float | None = None

    def below(self, rows: Iterable[SizeRow]) -> list[str]:
        """A sentence for each measurement of a size with less."""
        least = self.min_busbw
        return [
            f"busbw of {format_size(row.size)} is {each.busbw:.4g} GB/s, which is below --min-busbw {least:g}"
            for row in rows
            for each in row.all
            if least is not None and each.busbw < least
        ]
