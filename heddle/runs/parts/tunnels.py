"""Cut links during a run: what their tunnels carried and lost, and how well the clocks of the shards are known.

A tunnel is the wire of a cut link, behind its queue. A frame that it loses is lost where the fabric counts nothing, so
a run with such a loss is unreliable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from heddle.base.tables import many, some_of
from heddle.host.capacity import Cause
from heddle.runs.parts.part import Card, RunPart

if TYPE_CHECKING:
    from heddle.runs.measured import MeasuredRun


@dataclass(frozen=True, slots=True)
class TunnelsUse(RunPart):
    """Cut links of a run. frames: over all tunnels. losses: port -> frames of it that did not arrive. unsure: frames
    that were on their way when the ends were read. clock_bound_s: how far the clocks of two shards may be apart.
    """

    links: int
    frames: int
    losses: Mapping[str, int]
    unsure: int
    clock_bound_s: float

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self | None:
        """None on one machine."""
        span = measured.tunnels
        if span is None or not span.links:
            return None
        return cls(span.links, span.frames, span.lost, span.unsure, 2 * span.clock_ns / 1e9)

    def lines(self) -> Sequence[str]:
        """`#tunnels  : 16 cut links carried 12,034 frames, 0 lost; clocks of shards agree within 0.2 ms`."""
        count = sum(self.losses.values())
        clocks = f"clocks of shards agree within {self.clock_bound_s * 1e3:.2g} ms"
        carried = f"{many(self.links, 'cut link')} carried {many(self.frames, 'frame')}, {count:,} lost"
        return (f"#tunnels  : {carried}; {clocks}",)

    def doubt_lines(self) -> Sequence[str]:
        if not self.losses:
            return ()
        lost = some_of([f"{port} {count:,}" for port, count in self.losses.items()])
        return (f"tunnels between shards lost frames, where the fabric counts none: {lost}",)

    def doubts(self) -> Sequence[Cause]:
        return [
            Cause("tunnel", None, None, sure=True, text=f"the tunnel of {port} lost {many(count, 'frame')}")
            for port, count in self.losses.items()
        ]

    def lost(self) -> Mapping[str, int] | None:
        count = sum(self.losses.values())
        return {"tunnels between shards": count} if count else {}

    def cards(self) -> Sequence[Card]:
        return (("cut links", f"{self.links}", f"{self.frames:,} frames, {sum(self.losses.values()):,} lost"),)
