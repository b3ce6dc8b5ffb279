"""What a hashing mode costs a router: packets a second through one hop, against the kernel's own hash.

One switch of a fabric without daemons. A host floods it with small RoCEv2 frames of many queue pairs; its next hops get
frames that are not for them (a wrong MAC), and drop them at once, so that nothing but this hop is measured. Ports have
no shapers. Modes take turns, in slices of a few thousandths of a second, and the best slices are compared: what else
this machine does falls on others.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from heddle.base.events import Observer
from heddle.base.process import run
from heddle.fabric.policy import HashOptions
from heddle.kernel.libbpf import ensure_bpffs
from heddle.kernel.namespace import inside
from heddle.lab import rehash
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from tests.netns.queue_bench import checksum
from tests.netns.static_fabric import GATEWAY, StaticLab, roce_frame, some_flows, static_fabric

from . import Figure, at_most

_FRAMES: Final = 64  # a system call
_SLICE_S: Final = 0.003  # shorter than the scheduler lets another process run between
_SLICES: Final = 12
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
        best = dict.fromkeys(rows, float("inf"))
        frames = small_frames(lab)
        with inside(lab.handle("host1").netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
            wire.bind(("eth1", 0))
            for turn in range(_ROUNDS):
                observer.advance("bench hashing", turn + 1)
                for name, row in rows.items():
                    rehash.change(lab.name, [(lab.handle("rtsw1"), row)])
                    best[name] = min(best[name], *(seconds_a_packet(wire, frames) for _ in range(_SLICES)))
    kernel = best["flow"]
    yield Figure("one hop, flow: a packet", kernel * 1e9, "ns")
    yield at_most("one hop, e-ecmp", best["e-ecmp"] / kernel, "x", _LIMIT, "flow")
    for name in rows:
        if name not in ("flow", "e-ecmp"):
            yield Figure(f"one hop, {name}", best[name] / kernel, "x", "flow")


def _rows(lab: StaticLab) -> dict[str, SwitchHashing]:
    node = lab.fabric.by_name["rtsw1"]

    def row(mode: str, options: HashOptions) -> SwitchHashing:
        return hashing_of(lab.fabric, node, mode, options)

    plain = HashOptions()
    exact = row("exact-match", plain)
    prefix = next(iter(exact.steering.prefixes))
    table = {(flow.sport, prefix): _UPLINKS[i % 4] for i, flow in enumerate(some_flows(lab.fabric, 4 * _FRAMES))}
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


def seconds_a_packet(wire: socket.socket, frames: ctypes.Array[_Message]) -> float:
    """Send for a slice of time. A veth's packets are handled in the sender's own system call, or right after it.

    On a busy machine a slice can be over before anything was sent; it then lasts until something was.
    """
    sent, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < _SLICE_S or not sent:
        done = int(_libc.sendmmsg(wire.fileno(), frames, len(frames), 0))
        if done < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        sent += done
    return (now - start) / sent
