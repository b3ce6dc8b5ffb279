"""Dumps of NCCL as a placement: the ranks of each host of a real job, and the NIC that each rank uses.

In:  files of NCCL_GRAPH_DUMP_FILE (rings: `graphs`) and of NCCL_TOPO_DUMP_FILE (devices: `system`), at least one for
     each host. Names of elements and attributes: NCCL 2.30, src/graph/xml.cc, search.cc and topo.cc.
Out: DumpedHost for each host, or the NICs of a topology (DumpedNic); InputError with file, line and reason.
The NIC of a rank is the one by which a ring enters its host at that rank, else the one by which it leaves, else the
nearest on the PCI tree. As in NCCL, unknown elements are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.parsers import expat

from heddle.base.files import open_regular, real
from heddle.base.problems import InputError, Problem, Problems, printable
from heddle.base.tables import many
from heddle.fabric.wiring import Port
from heddle_plugins.engineering.mincut import FreeHost

_FILE_BYTES: Final = 16 << 20
_MOST_RANK: Final = 1 << 20
# NCCL_GRAPH_XML_VERSION and NCCL_TOPO_XML_VERSION. RCCL writes systems of version 2, with the same elements.
_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {"graphs": ("1",), "system": ("1", "2")}
_SYSTEM_BIT: Final = 56  # a device of a graph: the number of its host above, its own below
_RING: Final = 0  # id of the graph of rings
_WRONG: Final = -1  # a number that has a Problem
_EACH_HOST: Final = "give a file of each host: NCCL_GRAPH_DUMP_FILE_RANK names the rank whose host NCCL writes"


@dataclass(frozen=True, slots=True)
class DumpedHost:
    """One host of a job. file: of the dump. nics: rank -> device number of its NIC, None if the dump does not say.

    rings: for each channel the ranks of this host in the order of the ring.
    """

    file: str
    nics: Mapping[int, int | None]
    rings: tuple[tuple[int, ...], ...] = ()

    @property
    def first(self) -> int:
        """The lowest rank."""
        return min(self.nics)

    def moved(self, ranks: int) -> DumpedHost:
        """The same host, with ranks that are higher by a number."""
        rings = tuple(tuple(rank + ranks for rank in ring) for ring in self.rings)
        return DumpedHost("", {rank + ranks: nic for rank, nic in self.nics.items()}, rings)


@dataclass(frozen=True, slots=True)
class DumpedNic:
    """A NIC of a topology: its HCA and port, NCCL's number of it, and the address of its PCI device."""

    hca: str
    port: int
    number: int
    busid: str


def read_nics(file: str) -> list[DumpedNic]:
    """The NICs that NCCL has in a file of NCCL_TOPO_DUMP_FILE, by NCCL's numbers."""
    return _Reader(file, "topo: ").nics()


def read_dumps(files: Sequence[str], ranks: int | None = None) -> tuple[DumpedHost, ...]:
    """All hosts, by their lowest rank. ranks: of the job: the file of one host stands for all hosts like it."""
    problems, hosts = Problems(), list[DumpedHost]()
    for file in files:
        try:
            hosts += _Reader(file).hosts()
        except InputError as error:
            problems.found += error.problems
    problems.raise_if_any()
    merged = sorted(_merged(hosts), key=lambda host: host.first)
    size = len(merged[0].nics)
    if len(merged) == 1 and ranks and ranks > size and not ranks % size and {*merged[0].nics} == {*range(size)}:
        merged += [merged[0].moved(start) for start in range(size, ranks, size)]
    found = {rank: host for host in merged for rank in host.nics}
    if (missing := next(rank for rank in range(len(found) + 1) if rank not in found)) < len(found):
        above = min(rank for rank in found if rank > missing)
        why = f"is there, but no file has rank {missing}"
        raise InputError(Problem(found[above].file, f"rank {above}", why, _EACH_HOST))
    if ranks and ranks != len(found):
        why = f"has {many(len(found), 'rank')}, and --ranks asks for {ranks}"
        raise InputError(Problem("", f"--nccl {','.join(files)}", why, _EACH_HOST))
    return tuple(merged)


def _merged(hosts: Sequence[DumpedHost]) -> Iterator[DumpedHost]:
    """One host for each set of ranks: its NICs by the rings, else by the devices."""
    owner: dict[int, DumpedHost] = {}
    for host in hosts:
        same = list({id(owner[rank]): owner[rank] for rank in host.nics if rank in owner}.values())
        if any({*other.nics} != {*host.nics} for other in same):
            rank = next(rank for rank in host.nics if rank in owner)
            why = f"has rank {rank} beside other ranks than {same[0].file}"
            raise InputError(Problem(host.file, "the host", why, "give dumps of one job"))
        for other in same:
            first, second = (other, host) if other.rings else (host, other)
            nics = {rank: second.nics[rank] if nic is None else nic for rank, nic in first.nics.items()}
            host = DumpedHost(first.file, nics, first.rings)  # noqa: PLW2901
        owner.update(dict.fromkeys(host.nics, host))
    yield from {id(host): host for host in owner.values()}.values()


def on_hosts(dumped: Sequence[DumpedHost], hosts: Sequence[FreeHost]) -> list[Port]:
    """The NICs by rank. A host whose file has a free host's name is that host; others get the next ones in order.

    hosts: free ones, in the order in which they are taken. InputError if a host has fewer NICs than ranks.
    """
    by_name = {host.name: host for host in hosts}
    named = {id(each): by_name[stem] for each in dumped if (stem := Path(each.file).stem) in by_name}
    left = [host for host in hosts if host not in named.values()]
    found: dict[int, Port] = {}
    for each in dumped:
        host = named.get(id(each)) or next((host for host in left if len(host.nics) >= len(each.nics)), None)
        if host is None or len(host.nics) < len(each.nics):
            most = max((len(other.nics) for other in (left if host is None else [host])), default=0)
            where = "no free host" if not most else "no host left" if host is None else host.name
            where = f"{where} has more than {most}" if most else where
            why = f"has {many(len(each.nics), 'rank')}, which need a NIC each, but {where}"
            hint = "use a fabric whose hosts have as many NICs: hosts of shape rail have nics_per_host"
            raise InputError(Problem(each.file, "the host", why, hint))
        if host in left:
            left.remove(host)
        found |= _seated(each, host)
    return [found[rank] for rank in range(len(found))]


def _seated(each: DumpedHost, host: FreeHost) -> dict[int, Port]:
    """Rank -> NIC. Devices in use, in order, are the host's NICs. A second rank of a device gets a NIC left over."""
    devices = sorted({nic for nic in each.nics.values() if nic is not None})
    free, found = dict(enumerate(host.nics)), dict[int, Port]()
    later = []
    for rank, device in sorted(each.nics.items()):
        at = devices.index(device) if device is not None else -1
        if at in free:
            found[rank] = free.pop(at)
        else:
            later.append(rank)
    return found | dict(zip(later, free.values(), strict=False))


@dataclass(slots=True)
class _Channel:
    """The elements of a channel, in order. gpus: device and rank."""

    enters: int | None = None
    leaves: int | None = None
    gpus: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Device:
    """A GPU or NIC of a system. path: its ancestors on the PCI tree, from its host. nic: what its element says."""

    number: int
    path: tuple[str, ...]
    nic: DumpedNic | None = None


class _Reader:
    """One file, of either kind."""

    def __init__(self, file: str, flag: str = "--nccl ") -> None:
        self._file, self._flag, self._problems = file, flag, Problems()
        self._stack: list[tuple[str, Mapping[str, str]]] = []
        self._graphs: dict[int, list[_Channel]] = {}
        self._channels: list[_Channel] = []
        self._gpus: dict[int, _Device] = {}
        self._nets: list[_Device] = []
        self._root = ""
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = lambda name: self._stack.pop()
        self._parser.StartDoctypeDeclHandler = self._doctype

    def hosts(self) -> list[DumpedHost]:
        """The hosts in the file. InputError with every error."""
        self._parse()
        found = [*(self._of_graph() if self._root == "graphs" else self._of_system())]
        if not found:
            hint = "use a file that NCCL has written itself"
            raise InputError(Problem(self._file, f"<{self._root}>", "has no gpu with a rank", hint))
        return found

    def nics(self) -> list[DumpedNic]:
        """The NICs in the file. InputError with every error."""
        self._parse()
        found = [each.nic for each in self._nets if each.nic is not None and each.nic.hca]
        if not found:
            why = "has no NIC with a name"
            raise InputError(Problem(self._file, f"<{self._root}>", why, "use a file of NCCL_TOPO_DUMP_FILE"))
        return sorted(found, key=lambda each: each.number)

    def _parse(self) -> None:
        try:
            with open_regular(real(self._file)) as file:
                text = file.read(_FILE_BYTES + 1)
        except OSError as error:
            hint = "name the files of NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE"
            raise InputError(
                Problem("", f"{self._flag}{self._file}", f"cannot be read: {error.strerror}", hint)
            ) from None
        if len(text) > _FILE_BYTES:
            raise InputError(Problem(self._file, "the file", f"has more than {_FILE_BYTES >> 20} MiB"))
        try:
            self._parser.Parse(text, True)
        except expat.ExpatError as error:
            why = f"is not well-formed XML: {expat.ErrorString(error.code)}"
            self._problems.add(where=f"{self._file}:{error.lineno}", what="the file", why=why, hint="")
        self._problems.raise_if_any()

    def _wrong(self, what: str, why: str, hint: str = "") -> None:
        if any((each.what, each.why) == (what, why) for each in self._problems.found):
            return  # as a wrong rank, which each channel has
        where = f"{self._file}:{self._parser.CurrentLineNumber}"
        self._problems.add(where=where, what=what, why=why, hint=hint)
        if len(self._problems.found) >= 8:
            self._problems.raise_if_any()

    def _doctype(self, *_: object) -> None:
        self._wrong("DOCTYPE", "is refused: it may define entities", "remove the line")
        self._problems.raise_if_any()

    def _begin(self, name: str, says: dict[str, str]) -> None:
        above = self._stack[-1][0] if self._stack else ""
        self._stack.append((name, says))
        if not above:
            self._top(name, says)
        elif (above, name) == ("graphs", "graph"):
            self._channels = self._graphs.setdefault(self._number(name, says, "id"), [])
        elif (above, name) == ("graph", "channel"):
            self._channels.append(_Channel())
        elif above == "channel" and name in ("net", "gpu"):
            self._in_channel(name, says)
        elif self._root == "system" and (above, name) in (("pci", "gpu"), ("nic", "net")):
            self._device(name, says)

    def _top(self, name: str, says: Mapping[str, str]) -> None:
        self._root = name
        if name not in _VERSIONS:
            hint = "use a file of NCCL_GRAPH_DUMP_FILE (<graphs>) or NCCL_TOPO_DUMP_FILE (<system>)"
            self._wrong(f"<{name}>", "is not a dump of NCCL", hint)
            self._problems.raise_if_any()
        if says.get("version") not in _VERSIONS[name]:
            known = " or ".join(_VERSIONS[name])
            self._wrong(f"version={says.get('version', '')!r}", f"is not {known}, which is known of <{name}>")

    def _number(self, name: str, says: Mapping[str, str], key: str, *, base: int = 10) -> int:
        text = says.get(key)
        if text is None:
            hint = "NCCL writes it in its own dumps" if key == "rank" else ""
            self._wrong(f"<{name}>", f"has no {key}", hint)
        elif not re.fullmatch("(0[xX])?[0-9a-fA-F]{1,16}" if base != 10 else "[0-9]{1,9}", text):
            self._wrong(f"{key}={text[:40]!r}", "is not a whole number")
        else:
            return int(text, base)
        return _WRONG

    def _rank(self, name: str, says: Mapping[str, str]) -> int:
        rank = self._number(name, says, "rank")
        if rank >= _MOST_RANK:
            self._wrong(f"rank={rank}", f"is not below {_MOST_RANK:,}")
        return rank

    def _in_channel(self, name: str, says: Mapping[str, str]) -> None:
        channel, device = self._channels[-1], self._number(name, says, "dev", base=16)
        if name == "gpu":
            rank = self._rank(name, says)
            if rank != _WRONG and any(rank == other for _, other in channel.gpus):
                self._wrong(f"rank={rank}", "is in the channel twice")
            channel.gpus.append((device >> _SYSTEM_BIT, rank))
        elif channel.gpus:
            channel.leaves = device
        else:
            channel.enters = device

    def _device(self, name: str, says: Mapping[str, str]) -> None:
        path = tuple(
            f"{element} {keys.get('host_hash', '')} {keys.get('numaid', '')} {keys.get('busid', '')}"
            for element, keys in self._stack
            if element in ("cpu", "pci")
        )
        host = next((keys.get("host_hash", "") for element, keys in self._stack if element == "cpu"), "")
        device = _Device(self._number(name, says, "dev"), (host, *path))
        if name == "net":
            if says.get("net") != "0":  # else it serves other plugins only
                port = int(says["port"]) if says.get("port", "").isdecimal() else 1
                pci = next((keys.get("busid", "") for name, keys in reversed(self._stack) if name == "pci"), "")
                device.nic = DumpedNic(printable(says.get("name", ""), 64), port, device.number, pci.lower())
                self._nets.append(device)
        elif "rank" in says:
            rank = self._rank(name, says)
            if rank != _WRONG and rank in self._gpus:
                self._wrong(f"rank={rank}", "is there a second time")
            self._gpus[rank] = device

    def _of_graph(self) -> Iterator[DumpedHost]:
        """Of the rings, else of the first graph with channels."""
        channels = self._graphs.get(_RING) or next((each for each in self._graphs.values() if each), [])
        systems = sorted({system for channel in channels for system, _ in channel.gpus})
        for system in systems:
            rings = [tuple(rank for of, rank in channel.gpus if of == system) for channel in channels]
            nics: dict[int, int | None] = {rank: None for ring in rings for rank in ring}
            ends = [(channel.enters, 0, channel) for channel in channels]
            ends += [(channel.leaves, -1, channel) for channel in channels]
            for device, at, channel in ends:
                if device is not None and channel.gpus and channel.gpus[at][0] == system:
                    rank = channel.gpus[at][1]
                    nics[rank] = device & ((1 << _SYSTEM_BIT) - 1) if nics[rank] is None else nics[rank]
            yield DumpedHost(self._file, nics, tuple(ring for ring in rings if ring))

    def _of_system(self) -> Iterator[DumpedHost]:
        """The nearest NIC of each GPU; of several, one that fewer GPUs have."""
        hosts: dict[str, dict[int, int | None]] = {}
        used: dict[int, int] = {}
        for rank, gpu in sorted(self._gpus.items()):
            own = [net for net in self._nets if net.path[0] == gpu.path[0]]
            nearest = min(own, key=lambda net: (-_shared(net.path, gpu.path), used.get(net.number, 0), net.number),
                          default=None)  # fmt: skip
            if nearest is not None:
                used[nearest.number] = used.get(nearest.number, 0) + 1
            hosts.setdefault(gpu.path[0], {})[rank] = None if nearest is None else nearest.number
        yield from (DumpedHost(self._file, nics) for nics in hosts.values())


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many ancestors two devices share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
