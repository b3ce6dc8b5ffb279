"""How labs scale on one machine: `up`, `status`, `down` of 20 to 522 nodes, and an all-reduce of 64 ranks, proven."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import free_bytes
from heddle.lab import lifecycle as labs
from heddle.lab.status import status
from heddle.runs.run import run
from heddle.traffic.options import RunOptions

from . import Figure, at_most

_LAB: Final = "benchscale"
# Racks, CTSWs, hosts a rack; where routes come from; seconds of `up` and GiB that it may take.
_SIZES: Final = (
    (8, 4, 2, "daemons=own", 1.8, 1),
    (64, 8, 1, "daemons=shared", 10.0, 2),
    (128, 16, 1, "daemons=shared", 40.0, 5),
    (252, 18, 1, "daemons=shared", 150.0, 10),
    (252, 18, 1, "control=static", 30.0, 2),
)
_SLOPE: Final = 1.25  # of time over links, log-log, from the second to the last size
_STATUS_S: Final = 3.0
_DOWN_S: Final = 15.0
_RANKS: Final = 64
_SETTLE_S: Final = 120.0
_SETTLED_BYTES: Final = 16 << 20


def figures(observer: Observer) -> Iterator[Figure]:
    """One size after the other; a size that does not fit into this machine's memory is left out."""
    took: list[tuple[int, float]] = []
    for racks, ctsw, hosts, routes, limit, memory in _SIZES:
        if free_bytes() < memory * 5 // 4 << 30:
            observer.warn(f"{racks} x {ctsw} is left out: it needs {memory * 5 / 4:g} GiB of free memory")
            continue
        yield from _of(racks, ctsw, hosts, routes, limit, memory, took, observer)
    if len(took) > 2:
        (links, seconds), (more, longer) = took[1], took[-1]
        slope = math.log(longer / seconds) / math.log(more / links)
        yield at_most(f"slope of up, {links} to {more} links, log-log", slope, "", _SLOPE)


def _of(
    racks: int,
    ctsw: int,
    hosts: int,
    routes: str,
    limit: float,
    memory: int,
    took: list[tuple[int, float]],
    observer: Observer,
) -> Iterator[Figure]:
    size, before = f"{racks} x {ctsw} + {racks * hosts} hosts, {routes}", free_bytes()
    overrides = (f"racks={racks}", f"ctsw={ctsw}", f"hosts_per_rack={hosts}", f"routing.{routes}")
    try:
        done = labs.up(load_fabric("zone", name=_LAB, overrides=overrides).spec, observer=observer, rollback=True)
        fabric, steps = done.lab.fabric, done.steps
        if fabric.policy.routing.by_bgp:
            took.append((len(fabric.links), done.seconds["total"]))
        yield at_most(f"up {size}", done.seconds["total"], "s", limit)
        for step, use in steps.items():
            yield Figure(f"up {size}: {step}", use.seconds, "s")
        ports = sum(len(node.ports) for node in fabric.nodes)
        own = sum(steps[step].seconds for step in ("create", "switch", "agent") if step in steps)
        yield Figure(f"up {size}: ports", 1000 * own / ports, "ms a port")
        yield at_most(f"memory {size}", (before - free_bytes()) / (1 << 30), "GiB", memory)
        start = time.monotonic()
        (found,) = status(_LAB)
        yield at_most(f"status {size}", time.monotonic() - start, "s", _STATUS_S)
        yield at_most(f"faults {size}", len(found.faults) + found.bgp.expected - found.bgp.established, "", 0)
        if len(fabric.hosts) >= _RANKS:
            ranks = ",".join(host.name for host in fabric.hosts[:: len(fabric.hosts) // _RANKS][:_RANKS])
            result = run(done.lab, RunOptions(sizes=(1 << 20,), iters=1, warmup=0, placement=ranks), observer)
            unproven = result.proof.unproven if result.proof is not None else len(result.flows)
            yield at_most(f"all-reduce of {_RANKS} ranks on {size}: paths not proven", unproven, "", 0)
            yield at_most(f"all-reduce of {_RANKS} ranks on {size}: wrong elements", result.wrong, "", 0)
    finally:
        start = time.monotonic()
        labs.down(_LAB, observer)
        yield at_most(f"down {size}", time.monotonic() - start, "s", _DOWN_S)
        _settle()


def _settle() -> None:
    """Wait until the kernel has removed what `down` left to it: it frees memory meanwhile, and delays the next `up`."""
    end, before = time.monotonic() + _SETTLE_S, 0
    while time.monotonic() < end and abs((now := free_bytes()) - before) > _SETTLED_BYTES:
        before = now
        time.sleep(5)
