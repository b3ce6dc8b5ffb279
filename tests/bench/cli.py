"""How long the command line keeps people waiting."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs

from . import Figure, at_most

_INV: Final = Path(__file__).resolve().parents[2] / "inv"
_LAB: Final = "benchcli"
_TIMES: Final = 5


def best_of(argv: Sequence[str | Path], times: int = _TIMES) -> float:
    """Seconds of the quickest of some runs of a command; CalledProcessError when it fails."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([str(word) for word in argv], check=True, capture_output=True)
        best = min(best, time.perf_counter() - start)
    return best


def figures(observer: Observer) -> Iterator[Figure]:
    """`--list`, and `status` with zone up; both also as multiples of a Python that does nothing."""
    python = best_of([sys.executable, "-c", "pass"])
    listing = best_of([_INV, "--list"])
    yield at_most("./inv --list", listing, "s", 0.3)
    yield Figure("./inv --list", listing / python, "x", "python -c pass")
    labs.up(load_fabric("zone", name=_LAB), observer=observer, rollback=True)
    try:
        seconds = best_of([_INV, "status", _LAB])
    finally:
        labs.down(_LAB, observer)
    yield at_most("./inv status, zone up", seconds, "s", 1.0)
