"""The queues of a lab as memory: counters and policies of the programs `enqueue` and `dequeue`, mapped into memory.

In:  a Fabric and its Policies (classes.py); /sys/fs/bpf/heddle/LAB/_queues.
Out: LabQueues: numpy views of the shared maps, and methods that change policies under traffic. QueueState: copies of
     the maps at one moment (packets pass meanwhile, so numbers of one row may differ by a packet). Losses by port.
bpf/queue.h defines the layouts. A row is port id * 8 + class (classes.row); sizes in bytes of frames, times in
nanoseconds of CLOCK_MONOTONIC. Reading needs no system call. The module imports numpy: import it where it is used.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from heddle.base import resources
from heddle.base.ethernet import CLASSES, HEADER
from heddle.base.problems import MachineError, Problem
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Port
from heddle.kernel.grace import grace
from heddle.kernel.libbpf import Map, Program, loaded, run_on
from heddle.spec.impairments import COUNTED, PROGRAM_KINDS
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.classes import OWNER, ClassPolicy, Policies, far_ids, numbered_ports, port_ids, row

# Histogram of the times from crossing Xoff to the pause frame, in `spare` of the agent's rows (u32 each).
REACTION_BINS: Final = 10
REACTION_STEP_NS: Final = 62_500
Rows = npt.NDArray[Any]

CAUSES: Final = ("threshold", "headroom", "buffer", "watchdog", "down", "fault", "trim")  # of cells["drops"]
LOST: Final = "lost"  # the cause of gates["lost"]: packets that no program saw leave
KINDS: Final = {"unused": 0, "control": 1, "lossless": 2, "lossy": 3}
ACTIONS: Final = {"drop": 1, "forward": 2}  # of policies["action"] and, during a storm, agent["watchdog"]
LINK_HOST, LINK_DOWN, LINK_FAULT = 1, 2, 4  # queue.h
POLICY_ECN, POLICY_AT_DEQUEUE, POLICY_PFC, POLICY_RED, POLICY_LAST_HOP = 1, 2, 4, 8, 16
TRIM_DSCP, TRIM_QUEUE = 11, 17  # of policies["trim"]: the first bits of DSCP and class; the size is below
EVENTS_BYTES: Final = 1 << 20
_PROBABILITY: Final = 1 << 32
ALPHA: Final = 1 << 16


def _layout(words: str, **sized: str) -> np.dtype[Any]:
    """A dtype with fields of 8 bytes; `sized` gives other types for some of them."""
    return np.dtype([(word, sized.get(word, "<u8")) for word in words.split()])


CELL: Final = _layout(
    "depth high_water peak in_packets in_bytes out_packets out_bytes marks drops drop_bytes last_out_ns strays"
    " ce_in copies fault_bytes trims trim_sent trim_bytes",
    drops="(7,)<u8",
)
INGRESS: Final = _layout(
    "occupancy high_water peak xoffs headroom_high drops state pad since_ns drop_bytes lost lost_high spare",
    state="<u4", pad="<u4", spare="(5,)<u8",
)  # fmt: skip
GATE: Final = _layout("pfc_received since_ns last_ns lost")
AGENT: Final = _layout(
    "pfc_sent closed_since_ns until_ns paused_ns watchdog pad storms storm_since_ns"
    " reactions reaction_last_ns reaction_max_ns reaction_sum_ns spare",
    watchdog="<u4", pad="<u4", spare="(5,)<u8",
)  # fmt: skip
PULSE: Final = _layout("heartbeat_ns ending keeper_ns agent agent_start keeper keeper_start spare")
LINK: Final = _layout(
    "peer node local ports_of_node matrix_base flags rate",
    **dict.fromkeys(("peer", "node", "local", "ports_of_node", "matrix_base", "flags"), "<u4"),
)
_CHANCES: Final = (*(kind.key for kind in PROGRAM_KINDS), "line")
FAULT: Final = np.dtype(
    [*((word, "<u4") for word in _CHANCES), *((word, "<u8") for word in COUNTED), ("port", "<u4"), ("spare", "<u4")],
    align=True,
)
NODE: Final = _layout("shared_used headroom_used used high_water peak headroom_high drops spare")
POLICY: Final = _layout(
    "kind flags kmin kmax pmax xoff xon headroom reserve alpha shared buffer detect_ns restore_ns"
    " quanta action priority fallback frame trim",
    **dict.fromkeys(("kind", "flags", "quanta", "action", "priority", "fallback", "frame", "trim"), "<u4"),
)
CUT: Final = _layout(
    "tunnel ipv6 stub vni remote sent sent_bytes received received_bytes",
    **dict.fromkeys(("tunnel", "ipv6", "stub", "vni"), "<u4"), remote="(4,)<u4",
)  # fmt: skip
WORD: Final = np.dtype("<u8")  # the kernel rounds values of an array up to 8 bytes
ACTIVE: Final = np.dtype("<u4")
DSCP: Final = np.dtype([("of_dscp", "(64,)u1"), ("control", "u1"), ("pad", "(7,)u1"), ("whole", "<u8")])
LAYOUTS: Final[Mapping[str, np.dtype[Any]]] = {
    "cells": CELL, "ingress": INGRESS, "gates": GATE, "agent": AGENT, "pulse": PULSE, "links": LINK, "switches": NODE,
    "faults": FAULT, "cuts": CUT, "arrivals": WORD,
    "transit": WORD, "policies": POLICY, "active": ACTIVE, "dscp": DSCP,
}  # fmt: skip
PROGRAMS: Final = ("enqueue", "dequeue", "back", "credit", "settle", "cut_out", "cut_in", "cut_beat")


class LabQueues:
    """The maps of one lab, open and mapped. Views are writable; queue.h documents which process may write which."""

    def __init__(self, fabric: Fabric, maps: Mapping[str, Map], programs: Mapping[str, Program], stack: ExitStack):
        self.fabric = fabric
        self.ids, self.far_ids = port_ids(fabric), far_ids(fabric)  # (node, port) -> port id
        self._stack = stack
        self._programs = programs
        self.ring = maps["events"]  # only one process at a time may read it
        self._seen: Rows | None = None  # at the last reconcile()
        self._views = {
            name: np.frombuffer(maps[name].memory(), layout, maps[name].max_entries())
            for name, layout in LAYOUTS.items()
        }
        self.cells: Rows = self._views["cells"]
        self.ingress: Rows = self._views["ingress"]
        self.gates: Rows = self._views["gates"]
        self.agent: Rows = self._views["agent"]
        self.pulse: Rows = self._views["pulse"]  # one row
        self.links: Rows = self._views["links"]
        self.switches: Rows = self._views["switches"]  # by MapRows.index
        self.transit: Rows = self._views["transit"]
        self.faults: Rows = self._views["faults"]  # by port id
        self.cuts: Rows = self._views["cuts"]  # the same, and of far_ids; rows of links whose ends are on two kernels
        self.arrivals: Rows = self._views["arrivals"]  # by VNI: the port id
        self.rules: Rows = self._views["policies"]  # row * 2 + half; see policies() and set_policies()

    @classmethod
    def create(cls, fabric: Fabric, policies: Policies, pins: Path, priorities: Sequence[int] | None = None) -> Self:
        """Load the programs for a lab, with all its maps, and pin both in `pins`, an existing directory.

        priorities: skb->priority of each class, by which the port's qdisc finds its queue; by default HTB's 1:10 for
        class 0 to 1:80 for class 7. The caller closes the result; the pins stay.
        """
        with loaded(resources.HERE.bpf_object("queue"), _sizes(fabric)) as made:
            maps = {name: made.map(name, 4, layout.itemsize) for name, layout in LAYOUTS.items()}
            maps["events"] = made.map("events", 0, 0)
            for name, each in maps.items():
                each.pin(pins / name)
            for name in PROGRAMS:
                made.program(name).pin(pins / name)
        found = cls.at(fabric, pins)
        found._fill(policies, priorities or [htb_priority(number) for number in range(CLASSES)])
        return found

    @classmethod
    def pinned(cls, fabric: Fabric) -> Self:
        """Open the queues of a running lab. The caller closes the result. MachineError when the lab has none."""
        pins = pin_dir(fabric.name, OWNER)
        if not (pins / "cells").exists():
            why, hint = (
                "have no queues of this version of Heddle",
                "run ./inv down, then ./inv up",
            )
            raise MachineError(Problem("bpf", f"the ports of {fabric.name}", why, hint))
        return cls.at(fabric, pins)

    @classmethod
    def at(cls, fabric: Fabric, pins: Path) -> Self:
        """Open the maps and programs that are pinned in a directory."""
        with ExitStack() as stack:
            maps = {
                name: stack.enter_context(Map.pinned(pins / name, 4, layout.itemsize))
                for name, layout in LAYOUTS.items()
            }
            maps["events"] = stack.enter_context(Map.pinned(pins / "events", 0, 0))
            programs = {name: stack.enter_context(Program.pinned(pins / name)) for name in PROGRAMS}
            found = cls(fabric, maps, programs, ExitStack())
            found._stack = stack.pop_all()
            return found

    def close(self) -> None:
        """Close descriptors. Views that the caller still holds stay readable."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def program(self, name: str) -> Program:
        """One of PROGRAMS."""
        return self._programs[name]

    @property
    def half(self) -> int:
        """The active half of the policies: 0 or 1."""
        return self.changes & 1

    @property
    def changes(self) -> int:
        """How many times the policies were changed since the lab came up (modulo 2^32)."""
        return int(self._views["active"][0])

    def policies(self) -> Rows:
        """A copy of the active policies, by row, in the units of the maps (pmax of 2^32, alpha of 2^16)."""
        rows: Rows = self.rules[self.half :: 2].copy()
        return rows

    def expected(self, policies: Policies) -> Rows:
        """The value that `policies()` returns once these policies are active."""
        rows = self.policies()
        self._write(rows, policies)
        return rows

    def classes(self) -> Rows:
        """A copy of the row of DSCP: the class of each of the 64 DSCPs, and which ones are never trimmed."""
        found: Rows = self._views["dscp"][0].copy()
        return found

    def set_classes(self, queues: QueuePolicy) -> None:
        """Set the class of each DSCP, and that of packets other than IP."""
        self._views["dscp"][0] = class_row(queues)

    def set_policies(self, policies: Policies) -> None:
        """Replace the active policies between two packets: no packet sees a mixture, and none is lost.

        The caller prevents concurrent calls (state.lock). MachineError when the kernel cannot report when the last
        packet has stopped using the old policies.
        """
        half = 1 - self.half
        grace()  # the half to be written may have been active until a moment ago
        target = self.rules[half::2]
        target[:] = self.rules[1 - half :: 2]
        self._write(target, policies)
        self._views["active"][0] = np.uint32(self.changes + 1 & 0xFFFFFFFF)
        grace()
        self.settle()

    def settle(self) -> None:
        """Recompute the used bytes of shared buffers after a change of thresholds: each is a sum over queues.

        Packets that pass meanwhile may leave a small error; a switch resets it when it is next empty.
        """
        shared, headroom = self.charged()
        # Both may be below 0 for a moment; the programs treat that as 0.
        deltas = (shared - self.switches["shared_used"].astype(np.int64),
                  headroom - self.switches["headroom_used"].astype(np.int64))  # fmt: skip
        for node in np.flatnonzero(deltas[0] | deltas[1]):
            words = [word for each in deltas for word in struct.unpack("=2I", struct.pack("=q", int(each[node])))]
            run_on(self._programs["settle"], bytes(14), cb=(int(node), *words))

    def charged(self) -> tuple[Rows, Rows]:
        """Per node, the sums over its queues now: bytes beyond the reserves in the shared buffer, and in headroom."""
        rules, nodes = self.policies(), len(self.switches)
        links = np.repeat(self.links[: len(rules) // CLASSES], CLASSES)
        pauses = rules["flags"] & POLICY_PFC != 0
        depth, held = (view.astype(np.int64) for view in (self.cells["depth"], self.ingress["occupancy"]))
        xoff, reserve = rules["xoff"].astype(np.int64), rules["reserve"].astype(np.int64)
        shared = np.where(pauses, np.minimum(held, xoff), depth) - reserve
        switched = (links["peer"] > 0) & (links["flags"] & LINK_HOST == 0)
        sums = [
            np.bincount(links["node"], np.where(switched, np.maximum(0, each), 0), nodes)
            for each in (shared, np.where(pauses, held - xoff, 0))
        ]
        return sums[0].astype(np.int64), sums[1].astype(np.int64)

    def forget(self) -> None:
        """Reset the fields that are only reported: high waters, marks, drops, pauses. Depths depend on the others."""
        reported: Mapping[str, Sequence[str]] = {
            "cells": ("high_water", "peak", "marks", "ce_in", "drops", "drop_bytes", "strays", "copies",
                      "fault_bytes", "trims", "trim_sent", "trim_bytes"),
            "ingress": ("high_water", "peak", "xoffs", "headroom_high", "drops", "drop_bytes", "lost_high"),
            "gates": ("pfc_received", "lost"),
            "agent": ("pfc_sent", "paused_ns", "storms", "reactions", "reaction_last_ns", "reaction_max_ns",
                      "reaction_sum_ns", "spare"),
            "switches": ("high_water", "peak", "headroom_high", "drops"),
        }  # fmt: skip
        for name, fields in reported.items():
            for field in fields:
                self._views[name][field] = 0

    def reset_port(self, port_id: int) -> None:
        """Remove all packets that waited at a port from the counters, by ingress port and class: the link lost them.

        The port must be set down, and its qdisc empty or removed. The pauses that it has requested are reset, too.
        """
        for number in range(CLASSES):
            self._credit(port_id, number)
        own = slice(row(port_id, 0), row(port_id + 1, 0))
        self.ingress["state"][own] = 0
        self.ingress["since_ns"][own] = 0

    def reconcile(self, waits: Callable[[int, int], bool]) -> list[tuple[int, int, int]]:
        """Remove packets from the counters that were lost behind their queue: a CPU's backlog was full, or a qdisc was
        removed. Call it about once a second. Returns (port id, class, bytes) of each loss.

        waits: whether the qdisc of a (port id, class) has packets, read from the kernel: other classes may delay them
        for long. Packets are lost if their class has not changed since the last call, and its qdisc is empty.
        """
        before, self._seen = self._seen, self._moved()
        if before is None:
            return []
        closed = (self.agent["until_ns"] != 0) | (self.agent["closed_since_ns"] != 0)
        still = (self._seen == before).all(axis=0) & (self._seen[0] != 0) & ~closed
        lost: list[tuple[int, int, int]] = []
        for each in np.flatnonzero(still).tolist():
            port_id, number = divmod(each, CLASSES)
            if not waits(port_id, number) and (self._moved()[:, each] == before[:, each]).all():
                lost.append((port_id, number, int(before[0][each])))
                self.gates["lost"][each] += before[1][each] - before[2][each]
                self._credit(port_id, number)
        return lost

    def _moved(self) -> Rows:
        """The fields that change with every packet that enters or leaves a queue, by row."""
        return np.stack([self.cells[name] for name in ("depth", "in_packets", "out_packets")])

    def _credit(self, port_id: int, number: int) -> None:
        """Count all bytes of a class that wait at a port as having left, by their ingress ports."""
        link = self.links[port_id]
        for local in range(1 if link["flags"] & LINK_HOST else int(link["ports_of_node"]) + 1):
            if held := self._held(port_id, number, local):
                words = (port_id, number | local << 8, *struct.unpack("=2I", struct.pack("=Q", held)), 0)
                run_on(self._programs["credit"], bytes(14), cb=words)

    def _held(self, port_id: int, number: int, local: int) -> int:
        """Bytes of a class that wait at a port. local: their ingress port in the node, from 1; 0: sent by the node."""
        link = self.links[port_id]
        if link["flags"] & LINK_HOST:
            return int(self.cells["depth"][row(port_id, number)])
        at = int(link["matrix_base"]) + (local * int(link["ports_of_node"]) + int(link["local"])) * CLASSES + number
        return int(self.transit[at])

    def _fill(self, policies: Policies, priorities: Sequence[int]) -> None:
        queues = self.fabric.policy.queues
        for number, port in numbered_ports(self.fabric):
            self.wire(number, port)
        self.set_classes(queues)
        half = self.rules[self.half :: 2]
        half["priority"] = np.tile(np.array(priorities, np.uint32), len(half) // CLASSES)
        half["fallback"] = priorities[queues.best_effort]
        for number, port in numbered_ports(self.fabric):
            half["frame"][row(number, 0) : row(number + 1, 0)] = port.mtu + HEADER
        self._write(half, policies)

    def wire(self, number: int, port: Port) -> None:
        """Write a port's place, peer and rate."""
        place = self.fabric.places[port.node]
        flags = LINK_HOST if self.fabric.by_name[port.node].role is Role.HOST else 0
        end, base = (port.peer_node, port.peer_port), place.cross * CLASSES
        if (far := self.far_ids.get(end)) is not None:
            self.links["peer"][far] = number
        peer = far or self.ids[end]
        self.links[number] = (peer, place.index, number - place.first, place.width, base, flags, port.rate_bps)

    def vacate(self, number: int) -> None:
        """Clear everything that is kept of a port, which is gone: no packet of it may be left in its node."""
        link, own = self.links[number], slice(row(number, 0), row(number + 1, 0))
        if not link["flags"] & LINK_HOST and (width := int(link["ports_of_node"])):
            first = int(link["matrix_base"])
            pairs = self.transit[first : first + (width + 1) * width * CLASSES].reshape(width + 1, width, CLASSES)
            pairs[int(link["local"]) + 1] = pairs[:, int(link["local"])] = 0
        for name in ("cells", "ingress", "gates", "agent"):
            self._views[name][own] = 0
        self.faults[number] = self.cuts[number] = self.links[number] = 0

    def add(self, ports: Iterable[Port]) -> None:
        """Write the rows of ports that are new. Their classes come with the next `set_policies`."""
        for port in ports:
            number = self.ids[port.node, port.name]
            self.wire(number, port)
            self.rules[self.half :: 2]["frame"][row(number, 0) : row(number + 1, 0)] = port.mtu + HEADER

    def _write(self, rows: Rows, policies: Policies) -> None:
        same: dict[int, list[int]] = {}  # many ports share one tuple
        for ref, each in policies.items():
            same.setdefault(id(each), []).append(row(self.ids[ref], 0))
        tuples = {id(each): each for each in policies.values()}
        for key, starts in same.items():
            classes, where = packed(tuples[key]), np.add.outer(starts, np.arange(CLASSES)).ravel()
            for name in classes.dtype.names or ():
                rows[name][where] = np.tile(classes[name], len(starts))


def htb_priority(number: int) -> int:
    """The HTB class of a traffic class, in the form of skb->priority: 1:10 to 1:80."""
    return 1 << 16 | number + 1 << 4


def packed(policies: Sequence[ClassPolicy]) -> Rows:
    """The policies of a port's eight classes, in the layout of the map, without the fields that depend on the port."""
    names = [name for name in POLICY.names or () if name not in ("priority", "fallback", "frame")]
    rows = np.zeros(CLASSES, np.dtype([(name, POLICY[name]) for name in names]))
    for index, p in enumerate(policies):
        flags = POLICY_ECN * p.ecn | POLICY_AT_DEQUEUE * p.at_dequeue | POLICY_PFC * p.pfc | POLICY_RED * p.red
        flags |= POLICY_LAST_HOP * p.last_hop
        rows[index] = (
            KINDS[p.kind], flags, p.kmin, p.kmax, round(p.pmax * _PROBABILITY), p.xoff, p.xon, p.headroom, p.reserve,
            round(p.alpha * ALPHA), p.shared, p.buffer, p.detect_ns, p.restore_ns, p.quanta, ACTIONS[p.action],
            p.trim_size | p.trim_dscp << TRIM_DSCP | p.trim_queue << TRIM_QUEUE,
        )  # fmt: skip
    return rows


def _sizes(fabric: Fabric) -> dict[str, int]:
    """Number of entries of each map; port ids start at 1, so row 0 is unused."""
    nodes, ports, pairs = fabric.space
    rows = dict.fromkeys(("cells", "ingress", "gates", "agent"), ports * CLASSES)
    far = len(far_ids(fabric))
    vnis = replace(fabric, shard=None).space[1] if far else 1
    return {
        **rows, "policies": 2 * ports * CLASSES, "links": ports + far, "faults": ports, "cuts": ports + far,
        "arrivals": vnis, "switches": nodes, "transit": max(1, pairs * CLASSES),
        "active": 1, "dscp": 1, "pulse": 1, "events": EVENTS_BYTES,
    }  # fmt: skip


# Moments on CLOCK_MONOTONIC; 0 is none. The other columns in ns are lengths.
_TIMES: Final = frozenset({"last_out_ns", "since_ns", "last_ns", "closed_since_ns", "until_ns", "storm_since_ns"})


@dataclass(frozen=True, eq=False)
class ShardRows:
    """Where the rows of a shard's maps are among those of the whole lab: its rows by class of port, and of nodes.

    size: of the whole lab, rows and nodes.
    """

    ports: npt.NDArray[Any]
    nodes: npt.NDArray[Any]
    size: tuple[int, int]

    @classmethod
    def of(cls, fabric: Fabric) -> Self | None:
        """None where one kernel has all nodes."""
        if fabric.shard is None:
            return None
        whole = replace(fabric, shard=None)
        ids, size = port_ids(whole), whole.space
        ports = np.array([0, *(ids[ref] for ref in port_ids(fabric))])
        nodes = np.array([whole.places[node.name].index for node in fabric.nodes_here], np.int64)
        return cls(np.add.outer(ports * CLASSES, np.arange(CLASSES)).ravel(), nodes, (size[1] * CLASSES, size[0]))

    def whole(self, part: Rows, found: Rows | None = None, *, nodes: bool = False) -> Rows:
        """Rows of the whole lab with those of the shard, the others 0 or as in `found`, which is changed."""
        if found is None:
            found = np.zeros((self.size[nodes], *part.shape[1:]), part.dtype)
        found[self.nodes if nodes else self.ports] = part
        return found


@dataclass(frozen=True, eq=False)
class QueueState:
    """Copies of the maps, read-only; see LabQueues. taken_ns: CLOCK_MONOTONIC, the clock of all times in them."""

    taken_ns: int
    cells: npt.NDArray[Any]
    ingress: npt.NDArray[Any]
    gates: npt.NDArray[Any]
    agent: npt.NDArray[Any]
    switches: npt.NDArray[Any]
    shard: ShardRows | None = None

    @classmethod
    def of(cls, live: LabQueues) -> Self:
        """Copy the maps now."""
        maps = (live.cells, live.ingress, live.gates, live.agent, live.switches)
        cells, ingress, gates, agent, switches = (each.copy() for each in maps)
        for each in (cells, ingress, gates, agent, switches):
            each.flags.writeable = False
        return cls(time.monotonic_ns(), cells, ingress, gates, agent, switches, ShardRows.of(live.fabric))

    def of_ports(self, ids: Rows) -> Self:
        """The same with the rows of these ports only, in this order."""
        rows = (ids[:, None] * CLASSES + np.arange(CLASSES)).ravel()
        found = {name: getattr(self, name)[rows] for name in ("cells", "ingress", "gates", "agent")}
        return replace(self, **found)

    def joined(self, others: Sequence[Self]) -> Self:
        """One state of those of all shards.

        All shards were read at the same moment, so times are translated to the clock of the first by taken_ns; they are
        as exact as that moment is the same, which is some milliseconds.
        """
        found: dict[str, Any] = {"shard": None}
        for name in ("cells", "ingress", "gates", "agent", "switches"):
            for each in (self, *others):
                part = getattr(each, name).copy()
                for column in _TIMES.intersection(part.dtype.names):
                    times = part[column]
                    part[column] = np.where(times > 0, times.astype(np.int64) + self.taken_ns - each.taken_ns, 0)
                if each.shard is not None:
                    part = each.shard.whole(part, found.get(name), nodes=name == "switches")
                found[name] = part
            found[name].flags.writeable = False
        return replace(self, **found)


def class_row(queues: QueuePolicy) -> Rows:
    """The row of DSCP for a fabric file's queues."""
    row = np.zeros(1, DSCP)
    row["of_dscp"], row["control"] = queues.class_of_dscp, queues.control
    row["whole"] = sum(1 << dscp for dscp in queues.trimming.whole)
    found: Rows = row[0]
    return found


def missed(live: LabQueues, ports: Iterable[Port]) -> dict[str, dict[int, int]]:
    """`rtsw1:eth2` -> class -> packets that the programs dropped there, of any cause, or that were lost behind it.

    Counts for these ports since the lab came up; only classes that lost packets. Drops by a qdisc itself are not
    included (portqueues.refused_by_qdiscs).
    """
    found: dict[str, dict[int, int]] = {}
    for port in ports:
        first = live.ids[port.node, port.name]
        rows = slice(row(first, 0), row(first + 1, 0))
        counts = live.cells["drops"][rows].sum(axis=1) + live.gates["lost"][rows]
        found[port.ref] = {number: int(count) for number, count in enumerate(counts) if count}
    return found


@dataclass(frozen=True, slots=True)
class Tally:
    """One class of a port: packets, since the lab came up or over a run.

    offered: that came to its queue. lost: dropped there, for any cause, or on the link. copies: that the link delivered
    twice, for a fault. refused, refused_bytes: of `lost`, what never reached the link. trimmed, trimmed_bytes: packets
    of this class that went on in the trim queue, and the bytes that they lost. That queue's own row has what becomes of
    them; `offered` is by the class in which a packet came to the port.
    """

    offered: int = 0
    lost: int = 0
    copies: int = 0
    refused: int = 0
    refused_bytes: int = 0
    trimmed: int = 0
    trimmed_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def mixed(self) -> bool:
        """Whether packets were lost and others copied."""
        return self.lost > 0 and self.copies > 0

    def since(self, before: Tally) -> Tally:
        """The difference of two readings."""
        return Tally(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


Tallies = Mapping[str, Mapping[int, Tally]]  # `rtsw1:eth2` -> class; only classes that had packets


def tallies(live: LabQueues) -> Tallies:
    """The tallies of all ports of switches and hosts."""
    cells, ports = live.cells, dict(numbered_ports(live.fabric))
    lost, faults = cells["drops"].sum(axis=1), cells["drops"][:, CAUSES.index("fault")]
    refused, trimmed = lost - faults, cells["trim_sent"]
    offered = cells["in_packets"] + refused + trimmed
    for number in live.fabric.policy.queues.trim_queue:
        offered[number::CLASSES] -= trimmed.reshape(-1, CLASSES).sum(axis=1)
    columns = (
        offered, lost + live.gates["lost"], cells["copies"], refused,
        cells["drop_bytes"] - cells["fault_bytes"], trimmed, cells["trim_bytes"],
    )  # fmt: skip
    found: dict[str, dict[int, Tally]] = {}
    for at in np.flatnonzero(columns[0] | columns[1]).tolist():
        number, traffic_class = divmod(at, CLASSES)
        if number in ports:
            found.setdefault(ports[number].ref, {})[traffic_class] = Tally(*(int(each[at]) for each in columns))
    return found


def tallies_since(now: Tallies, before: Tallies) -> Tallies:
    """The difference of two readings, without classes that had no packet."""
    found = {
        port: {number: each.since(before.get(port, {}).get(number, Tally())) for number, each in classes.items()}
        for port, classes in now.items()
    }
    return {
        port: moved
        for port, classes in found.items()
        if (moved := {number: each for number, each in classes.items() if each != Tally()})
    }
