"""Receive all packets of a port through one queue, so that a link keeps the order of its packets.

In:  ports of a namespace, and the method (host/delivery.py has both methods and the choice).
Out: the settings in the kernel; the settings read back, and a description of what is wrong with them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.host.delivery import MERGES_NOTHING, Delivery
from heddle.kernel.ethtool import active_features, set_features
from heddle.kernel.libc import libc
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import RTM_SETLINK, NetlinkError, RouteSocket, attribute, interfaces
from heddle.kernel.uapi import IFINFOMSG, IFLA_GRO_IPV4_MAX_SIZE, IFLA_GRO_MAX_SIZE

# Feature -> what it consists of (netdev_features_strings in net/ethtool/common.c).
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "gso": ("tx-generic-segmentation",),
    "tso": tuple(f"tx-tcp{kind}-segmentation" for kind in ("", "-ecn", "-mangleid", "6")),
    "tx-checksum": tuple(f"tx-checksum-{kind}" for kind in ("ipv4", "ip-generic", "ipv6", "sctp")),
    "scatter-gather": ("tx-scatter-gather", "tx-scatter-gather-fraglist"),
}
_GRO: Final = "rx-gro"


def set_gro(netns: Path, ports: Sequence[str], *, on: bool) -> None:
    """Switch GRO on or off on these ports. MachineError names the port that refuses."""
    with RouteSocket(netns) as netlink:
        _switch(netns, _indexes(netlink, netns, ports), {_GRO: on})


def _switch(netns: Path, indexes: Mapping[str, int], wanted: Mapping[str, bool]) -> None:
    names = tuple(indexes)

    def refused(number: int, error: NetlinkError) -> None:
        what = f"{names[number]}: {', '.join(FEATURES)}, gro"
        raise MachineError(Problem(netns.name, what, f"cannot be switched: {error.strerror}"))

    set_features(netns, [*indexes.values()], wanted, refused)


def _indexes(netlink: RouteSocket, netns: Path, ports: Iterable[str]) -> dict[str, int]:
    found = {each.name: each.ifindex for each in interfaces(netlink)}
    if lost := [name for name in ports if name not in found]:
        raise _missing(netns, lost[0])
    return {name: found[name] for name in ports}


def _missing(netns: Path, port: str) -> MachineError:
    hint = "run ./inv status LAB, which lists ports that are missing"
    return MachineError(Problem(netns.name, port, "is missing: it was removed", hint))


# The same numbers on every architecture (include/uapi/asm-generic/unistd.h); since Linux 5.2.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC, _FSCONFIG_CMD_CREATE = 1, 1, 6
_NET: Final = "class/net"


@dataclass(frozen=True, slots=True)
class PortDelivery:
    """The settings that decide the packet order at one port.

    gro_sizes: limits of GRO in bytes, for IPv6 and IPv4; empty if unknown. rps: CPUs of each receive queue. offloads:
    those of FEATURES that are on.
    """

    gro: bool
    gro_sizes: tuple[int, ...]
    rps: tuple[frozenset[int], ...]
    offloads: tuple[str, ...] = ()


def cpu_for(number: int, cpus: Sequence[int]) -> int:
    """The CPU that receives for a port. number: port id in the lab; ports with adjacent ids get different CPUs."""
    return cpus[number % len(cpus)]


def cpus_here() -> list[int]:
    """The CPUs that this process may use, in order; without isolated ones, which RPS refuses."""
    return sorted(os.sched_getaffinity(0))


def online_cpus(text: str) -> frozenset[int]:
    """Parse a list of CPUs in the kernel's format: `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def apply(netns: Path, ports: Mapping[str, int], delivery: Delivery, cpus: Sequence[int]) -> None:
    """Make these ports keep the packet order, without FEATURES. ports: name -> port id. cpus: those that RPS may use.

    Transmit offloads must be off at both ends: veth_xmit uses NAPI if the sender has no TSO. MachineError names the
    port that refuses.
    """
    with RouteSocket(netns) as netlink:
        found = _indexes(netlink, netns, ports)
        if delivery is Delivery.NAPI:
            _limit_gro(netlink, netns, found)
    off = {name: False for parts in FEATURES.values() for name in parts}
    _switch(netns, found, {**off, _GRO: delivery is Delivery.NAPI})
    if delivery is Delivery.NAPI:
        return
    with net_devices(netns) as devices:
        for port, number in ports.items():
            for queue in _queues(devices, netns, port):
                _mask(devices, netns, queue, cpu_mask(cpu_for(number, cpus)))


def pin_receive(netns: Path, ports: Mapping[str, int], cpus: Sequence[int]) -> None:
    """Let one CPU process all packets of each port; the rest of its settings stays. cpus: empty: undo it.

    A packet that a program redirects to the ingress of a port waits in the backlog of a CPU: of the current one, unless
    rps_cpus names another (netif_rx_internal). With one CPU, one backlog keeps the order.
    """
    with net_devices(netns) as devices:
        for port, number in ports.items():
            for queue in _queues(devices, netns, port):
                _mask(devices, netns, queue, cpu_mask(cpu_for(number, cpus)) if cpus else "0")


def read(netns: Path, ports: Iterable[str], delivery: Delivery) -> dict[str, PortDelivery]:
    """Read the settings that decide the packet order at these ports. MachineError names a port that does not exist."""
    names, features, sizes = tuple(ports), active_features(netns), dict[str, tuple[int, ...]]()
    if lost := [name for name in names if name not in features]:
        raise _missing(netns, lost[0])
    masks: dict[str, tuple[frozenset[int], ...]] = {}
    if delivery is Delivery.RPS:
        with net_devices(netns) as devices:
            masks = {port: _masks(devices, netns, port) for port in names}
    else:
        with RouteSocket(netns) as netlink:
            for each in interfaces(netlink):
                limits = (each.attrs.get(kind) for kind in (IFLA_GRO_MAX_SIZE, IFLA_GRO_IPV4_MAX_SIZE))
                sizes[each.name] = tuple(int.from_bytes(raw, sys.byteorder) for raw in limits if raw is not None)
    return {
        port: PortDelivery(_GRO in features[port], sizes.get(port, ()), masks.get(port, ()), _on(features[port]))
        for port in names
    }


@cache
def _on(features: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name, parts in FEATURES.items() if not features.isdisjoint(parts))


def fault(found: PortDelivery, delivery: Delivery, online: Iterable[int]) -> str:
    """The reason why a port may reorder or merge packets, as a clause; empty when it does neither.

    online: CPUs that run. RPS ignores an offline CPU (get_rps_cpu).
    """
    why = ""
    if delivery is Delivery.NAPI:
        if not found.gro:
            why = "has GRO off, so packets of one link wait on several CPUs"
        elif set(found.gro_sizes) != {MERGES_NOTHING}:
            sizes = " and ".join(map(str, dict.fromkeys(found.gro_sizes))) or "unknown"
            why = f"has gro_max_size {sizes}, not {MERGES_NOTHING}, so packets are merged"
    elif found.gro:
        why = "has GRO on, which is not safe on this kernel"
    elif not found.rps or any(len(cpus) != 1 for cpus in found.rps):
        why = "does not have exactly one CPU in rps_cpus, so packets of one link wait on several CPUs"
    elif offline := sorted(frozenset().union(*found.rps) - set(online)):
        why = f"has the offline CPU {offline[0]} in rps_cpus, so packets of one link wait on several CPUs"
    return why


def cpu_mask(cpu: int) -> str:
    """One CPU in the kernel's bitmap format: `2`, or `1,00000000` for CPU 32."""
    return ",".join([f"{1 << cpu % 32:x}", *["00000000"] * (cpu // 32)])


def cpus_of(mask: str) -> frozenset[int]:
    """Parse a bitmap of CPUs in the kernel's format."""
    bits = int(mask.strip().replace(",", "") or "0", 16)
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def _limit_gro(netlink: RouteSocket, netns: Path, ports: Mapping[str, int]) -> None:
    """Set both limits: only recent kernels set the IPv4 limit with the other one (netif_set_gro_max_size)."""
    value, names = MERGES_NOTHING.to_bytes(4, sys.byteorder), tuple(ports)
    sizes = attribute(IFLA_GRO_MAX_SIZE, value) + attribute(IFLA_GRO_IPV4_MAX_SIZE, value)

    def refused(number: int, error: NetlinkError) -> None:
        why = f"cannot be {MERGES_NOTHING}: {error.strerror}"
        raise MachineError(Problem(netns.name, f"{names[number]}: gro_max_size", why))

    bodies = (IFINFOMSG.pack(0, 0, index, 0, 0) + sizes for index in ports.values())
    netlink.change_all([(RTM_SETLINK, body, 0) for body in bodies], refused)


def _masks(devices: int, netns: Path, port: str) -> tuple[frozenset[int], ...]:
    """The CPUs in `rps_cpus` of each receive queue of a port. devices: a descriptor of `net_devices`."""
    return tuple(cpus_of(_mask(devices, netns, queue)) for queue in _queues(devices, netns, port))


def _queues(devices: int, netns: Path, port: str) -> list[str]:
    """`rps_cpus` of each receive queue of a port, as paths below `devices`."""
    try:
        folder = os.open(f"{port}/queues", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=devices)
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - a descriptor has no Path
        finally:
            os.close(folder)
    except OSError as error:
        raise MachineError(Problem(netns.name, port, f"has no readable queues: {error.strerror}")) from None
    return [f"{port}/queues/{name}/rps_cpus" for name in names if name.startswith("rx-")]


def _mask(devices: int, netns: Path, path: str, write: str = "") -> str:
    """Read a CPU mask, or write `write`."""
    try:
        file = os.open(path, (os.O_WRONLY if write else os.O_RDONLY) | os.O_CLOEXEC, dir_fd=devices)
        try:
            if write:
                os.write(file, write.encode())
                return write
            return os.read(file, 4096).decode()
        finally:
            os.close(file)
    except OSError as error:
        verb, hint = ("written", "use a kernel with CONFIG_RPS") if write else ("read", "")
        raise MachineError(Problem(netns.name, path, f"cannot be {verb}: {error.strerror}", hint)) from None


@contextmanager
def net_devices(netns: Path) -> Iterator[int]:
    """A descriptor of /sys/class/net of `netns`, for the duration of a with block: open files with `dir_fd`.

    A mounted sysfs shows the devices of the network namespace in which it was mounted, to every reader (sysfs_get_tree,
    fs/sysfs/mount.c). So fsopen(2) and fsmount(2) create a sysfs of the namespace itself, without a mount point, and
    the kernel removes it when its descriptor is closed.
    MachineError when the kernel refuses, or the namespace does not exist.
    """
    with inside(netns):
        found = _opened(netns.name)
    try:
        yield found
    finally:
        os.close(found)


def _opened(where: str) -> int:
    context = _call(where, _FSOPEN, b"sysfs", _FSOPEN_CLOEXEC)
    try:
        _call(where, _FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        root = _call(where, _FSMOUNT, context, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        return os.open(_NET, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    finally:
        os.close(root)


def _call(where: str, number: int, *arguments: object) -> int:
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        why = f"cannot be mounted: {os.strerror(ctypes.get_errno())}"
        raise MachineError(Problem(where, "sysfs", why, "use Linux 5.2 or newer, and run as root"))
    return result
