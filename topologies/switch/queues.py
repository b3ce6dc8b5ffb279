"""What stands behind every port: a shaper at the port's rate over a queue of so many bytes.

In:  ports with their rates (bit/s of frame bytes, from Ethernet header to ICRC) and the buffer (bytes).
Out: tc batch lines, one batch a node; and the rates and limits read back as the kernel reports them.
Switches and hosts are alike: both ends of a link are shaped, so neither can send faster than the wire would take.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topologies.fabric import Port
from topologies.process import Journal, run
from topologies.switch.fib import read_names
from topologies.switch.netlink import RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, RouteSocket, attributes

ETHERNET_HEADER: Final = 14
_BURST_PACKETS: Final = 2
_PORTS_A_BATCH: Final = 100  # tc keeps every program that a batch names open until it ends, and 1,024 files are usual
ROOT: Final = "1:"
CLASS: Final = "1:10"
QUEUE: Final = "10:"

_ROOT_ID: Final = 0x00010000
_CLASS_ID: Final = 0x00010010
_ROOT_PARENT: Final = 0xFFFFFFFF  # TC_H_ROOT
_HOOKS: Final = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}  # TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS), ..._EGRESS
_TCMSG: Final = struct.Struct("=B3xiIII")
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_HTB_PARMS, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 6, 7
_TCA_BPF_NAME: Final = 7
_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_TICK_S: Final = 64e-9  # PSCHED_TICKS2NS: a shift of 6


@dataclass(frozen=True, slots=True)
class PortQueue:
    """A port's shaper and queue as the kernel has them. burst in bytes."""

    port: str
    rate_bps: int
    ceil_bps: int
    burst: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Filter:
    """A pinned BPF program to be attached at a clsact hook: `ingress` or `egress`."""

    hook: str
    program: Path


def shaper_lines(port: Port, buffer: int) -> list[str]:
    """HTB with one class, and a byte-limited FIFO in it.

    burst: two packets, so that a port idle for long does not send a train above its rate. quantum is given because
    HTB would take rate / r2q and warn about it on slow and on fast links; with one class it decides nothing.
    """
    frame = port.mtu + ETHERNET_HEADER
    burst = _BURST_PACKETS * port.mtu
    rate = f"rate {port.rate_bps}bit ceil {port.rate_bps}bit burst {burst}b cburst {burst}b quantum {frame}"
    return [
        f"qdisc add dev {port.name} root handle {ROOT} htb default 10",
        f"class add dev {port.name} parent {ROOT} classid {CLASS} htb {rate}",
        f"qdisc add dev {port.name} parent {CLASS} handle {QUEUE} bfifo limit {buffer}b",
    ]


def filter_lines(port: Port, filters: Iterable[Filter]) -> list[str]:
    """clsact, and the programs on it."""
    lines = [f"qdisc add dev {port.name} clsact"]
    lines += [
        f"filter add dev {port.name} {f.hook} pref 10 handle 1 bpf direct-action object-pinned {f.program}"
        for f in filters
    ]
    return lines


def apply(netns: Path, ports: Iterable[Port], buffer: int, filters: Iterable[Filter], journal: Journal) -> None:
    """Shape all ports of one node and attach the programs, in one tc process for a hundred ports.

    MachineError with tc's words, which name the line. `tc -n` would mount a fresh /sys and so hide the pins:
    hence nsenter, which changes nothing but the network namespace.
    """
    wanted = tuple(filters)
    every = list(ports)
    for start in range(0, len(every), _PORTS_A_BATCH):
        some = every[start : start + _PORTS_A_BATCH]
        lines = [line for p in some for line in (*shaper_lines(p, buffer), *filter_lines(p, wanted))]
        run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n", journal=journal)


def read(netns: Path, ports: Iterable[str]) -> dict[str, PortQueue]:
    """Port -> its shaper and queue, for those ports that have both; by netlink, since tc has no JSON for classes."""
    found: dict[str, PortQueue] = {}
    with RouteSocket(netns) as netlink:
        names = {name: index for index, name in read_names(netlink).items()}
        limits: dict[int, int] = {}
        for body in netlink.dump(RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0)):
            _, ifindex, _, parent, _ = _TCMSG.unpack_from(body)
            attrs = attributes(body, _TCMSG.size)
            if parent == _CLASS_ID and attrs.get(_TCA_KIND) == b"bfifo\0":
                limits[ifindex] = struct.unpack_from("=I", attrs[_TCA_OPTIONS])[0]
        for port in ports:
            ifindex = names.get(port, 0)
            for body in netlink.dump(RTM_GETTCLASS, _TCMSG.pack(0, ifindex, 0, 0, 0)) if ifindex in limits else ():
                if _TCMSG.unpack_from(body)[2] == _CLASS_ID:
                    found[port] = _shaper(port, attributes(body, _TCMSG.size)[_TCA_OPTIONS], limits[ifindex])
    return found


def foreign(netns: Path, ports: Iterable[str]) -> dict[str, str]:
    """Port -> what stands at its root in place of our shaper: `netem`, or `nothing`; empty where the port is gone."""
    roots: dict[str, str] = {}
    with RouteSocket(netns) as netlink:
        names = read_names(netlink)
        for body in netlink.dump(RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0)):
            _, ifindex, handle, parent, _ = _TCMSG.unpack_from(body)
            if parent == _ROOT_PARENT:
                kind = attributes(body, _TCMSG.size)[_TCA_KIND].rstrip(bytes(1)).decode()
                found = "ours" if (kind, handle) == ("htb", _ROOT_ID) else kind
                roots[names.get(ifindex, "")] = "nothing" if found == "noqueue" else found
    return {port: roots.get(port, "") for port in ports if roots.get(port) != "ours"}


def read_drops(netns: Path) -> dict[str, int]:
    """Port -> packets that its queue has refused since it was made (the FIFO's own count), for shaped ports."""
    found: dict[str, int] = {}
    with RouteSocket(netns) as netlink:
        names = read_names(netlink)
        for body in netlink.dump(RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0)):
            _, ifindex, _, parent, _ = _TCMSG.unpack_from(body)
            attrs = attributes(body, _TCMSG.size)
            if parent == _CLASS_ID and _TCA_STATS2 in attrs:
                statistics = attributes(attrs[_TCA_STATS2], 0)
                if _TCA_STATS_QUEUE in statistics:  # struct gnet_stats_queue: qlen, backlog, drops, ...
                    (drops,) = struct.unpack_from("=8xI", statistics[_TCA_STATS_QUEUE])
                    found[names.get(ifindex, f"if{ifindex}")] = drops
    return found


def read_programs(netns: Path, ports: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Port -> the BPF programs at its clsact hooks, as `ingress:hash`, by netlink."""
    found: dict[str, tuple[str, ...]] = {}
    with RouteSocket(netns) as netlink:
        names = {name: index for index, name in read_names(netlink).items()}
        for port in ports:
            programs: list[str] = []
            for hook, parent in _HOOKS.items():
                request = _TCMSG.pack(0, names.get(port, 0), 0, parent, 0)
                for body in netlink.dump(RTM_GETTFILTER, request):
                    attrs = attributes(body, _TCMSG.size)
                    if attrs.get(_TCA_KIND) == b"bpf\0" and _TCA_OPTIONS in attrs:
                        name = attributes(attrs[_TCA_OPTIONS], 0).get(_TCA_BPF_NAME, b"")
                        programs += [f"{hook}:{name.rstrip(bytes(1)).decode().split(':')[0]}"] if name else []
            found[port] = tuple(programs)
    return found


def _shaper(port: str, options: bytes, limit: int) -> PortQueue:
    """struct tc_htb_opt: two struct tc_ratespec, then the burst as the time it takes at the rate."""
    attrs = attributes(options, 0)
    parameters = attrs[_TCA_HTB_PARMS]
    rate, ceil = struct.unpack_from("=8xI8xI", parameters)
    burst_ticks = struct.unpack_from("=24xI", parameters)[0]
    # A rate of 2^32 bytes/s or more comes in an attribute of its own.
    rate = struct.unpack("=Q", attrs[_TCA_HTB_RATE64])[0] if _TCA_HTB_RATE64 in attrs else rate
    ceil = struct.unpack("=Q", attrs[_TCA_HTB_CEIL64])[0] if _TCA_HTB_CEIL64 in attrs else ceil
    return PortQueue(port, rate * 8, ceil * 8, round(burst_ticks * _TICK_S * rate), limit)
