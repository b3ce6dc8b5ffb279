"""What a data packet costs this machine: the compiled NICs against Python's, against a raw flood, and against scapy.

All ratios are within one run, in turns. A packet crosses three switches with queues, counters and hashing on, and comes
with its share of acknowledgements; every ICRC is made and checked, and every iteration's data is checked, too.
The raw flood sends prepared frames; its receiver only counts, and acknowledges every eighth.
scapy builds each packet and dissects each one that arrives, as its users do.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.nic import announce
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.parts.machine import MachineUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import FastPath, RunOptions
from heddle.wire import layout as wire

from . import Figure, at_least, at_most

_LAB: Final = "benchpk"
_TURNS: Final = 3
_FLOOD_S: Final = 1.0
_SCAPY_S: Final = 3.0
_ACK_EVERY: Final = 8
_MTU: Final = 4096
# Neighbours of the ring are in different racks, so each packet crosses three switches.
ACROSS: Final[dict[str, object]] = {"placement": "cyclic"}
FAST: Final = ("link.host=10gbit", "link.fabric=10gbit")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: us of processor a data packet, all in all and by part; data packets a second; GB/s.

    Without stolen time. total is 1 - idle, which the kernel measures. user, system and softirq (with interrupts) are
    what its ticks counted: they miss work that timers start, so their sum may be less than the total. worker: the time
    that the workers ran, which is part of all three. timers: timer interrupts a data packet, all processors'.
    """

    total_us: float
    worker_us: float
    user_us: float
    system_us: float
    softirq_us: float
    rate_pps: float
    busbw: float
    timers: float = 0.0

    @classmethod
    def of(cls, result: RunRecord, timers: int = 0) -> Cost:
        """From the phases of a run, warm-up included; timers: interrupts from before it until after it."""
        packets = sum(flow.sent.packets for flow in result.flows)
        phases, cpus = result[MachineUse].phases, os.cpu_count() or 1
        total = sum((phase.cpu - phase.stolen) * cpus * phase.seconds for phase in phases)
        workers = sum(use.busy * use.seconds for phase in phases for use in phase.workers)
        user, system, soft = (
            sum(getattr(each, part) * phase.seconds for phase in phases for each in phase.processors)
            for part in ("user", "system", "softirq")
        )
        seconds = sum(phase.seconds for phase in phases)
        return cls(
            total * 1e6 / packets,
            workers * 1e6 / packets,
            user * 1e6 / packets,
            system * 1e6 / packets,
            soft * 1e6 / packets,
            packets / seconds,
            result.busbw,
            timers / packets,
        )


def _timer_interrupts() -> int:
    """Timer interrupts of all processors since boot; 0 where /proc/interrupts does not name them as on x86."""
    for line in Path("/proc/interrupts").read_text().splitlines():
        name, *counts = line.split()
        if name == "LOC:":
            return sum(int(count) for count in counts if count.isdecimal())
    return 0


@contextmanager
def tiny_lab(name: str, observer: Observer, *overrides: str) -> Iterator[Lab]:
    """Preset tiny, for the length of a with block."""
    labs.up(load_fabric("tiny", name=name, overrides=overrides), observer=observer, rollback=True)
    try:
        yield open_lab(name)
    finally:
        labs.down(name, observer)


def _costs(
    lab: Lab, options: dict[str, object], observer: Observer, loops: Sequence[FastPath] = ("off", "on")
) -> dict[FastPath, Cost]:
    """The cheapest of a few runs of each loop, in turns: what else the machine does only makes a run dearer."""
    best: dict[FastPath, Cost] = {}
    for _ in range(_TURNS):
        for choice in loops:
            before = _timer_interrupts()
            result = run(lab, RunOptions(fastpath=choice, **options), observer)  # type: ignore[arg-type]
            found = Cost.of(result, _timer_interrupts() - before)
            if choice not in best or found.total_us < best[choice].total_us:
                best[choice] = found
    return best


def figures(observer: Observer) -> Iterator[Figure]:
    """Paced, saturated, and against senders that check nothing."""
    with tiny_lab(_LAB, observer) as lab:
        for qps in (1, 16):
            yield from _compared(
                f"paced, {qps} QP{'' if qps == 1 else 's'}",
                _costs(lab, {**ACROSS, "sizes": (8 << 20,), "iters": 4, "qps": qps}, observer),
                45,
            )
    with tiny_lab(_LAB, observer, "queues.burst=1") as lab:
        for qps in (1, 16):
            options: dict[str, object] = {**ACROSS, "sizes": (8 << 20,), "iters": 4, "qps": qps}
            single = _costs(lab, options, observer, ("on",))["on"]
            name = f"paced, {qps} QP{'' if qps == 1 else 's'}, queues.burst: 1"
            yield Figure(f"{name}: a packet, compiled NICs", single.total_us, "us of cpu")
            yield Figure(f"{name}: timer interrupts a packet, compiled NICs", single.timers, "")
    with tiny_lab(_LAB, observer, *FAST) as lab:
        one_way: dict[str, object] = {
            "collective": "incast", "sizes": (16 << 20,), "iters": 6, "placement": "host1,host3",
        }  # fmt: skip
        yield from _compared("ring at 10 Gb/s", _costs(lab, {**ACROSS, "sizes": (16 << 20,), "iters": 5}, observer), 22)
        found = _costs(lab, one_way, observer)
        yield from _compared("one way at 10 Gb/s", found, 22)
        ends = run(lab, RunOptions(**{**one_way, "sizes": (1 << 20,)}), observer).ranks  # type: ignore[arg-type]
        flood = max(_raw(lab, ends[1], ends[0]) for _ in range(_TURNS))
        yield Figure("raw flood that is received: data packets", flood / 1e3, "kpps")
        yield at_least("RC, everything checked", found["on"].rate_pps / flood, "x", 0.5, "raw flood that is received")
        scapy = _scapy(lab, ends[1], ends[0])
        yield Figure("scapy's send and sniff: data packets", scapy / 1e3, "kpps")
        yield at_least("RC, everything checked", found["on"].rate_pps / scapy, "x", 50, "scapy's send and sniff")


def _compared(name: str, found: dict[FastPath, Cost], limit_us: float) -> Iterator[Figure]:
    off, on = found["off"], found["on"]
    for kind, cost in (("Python", off), ("compiled", on)):
        if kind == "compiled":
            yield at_most(f"{name}: a packet, compiled NICs", cost.total_us, "us of cpu", limit_us)
        else:
            yield Figure(f"{name}: a packet, Python NICs", cost.total_us, "us of cpu")
        yield Figure(f"{name}: of that in workers, {kind} NICs", cost.worker_us, "us of cpu")
        for part, value in (("user", cost.user_us), ("system", cost.system_us), ("softirq", cost.softirq_us)):
            yield Figure(f"{name}: {part}, by ticks, {kind} NICs", value, "us of cpu")
    yield Figure(f"{name}: timer interrupts a packet, compiled NICs", on.timers, "")
    yield Figure(f"{name}: rate, Python NICs", off.rate_pps / 1e3, "kpps")
    yield Figure(f"{name}: rate, compiled NICs", on.rate_pps / 1e3, "kpps")
    yield Figure(f"{name}: busbw of compiled NICs", on.busbw / off.busbw, "x", "Python NICs")


def _raw(lab: Lab, src: Endpoint, dst: Endpoint) -> float:
    """Data packets a second of a flood that arrive."""
    return _between(lab, src, dst, _flood, _count)


def _scapy(lab: Lab, src: Endpoint, dst: Endpoint) -> float:
    """The same with scapy at both ends, without acknowledgements."""
    return _between(lab, src, dst, _scapy_send, _scapy_sniff)


_End = Callable[[Lab, Endpoint, Endpoint, Pipe], None]


def _between(lab: Lab, src: Endpoint, dst: Endpoint, send: _End, receive: _End) -> float:
    """Both ends in processes of their own; packets that arrived, a second."""
    handles, fork = lab.handles(), multiprocessing.get_context("fork")
    for end in (src, dst):
        with inside(handles[end.host].netns):
            announce(end.port, end.mac, end.ip, end.gateway_ip)
    pipes = [fork.Pipe() for _ in range(2)]
    tasks = [
        fork.Process(target=work, args=(lab, here, there, pipe[1]))
        for work, here, there, pipe in ((receive, dst, src, pipes[0]), (send, src, dst, pipes[1]))
    ]
    for task in tasks:
        task.start()
    for pipe, _ in pipes:
        pipe.recv()  # ready
    pipes[1][0].send("go")
    pipes[1][0].recv()  # has sent for its time
    time.sleep(0.2)
    pipes[0][0].send("stop")
    count, seconds = pipes[0][0].recv()
    for task in tasks:
        task.join()
    return float(count / seconds)


def _header(src: Endpoint, dst: Endpoint, tos: int, dqpn: int) -> FlowHeader:
    return FlowHeader(
        src_mac=src.mac, dst_mac=src.gateway_mac, src_ip=src.ip, dst_ip=dst.ip, sport=49152, dqpn=dqpn, tos=tos
    )


def _flood(lab: Lab, here: Endpoint, there: Endpoint, pipe: Pipe) -> None:
    batch = SendBatch(_MTU)
    for slot in range(batch.slots):
        batch.put_data(slot, _header(here, there, wire.TOS_DATA, 17), wire.WRITE_MIDDLE, slot, bytes(_MTU))
    port = PacketSocket(lab.handle(here.host).netns, here.port, _MTU, send_frames=64, receive_bytes=0)
    pipe.send("ready")
    pipe.recv()
    end = time.monotonic() + _FLOOD_S
    while time.monotonic() < end:
        if port.send(batch, batch.slots) < batch.slots:
            select.select([], [port], [], 0.01)
    pipe.send("sent")


def _count(lab: Lab, here: Endpoint, there: Endpoint, pipe: Pipe) -> None:
    netns = lab.handle(here.host).netns
    port = PacketSocket(netns, here.port, _MTU)
    answers = PacketSocket(netns, here.port, _MTU, receive_bytes=0)
    batch = SendBatch(0, slots=8)
    for slot in range(batch.slots):
        batch.put_ack(slot, _header(here, there, wire.TOS_ANSWER, 18), slot, wire.ACK_NO_LIMIT, 0)
    pipe.send("ready")
    count = owed = 0
    first = last = 0.0
    while not pipe.poll():
        select.select([port], [], [], 0.05)
        _, lengths = port.recv()
        if lengths:
            last = time.monotonic()
            first = first or last
            count += len(lengths)
            owed += len(lengths)
            answers.send(batch, min(batch.slots, owed // _ACK_EVERY))
            owed %= _ACK_EVERY
    pipe.send((count, max(1e-9, last - first)))


def _scapy_send(lab: Lab, here: Endpoint, there: Endpoint, pipe: Pipe) -> None:
    from scapy.config import conf
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw

    with inside(lab.handle(here.host).netns):
        port = conf.L2socket(iface=here.port)
        pipe.send("ready")
        pipe.recv()
        end, psn = time.monotonic() + _SCAPY_S, 0
        while time.monotonic() < end:
            head = Ether(src=here.mac, dst=here.gateway_mac) / IP(src=here.ip, dst=there.ip, tos=wire.TOS_DATA)
            port.send(
                head / UDP(sport=49152, dport=wire.ROCE_PORT) / BTH(opcode=7, dqpn=17, psn=psn) / Raw(bytes(_MTU))
            )
            psn = psn + 1 & wire.PSN_MASK
        pipe.send("sent")


def _scapy_sniff(lab: Lab, here: Endpoint, there: Endpoint, pipe: Pipe) -> None:
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP
    from scapy.sendrecv import AsyncSniffer

    times: list[float] = []

    def seen(packet: object) -> None:
        if packet[IP].src == there.ip and packet[BTH].dqpn == 17:  # type: ignore[index]
            times.append(time.monotonic())

    with inside(lab.handle(here.host).netns):
        sniffer = AsyncSniffer(iface=here.port, filter="udp and dst port 4791", prn=seen, store=False)
        sniffer.start()
        time.sleep(1.0)  # until its socket stands
        pipe.send("ready")
        pipe.recv()
        sniffer.stop()
    pipe.send((len(times), max(1e-9, times[-1] - times[0]) if len(times) > 1 else 1.0))
