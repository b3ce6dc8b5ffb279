"""What left by which port of a switch: read in bulk from the maps of the BPF program `count`.

In:  a lab's name and a switch's handle.
Out: SwitchCounters: a row a (port, source, destination, destination QP), a row a port, and misses.
Packets are counted when they are enqueued at the port; bytes run from the Ethernet header to the ICRC.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache
from ipaddress import IPv6Address
from typing import Any, Final

from heddle.kernel.fib import port_names
from heddle.kernel.handle import NodeHandle
from heddle.kernel.libbpf import Map
from heddle.switch.hashing.hashing import pin_dir

_FLOW_KEY: Final = struct.Struct("=2I16s16s")  # port, QP, source, destination: count.c's struct flow_key
_FLOW_COUNT: Final = struct.Struct("=2Q")
_PORT_KEY: Final = struct.Struct("=I")
_PORT_COUNT: Final = struct.Struct("=4Q")
_MISSES: Final = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class FlowCount:
    """RoCEv2 packets of one destination QP that left by one port."""

    port: str
    src: str
    dst: str
    qpn: int
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PortCount:
    """Everything that left by one port, and how much of it was RoCEv2."""

    port: str
    packets: int
    bytes: int
    roce_packets: int
    roce_bytes: int


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """All counters of a switch at one moment, or the difference of two. misses: packets whose map was full."""

    switch: str
    flows: tuple[FlowCount, ...]
    ports: tuple[PortCount, ...]
    misses: int

    def since(self, before: SwitchCounters) -> SwitchCounters:
        """What was counted after `before`; rows that did not change are left out."""
        old_flows = {(f.port, f.src, f.dst, f.qpn): f for f in before.flows}
        old_ports = {p.port: p for p in before.ports}
        none = PortCount("", 0, 0, 0, 0)
        flows: list[FlowCount] = []
        for f in self.flows:
            old = old_flows.get((f.port, f.src, f.dst, f.qpn))
            row = FlowCount(f.port, f.src, f.dst, f.qpn, f.packets - old.packets, f.bytes - old.bytes) if old else f
            if row.packets:
                flows.append(row)
        ports: list[PortCount] = []
        for p in self.ports:
            was = old_ports.get(p.port, none)
            roce = p.roce_packets - was.roce_packets, p.roce_bytes - was.roce_bytes
            ports.append(PortCount(p.port, p.packets - was.packets, p.bytes - was.bytes, *roce))
        return SwitchCounters(self.switch, tuple(flows), tuple(ports), self.misses - before.misses)

    def moved(self, other: SwitchCounters) -> SwitchCounters:
        """Without the flows that the other reading has unchanged."""
        same = set(other.flows)
        return replace(self, flows=tuple(f for f in self.flows if f not in same))

    def to_json(self) -> dict[str, Any]:
        """Plain data; rows as lists in the order of the fields."""
        return {
            "switch": self.switch,
            "flows": [list(astuple(f)) for f in self.flows],
            "ports": [list(astuple(p)) for p in self.ports],
            "misses": self.misses,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SwitchCounters:
        """What `to_json` wrote."""
        flows = tuple(FlowCount(*row) for row in data["flows"])
        return cls(str(data["switch"]), flows, tuple(PortCount(*row) for row in data["ports"]), int(data["misses"]))


@cache
def _address(octets: bytes) -> str:
    """As people write it; an IPv4 address stands in 16 octets as ::ffff:a.b.c.d."""
    address = IPv6Address(octets)
    return str(address.ipv4_mapped or address)


def read_counters(lab: str, handle: NodeHandle) -> SwitchCounters:
    """All counters of one switch, in a few system calls. MachineError when it was not set up."""
    return counters_of(lab, handle.name, port_names(handle))


def counters_of(lab: str, switch: str, names: Mapping[int, str]) -> SwitchCounters:
    """The same where the switch's interfaces are known. names: ifindex -> interface name."""
    pins = pin_dir(lab, switch)
    with Map.pinned(pins / "flows", _FLOW_KEY.size, _FLOW_COUNT.size) as cells:
        keys, values = cells.items()
    rows = zip(_FLOW_KEY.iter_unpack(keys), _FLOW_COUNT.iter_unpack(values), strict=True)
    flows = sorted(
        (
            FlowCount(names.get(port, f"if{port}"), _address(src), _address(dst), qpn, packets, size)
            for (port, qpn, src, dst), (packets, size) in rows
        ),
        key=lambda f: (f.port, f.src, f.dst, f.qpn),
    )
    with Map.pinned(pins / "ports", _PORT_KEY.size, _PORT_COUNT.size) as cells:
        keys, values = cells.items()
    ports = sorted(
        (
            PortCount(names.get(port, f"if{port}"), *counts)
            for (port,), counts in zip(_PORT_KEY.iter_unpack(keys), _PORT_COUNT.iter_unpack(values), strict=True)
        ),
        key=lambda p: p.port,
    )
    with Map.pinned(pins / "misses", 4, _MISSES.size) as cells:
        (misses,) = _MISSES.unpack(cells.lookup(bytes(4)) or bytes(8))
    return SwitchCounters(switch, tuple(flows), tuple(ports), misses)
