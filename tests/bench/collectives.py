"""Collectives against what the shaped links would give an ideal fluid, and what a packet costs this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

from heddle.base.events import Observer, Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import crc_seconds
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.offline.forecast import Ask, forecast
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.parts.machine import MachineUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.traffic.collectives import find_pattern, patterns
from heddle.traffic.collectives.hosts import RailPattern
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.workload import Workload

from . import Figure, at_least, at_most

_LAB = "benchar"


def fluid_busbw(lab: Lab, options: RunOptions) -> float:
    """GB/s, at most, of the largest size when the NICs' links are the only limit; its packets as they are sent."""
    o, size = options, max(options.sizes)
    nic_s = forecast(lab.fabric, Workload.of(o), Ask(), Silent()).roofline.nic_s
    ranks = build_plan(lab.fabric, o).size
    return size / nic_s / 1e9 * find_pattern(o.collective, o.algorithm).busbw_factor(ranks)


def _run_on(preset: str, options: RunOptions, observer: Observer, *overrides: str) -> tuple[Lab, RunRecord, float]:
    """A run on a fresh lab: the lab's handle, the result, and processor seconds that it cost."""
    labs.up(load_fabric(preset, name=_LAB, overrides=overrides), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        before = time.monotonic()
        result = run(lab, options, observer)
        return lab, result, result[MachineUse].cpu_share * (time.monotonic() - before)
    finally:
        labs.down(_LAB, observer)


def _repeated(observer: Observer) -> Iterator[Figure]:
    """Two equal runs of the ring: the median over sizes of the difference of their busbw."""
    options = RunOptions(sizes=tuple(1 << bits for bits in range(20, 25)))
    labs.up(load_fabric("tiny", name=_LAB), observer=observer, rollback=True)
    try:
        runs = [[row.busbw for row in run(open_lab(_LAB), options, observer).rows] for _ in range(2)]
    finally:
        labs.down(_LAB, observer)
    median = statistics.median(max(pair) / min(pair) - 1 for pair in zip(*runs, strict=True))
    yield at_most("all-reduce 1M to 16M in tiny: two equal runs differ, median", 100 * median, "%", 3.0)


def each_algorithm(observer: Observer) -> Iterator[Figure]:
    """Every collective by every algorithm against its bounds, where no two flows share a link but that of a NIC.

    Its fluid bound is that of the bytes of the busiest NIC. Its own schedule on NICs alone also has the waits between
    steps, and copies inside hosts.
    """
    rate = ("link.host=40mbit", "link.fabric=40mbit")
    rails = [name for name, each in patterns().items() if isinstance(each, RailPattern)]
    flat = [name for name in patterns() if name not in rails and name[0] != "matrix"]
    for preset, names, overrides in (
        ("tiny", flat, ("racks=1", "hosts_per_rack=8", *rate)),
        ("rail", rails, ("hosts_per_pod=1", "nics_per_host=4", *rate)),
    ):
        labs.up(load_fabric(preset, name=_LAB, overrides=overrides), observer=observer, rollback=True)
        try:
            for collective, algorithm in names:
                yield from _against_its_bound(open_lab(_LAB), collective, algorithm, observer)
        finally:
            labs.down(_LAB, observer)
    yield from _repeated(observer)


def _against_its_bound(lab: Lab, collective: str, algorithm: str, observer: Observer) -> Iterator[Figure]:
    options = RunOptions(collective, algorithm, sizes=(8 << 20,), iters=3)
    name, result = f"{algorithm} {collective}", run(lab, options, observer)
    doubt = ", UNRELIABLE: the host CPU was or may have been the bottleneck" if result.doubts else ""
    if collective == "barrier":  # no bytes limit it
        yield Figure(f"{name}: time", result.rows[0].time_us, "us")
    elif collective == "incast":
        root_s = forecast(lab.fabric, Workload.of(options), Ask(), Silent()).roofline.nic_s
        share = result.rows[0].time_us / 1e6 / root_s
        yield at_most(f"{name}: last completion", share, "x", 1.1, f"n S / B at the root{doubt}")
    else:
        share = result.busbw / fluid_busbw(lab, result.options)
        yield Figure(f"{name}: busbw", share, "x", "its fluid bound")
        if ratio := result[IdealUse].ratio:
            yield at_least(f"{name}: rate", 1 / ratio, "x", 0.9, f"its own schedule on NICs alone{doubt}")


def budget(observer: Observer) -> Iterator[Figure]:
    """What one data packet costs end to end, also in units of a CRC over 4 KB."""
    lab, result, _ = _run_on("tiny", RunOptions(sizes=(4 << 20,), iters=5), observer)
    packets = sum(flow.sent.packets for flow in result.flows)
    phases, cpus = result[MachineUse].phases, os.cpu_count() or 1
    cost = sum((phase.cpu - phase.stolen) * cpus * phase.seconds for phase in phases) / packets
    yield Figure("a data packet end to end, ACK and all", cost * 1e6, "us of cpu")
    yield at_most("a data packet end to end", cost / crc_seconds(), "x", 40, "CRC over 4 KB")
    del lab
