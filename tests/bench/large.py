"""Large labs: seconds of each phase of `up`, of `status` and of `down`, and an all-reduce over 64 ranks, all proven."""

from __future__ import annotations

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

_LAB: Final = "benchlarge"
# Racks, CTSWs; seconds that `up` should take; bytes of memory that it needs.
_SIZES: Final = ((64, 8, 15.0, 2 << 30), (128, 16, 60.0, 6 << 30), (252, 18, 240.0, 17 << 30))
_STATUS_S: Final = 5.0
_DOWN_S: Final = 20.0


def figures(observer: Observer) -> Iterator[Figure]:
    """One size after the other; a size that does not fit into this machine's memory is left out."""
    for racks, ctsw, limit, memory in _SIZES:
        if free_bytes() < memory:
            observer.warn(f"{racks} x {ctsw} is left out: it needs {memory >> 30} GiB of free memory")
            continue
        yield from _of(racks, ctsw, limit, observer)


def _of(racks: int, ctsw: int, limit: float, observer: Observer) -> Iterator[Figure]:
    size = f"{racks} x {ctsw} + {racks} hosts"
    overrides = (f"racks={racks}", f"ctsw={ctsw}", "hosts_per_rack=1")
    try:
        done = labs.up(load_fabric("zone", name=_LAB, overrides=overrides).spec, observer=observer, rollback=True)
        yield at_most(f"up {size}", done.seconds["total"], "s", limit)
        for step, seconds in done.seconds.items():
            if step != "total":
                yield Figure(f"up {size}: {step}", seconds, "s")
        start = time.monotonic()
        (found,) = status(_LAB)
        yield at_most(f"status {size}", time.monotonic() - start, "s", _STATUS_S)
        yield at_most(f"faults {size}", len(found.faults) + found.bgp.expected - found.bgp.established, "", 0)
        ranks = ",".join(host.name for host in done.lab.fabric.hosts[:64])
        result = run(done.lab, RunOptions(sizes=(1 << 20,), iters=1, warmup=0, placement=ranks), observer)
        unproven = result.proof.unproven if result.proof is not None else len(result.flows)
        yield at_most(f"all-reduce of 64 ranks on {size}: paths not proven", unproven, "", 0)
        yield at_most(f"all-reduce of 64 ranks on {size}: wrong elements", result.wrong, "", 0)
    finally:
        start = time.monotonic()
        labs.down(_LAB, observer)
        yield at_most(f"down {size}", time.monotonic() - start, "s", _DOWN_S)
