"""What grows while labs come and go: memory of long-lived processes and of the kernel, and BPF objects.

Memory of the kernel is that which is charged to a control group of the soak, where there is one. Other figures of the
kernel are of the whole machine, so other work beside makes their error larger.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, mean, median
from typing import Final

from heddle.kernel.libbpf import library
from tests.soak.memory import kernel_mb_of

LIMIT: Final = 1.0  # MB an hour, or objects an hour
# Maps of BPF are in vmalloc, namespaces and ports in slabs, counters of each CPU in Percpu. Not SReclaimable, which
# has the cache of files, and shrinks on demand.
_OF_KERNEL: Final = ("SUnreclaim", "Percpu", "VmallocUsed", "KernelStack")
_WARM: Final = 4  # the first one in so many samples is left out: caches fill
# A slope is that of the medians of so many parts: samples follow from those before, so each of them is not evidence.
_PARTS: Final = 8
_IN_PART: Final = 3
_SURE: Final = 2.45  # standard errors: 95 % of Student's t with _PARTS - 2 degrees of freedom
_SHORTEST_H: Final = 0.2  # without the first quarter; what still fills up in this time is no leak


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth an hour with its standard error; without a value where the samples are too few, or in a too short time."""

    what: str
    unit: str
    value: float | None
    error: float
    samples: int

    @property
    def verdict(self) -> str:
        """`ok`, `LEAK`, or `open` where the error is too large for either, or `too short`."""
        if self.value is None:
            return "too short"
        if self.value - _SURE * self.error > LIMIT:
            return "LEAK"
        return "ok" if self.value + _SURE * self.error <= LIMIT else "open"

    def row(self) -> tuple[str, str, str, str]:
        grows = "-" if self.value is None else f"{self.value:+.2f} +- {self.error:.2f} {self.unit}/h"
        return self.what, grows, str(self.samples), self.verdict


@dataclass
class Leaks:
    """Samples of everything that should not grow. group: the control group of all that runs."""

    group: Path | None = None
    _series: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, int]) -> None:
        """Read all. processes: name -> pid; one that has another pid than before begins again."""
        at = time.monotonic() / 3600
        for name, pid in processes.items():
            if self._pids.setdefault(name, pid) != pid:
                self._pids[name] = pid
                self._series.pop((name, "MB"), None)
        found = {(name, "MB"): _anonymous_mb(pid) for name, pid in processes.items()}
        found["kernel memory of the machine", "MB"] = kernel_mb()
        if self.group is not None:
            found["kernel memory of the soak", "MB"] = kernel_mb_of(self.group)
        for kind in ("map", "prog"):
            found[f"BPF {kind}s", "objects"] = bpf_objects(kind)
        for key, value in found.items():
            self._series.setdefault(key, []).append((at, value))

    def slopes(self) -> list[Slope]:
        """One for each series."""
        return [fit(what, unit, points) for (what, unit), points in self._series.items()]


def fit(what: str, unit: str, points: Sequence[tuple[float, float]]) -> Slope:
    """The slope of (hours, value), without the first quarter."""
    used = points[len(points) // _WARM :]
    if len(used) < _PARTS * _IN_PART or used[-1][0] - used[0][0] < _SHORTEST_H:
        return Slope(what, unit, None, 0.0, len(used))
    ends = [len(used) * at // _PARTS for at in range(_PARTS + 1)]
    parts = [used[begin:end] for begin, end in pairwise(ends)]
    xs, ys = ([median(point[axis] for point in part) for part in parts] for axis in (0, 1))
    slope, start = linear_regression(xs, ys)
    wide = sum((x - mean(xs)) ** 2 for x in xs)
    rest = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Slope(what, unit, slope, math.sqrt(rest / (_PARTS - 2) / wide), len(used))


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
