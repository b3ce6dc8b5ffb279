"""Soft-RoCE beside Heddle's own endpoints: two hosts through three switches, at a rate that the machine limits.

MachineError where the kernel has no soft-RoCE: `./inv bench rxe --place vm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel import rdma
from heddle.lab import lifecycle as labs
from heddle.lab.opening import open_lab
from heddle.runs.run import run
from heddle.traffic.options import RunOptions

from . import Figure

_LAB: Final = "benchrx"
_FAST: Final = ("link.host=1gbit", "link.fabric=1gbit")
# host1 and host3 are in two racks: RTSW, CTSW, RTSW. An incast of two ranks is one flow.
_ONE_FLOW: Final = RunOptions("incast", sizes=(4 << 20,), iters=3, placement="host1,host3", timeout=19)
_WAYS: Final = {
    "rxe": replace(_ONE_FLOW, transport="rxe"),
    "rc, compiled": replace(_ONE_FLOW, fastpath="on"),
    "rc, in Python": replace(_ONE_FLOW, fastpath="off"),
}


def figures(observer: Observer) -> Iterator[Figure]:
    """Goodput of one flow by each of them."""
    rdma.require()
    labs.up(load_fabric("tiny", name=_LAB, overrides=_FAST), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        for name, options in _WAYS.items():
            result = run(lab, options, observer)
            row = result.rows[0]
            yield Figure(f"one flow through 3 switches: {name}", 8 * row.size / row.time_us, "Mb/s")
            again = sum(flow.counters["retransmitted"] for flow in result.flows)
            yield Figure(f"one flow through 3 switches: {name}: sent again", again, "packets")
    finally:
        labs.down(_LAB, observer)
