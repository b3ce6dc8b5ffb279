"""Packets by egress port of a lab's switches: create, read (in bulk) and clear the maps of the BPF program `count`.

In:  a Fabric whose lab is up.
Out: SwitchCounters by switch: a row for each (port, source, destination, source port, destination QP), a row for each
port, and misses. TCP and other UDP between hosts has rows too; Flow.qpn has what stands for the QP.
Packets are counted when they are enqueued at the port. Bytes run from the Ethernet header to the
ICRC. All switches share one set of maps; bpf/count.c defines their layouts.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from heddle.base import resources
from heddle.base.families import as_ipv6, from_ipv6
from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.fabric.model import Fabric, Role
from heddle.kernel.libbpf import Map, loaded
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.classes import OWNER, numbered_ports

CountKey = tuple[str, str, int, int]  # source, destination, source port, destination QP
FLOW_KEY: Final = struct.Struct("=2HI16s16s")  # port number, source port, QP, source, destination
_FLOW_COUNT: Final = struct.Struct("=2Q")
_PORT_COUNT: Final = struct.Struct("=5Q")
_address: Final = cache(from_ipv6)
_LEAST_ROWS: Final = 1 << 16  # of a lab
_ROWS_A_SWITCH: Final = 1 << 16  # at most, on average: 1 MB of kernel memory for an empty map
# 64 MiB for an empty map (16 bytes a row). The kernel refuses 2^28 and more: htab_map_alloc in kernel/bpf/hashtab.c.
_MOST_ROWS: Final = 1 << 22
QPNS: Final = 1 << 24  # QP numbers have 24 bits
_QPS: Final = 128  # per connection: the maximum in traffic/options.py


@dataclass(frozen=True, slots=True)
class FlowCount:
    """Packets of one 5-tuple and destination QP that left by one port. qpn: as Flow.qpn."""

    port: str
    src: str
    dst: str
    sport: int
    qpn: int
    packets: int
    bytes: int

    @property
    def key(self) -> CountKey:
        """The flow of this row, without the port; same as traffic.flow.Flow.key."""
        return self.src, self.dst, self.sport, self.qpn


@dataclass(frozen=True, slots=True)
class PortCount:
    """All packets that left by one port, and the RoCEv2 packets among them."""

    port: str
    packets: int
    bytes: int
    roce_packets: int
    roce_bytes: int


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """All counters of a switch at one moment, or the difference of two readings. misses: packets that were not
    recorded because the map was full.
    """

    switch: str
    flows: tuple[FlowCount, ...]
    ports: tuple[PortCount, ...]
    misses: int

    def since(self, before: SwitchCounters) -> SwitchCounters:
        """The packets counted after `before`, without the rows that did not change.

        A row with a smaller count than before was removed meanwhile (`clear`) and created again: all of it is new.
        """
        old_flows = {(f.port, *f.key): f for f in before.flows}
        old_ports = {p.port: p for p in before.ports}
        none = PortCount("", 0, 0, 0, 0)
        flows: list[FlowCount] = []
        for f in self.flows:
            old = old_flows.get((f.port, *f.key))
            known = old is not None and old.packets <= f.packets
            row = replace(f, packets=f.packets - old.packets, bytes=f.bytes - old.bytes) if old and known else f
            if row.packets:
                flows.append(row)
        ports: list[PortCount] = []
        for p in self.ports:
            was = old_ports.get(p.port, none)
            roce = p.roce_packets - was.roce_packets, p.roce_bytes - was.roce_bytes
            ports.append(PortCount(p.port, p.packets - was.packets, p.bytes - was.bytes, *roce))
        return SwitchCounters(self.switch, tuple(flows), tuple(ports), self.misses - before.misses)

    def moved(self, other: SwitchCounters) -> SwitchCounters:
        """This reading without the flows whose counts are the same in `other`."""
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
        flows = tuple(
            FlowCount(str(port), str(src), str(dst), *map(int, counts)) for port, src, dst, *counts in data["flows"]
        )
        ports = tuple(PortCount(str(port), *map(int, counts)) for port, *counts in data["ports"])
        return cls(str(data["switch"]), flows, ports, int(data["misses"]))


def rows_for(fabric: Fabric) -> int:
    """Capacity of a lab's map in rows: enough for an all-to-all of all NICs with 128 QPs a connection, data and ACKs.

    A sprayed QP has a row at each port of its paths: twice the number of next hops plus one, as in a two-tier Clos.
    Large labs get less: 65,536 rows a switch, and 4,194,304 in all, because each row may use kernel memory.
    """
    nics = len(fabric.nics)
    next_hops = max((fabric.uplinks_of(switch) for switch in fabric.switches), default=0)
    wanted = nics * (nics - 1) * _QPS * 2 * (2 * next_hops + 1)
    return max(_LEAST_ROWS, min(wanted, _ROWS_A_SWITCH * len(fabric.switches), _MOST_ROWS))


def create(fabric: Fabric, pins: Path) -> None:
    """Load `count` and its maps for a lab, and pin them in `pins`, an existing directory. MachineError on failure."""
    with loaded(resources.HERE.bpf_object("count"), {"flows": rows_for(fabric), "ports": fabric.space[1]}) as made:
        made.map("flows", FLOW_KEY.size, _FLOW_COUNT.size).pin(pins / "flows")
        made.map("ports", 4, _PORT_COUNT.size, per_cpu=True).pin(pins / "ports")
        made.program("count").pin(pins / "count")


def read_counters(fabric: Fabric, switches: Collection[str] | None = None) -> dict[str, SwitchCounters]:
    """Switch -> its counters, read with a few system calls for the whole lab. MachineError when the lab is not set up.

    switches: names of the switches to read; all by default.
    """
    import numpy as np

    wanted = {node.name for node in fabric.switches if switches is None or node.name in switches}
    names = {number: (port.node, port.name) for number, port in numbered_ports(fabric) if port.node in wanted}
    flows: dict[str, list[FlowCount]] = {name: [] for name in wanted}
    ports: dict[str, list[PortCount]] = {name: [] for name in wanted}
    misses = dict.fromkeys(wanted, 0)
    with _map(fabric, "flows") as cells:
        keys, values = cells.items()
    rows = zip(FLOW_KEY.iter_unpack(keys), _FLOW_COUNT.iter_unpack(values), strict=True)
    for (number, sport, qpn, src, dst), (packets, size) in rows:
        if number in names:
            (switch, port), ends = names[number], (_address(src), _address(dst))
            if qpn < QPNS or fabric.nic_at.keys() >= {*ends}:  # others are of routing protocols, from switch to switch
                flows[switch].append(FlowCount(port, *ends, sport, qpn, packets, size))
    with _map(fabric, "ports") as cells:
        _, values = cells.items()
        cpus = cells.value_size // _PORT_COUNT.size
    sums = np.frombuffer(values, "<u8").reshape(-1, cpus, _PORT_COUNT.size // 8).sum(axis=1).tolist()
    for number, (switch, port) in names.items():
        *counts, missed = sums[number]
        misses[switch] += missed
        if counts[0]:
            ports[switch].append(PortCount(port, *counts))
    return {
        node.name: SwitchCounters(
            node.name,
            tuple(sorted(flows[node.name], key=lambda f: (f.port, *f.key))),
            tuple(sorted(ports[node.name], key=lambda p: p.port)),
            misses[node.name],
        )
        for node in fabric.nodes
        if node.role is Role.SWITCH and node.name in wanted
    }


def clear(fabric: Fabric) -> None:
    """Remove the rows of all flows to make room for the next run; port totals and misses stay.

    The caller holds the run lock, and no packet of a run is in flight. MachineError when the lab is not set up.
    """
    with _map(fabric, "flows") as cells:
        cells.drain()


def forget(fabric: Fabric, ports: Collection[int]) -> None:
    """Set the totals of ports to 0: their ids will be those of other ports."""
    with _map(fabric, "ports") as cells:
        for number in ports:
            cells.update(struct.pack("=I", number), bytes(cells.value_size))


def room(fabric: Fabric) -> int:
    """Capacity of the map of a running lab, in rows. MachineError when the lab is not set up."""
    with _map(fabric, "flows") as cells:
        return cells.max_entries()


def _map(fabric: Fabric, name: str) -> Map:
    pins = pin_dir(fabric.name, OWNER)
    if not (pins / name).exists():
        why, hint = "are missing, or another version of Heddle made them", "run ./inv down, then ./inv up"
        raise MachineError(Problem("bpf", f"the counters of {fabric.name}", why, hint))
    if name == "flows":
        return Map.pinned(pins / name, FLOW_KEY.size, _FLOW_COUNT.size)
    return Map.pinned(pins / name, 4, _PORT_COUNT.size, per_cpu=True)


Side = Literal["sent", "came"]
_OWNER: Final = "_verbs"  # the directory of the pins; not a valid node name
_ROW: Final = struct.Struct("=7Q2I")
_SIDES: Final[Mapping[Side, tuple[str, int]]] = {"came": ("ingress", 8), "sent": ("egress", 15)}  # hook, preference


@dataclass(frozen=True, slots=True)
class StackKey:
    """The fields by which packets are counted. sport: UDP source port. qpn: destination QP."""

    src: str
    dst: str
    sport: int
    qpn: int

    def packed(self) -> bytes:
        """As in the map."""
        return FLOW_KEY.pack(0, self.sport, self.qpn, as_ipv6(self.src), as_ipv6(self.dst))


@dataclass(frozen=True, slots=True)
class StackRow:
    """Packets of one flow at one NIC. bytes: of frames. ce: with the mark Congestion Experienced.

    ahead: packets after a gap in the sequence. behind: packets that were retransmitted. naks, rnr: answers that say so.
    """

    packets: int = 0
    bytes: int = 0
    ce: int = 0
    ahead: int = 0
    behind: int = 0
    naks: int = 0
    rnr: int = 0


def attach(lab: str, ports: Sequence[tuple[Path, str]], rows: int) -> None:
    """Load the programs and attach them to NICs, given as (namespace, port). rows: capacity of each map.

    MachineError when the kernel or tc refuses.
    """
    detach(lab, ports)
    pins = pin_dir(lab, _OWNER)
    pins.mkdir(parents=True)
    with loaded(resources.HERE.bpf_object("verbs"), {f"{side}_rows": max(64, rows) for side in _SIDES}) as made:
        for side in _SIDES:
            made.map(f"{side}_rows", FLOW_KEY.size, _ROW.size).pin(pins / f"{side}_rows")
            made.program(side).pin(pins / side)
    for netns, port in ports:
        lines = [
            f"filter add dev {port} {hook} pref {pref} handle 1 bpf direct-action object-pinned {pins / side}\n"
            for side, (hook, pref) in _SIDES.items()
        ]
        run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="".join(lines))


def attached(lab: str) -> bool:
    """Whether programs of this kind are pinned: during a run, or after one that was killed."""
    return pin_dir(lab, _OWNER).is_dir()


def detach(lab: str, ports: Sequence[tuple[Path, str]]) -> None:
    """Remove the programs from NICs, whichever are there, and then their pins."""
    if not attached(lab):
        return
    for netns, port in ports:
        lines = [f"filter del dev {port} {hook} pref {pref}\n" for hook, pref in _SIDES.values()]
        run(["nsenter", f"--net={netns}", "tc", "-force", "-batch", "-"], stdin="".join(lines), check=False)
    shutil.rmtree(pin_dir(lab, _OWNER), ignore_errors=True)


class StackCounts:
    """For each flow what left its source's NIC, and what arrived at its destination's: programs of one run count it.

    MachineError when they are not attached.
    """

    def __init__(self, lab: str) -> None:
        pins = pin_dir(lab, _OWNER)
        self._maps: dict[Side, Map] = {
            side: Map.pinned(pins / f"{side}_rows", FLOW_KEY.size, _ROW.size) for side in _SIDES
        }

    def expect(self, side: Side, key: StackKey, psn: int) -> None:
        """Make the row of a flow. psn: of its first packet."""
        self._maps[side].update(key.packed(), _ROW.pack(0, 0, 0, 0, 0, 0, 0, psn, 0))

    def row(self, side: Side, key: StackKey) -> StackRow:
        """What was counted; all 0 for a flow without a row."""
        value = self._maps[side].lookup(key.packed())
        return StackRow(*_ROW.unpack(value)[:7]) if value is not None else StackRow()

    def close(self) -> None:
        """Close the maps; the rows stay until `detach`."""
        for each in self._maps.values():
            each.close()
