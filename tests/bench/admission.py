"""Admission: what an incast does to a fabric with it and without, a slow receiver, and the class of CTS packets.

Ratios and counts within one machine. All runs use the Python loop, so both sides of a ratio have the same NICs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from heddle.base.events import Observer
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.wiring import Port
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.parts.admission import AdmissionUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.traffic.admission import CtsClass
from heddle.traffic.options import RunOptions
from heddle.wire import layout as wire

from . import Figure, at_least

_LAB: Final = "benchadm"
_RATES: Final = ("link.host=25mbit", "link.fabric=25mbit")
_INCAST: Final = 4 << 20
_LOADED: Final = 2 << 20
_SLOW: Final = 0.25
_FRAMES: Final = 8
_PAYLOAD: Final = 4096
_FILLING_S: Final = 0.5
_SOURCES: Final = ("host4", "host5", "host7", "host9", "host11", "host13")


def figures(observer: Observer) -> Iterator[Figure]:
    """All of the group, on preset zone with half of its rates: the processors have time to spare in the Python loop."""
    labs.up(load_fabric("zone", name=_LAB, overrides=_RATES), observer=observer, rollback=True)
    try:
        lab = open_lab(_LAB)
        yield from _incasts(lab, observer)
        yield from _classes(lab, observer)
    finally:
        labs.down(_LAB, observer)


def _incast(lab: Lab, observer: Observer, **more: object) -> RunRecord:
    options: dict[str, object] = {"sizes": (_INCAST,), "iters": 2, "warmup": 0, "fastpath": "off"}
    return run(lab, RunOptions("incast", **{**options, **more}), observer)  # type: ignore[arg-type]


def _incasts(lab: Lab, observer: Observer) -> Iterator[Figure]:
    """16 ranks, so 15 senders: free-running, with admission, and with a receiver at 25 %."""
    free = _incast(lab, observer)
    quick = _incast(lab, observer, admission=True)
    slow = _incast(lab, observer, admission=True, slow=(("host1", _SLOW),))
    for name, result in (("free-running", free), ("admission", quick), (f"receiver at {_SLOW:.0%}", slow)):
        used = result[QueueUse]
        if used is None:
            raise AssertionError("a run without a record of its queues")
        what = f"16:1 incast, {name}"
        if result is free:
            yield at_least(f"{what}: hosts paused", used.paused_hosts, "", 1)
        else:
            yield Figure(f"{what}: ports paused", used.paused_ports, "", "", "0", used.paused_ports == 0)
        lost = used.dropped + result.wrong
        yield Figure(f"{what}: drops and wrong elements", lost, "", "", "0", lost == 0)
        yield Figure(f"{what}: deepest queue", used.deepest / 1e3, "KB")
    yield at_least("16:1 incast, admission: bandwidth", quick.busbw / free.busbw, "x", 0.9, "free-running")
    share = slow.busbw / free.busbw
    followed = 0.8 * _SLOW <= share <= 1.1 * _SLOW
    yield Figure("16:1 incast, receiver at 25%: bandwidth", share, "x", "free-running", "0.2..0.275", followed)


def _classes(lab: Lab, observer: Observer) -> Iterator[Figure]:
    """One sender and its receiver. Other hosts fill the queue of the data class to the sender, which CTS packets pass.

    One of them is in the sender's rack, the others reach it by several uplinks: each port adds its Xoff to the queue.
    """
    waits: dict[CtsClass, float] = {}
    with _load(lab, _SOURCES, "host3"):
        for cts_class in ("data", "control"):
            options = RunOptions(
                "incast", placement="host1,host3", sizes=(_LOADED,), iters=2, warmup=0, fastpath="off",
                admission=True, cts_class=cts_class,
            )  # fmt: skip
            use = run(lab, options, observer)[AdmissionUse]
            if use.waits is None:
                raise AssertionError("a run with admission reports its waits")
            waits[cts_class] = use.waits.p90_s
            yield Figure(f"CTS in the {cts_class} class, under load: wait, P90", use.waits.p90_s * 1e3, "ms")
    least = max(waits["control"], 1e-6)
    yield at_least("CTS in the data class, under load: wait, P90", waits["data"] / least, "x", 10, "control class")


@contextmanager
def _load(lab: Lab, sources: Sequence[str], target: str) -> Iterator[None]:
    """Data packets at line rate from some hosts to another one, for queue pairs that do not exist."""
    stop = threading.Event()
    there = lab.fabric.by_name[target].ports[0]
    threads = [threading.Thread(target=_send, args=(lab, name, there, stop)) for name in sources]
    for each in threads:
        each.start()
    try:
        time.sleep(_FILLING_S)
        yield
    finally:
        stop.set()
        for each in threads:
            each.join()


def _send(lab: Lab, source: str, there: Port, stop: threading.Event) -> None:
    here = lab.fabric.by_name[source].ports[0]
    gateway = lab.fabric.by_name[here.peer_node].port(here.peer_port)
    if here.address is None or there.address is None:
        raise AssertionError("hosts of a preset have addresses")
    flow = FlowHeader(
        src_mac=here.mac, dst_mac=gateway.mac, src_ip=str(here.address.ip), dst_ip=str(there.address.ip),
        sport=50000, dqpn=2, tos=wire.TOS_DATA,
    )  # fmt: skip
    batch = SendBatch(_PAYLOAD, slots=_FRAMES)
    payload = bytes(_PAYLOAD)
    for slot in range(_FRAMES):
        batch.put_data(slot, flow, wire.WRITE_ONLY, slot, payload, reth=(0, 0, _PAYLOAD))
    wire_socket = PacketSocket(lab.handles()[source].netns, here.name, _PAYLOAD, send_frames=_FRAMES, receive_bytes=0)
    try:
        while not stop.is_set():
            if not wire_socket.send(batch, _FRAMES):
                time.sleep(0.001)  # the port is full
    finally:
        wire_socket.close()
