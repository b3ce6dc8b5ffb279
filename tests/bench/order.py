"""Whether paths keep order: packets that came late in many short runs, by preset and by mode that keeps one path.

Presets tiny and demo, each lab up once. The hashing of the running lab changes from run to run, and with it the number
of QPs a connection, so that queues fill and pause in different ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from typing import Final

from heddle.base.events import Observer, Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.hashmodes import MODES, SPREADING
from heddle.fabric.policy import HashOptions
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import Exact, set_hashing
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.traffic.options import FIXED_SPORT, RunOptions, parse_source_ports

from . import Figure

RUNS: Final = 36  # every turn on both presets
_LAB: Final = "bencho"
_QPS: Final = (1, 4, 16)
_SIZES: Final = {"tiny": 128 << 10, "demo": 64 << 10}
# All QPs of a pair from one UDP port: flows meet on one path, and queues fill.
_OPTIONS: Final = RunOptions(iters=1, warmup=0, placement="cyclic", source_ports=parse_source_ports("fixed"))


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: how switches choose, and QPs a connection."""

    mode: str
    options: HashOptions
    qps: int


def turns() -> list[Turn]:
    """Every mode that keeps one path with every number of QPs; e-ecmp with resilient tables, too."""
    modes = [(mode, HashOptions()) for mode in MODES if mode not in SPREADING]
    modes += [("flow", HashOptions(policy="l4")), ("e-ecmp", HashOptions(resilient=True))]
    return [Turn(mode, options, qps) for (mode, options), qps in product(modes, _QPS)]


def figures(observer: Observer, runs: int) -> Iterator[Figure]:
    """The packets that came out of order in so many runs, half of them on each preset; and what those runs carried."""
    done = 0
    for preset, count in zip(_SIZES, (runs - runs // 2, runs // 2), strict=True):
        late, packets = 0, 0
        labs.up(load_fabric(preset, name=_LAB), observer=observer, rollback=True)
        try:
            for result in _run_in_turn(open_lab(_LAB), preset, count):
                late += sum(flow.counters["out_of_order"] for flow in result.flows)
                packets += sum(flow.sent.packets for flow in result.flows)
                done += 1
                observer.advance("bench order", done)
        finally:
            labs.down(_LAB, observer)
        if count:
            yield Figure(f"{preset}, {count} runs: data packets", packets, "")
            yield Figure(f"{preset}, {count} runs: packets out of order", late, "", "", "0", late == 0)


def _run_in_turn(lab: Lab, preset: str, count: int) -> Iterator[RunResult]:
    exact = _rows(lab)
    for turn in islice(cycle(turns()), count):
        set_hashing(lab, turn.mode, turn.options, exact=exact if turn.mode == "exact-match" else None)
        yield run(lab, replace(_OPTIONS, sizes=(_SIZES[preset],), qps=turn.qps), Silent())


def _rows(lab: Lab) -> dict[str, Exact]:
    """Switch -> rows for all that comes from the NICs' one UDP port: its prefixes in turn over its ports."""
    rows: dict[str, Exact] = {}
    for node in lab.fabric.switches:
        hops = lab.fabric.expected_next_hops[node.name]
        choices = [(prefix, sorted(ports)) for prefix, ports in hops.items() if len(ports) > 1]
        rows[node.name] = {
            (FIXED_SPORT, prefix): ports[number % len(ports)] for number, (prefix, ports) in enumerate(choices)
        }
    return rows
