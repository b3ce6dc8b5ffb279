"""Whether paths keep order: packets that came late in many short runs, by preset and by mode that keeps one path.

Presets tiny and demo, each at its own rates, and at rates that the CPUs cannot carry while another process takes one of
them: there a backlog waits, and what does not keep order shows it. Each lab is up once. The hashing of the running lab
changes from run to run, and with it the number of QPs a connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from typing import Final

from heddle.base.events import Observer, Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.hashmodes import MODES, SPREADING
from heddle.kernel import inorder
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import set_hashing
from heddle.runs.run import run
from heddle.spec.routingpolicy import HashOptions
from heddle.switch.hashing.maps import Exact
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import FIXED_SPORT, parse_source_ports
from tests.netns.collectives import cpu_taken, late

from . import Figure

RUNS: Final = 84  # every turn on each lab
_LAB: Final = "bencho"
_QPS: Final = (1, 4, 16)
# All QPs of a pair from one UDP port: flows meet on one path, and queues fill.
_OPTIONS: Final = RunOptions(iters=1, warmup=0, placement="cyclic", source_ports=parse_source_ports("fixed"))
_FAST: Final = ("link.host=1gbit", "link.fabric=1gbit")


@dataclass(frozen=True, slots=True)
class Load:
    """A preset and its traffic. loaded: at 1 Gb/s, while another process takes a CPU."""

    preset: str
    options: RunOptions
    loaded: bool

    @property
    def name(self) -> str:
        """For figures: `demo, loaded`."""
        return self.preset + (", loaded" if self.loaded else "")


_LOADS: Final = (
    Load("tiny", replace(_OPTIONS, sizes=(128 << 10,)), loaded=False),
    Load("demo", replace(_OPTIONS, sizes=(64 << 10,)), loaded=False),
    Load("tiny", replace(_OPTIONS, sizes=(1 << 20,)), loaded=True),
    Load("demo", replace(_OPTIONS, collective="all-to-all", algorithm="", sizes=(1 << 20,)), loaded=True),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: how switches choose, and QPs a connection."""

    mode: str
    options: HashOptions
    qps: int


@dataclass(slots=True)
class Tally:
    """Of some runs: how many had late packets, late packets, and data packets."""

    late_runs: int = 0
    late: int = 0
    packets: int = 0


def turns() -> list[Turn]:
    """Every mode that keeps one path with every number of QPs; flow and e-ecmp with resilient tables, too."""
    modes = [(mode, HashOptions()) for mode in MODES if mode not in SPREADING]
    modes += [("flow", HashOptions(policy="l4"))]
    modes += [(mode, HashOptions(resilient=True)) for mode in ("flow", "e-ecmp")]
    return [Turn(mode, options, qps) for (mode, options), qps in product(modes, _QPS)]


def figures(observer: Observer, runs: int) -> Iterator[Figure]:
    """Packets out of order in so many runs, a quarter of them by each load; then some with GRO off, to compare."""
    done = 0
    for index, load in enumerate(_LOADS):
        count = (runs + index) // len(_LOADS)
        if not count:
            continue
        with _running(load, observer) as lab:
            found = _tally(lab, load, count)
            done += count
            observer.advance("bench order", done)
            yield Figure(f"{load.name}, {count} runs: data packets", found.packets, "")
            yield Figure(f"{load.name}, {count} runs: packets out of order", found.late, "", "", "0", found.late == 0)
            if load is _LOADS[-1]:
                for node in lab.fabric.nodes:
                    inorder.set_gro(lab.handle(node.name).netns, [port.name for port in node.ports], on=False)
                few = min(count, len(turns()))
                share = _tally(lab, load, few).late_runs / few
                yield Figure(f"{load.name}, GRO off: runs out of order", share, "of all")


@contextmanager
def _running(load: Load, observer: Observer) -> Iterator[Lab]:
    overrides = _FAST if load.loaded else ()
    labs.up(load_fabric(load.preset, name=_LAB, overrides=overrides), observer=observer, rollback=True)
    try:
        with cpu_taken(inorder.cpus_here()[0]) if load.loaded else nullcontext():
            yield open_lab(_LAB)
    finally:
        labs.down(_LAB, observer)


def _tally(lab: Lab, load: Load, count: int) -> Tally:
    found, exact = Tally(), _rows(lab)
    for turn in islice(cycle(turns()), count):
        set_hashing(lab, turn.mode, turn.options, exact=exact if turn.mode == "exact-match" else None)
        result = run(lab, replace(load.options, qps=turn.qps), Silent())
        found.late += late(result)
        found.late_runs += late(result) > 0
        found.packets += sum(flow.sent.packets for flow in result.flows)
    return found


def _rows(lab: Lab) -> dict[str, Exact]:
    """Switch -> rows for all that comes from the NICs' one UDP port: its prefixes in turn over its ports."""
    rows: dict[str, Exact] = {}
    for node in lab.fabric.switches:
        hops = lab.fabric.expected_next_hops[node.name]
        choices = [(prefix, sorted(ports)) for prefix, ports in hops.items() if len(ports) > 1]
        rows[node.name] = {
            (FIXED_SPORT, prefix): (ports[number % len(ports)],) for number, (prefix, ports) in enumerate(choices)
        }
    return rows
