"""What grows while labs come and go: memory of long-lived processes and of the kernel, and BPF objects.

Figures of the kernel are of the whole machine, so other work beside makes their error larger.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from heddle.kernel.libbpf import library

LIMIT: Final = 1.0  # MB an hour, or objects an hour
# Maps of BPF are in vmalloc, namespaces and ports in slabs, counters of each CPU in Percpu. Not SReclaimable, which
# has the cache of files, and shrinks on demand.
_OF_KERNEL: Final = ("SUnreclaim", "Percpu", "VmallocUsed", "KernelStack")
_LEAST: Final = 8  # samples for a verdict
_WARM: Final = 4  # the first one in so many samples is left out: caches fill


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth an hour with its standard error, by least squares."""

    what: str
    unit: str
    value: float
    error: float
    samples: int

    @property
    def verdict(self) -> str:
        """`ok`, `LEAK`, or `open` where the error is too large for either."""
        if self.samples < _LEAST:
            return "open"
        if self.value - 2 * self.error > LIMIT:
            return "LEAK"
        return "ok" if self.value + 2 * self.error <= LIMIT else "open"

    def row(self) -> tuple[str, str, str, str]:
        return self.what, f"{self.value:+.2f} +- {self.error:.2f} {self.unit}/h", str(self.samples), self.verdict


@dataclass
class Leaks:
    """Samples of everything that should not grow."""

    _series: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, int]) -> None:
        """Read all. processes: name -> pid; one that has another pid than before begins again."""
        at = time.monotonic() / 3600
        found = {(name, "MB"): _anonymous_mb(pid) for name, pid in processes.items()}
        found["kernel memory", "MB"] = kernel_mb()
        for kind in ("map", "prog"):
            found[f"BPF {kind}s", "objects"] = bpf_objects(kind)
        for key, value in found.items():
            self._series.setdefault(key, []).append((at, value))

    def slopes(self) -> list[Slope]:
        """One for each series."""
        return [fit(what, unit, points) for (what, unit), points in self._series.items()]


def fit(what: str, unit: str, points: list[tuple[float, float]]) -> Slope:
    """The slope of (hours, value), without the first quarter; an infinite error for fewer than three points."""
    used = points[len(points) // _WARM :]
    count = len(used)
    if count < 3:
        return Slope(what, unit, 0.0, math.inf, count)
    middle, mean = sum(x for x, _ in used) / count, sum(y for _, y in used) / count
    wide = sum((x - middle) ** 2 for x, _ in used)
    slope = sum((x - middle) * (y - mean) for x, y in used) / wide
    rest = sum((y - mean - slope * (x - middle)) ** 2 for x, y in used)
    return Slope(what, unit, slope, math.sqrt(rest / (count - 2) / wide), count)


def _anonymous_mb(pid: int) -> float:
    return _field(Path("/proc", str(pid), "status"), "RssAnon") / 1024


def kernel_mb() -> float:
    """Memory of the kernel that is not a cache of files, in MiB."""
    return sum(_field(Path("/proc/meminfo"), name) for name in _OF_KERNEL) / 1024


def _field(path: Path, name: str) -> int:
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def bpf_objects(kind: str) -> int:
    """The number of `map` or `prog` objects in this kernel."""
    number, count = ctypes.c_uint32(0), 0
    while getattr(library(), f"bpf_{kind}_get_next_id")(number, ctypes.byref(number)) == 0:
        count += 1
    return count
