"""What each measure against costs is worth: runs without it, in turns with runs of the default, on the same lab.

Workers differ (tests/alteredworker.py), or the ports of the lab do. Each row has the cheapest of a few runs, and ratios
to the default of the same case. Where passes of the NICs begin at other times, results must not differ: busbw of rings,
and the depths, marks and pauses of an incast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Final

from heddle.base.events import Observer
from heddle.kernel import inorder
from heddle.lab.lab import Lab
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.traffic.options import RunOptions
from tests.alteredworker import altered

from . import Figure, at_least
from .packetcost import ACROSS, FAST, Cost, tiny_lab

_LAB: Final = "benchsp"
_TURNS: Final = 3
_PACED: Final = {"sizes": (8 << 20,), "iters": 4, **ACROSS}
_CASES: Final[Mapping[str, RunOptions]] = {
    "paced, 1 QP": RunOptions(qps=1, **_PACED),  # type: ignore[arg-type]
    "paced, 16 QPs": RunOptions(qps=16, **_PACED),  # type: ignore[arg-type]
}
_FULL: Final[Mapping[str, RunOptions]] = {
    "ring at 10 Gb/s": RunOptions(sizes=(16 << 20,), iters=5, **ACROSS),  # type: ignore[arg-type]
}
_INCAST: Final = RunOptions(collective="incast", sizes=(4 << 20,), iters=3)
_PASSES: Final = ("no time between passes", "passes one frame apart", "passes six frames apart")
_WORKERS: Final = (*_PASSES, "an ACK for each packet", "CRC of zlib")
_PYTHON: Final = "NICs in Python"
_NO_GRO: Final = "GRO off"


def figures(observer: Observer) -> Iterator[Figure]:
    """Costs without each measure; results with other times between passes."""
    with tiny_lab(_LAB, observer) as lab:
        yield from _costs(lab, _CASES, (*_WORKERS, _PYTHON, _NO_GRO), observer)
        yield from _incasts(lab, observer)
    with tiny_lab(_LAB, observer, *FAST) as lab:
        yield from _costs(lab, _FULL, (*_WORKERS, _PYTHON), observer)


def _costs(lab: Lab, cases: Mapping[str, RunOptions], without: tuple[str, ...], observer: Observer) -> Iterator[Figure]:
    for case, options in cases.items():
        found: dict[str, list[Cost]] = {name: [] for name in ("", *without)}
        for _ in range(_TURNS):
            for name, costs in found.items():
                costs.append(Cost.of(_run(lab, name, options, observer)))
        best = {name: min(costs, key=lambda cost: cost.total_us) for name, costs in found.items()}
        yield Figure(f"{case}: a packet", best[""].total_us, "us of cpu")
        for name in without:
            yield Figure(f"{case}, {name}: a packet", best[name].total_us / best[""].total_us, "x", "default")
        for name in without:
            if name in _PASSES and case in _CASES:
                ratio = median(each.busbw for each in found[name]) / median(each.busbw for each in found[""])
                yield at_least(f"{case}, {name}: busbw", ratio, "x", 0.98, "default")


def _incasts(lab: Lab, observer: Observer) -> Iterator[Figure]:
    """Medians of some runs, by the time between passes."""
    found: dict[str, list[RunRecord]] = {name: [] for name in ("", *_PASSES)}
    for _ in range(_TURNS):
        for name, results in found.items():
            results.append(_run(lab, name, _INCAST, observer))
    for name, results in found.items():
        what = f"incast, {name}" if name else "incast"
        uses = [result[QueueUse] for result in results if result.part(QueueUse) is not None]
        yield Figure(f"{what}: busbw", median(result.busbw for result in results) * 1e3, "MB/s")
        yield Figure(f"{what}: deepest queue", median(use.deepest for use in uses) / 1e3, "KB")
        yield Figure(f"{what}: marks", median(use.marks for use in uses), "")
        yield Figure(f"{what}: pause frames", median(use.pauses for use in uses), "")
        yield Figure(f"{what}: paused, all ports", median(use.paused_ms for use in uses), "ms")


def _run(lab: Lab, name: str, options: RunOptions, observer: Observer) -> RunRecord:
    """A run without this measure; the default for the empty name."""
    if name == _PYTHON:
        return run(lab, replace(options, fastpath="off"), observer)
    if name == _NO_GRO:
        _set_gro(lab, on=False)
        try:
            return run(lab, options, observer)
        finally:
            _set_gro(lab, on=True)
    with altered(name):
        return run(lab, options, observer)


def _set_gro(lab: Lab, *, on: bool) -> None:
    for node in lab.fabric.nodes:
        inorder.set_gro(lab.handle(node.name).netns, [port.name for port in node.ports], on=on)
