"""Whether a figure can be trusted: two identical runs side by side, uncongested rings against the fluid bound, and two
jobs against one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import budget_pps
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.parts.machine import MachineUse
from heddle.runs.run import run, run_workload
from heddle.traffic.options import RunOptions
from heddle.traffic.workload import Job, Workload
from heddle.wire.layout import OVERHEAD_BYTES

from . import Figure, at_least, at_most
from .collectives import fluid_busbw

_LAB: Final = "benchst"
_RUNS: Final = 2
_JOBS: Final = (64, 16)  # ranks
_SPARE: Final = 2 / 3  # of what the machine carries: a third is left
_IB_MTU: Final = 4096

# Ranks in order, as many hosts in a rack as ports down: a ring crosses from rack to rack once each way, so that no link
# carries two hops of it. A step of 64 ranks has 64 KB: with short messages a rank sends on while the rest comes.
ZONE: Final = RunOptions(sizes=(8 << 20,), iters=2, qps=16)
WIDE: Final = RunOptions(sizes=(4 << 20,), iters=1, chunk=16 << 10)


def wide_rate(budget: int, ranks: int) -> int:
    """Bit/s of a link, so that so many NICs at line rate leave a third of this machine idle: whole kilobits."""
    return int(budget * _SPARE * 8 * (_IB_MTU + OVERHEAD_BYTES) / ranks) // 8000 * 8000


def figures(observer: Observer) -> Iterator[Figure]:
    """Rings over 16 and 64 ranks; both at once."""
    yield from _ring("16 ranks in zone, 16 QPs", ZONE, observer)
    rate = f"{wide_rate(budget_pps(compiled=True), 64)}bit"
    yield Figure("64 ranks in zone: rate of each link", wide_rate(budget_pps(compiled=True), 64) / 1e6, "Mb/s")
    overrides = ("hosts_per_rack=8", f"link.host={rate}", f"link.fabric={rate}")
    yield from _ring("64 ranks in zone", WIDE, observer, *overrides)
    yield from together(observer)


def together(observer: Observer) -> Iterator[Figure]:
    """Processor seconds of workers for a packet: two jobs at once against one."""
    rate = f"{wide_rate(budget_pps(compiled=True), sum(_JOBS))}bit"
    shape = ("hosts_per_rack=10", f"link.host={rate}", f"link.fabric={rate}")
    jobs = [Job(f"ranks-{many}", replace(WIDE, ranks=many)) for many in _JOBS]
    costs: list[list[float]] = [[], []]
    with _zone(observer, *shape) as lab:
        for _ in range(_RUNS):
            for found, some in zip(costs, (jobs[:1], jobs), strict=True):
                results = run_workload(lab, Workload(tuple(some)), observer).jobs
                uses = [use for each in results for phase in each[MachineUse].phases for use in phase.workers]
                packets = sum(flow.sent.packets for each in results for flow in each.flows)
                found.append(1e6 * sum(use.busy * use.seconds for use in uses) / packets)
    alone, both = map(min, costs)
    yield Figure("a job of 64 ranks: a packet, in workers", alone, "us of cpu")
    yield at_most("with a job of 16 at once: a packet, in workers", both / alone, "x", 1.1, "that job alone")


@contextmanager
def _zone(observer: Observer, *overrides: str) -> Iterator[Lab]:
    labs.up(load_fabric("zone", name=_LAB, overrides=overrides), observer=observer, rollback=True)
    try:
        yield open_lab(_LAB)
    finally:
        labs.down(_LAB, observer)


def _ring(what: str, options: RunOptions, observer: Observer, *overrides: str) -> Iterator[Figure]:
    with _zone(observer, *overrides) as lab:
        results = [run(lab, options, observer) for _ in range(_RUNS)]
        fluid = fluid_busbw(lab, options)
    rates = [result.busbw for result in results]
    least = min(rates)
    yield at_most(f"{what}: two identical runs differ", 100 * (max(rates) / least - 1), "%", 3.0)
    yield at_least(f"{what}: busbw", least / fluid, "x", 0.98, "fluid bound of the shaped links")
    cpu = max(result[MachineUse].cpu_share for result in results)
    yield Figure(f"{what}: processors busy", 100 * cpu, "%")
    marked = sum(result.limited for result in results)
    yield Figure(f"{what}: runs marked unreliable", marked, "", "", "0", marked == 0)
    wrong = sum(result.wrong for result in results)
    yield Figure(f"{what}: wrong", wrong, "", "", "0", wrong == 0)
