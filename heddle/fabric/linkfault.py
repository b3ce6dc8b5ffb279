"""What a link does to the packets that leave by one of its ports: delay, loss and other faults.

In:  a fabric file (`link.loss`, ...) or `./inv fault`. Out: LinkFault. Times are nanoseconds on hardware, one way: here
they are multiplied by k. Shares are of packets, from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from heddle.base.units import format_duration, format_share


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Faults of one direction of a link.

    jitter_ns: the delay is uniform between delay - jitter and delay + jitter; packets keep their order. reorder: this
    share of packets skips the delay, and so overtakes others. corrupt: one bit of a RoCEv2 packet is inverted.
    """

    delay_ns: int = 0
    jitter_ns: int = 0
    loss: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0

    def __bool__(self) -> bool:
        """Whether there is any fault."""
        return self != NO_FAULT

    @property
    def needs_netem(self) -> bool:
        """Whether packets must wait on the link, which only the kernel's netem can do."""
        return self.delay_ns > 0

    def complaint(self) -> tuple[str, str, str]:
        """(key, why, hint) of values that do not fit together; empty texts when they do."""
        if self.reorder and not self.delay_ns:
            return "reorder", "needs a delay: packets that skip it overtake the others", "set a delay, such as 10us"
        if self.jitter_ns > self.delay_ns:
            delay = format_duration(self.delay_ns) if self.delay_ns else "0"
            return "jitter", f"is above the delay, {delay}", "set a delay of at least the jitter"
        return "", "", ""

    def text(self, k: int) -> str:
        """`1/256 lost, delay 10us (40ms here)`. k: of the fabric."""
        parts = [
            f"{format_share(share)} {word}"
            for share, word in (
                (self.loss, "lost"),
                (self.corrupt, "corrupted"),
                (self.duplicate, "duplicated"),
                (self.reorder, "reordered"),
            )
            if share
        ]
        for word, ns in (("delay", self.delay_ns), ("jitter", self.jitter_ns)):
            if ns:
                parts.append(f"{word} {format_duration(ns)} ({format_duration(ns * k)} here)")
        return ", ".join(parts) or "none"

    def to_json(self) -> dict[str, Any]:
        """Plain data, without what is 0."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LinkFault:
        """The value that `to_json` wrote; ValueError for other data."""
        known = {each.name for each in fields(cls)}
        if not set(data) <= known or not all(isinstance(value, int | float) for value in data.values()):
            raise ValueError("is not a link fault")
        return cls(**data)


NO_FAULT = LinkFault()
