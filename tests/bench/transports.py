"""What a lost packet costs by transport and recovery, and what spraying costs: goodput as a share of the line rate.

One sender, one receiver in another rack, messages of 4 MiB. Losses are random, 1 of 256 packets, at the last port.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab import outages
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import set_hashing
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.spec.impairments import LinkFault
from heddle.traffic.options import RunOptions

from . import Figure, at_least, at_most
from .collectives import fluid_busbw

_LAB: Final = "benchtr"
_LOSSY: Final = "rtsw2:eth3"  # to host3
_LOSS: Final = 1 / 256
_PAIR: Final[dict[str, object]] = {
    "collective": "incast", "placement": "host3,host1", "sizes": (16 << 20,), "chunk": 4 << 20, "iters": 1,
    "warmup": 0, "timeout": 14,
}  # fmt: skip
_KINDS: Final[dict[str, dict[str, object]]] = {
    "rc, go-back-0": {"recovery": "go-back-0"},
    "rc, go-back-n": {},
    "rc, selective-repeat": {"recovery": "selective-repeat"},
    "srd": {"transport": "srd"},
}
_RING: Final[dict[str, object]] = {"placement": "cyclic", "sizes": (4 << 20,), "iters": 2, "warmup": 1}


def figures(observer: Observer) -> Iterator[Figure]:
    """Goodput with losses, then over a fabric that sprays."""
    labs.up(load_fabric("tiny", name=_LAB), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        yield from _losses(lab, observer)
        yield from _spraying(lab, observer)
    finally:
        labs.down(_LAB, observer)


def _ran(lab: Lab, observer: Observer, **options: object) -> tuple[RunRecord, float]:
    """A run, and its busbw as a share of what the links carry."""
    chosen = RunOptions(**options)  # type: ignore[arg-type]
    result = run(lab, chosen, observer)
    return result, result.busbw / fluid_busbw(lab, chosen)


def _losses(lab: Lab, observer: Observer) -> Iterator[Figure]:
    found: dict[str, float] = {}
    for name, options in _KINDS.items():
        outages.set_fault(lab, [_LOSSY], LinkFault(loss=_LOSS))
        result, share = _ran(lab, observer, **{**_PAIR, **options})
        outages.clear_faults(lab)
        found[name] = share
        again = sum(flow.counters["retransmitted"] for flow in result.flows)
        lost = result[QueueUse].drops.get("fault", 0) if result.part(QueueUse) is not None else 0
        yield Figure(f"loss 1/256, {name}: retransmitted per loss", again / max(1, lost), "packets")
        yield Figure(f"loss 1/256, {name}: wrong", result.wrong, "", "", "0", result.wrong == 0)
    line = "goodput at line rate"
    yield at_most("loss 1/256, rc, go-back-0: goodput", found["rc, go-back-0"], "x", 0.25, line)
    yield at_least("loss 1/256, rc, go-back-n: goodput", found["rc, go-back-n"], "x", 2 * found["rc, go-back-0"], line)
    best = found["rc, selective-repeat"]
    yield at_least("loss 1/256, rc, selective-repeat: goodput", best, "x", found["rc, go-back-n"], line)
    # It waits for late packets before it requests a missing one; its window is used up meanwhile.
    yield Figure("loss 1/256, srd: goodput", found["srd"], "x", line)


def _spraying(lab: Lab, observer: Observer) -> Iterator[Figure]:
    set_hashing(lab, "spray")
    for name, options, least in (("rc", {}, 0.0), ("srd", {"transport": "srd"}, 0.95)):
        result, share = _ran(lab, observer, **{**_RING, **options})
        what = f"switches spray, {name}"
        line = "goodput at line rate"
        yield (
            at_least(f"{what}: busbw", share, "x", least, line) if least else Figure(f"{what}: busbw", share, "x", line)
        )
        again = sum(flow.counters["retransmitted"] for flow in result.flows)
        packets = sum(flow.sent.packets for flow in result.flows)
        yield Figure(f"{what}: retransmitted packets", again / packets, "of all")
    set_hashing(lab, "flow")
    result, share = _ran(lab, observer, **{**_RING, "transport": "srd", "own": {"entropy": 16}})
    # The hashes of 16 ports do not divide evenly over two uplinks.
    yield Figure("hosts spray, srd over 16 ports: busbw", share, "x", "goodput at line rate")
    yield Figure("hosts spray, srd over 16 ports: wrong", result.wrong, "", "", "0", result.wrong == 0)
