"""What queues do to traffic: an incast with and without pauses, a victim of them, and an all-to-all by hashing mode.

Shares and ratios, so that a slower machine gives the same; times of the agent as they are.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.libbpf import ensure_bpffs
from heddle.lab import lifecycle as labs
from heddle.lab.opening import open_lab
from heddle.lab.queues import reactions_of
from heddle.lab.rehash import set_hashing
from heddle.runs.run import run
from heddle.spec.routingpolicy import HashOptions
from heddle.switch.pfc.gates import Gates
from heddle.traffic.options import RunOptions
from tests.netns.blaster import Blast, blast
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab
from tests.netns.port_pair import port_pair, realtime

from . import Figure, at_least, at_most
from .collectives import fluid_busbw

_LAB: Final = "benchq"
_PACKETS, _PAYLOAD = 292, 1024  # 320 KB a sender
_REPEATS: Final = 5
_OPENINGS: Final = 40
_OTHERS, _ADAPTIVE = ("e-ecmp", "flowlet"), "adaptive"
_GAP_NS: Final = 200_000_000  # longer than a pause here: a QP goes another way between two messages only
_TURNS: Final = 2


class PortUse:
    """What a port carries from the first look that finds it at work to the last one, by the exact counters."""

    def __init__(self, net: PfcLab, ref: str, number: int = LOSSLESS) -> None:
        self._cell = net.queues.cells[net.row(ref, number)]
        self._idle = int(self._cell["out_bytes"])
        self._seen: list[tuple[float, int]] = []  # seconds and bytes of the first look and of the last

    def look(self) -> None:
        """To be called often."""
        now, sent = time.monotonic(), int(self._cell["out_bytes"])
        if sent != (self._seen[-1][1] if self._seen else self._idle):
            self._seen = [*self._seen[:1], (now, sent)]

    @property
    def rate_bps(self) -> float:
        """Bits a second between the two."""
        (start, before), (end, after) = self._seen
        return 8 * (after - before) / (end - start)


def figures(observer: Observer) -> Iterator[Figure]:
    """All of the group."""
    ensure_bpffs()
    yield from incast(observer)
    yield from reactions_of_many()
    yield from openings()
    yield from victim()
    yield from all_to_all(observer)


def incast(observer: Observer) -> Iterator[Figure]:
    """15 hosts to one at line rate, 4 RTSW x 4 CTSW: what is lost, how busy the sink's port is, how quick the agent."""
    lost = {}
    for pauses in (True, False):
        with tempfile.TemporaryDirectory() as place, _two_tiers(Path(place), pauses) as net:
            sink = net.lab.fabric.hosts[-1].name
            senders = [host.name for host in net.lab.fabric.hosts if host.name != sink]
            blasts = [Blast(name, sink, _PACKETS, _PAYLOAD) for name in senders]
            arrived, busy = 0, []
            for turn in range(_REPEATS):
                observer.advance("bench queues", turn + 1)
                port = PortUse(net, net.down_port(sink))
                arrived += sum(h.packets for h in blast(net.lab, blasts, watch=port.look))
                busy.append(port.rate_bps / net.lab.fabric.hosts[0].ports[0].rate_bps)
            lost[pauses] = 1 - arrived / (_REPEATS * len(senders) * _PACKETS)
            if pauses:
                use, reactions = statistics.median(busy), reactions_of(net.queues.agent)
    share = lost[True]
    yield Figure("15:1 incast with PFC: lost", share, "of all", "", "0", share == 0)
    yield at_least("15:1 incast with PFC: the last port", use, "x", 0.9, "its rate")
    yield at_least("15:1 incast without PFC: lost", lost[False], "of all", 0.2)
    yield at_most("pause heard to gate shut, median", reactions.median_ns / 1e6, "ms", 1.0)
    yield Figure("pause heard to gate shut, worst", reactions.max_ns / 1e6, "ms")


def reactions_of_many() -> Iterator[Figure]:
    """How soon ports stop in a fabric of sixteen switches, at a rate that a small machine carries with ease."""
    shape: dict[str, Any] = {"racks": 12, "weights": (1, 1, 1, 1), "hosts_per_rack": 1}
    link = {"host": "10mbit", "fabric": "10mbit"}
    with tempfile.TemporaryDirectory() as place, pfc_lab(Path(place), link=link, **shape) as net:
        *senders, sink = [host.name for host in net.lab.fabric.hosts]
        with net.loading([(name, sink, LOSSLESS) for name in senders]):
            time.sleep(3)
        reactions = reactions_of(net.queues.agent)
    yield at_most("pause heard to gate shut, 16 switches: median", reactions.median_ns / 1e6, "ms", 1.0)


def _two_tiers(place: Path, pauses: bool) -> Any:
    link, pfc = {"host": "25mbit", "fabric": "100mbit"}, {"enabled": pauses, "xoff": "20KB", "xon": "12KB"}
    return pfc_lab(place, ecmp="spray", racks=4, hosts_per_rack=4, link=link, queues={"pfc": pfc})


def openings() -> Iterator[Figure]:
    """How long a packet that waits behind a gate still waits when it is opened."""
    waits = []
    with port_pair() as pair:
        gates = Gates(pair.a)
        with pair.listening() as got, pair.loading(LOSSLESS):
            time.sleep(0.1)
            for _ in range(_OPENINGS):
                gates.close("pa", LOSSLESS)
                time.sleep(0.03)
                start = realtime()
                gates.open("pa", LOSSLESS)
                time.sleep(0.02)
                waits.append((got.times(LOSSLESS, start)[0] - start) / 1e6)
        gates.close_sockets()
    yield at_most("gate opened to first packet, median", statistics.median(waits), "ms", 0.5)
    yield at_most("gate opened to first packet, all but the worst", sorted(waits)[-2], "ms", 2.0)


def victim() -> Iterator[Figure]:
    """A flow to an idle port while four others crowd one beside it: what is left of its rate, of what it has alone."""
    for pauses in (True, False):
        link = {"host": "25mbit", "fabric": "100mbit"}
        queues = {"pfc": {"enabled": pauses}}
        with (
            tempfile.TemporaryDirectory() as place,
            pfc_lab(Path(place), weights=(1,), hosts_per_rack=4, link=link, queues=queues) as net,
        ):
            left = _beside_a_crowd(net)
        if pauses:
            yield at_most("a victim's rate, with PFC", left, "x", 0.5, "its rate alone")
        else:
            yield at_least("a victim's rate, without PFC", left, "x", 0.85, "its rate alone")


def _beside_a_crowd(net: PfcLab) -> float:
    port, alone = net.down_port("host8"), 0.0
    crowd = [(name, "host5", LOSSLESS) for name in ("host2", "host3", "host6", "host7")]
    for others in ([], crowd):
        with net.loading([("host1", "host8", LOSSLESS), *others]):
            time.sleep(0.7)
            rate = net.rate(port, 1.5)
        alone = alone or rate
    return rate / alone


def all_to_all(observer: Observer) -> Iterator[Figure]:
    """16 ranks, one QP a connection, by mode: where links between switches have half a host's rate, and where one of
    the four CTSWs has slower links than the others.

    Rates are such that links are the limit, and not this machine. Modes take turns; the best turn of each counts.
    """
    even = ["link.host=10mbit", "link.fabric=5mbit"]
    lame = ["link.host=5mbit", "link.fabric=5mbit", "link.exceptions={ctsw1: 2mbit}"]
    for name, overrides, least in (("links 1:2", even, 1.0), ("a slow CTSW", lame, 1.3)):
        best, fluid = _by_mode(overrides, observer)
        for mode, busbw in best.items():
            yield Figure(f"all-to-all, {name}, {mode}: busbw", busbw / fluid, "x", "a host's link")
        for mode in _OTHERS:
            yield at_least(f"all-to-all, {name}: {_ADAPTIVE}", best[_ADAPTIVE] / best[mode], "x", least, mode)


def _by_mode(overrides: list[str], observer: Observer) -> tuple[dict[str, float], float]:
    """Emulated GB/s of each mode, and of a host's link."""
    best, options = dict.fromkeys((*_OTHERS, _ADAPTIVE), 0.0), RunOptions("all-to-all", sizes=(1 << 19,), iters=2)
    labs.up(load_fabric("demo", name=_LAB, overrides=overrides), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        for _ in range(_TURNS):
            for mode in best:
                set_hashing(lab, mode, HashOptions(gap_ns=_GAP_NS))
                result = run(lab, options, observer)
                best[mode] = max(best[mode], result.busbw)
        return best, fluid_busbw(lab, options)
    finally:
        labs.down(_LAB, observer)
