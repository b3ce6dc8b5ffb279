"""Trimmed packets with senders that use them: `srd` with NSCC, whose switches cut what does not fit.

Closed loop: 8 and 16 senders to one receiver, PFC off, on links of 25 Mb/s, so that the host's CPU is no limit. Jain's
index is of the time in which all send, without its first fifth. The victim sends from the rack of the 7 senders to the
rack of their receiver, to another host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History
from heddle.runs.timeline import Messages
from heddle.traffic.collectives.pattern import CREDIT_BYTES
from heddle.traffic.options import RunOptions
from heddle.wire.layout import LAYOUTS

from . import Figure, at_least, openloop

_LAB: Final = "benchtrim"
_TRIM: Final = ("queues.lossless=[]", "queues.trimming.queue=5")
_PFC: Final = ("queues.lossless=[3]",)
_NSCC: Final[dict[str, Any]] = {"transport": "srd", "congestion": "nscc"}
_CHUNK: Final = 32 << 10
_BYTES: Final = 24 << 20  # of all senders to the receiver: eight seconds
_START: Final = 0.2  # of the time in which all send: then their windows fit the line


def figures(observer: Observer) -> Iterator[Figure]:
    """All of the group."""
    yield from openloop.figures(observer)
    for senders, racks in ((8, 3), (16, 6)):
        with _lab(observer, f"racks={racks}", "hosts_per_rack=3", "ctsw=3", *_TRIM) as lab:
            yield from _incast(lab, senders, observer)
    for name, keys in (("trimming", _TRIM), ("PFC", _PFC)):
        with _lab(observer, "racks=2", "hosts_per_rack=8", "ctsw=8", *keys) as lab:
            yield from _victim(lab, name, observer)


@contextmanager
def _lab(observer: Observer, *keys: str) -> Iterator[Lab]:
    labs.up(
        load_fabric("tiny", name=_LAB, overrides=[*keys, "link.host=25mbit", "link.fabric=25mbit"]),
        observer=observer,
        rollback=True,
    )
    try:
        yield open_lab(_LAB)
    finally:
        labs.down(_LAB, observer)


def _ran(lab: Lab, observer: Observer, matrix: str, **options: Any) -> RunRecord:
    """One iteration of a traffic matrix."""
    parameters = (("matrix", matrix),)
    chosen = RunOptions("matrix", "direct", parameters=parameters, iters=1, warmup=0, chunk=_CHUNK, **options)
    return run(lab, chosen, observer)


def _messages(lab: Lab) -> Messages:
    found = History.of(lab).open(None)
    return found.needed(found.timeline).messages


def _exact(what: str, result: RunRecord) -> Iterator[Figure]:
    """Right data, no timeout, and every trimmed packet a NACK, or lost later."""
    total = {key: sum(flow.counters[key] for flow in result.flows) for key in result.flows[0].counters}
    use = result[QueueUse]
    yield Figure(f"{what}: wrong", result.wrong, "", "", "0", result.wrong == 0)
    yield Figure(f"{what}: timeouts", total["timeouts"], "times", "", "0", total["timeouts"] == 0)
    yield Figure(f"{what}: trimmed", use.trims, "packets", "", "> 0", use.trims > 0)
    rest = use.trims - total["nacks"] - use.dropped
    yield Figure(f"{what}: trims - NACKs - lost trims", rest, "packets", "", "0", rest == 0)


def _incast(lab: Lab, senders: int, observer: Observer) -> Iterator[Figure]:
    each = _BYTES // senders
    rows = ";".join(f"{rank},0,{each}" for rank in range(1, senders + 1))
    result = _ran(lab, observer, rows, ranks=senders + 1, **_NSCC)
    what = f"closed loop {senders}:1"
    yield from _exact(what, result)
    share, rates = _shares(lab, _messages(lab))
    yield at_least(f"{what}: goodput", share, "x", 0.8, "the receiver's line")
    index = float(rates.sum() ** 2 / (len(rates) * (rates**2).sum()))
    yield at_least(f"{what}: Jain's index", index, "", 0.98 if senders == 8 else 0.9)


def _shares(lab: Lab, messages: Messages) -> tuple[float, NDArray[np.float64]]:
    """The receiver's goodput as a share of its line, and the bytes of each sender while all send."""
    sent, senders = messages.bytes, np.unique(messages.src[messages.bytes > CREDIT_BYTES])
    lasts = [float(messages.arrived_s[messages.src == src].max()) for src in senders]
    begin = float(messages.posted_s.min())
    end = min(lasts)
    during = (messages.arrived_s <= end) & (messages.arrived_s > begin + _START * (end - begin))
    shares = np.array([float(sent[during & (messages.src == src)].sum()) for src in senders])
    return _of_line(lab, float(sent.sum()), max(lasts) - begin), shares


def _of_line(lab: Lab, payload: float, seconds: float) -> float:
    policy = lab.fabric.policy
    frame = (policy.ib_mtu + LAYOUTS[policy.ip_version].overhead_bytes + 16) / policy.ib_mtu
    return 8 * payload * frame / seconds / min(port.rate_bps for port in lab.fabric.nics)


def _victim(lab: Lab, name: str, observer: Observer) -> Iterator[Figure]:
    """Ranks 0 to 7 are in one rack, 8 to 15 in the other one. 7 is the victim, which sends to 9."""
    rows = ";".join([f"{rank},8,{_BYTES // 7}" for rank in range(7)] + [f"7,9,{_BYTES * 3 // 4}"])
    options = _NSCC if name == "trimming" else {"transport": "srd"}
    result = _ran(lab, observer, rows, own={"entropy": 16}, **options)
    messages, what = _messages(lab), f"7:1 beside a victim, {name}"
    mine = messages.src == 7
    seconds = float(messages.arrived_s[mine].max() - messages.posted_s[mine].min())
    share = _of_line(lab, float(messages.bytes[mine].sum()), seconds)
    if name == "trimming":
        yield from _exact(what, result)
        yield at_least(f"{what}: its goodput", share, "x", 0.95, "its line")
    else:
        yield Figure(f"{what}: its goodput", share, "x", "its line")
