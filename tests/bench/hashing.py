"""What a hashing mode costs a router: packets a second through one hop, against the kernel's own hash.

One switch of a fabric without daemons. A host floods it with small RoCEv2 frames of many queue pairs; its next hops get
frames that are not for them (a wrong MAC), and drop them at once, so that nothing but this hop is measured. Ports have
no shapers. Modes take turns, in slices of a few thousandths of a second, and their medians are compared: a few slices
are dearer by what else this machine does, and a few cheaper, because the kernel handled their frames in larger batches.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from heddle.base.events import Observer
from heddle.base.process import run
from heddle.kernel.libbpf import ensure_bpffs
from heddle.kernel.namespace import inside
from heddle.spec.routingpolicy import HashOptions
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from tests.netns.sockets import checksum
from tests.netns.static_fabric import GATEWAY, StaticLab, roce_frame, some_flows, static_fabric

from . import Figure, at_most

_FRAMES: Final = 64  # a system call
_SLICE_S: Final = 0.003  # shorter than the scheduler lets another process run between
_SLICES: Final = 12
_ENOUGH_S: Final = 1.0  # for a slice, whatever else the machine does
_ROUNDS: Final = 30
_LIMIT: Final = 1.10  # of the time a packet takes
_UPLINKS: Final = ("eth1", "eth2", "eth3", "eth4")
_libc = ctypes.CDLL(None, use_errno=True)


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class _Header(ctypes.Structure):
    """struct msghdr."""

    _fields_ = [
        ("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32), ("parts", ctypes.POINTER(_Part)),
        ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]  # fmt: skip


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = [("header", _Header), ("length", ctypes.c_uint)]


def figures(observer: Observer) -> Iterator[Figure]:
    """Nanoseconds a packet and hop under `flow`, and how many times that the other modes take."""
    ensure_bpffs()
    with static_fabric("flow", hosts_per_rack=2) as lab:
        _bare(lab)
        rows = _rows(lab)
        slices: dict[str, list[float]] = {name: [] for name in rows}
        frames = small_frames(lab)
        with flood(lab) as sender:
            for turn in range(_ROUNDS):
                observer.advance("bench hashing", turn + 1)
                for name, row in rows.items():
                    hashing.change(lab.name, [(lab.handle("rtsw1"), row)])
                    slices[name] += [sender.seconds_a_packet(frames) for _ in range(_SLICES)]
    usual = {name: statistics.median(found) for name, found in slices.items()}
    kernel = usual["flow"]
    yield Figure("one hop, flow: a packet", kernel * 1e9, "ns")
    yield at_most("one hop, e-ecmp", usual["e-ecmp"] / kernel, "x", _LIMIT, "flow")
    for name in rows:
        if name not in ("flow", "e-ecmp"):
            yield Figure(f"one hop, {name}", usual[name] / kernel, "x", "flow")


def _rows(lab: StaticLab) -> dict[str, SwitchHashing]:
    node = lab.fabric.by_name["rtsw1"]

    def row(mode: str, options: HashOptions) -> SwitchHashing:
        return hashing_of(lab.fabric, node, mode, options)

    plain = HashOptions()
    exact = row("exact-match", plain)
    prefix = next(iter(exact.steering.prefixes))
    table = {(flow.sport, prefix): (_UPLINKS[i % 4],) for i, flow in enumerate(some_flows(lab.fabric, 4 * _FRAMES))}
    return {
        "flow": row("flow", plain),
        "e-ecmp": row("e-ecmp", plain),
        "e-ecmp resilient": row("e-ecmp", replace(plain, resilient=True)),
        "flowlet": row("flowlet", plain),
        "flowlet by load": row("flowlet", replace(plain, first="load")),
        "spray": row("spray", plain),
        "spray in turn": row("spray", replace(plain, choice="round-robin")),
        "pinned": row("pinned", plain),
        "adaptive": row("adaptive", plain),
        "exact-match": replace(exact, steering=replace(exact.steering, exact=table)),
    }


def _bare(lab: StaticLab) -> None:
    """No shapers on the way, no queues that are counted, and next hops that drop what they get."""
    for each in lab.fabric.nodes:
        hooks = [f"{port.name} {hook}" for port in each.ports for hook in ("egress pref 20", "ingress pref 5")]
        lines = "".join(f"filter del dev {hook}\n" for hook in hooks)
        run(["nsenter", f"--net={lab.handle(each.name).netns}", "tc", "-batch", "-"], stdin=lines)
    for node, ports in (("host1", ("eth1",)), ("rtsw1", _UPLINKS)):
        with inside(lab.handle(node).netns):
            for port in ports:
                run(["tc", "qdisc", "replace", "dev", port, "root", "noqueue"])
    for port in _UPLINKS:
        wrong = ("lladdr", "02:00:00:00:99:99", "dev", port, "nud", "permanent")
        lab.ip("rtsw1", "neigh", "replace", GATEWAY, *wrong)


def small_frames(lab: StaticLab, tos: int = 0) -> ctypes.Array[_Message]:
    """RoCEv2 frames of host1's queue pairs to the other rack, ready for one sendmmsg. tos: IPv4's type of service."""
    host = lab.fabric.by_name["host1"].ports[0]
    gateway = lab.fabric.by_name[host.peer_node].port(host.peer_port)
    flows = [flow for flow in some_flows(lab.fabric, 4 * _FRAMES) if flow.src == "host1"][:_FRAMES]
    messages = (_Message * len(flows))()
    for message, flow in zip(messages, flows, strict=True):
        frame = roce_frame(flow, 64, host.mac, gateway.mac)
        head = frame[14:15] + bytes((tos,)) + frame[16:24] + bytes(2) + frame[26:34]
        frame = frame[:14] + head[:10] + struct.pack("!H", checksum(head)) + head[12:] + frame[34:]
        message.header.parts = ctypes.pointer(_Part(frame, len(frame)))
        message.header.count = 1
    return messages


class Flood:
    """Frames of host1 on their way through its switch, sent and forwarded by one processor."""

    def __init__(self, wire: socket.socket, counters: int, port: str) -> None:
        self._wire, self._counters, self._port = wire.fileno(), counters, f"{port}:".encode()

    def seconds_a_packet(self, frames: ctypes.Array[_Message]) -> float:
        """Send for a slice of time, until all has arrived at the switch; OSError where that cannot be.

        The sender's own system call forwards what it sends, or the kernel's thread for softirqs does it later, on the
        same processor. A slice lasts until something was sent, also on a busy machine.
        """
        sent, before, start = 0, self._arrived(), time.perf_counter()
        while time.perf_counter() - start < _SLICE_S or not sent:
            done = int(_libc.sendmmsg(self._wire, frames, len(frames), 0))
            if done > 0:
                sent += done
            elif ctypes.get_errno() == errno.ENOBUFS:  # the ring of the veth is full until that thread has run
                os.sched_yield()
            else:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        while self._arrived() - before < sent:
            if time.perf_counter() - start > _ENOUGH_S:
                raise OSError(errno.ETIMEDOUT, f"{sent} frames were sent, {self._arrived() - before} arrived")
            os.sched_yield()
        return (time.perf_counter() - start) / sent

    def _arrived(self) -> int:
        """Packets that the switch's port has received."""
        for line in os.pread(self._counters, 1 << 16, 0).splitlines():
            name, *words = line.split()
            if name == self._port:
                return int(words[1])
        raise OSError(errno.ENODEV, self._port.decode())


@contextmanager
def flood(lab: StaticLab) -> Iterator[Flood]:
    """Host1's port and its switch's counters, open; this thread runs on one processor meanwhile."""
    host = lab.fabric.by_name["host1"].ports[0]
    allowed = os.sched_getaffinity(0)
    with inside(lab.handle(host.peer_node).netns):
        counters = os.open("/proc/thread-self/net/dev", os.O_RDONLY)  # of that namespace, also when read elsewhere
    try:
        os.sched_setaffinity(0, {max(allowed)})
        with inside(lab.handle("host1").netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
            wire.bind((host.name, 0))
            yield Flood(wire, counters, host.peer_port)
    finally:
        os.sched_setaffinity(0, allowed)
        os.close(counters)
