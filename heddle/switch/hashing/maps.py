"""The maps of one switch's program `hash`, and what is in them: the rule, and the tables by which it steers.

In:  a directory of pins, or an object that was just loaded; a SwitchHashing, and the indexes of the switch's ports.
Out: the contents of the maps, as the same types. bpf/rules.h and bpf/flowlet.h define the layouts.
Rule and tables (groups of ports, prefixes, exact entries) are there in two halves, one of which is active.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from ipaddress import IPv6Address, ip_network
from pathlib import Path
from typing import Any, Final, Literal

from heddle.base.families import Network, network
from heddle.base.problems import MachineError, Problem
from heddle.fabric.hashmodes import MODES, POLICIES
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node
from heddle.kernel.libbpf import Map, Object
from heddle.spec.routingpolicy import DEFAULT_UDF, HashOptions, Udf

Exact = Mapping[tuple[int, Network], tuple[str, ...]]  # (UDP source port, prefix) -> port, or port and backup
MAX_MEMBERS: Final = 128  # steer.h: the limit of FRR's multipath and of a fabric file's uplinks


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """How a prefix is steered. The slice of an address is slice + ((address - network address) >> shift).

    group: index in Steering.groups. shift: address bits of one NIC; 128: the whole prefix is one slice.
    """

    group: int
    slice: int = 0
    shift: int = 128


@dataclass(frozen=True)
class Steering:
    """The steering tables of one switch, with its port names."""

    groups: tuple[tuple[str, ...], ...] = ()  # members, in the switch's port order, which is the kernel's
    slots: tuple[tuple[str, ...], ...] = ()  # per group: the table that round-robin and resilient buckets index
    prefixes: Mapping[Network, PrefixRule] = field(default_factory=dict)
    exact: Exact = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [list(group) for group in self.groups],
            "slots": [list(slots) for slots in self.slots],
            "prefixes": {str(prefix): [rule.group, rule.slice, rule.shift] for prefix, rule in self.prefixes.items()},
            "exact": exact_to_json(self.exact),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Steering:
        return cls(
            tuple(tuple(map(str, group)) for group in data["groups"]),
            tuple(tuple(map(str, slots)) for slots in data["slots"]),
            {ip_network(prefix): PrefixRule(*map(int, rule)) for prefix, rule in data["prefixes"].items()},
            exact_from_json(data["exact"]),
        )


NO_STEERING: Final = Steering()


def exact_to_json(exact: Exact) -> list[list[Any]]:
    """A row for each entry: source port, prefix, port, and the backup if there is one."""
    return [[sport, str(prefix), *ports] for (sport, prefix), ports in exact.items()]


def exact_from_json(rows: Iterable[Sequence[Any]]) -> Exact:
    """From the rows of `exact_to_json`. ValueError or TypeError for others."""
    parsed = cache(ip_network)  # many rows have one prefix, and parsing one is most of the work
    return {(int(sport), parsed(prefix)): tuple(map(str, ports)) for sport, prefix, *ports in rows}


def steering_of(fabric: Fabric, node: Node, options: HashOptions) -> Steering:
    """The steering tables of a switch: a group for each distinct set of two or more next hops, no exact entries.

    A prefix needs one rule if the networks of its hosts' links fill it from the start, one after the other. Otherwise
    each link has a rule. In both cases a slice is the index of the downlink, and directly above the edge that plus the
    number of the edge switch, from 0: a switch there receives from below only the slices that are pinned to it, and by
    the slice alone it would never use some of its next hops. The next level receives packets sorted by that sum, so
    there the slice is enough again.
    """
    order = {port.name: index for index, port in enumerate(node.ports)}
    groups: dict[tuple[str, ...], int] = {}
    prefixes: dict[Network, PrefixRule] = {}
    known: dict[frozenset[str], int] = {}
    above, edges = fabric.level_of(node).above_edge, fabric.edge_prefixes
    for prefix, ports in fabric.expected_next_hops[node.name].items():
        if len(ports) < 2:
            continue
        if (group := known.get(ports)) is None:
            group = groups.setdefault(tuple(sorted(ports, key=order.__getitem__)), len(groups))
            known[ports] = group
        owner = edges.get(prefix)
        turn = fabric.edge_of[owner] - 1 if owner is not None and above else 0
        shift, links = fabric.slices[owner] if owner is not None else (128, ())
        prefixes[prefix] = _prefix_rule(group, turn, shift)
        for index, link in enumerate(links):
            prefixes[link] = _prefix_rule(group, turn + index, 128)
    slots = tuple(slots_of(members, options) for members in groups)
    return Steering(tuple(groups), slots, prefixes)


def slots_of(members: tuple[str, ...], options: HashOptions) -> tuple[str, ...]:
    """The table that round-robin and buckets index: the members, or if resilient, one member in turn per bucket."""
    return tuple(members[i % len(members)] for i in range(options.buckets)) if options.resilient else members


_BASES: Final = ("l3", "l4", "bth")
RULE_CLEAR, RULE_RESILIENT, RULE_LOAD, RULE_ROUND_ROBIN, RULE_UDF = 1, 2, 4, 8, 16  # in rules.h
_SHARED: Final = 8192
_CELL: Final = struct.Struct("=I")
_RULE: Final = struct.Struct("=4IQ9Ixxxx")
_GROUP: Final = struct.Struct("=4I")
_PREFIX_KEY: Final = struct.Struct("=2I16s")
_PREFIX_RULE: Final = struct.Struct("=4IQ")
_EXACT_KEY: Final = struct.Struct("=3I")
_EXACT_PORTS: Final = struct.Struct("=2I")
STATS: Final = ("steered", "fell_back", "repicks", "misses", "backups")  # STAT_* in rules.h
_FLOWLET_BYTES: Final = 128  # kernel memory of one entry of the LRU hash
_FLOWLET_BUDGET: Final = 16 << 20  # bytes for all switches of a lab together
_MOST_FLOWLETS: Final = 8192  # queue pairs that a switch remembers; the least recently used are evicted
_LEAST_GROUPS, _LEAST_PORTS = 64, 2048  # per half; the needs of an imported topology are not known at load time
MOST_BUCKETS: Final = 1024
SIZES: Final[Mapping[str, tuple[int, int]]] = {  # map -> bytes of a key and a value
    "active": (4, 4), "rules": (4, _RULE.size), "groups": (4, _GROUP.size), "hops": (4, 4),
    "prefixes": (_PREFIX_KEY.size, _PREFIX_RULE.size), "exact": (_EXACT_KEY.size, _EXACT_PORTS.size), "stats": (4, 8),
    "ids": (4, 4),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProgramRule:
    """One half of the maps: the rule for every packet. version: of IP, 4 or 6; selects the sysctls."""

    mode: str
    seed: int
    options: HashOptions
    steering: Steering
    version: Literal[4, 6] = 4
    clears: bool = False  # mode flow under policy 1: discard the hash that a packet arrives with


def sizes(steering: Steering, switches: int) -> dict[str, int]:
    """Number of entries of the maps that are sized when they are created. switches: number of switches of the lab."""
    groups = 2 * max(_LEAST_GROUPS, len(steering.groups))
    ports = 2 * max(_LEAST_PORTS, sum(len(group) + MOST_BUCKETS for group in steering.groups))
    flowlets = max(1024, min(_MOST_FLOWLETS, _FLOWLET_BUDGET // _FLOWLET_BYTES // max(1, switches)))
    return {"groups": groups, "turns": groups, "hops": ports, "flowlets": flowlets}


class Tables:
    """The open maps of one switch."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._maps = maps

    @classmethod
    @contextmanager
    def pinned(cls, pins: Path) -> Iterator[Tables]:
        """Open the maps of a running switch for a with block; MachineError when the switch was not set up."""
        if pins.is_dir() and not (pins / "active").exists():
            why = "were made by another version of Heddle, or removed"
            hint = "run ./inv down, then ./inv up"
            raise MachineError(Problem("bpf", f"the hashing maps in {pins}", why, hint))
        with ExitStack() as stack:
            yield cls(
                {
                    name: stack.enter_context(Map.pinned(pins / name, key, value, per_cpu=name == "stats"))
                    for name, (key, value) in SIZES.items()
                }
            )

    @classmethod
    def of_object(cls, made: Object) -> Tables:
        """The maps of a loaded object; valid until it is closed."""
        return cls({name: made.map(name, *size, per_cpu=name == "stats") for name, size in SIZES.items()})

    def pin(self, pins: Path) -> None:
        """Pin every map below /sys/fs/bpf."""
        for name, each in self._maps.items():
            each.pin(pins / name)

    def number(self, ids: Mapping[int, int]) -> None:
        """Write the port id (classes.py) of each interface, which finds its queues. ids: interface index -> port id."""
        known = {_CELL.pack(index) for index in ids}
        for key in [key for key in self._maps["ids"].all_keys() if key not in known]:  # a port that is gone
            self._maps["ids"].delete(key)
        for index, port_id in ids.items():
            self._maps["ids"].update(_CELL.pack(index), _CELL.pack(port_id))

    @property
    def active(self) -> int:
        """The active half: 0 or 1."""
        (half,) = _CELL.unpack(self._maps["active"].lookup(bytes(4)) or bytes(4))
        return int(half)

    @property
    def epoch(self) -> int:
        """A number that changes with each flip: two equal readings mean that no flip happened in between."""
        rule = self._maps["rules"].lookup(_CELL.pack(self.active)) or bytes(_RULE.size)
        return int(_RULE.unpack(rule)[3])

    def flip(self) -> None:
        """Make the other half active, from the next packet on."""
        self._maps["active"].update(bytes(4), _CELL.pack(1 - self.active))

    def statistics(self) -> dict[str, int]:
        """Packets since the lab came up.

        steered: sent to a port. fell_back: left to ECMP. misses: without a row in the exact-match table.
        repicks: flowlets that began after a gap. backups: those of steered that went to the backup of their row.
        """
        found = {}
        for index, name in enumerate(STATS):
            cells = self._maps["stats"].lookup(_CELL.pack(index)) or b""
            found[name] = sum(value for (value,) in struct.iter_unpack("=Q", cells))
        return found

    def read(self, names: Mapping[int, str] | None) -> ProgramRule:
        """The active rule. names: interface index -> port; None: without its steering tables."""
        half = self.active
        (mode, seed, flags, _, gap, buckets, policy, fields, base, offset, size, version, first, count) = _RULE.unpack(
            self._maps["rules"].lookup(_CELL.pack(half)) or bytes(_RULE.size)
        )
        options = HashOptions(
            policy=_word(POLICIES, policy), fields=fields, udf=Udf(_base(base), offset, size), gap_ns=gap,
            first="load" if flags & RULE_LOAD else "hash",
            choice="round-robin" if flags & RULE_ROUND_ROBIN else "random",
            resilient=bool(flags & RULE_RESILIENT), buckets=buckets,
        )  # fmt: skip
        return ProgramRule(
            _word(MODES, mode), seed, options,
            NO_STEERING if names is None else self._steering(half, first, count, names),
            6 if version == 6 else 4, bool(flags & RULE_CLEAR),
        )  # fmt: skip

    def fill(self, rule: ProgramRule, indexes: Mapping[str, int]) -> None:
        """Write a rule to the inactive half. indexes: port -> interface index.

        The caller makes sure that no packet still reads that half (kernel.grace). MachineError when a port is gone, or
        a table is full; the active half is unchanged then.
        """
        half = 1 - self.active
        first_group, first_port = (half * self._maps[name].max_entries() // 2 for name in ("groups", "hops"))
        ports: list[str] = []
        for index, (members, slots) in enumerate(zip(rule.steering.groups, rule.steering.slots, strict=True)):
            start = first_port + len(ports)
            cells = (start, len(members), start + len(members), len(slots))
            self._write("groups", _CELL.pack(first_group + index), _GROUP.pack(*cells), first_group)
            ports += [*members, *slots]
        for index, port in enumerate(ports):
            self._write("hops", _CELL.pack(first_port + index), _CELL.pack(_index(port, indexes)), first_port)
        ids = {prefix: index for index, prefix in enumerate(rule.steering.prefixes)}
        prefixes = dict(
            _prefix_row(half, prefix, each, first_group, ids[prefix]) for prefix, each in rule.steering.prefixes.items()
        )
        exact = {
            _EXACT_KEY.pack(half, ids[prefix], sport): _EXACT_PORTS.pack(
                *[*(_index(port, indexes) for port in ports), 0][:2]
            )
            for (sport, prefix), ports in rule.steering.exact.items()
        }
        if len(exact) > (room := self._maps["exact"].max_entries() // 2):
            why = f"has room for {room} rows of a switch; requested: {len(exact)}"
            raise MachineError(Problem("bpf", "the exact-match table", why, "use fewer source ports or prefixes"))
        self._replace("prefixes", half, 4, prefixes)
        self._replace("exact", half, 0, exact)
        self._maps["rules"].update(_CELL.pack(half), self._packed(rule, first_group))

    def _packed(self, rule: ProgramRule, first_group: int) -> bytes:
        o = rule.options
        epoch = (self.epoch + 1) & 0xFFFFFFFF
        flags = (
            RULE_CLEAR * rule.clears
            | RULE_RESILIENT * o.resilient
            | RULE_LOAD * (o.first == "load")
            | RULE_ROUND_ROBIN * (o.choice == "round-robin")
            | RULE_UDF * (o.udf != DEFAULT_UDF)
        )
        udf = (_BASES.index(o.udf.base), o.udf.offset, o.udf.bytes)
        return _RULE.pack(
            MODES[rule.mode], rule.seed, flags, epoch, o.gap_ns, o.buckets, POLICIES[o.policy], o.fields, *udf,
            rule.version, first_group, len(rule.steering.groups),
        )  # fmt: skip

    def _write(self, name: str, key: bytes, value: bytes, first: int) -> None:
        entries = self._maps[name].max_entries() // 2
        if _CELL.unpack(key)[0] - first >= entries:
            why = f"has room for {entries} {name} of this switch; more were requested"
            raise MachineError(Problem("bpf", f"map {name}", why, "use fewer hash.buckets, or run down and up again"))
        self._maps[name].update(key, value)

    def _replace(self, name: str, half: int, at: int, wanted: Mapping[bytes, bytes]) -> None:
        """Make one half of a map equal to `wanted`, writing only the differences. at: offset of the half in a key."""
        table, mark = self._maps[name], _CELL.pack(half)
        for key in [key for key in table.all_keys() if key[at : at + 4] == mark and key not in wanted]:
            table.delete(key)
        for key, value in wanted.items():
            if table.lookup(key) != value:
                table.update(key, value)

    def _steering(self, half: int, first: int, count: int, names: Mapping[int, str]) -> Steering:
        groups: list[tuple[str, ...]] = []
        slots: list[tuple[str, ...]] = []
        for index in range(first, first + count):
            start, size, slot, many = _GROUP.unpack(self._maps["groups"].lookup(_CELL.pack(index)) or bytes(16))
            groups.append(self._ports(range(start, start + size), names))
            slots.append(self._ports(range(slot, slot + many), names))
        mark = _CELL.pack(half)
        prefixes: dict[int, tuple[Network, PrefixRule]] = {}
        keys, values = self._maps["prefixes"].items()
        rows = zip(range(0, len(keys), _PREFIX_KEY.size), _PREFIX_RULE.iter_unpack(values), strict=True)
        for at, (group, number, piece, shift, _) in rows:
            if keys[at + 4 : at + 8] == mark:
                prefixes[number] = _network(keys[at : at + _PREFIX_KEY.size]), _prefix_rule(group - first, piece, shift)
        exact: dict[tuple[int, Network], tuple[str, ...]] = {}
        for key in sorted(key for key in self._maps["exact"].all_keys() if key[:4] == mark):
            _, number, sport = _EXACT_KEY.unpack(key)
            cells = _EXACT_PORTS.unpack(self._maps["exact"].lookup(key) or bytes(8))
            exact[sport, prefixes[number][0]] = tuple(names.get(port, f"if{port}") for port in cells if port)
        return Steering(tuple(groups), tuple(slots), dict(prefixes[i] for i in sorted(prefixes)), exact)

    def _ports(self, indexes: Sequence[int], names: Mapping[int, str]) -> tuple[str, ...]:
        cells = (_CELL.unpack(self._maps["hops"].lookup(_CELL.pack(index)) or bytes(4))[0] for index in indexes)
        return tuple(names.get(cell, f"if{cell}") for cell in cells)


def _index(port: str, indexes: Mapping[str, int]) -> int:
    if port not in indexes:
        hint = "run ./inv down, then ./inv up"
        raise MachineError(Problem("", port, "is missing: it was removed", hint))
    return indexes[port]


def _prefix_row(half: int, prefix: Network, rule: PrefixRule, first_group: int, number: int) -> tuple[bytes, bytes]:
    """Key and value of a prefix, in IPv6 form: IPv4 is ::ffff:a.b.c.d/96+n."""
    start, length = int(prefix.network_address), prefix.prefixlen
    if prefix.version == 4:
        start, length = 0xFFFF << 32 | start, 96 + length
    host_bits = int(prefix.hostmask) & 0xFFFFFFFFFFFFFFFF
    value = _PREFIX_RULE.pack(first_group + rule.group, number, rule.slice, rule.shift, host_bits)
    return _PREFIX_KEY.pack(32 + length, half, start.to_bytes(16, "big")), value


@lru_cache(_SHARED)  # the switches of a lab have the same prefixes
def _network(key: bytes) -> Network:
    bits, _, octets = _PREFIX_KEY.unpack(key)
    address = IPv6Address(octets)
    if address.ipv4_mapped is not None and bits >= 128:
        return network(4, int(address.ipv4_mapped), bits - 128)
    return network(6, int(address), bits - 32)


_prefix_rule = lru_cache(_SHARED)(PrefixRule)


def _word(words: Mapping[str, int], number: int) -> Any:
    return next((word for word, each in words.items() if each == number), f"mode {number}")


def _base(number: int) -> Literal["l3", "l4", "bth"]:
    return _BASES[number] if number < len(_BASES) else "bth"
