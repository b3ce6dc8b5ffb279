"""All-reduce against what the shaped links would give an ideal fluid, and what a packet costs this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from heddle.base.events import Observer, Silent
from heddle.cli.demo import demo
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import crc_seconds
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.offline.forecast import Ask, forecast
from heddle.runs.parts.machine import MachineUse
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.traffic.collectives import find_pattern
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


def _run_on(preset: str, options: RunOptions, observer: Observer, *overrides: str) -> tuple[Lab, RunResult, float]:
    """A run on a fresh lab: the lab's handle, the result, and processor seconds that it cost."""
    labs.up(load_fabric(preset, name=_LAB, overrides=overrides), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        before = time.monotonic()
        result = run(lab, options, observer)
        return lab, result, result[MachineUse].cpu_share * (time.monotonic() - before)
    finally:
        labs.down(_LAB, observer)


def uncontended(observer: Observer) -> Iterator[Figure]:
    """tiny, ranks in order: every flow has its links to itself."""
    lab, result, _ = _run_on("tiny", RunOptions(sizes=(4 << 20,), iters=5), observer)
    fluid = fluid_busbw(lab, result.options)
    yield Figure("all-reduce 4M in tiny: busbw, emulated", result.busbw, "GB/s")
    yield at_least("all-reduce 4M in tiny: busbw", result.busbw / fluid, "x", 0.98, "fluid bound of the shaped links")
    yield Figure("all-reduce 4M in tiny: wrong elements", result.wrong, "", "", "0", result.wrong == 0)


def demo_gain(observer: Observer) -> Iterator[Figure]:
    """What E-ECMP with 16 QPs gives over ECMP with one."""
    result = demo(observer, lambda text: None, name=_LAB)
    gain = result.gain
    yield at_least("demo: busbw of E-ECMP with 16 QPs", gain, "x", 1.2, "ECMP with 1 QP")
    yield at_most("demo: all of it", result.seconds, "s", 60.0)
    proven = all(p.paths.agree for p in result.played)
    yield Figure("demo: all paths proven", float(proven), "", "", "1", proven)


def budget(observer: Observer) -> Iterator[Figure]:
    """What one data packet costs end to end, also in units of a CRC over 4 KB."""
    lab, result, _ = _run_on("tiny", RunOptions(sizes=(4 << 20,), iters=5), observer)
    packets = sum(flow.sent.packets for flow in result.flows)
    phases, cpus = result[MachineUse].phases, os.cpu_count() or 1
    cost = sum((phase.cpu - phase.stolen) * cpus * phase.seconds for phase in phases) / packets
    yield Figure("a data packet end to end, ACK and all", cost * 1e6, "us of cpu")
    yield at_most("a data packet end to end", cost / crc_seconds(), "x", 40, "CRC over 4 KB")
    del lab
