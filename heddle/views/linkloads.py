"""The load of each link in a run, as values for pictures: LinkLoad; and how even each direction was: Spread.

In:  packets and bytes by port (usage.py). Out: rows for JSON, lines for a legend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from heddle.fabric.model import Fabric


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Packets and bytes that a run sent over one link, by sending end.

    a, b: the ports, `a` on the lower level. share: the link's bytes over all bytes between the same levels, 0 to 1.
    rate_bps: of each direction. run_s: seconds of the run; None when not known. ranked: ranks are below the link.
    """

    a: str
    b: str
    a_packets: int
    a_bytes: int
    b_packets: int
    b_bytes: int
    share: float
    rate_bps: int
    run_s: float | None = None
    ranked: bool = True

    @property
    def seconds(self) -> tuple[float, float]:
        """The time that the bytes of each end need at the link's rate: of a, of b."""
        return self.a_bytes * 8 / self.rate_bps, self.b_bytes * 8 / self.rate_bps

    def _use(self, seconds: float) -> float | None:
        return round(seconds / self.run_s, 6) if self.run_s else None

    def to_json(self) -> dict[str, Any]:
        """One row of `links`; `packets` and `bytes` are of both directions, `utilisation` is the larger one of both."""
        return {
            "a": self.a, "b": self.b, "packets": self.a_packets + self.b_packets, "bytes": self.a_bytes + self.b_bytes,
            "share": round(self.share, 6), "a_packets": self.a_packets, "a_bytes": self.a_bytes,
            "b_packets": self.b_packets, "b_bytes": self.b_bytes, "rate_bps": self.rate_bps, "ranked": self.ranked,
            "a_seconds": round(self.seconds[0], 9), "b_seconds": round(self.seconds[1], 9),
            "utilisation": self._use(max(self.seconds)),
            "a_utilisation": self._use(self.seconds[0]), "b_utilisation": self._use(self.seconds[1]),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """How even the load of one direction between two levels was, over the ports of links with ranks below.

    most, mean: bytes of the port with most, and over all ports. busiest, used: the port with the highest use, in words.
    left_out: ports of links without ranks.
    """

    what: str
    ports: int
    idle: int
    most: int
    most_at: str
    mean: float
    busiest: str
    used: str
    left_out: int

    def text(self) -> str:
        """`RTSW to CTSW: busiest rtsw1:eth1 83 %; max 451 kB (rtsw1:eth1), mean 300 kB, max/mean 1.50, 8 ports`."""
        if not self.most:
            return f"{self.what}: nothing"
        ports = f"{self.ports} port{'' if self.ports == 1 else 's'}"
        idle = f"{self.idle} of {ports} idle" if self.idle else ports
        without = f", {self.left_out} without ranks" if self.left_out else ""
        numbers = f"max {amount(self.most)} ({self.most_at}), mean {amount(self.mean)}"
        busiest = f"busiest {self.busiest} {self.used}"
        return f"{self.what}: {busiest}; {numbers}, max/mean {self.most / self.mean:.2f}, {idle}{without}"


def use_text(seconds: float, run_s: float | None) -> str:
    """The use of a port for a picture: `83 %` of the run, or `0.32 s` at its rate when the run's time is not known."""
    return f"{seconds / run_s:.0%}" if run_s else f"{seconds:.3g} s"


def amount(count: float) -> str:
    """Bytes for a picture: `0`, `451 kB`, `1.2 MB` (powers of ten)."""
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B" if count else "0"


def spreads(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[Spread]:
    """Every direction between two levels: first from the hosts up, then down."""
    sent: dict[tuple[int, int], list[tuple[int, float, str, LinkLoad]]] = {}
    for load in loads:
        low, high = (fabric.by_name[ref.partition(":")[0]].level for ref in (load.a, load.b))
        sent.setdefault((low, high), []).append((load.a_bytes, load.seconds[0], load.a, load))
        sent.setdefault((high, low), []).append((load.b_bytes, load.seconds[1], load.b, load))
    up = list(pairwise(range(len(fabric.levels))))
    down = [(high, low) for low, high in reversed(up)]
    found = []
    for one, other in dict.fromkeys((*up, *down, *sent)):
        every = sent.get((one, other), [])
        ports = [each for each in every if each[3].ranked]
        if ports:
            most, _, at, _ = max(ports, key=lambda port: port[0])
            _, seconds, busiest, load = max(ports, key=lambda port: port[1])
            idle = sum(1 for count, *_ in ports if not count)
            mean = sum(count for count, *_ in ports) / len(ports)
            what = f"{fabric.levels[one].title} to {fabric.levels[other].title}"
            used = use_text(seconds, load.run_s)
            found.append(Spread(what, len(ports), idle, most, at, mean, busiest, used, len(every) - len(ports)))
    return found
