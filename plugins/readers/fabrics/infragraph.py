"""InfraGraph: an infrastructure as devices, their instances, and edges between ports, in YAML or JSON.

Source: the schema of Keysight/infragraph (artifacts/openapi.yaml) and how its service expands an edge: instances and
components by slices, instance by instance. `one2one` pairs both lists as far as the shorter one goes, `many2many` joins
each port with each. A device with a NIC or an xpu is a host, any other one is a switch. What a device has inside is
left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import Any, Final, NamedTuple

import yaml

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.fabric.fabricfile import LoadedFabric
from heddle.fabric.model import Role
from heddle.spec.yamlfile import Document, ReadOptions, Trail, dotted, parse, read_text
from heddle_plugins.readers.fabrics.graph import MOST_LINKS, OtherGraph, OtherLink
from heddle_plugins.readers.fabrics.own import hardware, own_line, own_values

_FILE: Final = ReadOptions(max_bytes=16 << 20, values=1 << 20, kind="InfraGraph", example="what ./inv render writes")
_MOST_COUNT: Final = 1 << 20
_SLICE: Final = re.compile(r"([A-Za-z0-9_ -]{1,200})(?:\[([0-9]{0,9})(:?)([0-9]{0,9})(?::([0-9]{1,9}))?\])?")
_RATES: Final = {"gigabits_per_second": 10**9, "gigabytes_per_second": 8 * 10**9}
_TIMES: Final = {"ns": 1, "us": 10**3, "ms": 10**6}
_HOSTS: Final = ("nic", "xpu")


class _End(NamedTuple):
    """A port: the number of its node, and its place in the node."""

    node: int
    port: tuple[tuple[str, int], ...]


def read(file: str, together: int | None = None) -> OtherGraph:
    """The nodes and links of a file. together: NICs of a host, where the user sets it. InputError."""
    text = read_text(real(file), file, _FILE)
    return _Reader(parse(text, file, _FILE), own_values(text.split("\n")[:50])).graph(together)


class _Reader:
    def __init__(self, document: Document, own: Mapping[str, str]) -> None:
        self._document, self._own = document, own
        self._top: Trail = ()
        data = document.data
        if isinstance(data.get("infrastructure"), dict):
            data, self._top = data["infrastructure"], ("infrastructure",)
        self._data = data
        self._counts: dict[str, dict[str, int]] = {}  # device -> component -> count
        self._hosts: set[str] = set()  # devices
        self._instances: dict[str, tuple[int, int, str]] = {}  # its first node, its count, its device
        self._names: list[tuple[int, str]] = []  # first node, instance
        self._senders: list[bool] = []  # of each node: whether it is a host

    def _wrong(self, trail: Trail, why: str, hint: str = "", what: str = "") -> InputError:
        where = self._document.where((*self._top, *trail))
        return InputError(Problem(where, what or dotted(trail), why, hint))

    def _rows(self, key: str, trail: Trail = (), data: Mapping[str, Any] | None = None) -> Iterator[tuple[Trail, Any]]:
        rows = (self._data if data is None else data).get(key) or []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._wrong((*trail, key), "is not a list of groups", "InfraGraph's schema has one here")
        for number, row in enumerate(rows):
            yield (*trail, key, number), row

    def _word(self, row: Mapping[str, Any], key: str, trail: Trail) -> str:
        if not isinstance(found := row.get(key), str) or not found:
            raise self._wrong(trail, f"has no {key}", f"add {key}: NAME")
        return found

    def _count(self, row: Mapping[str, Any], trail: Trail) -> int:
        found = row.get("count")
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= _MOST_COUNT:
            raise self._wrong((*trail, "count"), f"is not a number from 1 to {_MOST_COUNT}")
        return found

    def graph(self, together: int | None) -> OtherGraph:
        self._devices()
        links = {self._word(row, "name", trail): self._link(row, trail) for trail, row in self._rows("links")}
        ends: dict[_End, Trail] = {}
        found: list[tuple[_End, OtherLink]] = []
        for number, (trail, row) in enumerate(self._rows("edges")):
            name = self._word(row, "link", trail)
            if name not in links:
                raise self._wrong((*trail, "link"), f"{name[:60]} is not in links", "add it there, with its bandwidth")
            for one, two in self._pairs(row, trail):
                low, high = (two, one) if self._is_host(two.node) else (one, two)
                if self._is_host(low.node) and ends.setdefault(low, trail) is not trail:
                    at = dotted(ends[low])
                    raise self._wrong(trail, f"is a second link of a port of {self._named(low.node)}, after {at}")
                if len(found) == MOST_LINKS:
                    raise self._wrong(trail, f"makes more than {MOST_LINKS} links, the most")
                found.append((low, OtherLink(low.node, high.node, *links[name], 0.0, number)))
        found.sort(key=lambda each: each[0] if self._is_host(each[0].node) else _End(_MOST_COUNT << 8, ()))
        used = {node for _, link in found for node in (link.a, link.b)}
        total = sum(count for _, count, _ in self._instances.values())
        notes = [f"{total - len(used)} instances without an edge are left out"] if len(used) < total else []
        hosts = sorted(node for node in used if self._is_host(node))
        return OtherGraph(
            self._document.source, hosts, sorted(used - {*hosts}), [link for _, link in found], self._named,
            lambda line: self._document.where((*self._top, "edges", line)), together or 0, "", self._own, tuple(notes),
        )  # fmt: skip

    def _devices(self) -> None:
        for trail, row in self._rows("devices"):
            name = self._word(row, "name", trail)
            self._counts[name] = {}
            for place, part in self._rows("components", trail, row):
                self._counts[name][self._word(part, "name", place)] = self._count(part, place)
                if part.get("choice") in _HOSTS:
                    self._hosts.add(name)
        first = 0
        for trail, row in self._rows("instances"):
            name, device, count = (
                self._word(row, "name", trail),
                self._word(row, "device", trail),
                self._count(row, trail),
            )
            if device not in self._counts:
                raise self._wrong((*trail, "device"), f"{device[:60]} is not in devices", "add it there")
            if name in self._instances:
                raise self._wrong((*trail, "name"), f"{name[:60]} is there twice")
            self._instances[name] = first, count, device
            self._names.append((first, name))
            self._senders += [device in self._hosts] * count
            first += count
            if first > _MOST_COUNT:
                raise self._wrong(trail, f"makes {first} instances, and {_MOST_COUNT} is the most")

    def _is_host(self, node: int) -> bool:
        return self._senders[node]

    def _named(self, node: int) -> str:
        first, name = next(each for each in reversed(self._names) if each[0] <= node)
        return f"{name}[{node - first}]"

    def _link(self, row: Mapping[str, Any], trail: Trail) -> tuple[int, int]:
        """bit/s and nanoseconds."""
        physical = row.get("physical")
        found = []
        for key, units in (("bandwidth", _RATES), ("latency", _TIMES)):
            group = physical.get(key) if isinstance(physical, dict) else None
            if group is None and key == "latency":
                found.append(0)
                continue
            unit = str(group.get("choice")) if isinstance(group, dict) else ""
            value = group.get(unit) if isinstance(group, dict) and unit in units else None
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is None or not number or not 0 <= value < 10**9 or (key == "bandwidth" and not value):
                hint = f"write choice: UNIT and UNIT: NUMBER, with {' or '.join(units)}"
                raise self._wrong((*trail, "physical", key), "has no value that is understood", hint)
            found.append(round(value * units[unit]))
        return found[0], found[1]

    def _pairs(self, row: Mapping[str, Any], trail: Trail) -> Iterator[tuple[_End, _End]]:
        one, two = (self._ends(row.get(key), (*trail, key)) for key in ("ep1", "ep2"))
        scheme = row.get("scheme", "one2one")
        if scheme == "many2many":
            if len(one) * len(two) > MOST_LINKS:
                raise self._wrong(trail, f"makes {len(one) * len(two)} links, and {MOST_LINKS} is the most")
            return product(one, two)
        if scheme != "one2one":
            why = f"is {str(scheme)[:40]}, which has no form in Heddle"
            raise self._wrong((*trail, "scheme"), why, "use one2one or many2many")
        return zip(one, two, strict=False)

    def _ends(self, end: Any, trail: Trail) -> Sequence[_End]:
        if not isinstance(end, dict):
            raise self._wrong(trail, "is not a group", "write instance and component")
        instance, component = self._word(end, "instance", trail), self._word(end, "component", trail)
        name = instance.split("[")[0]
        if name not in self._instances:
            raise self._wrong((*trail, "instance"), f"{name[:60]} is not in instances", "add it there")
        first, count, device = self._instances[name]
        nodes = [first + index for _, index in self._slice(instance, count, (*trail, "instance"))]
        parts: list[Sequence[tuple[str, int]]] = []
        for word in component.split("."):
            part = word.split("[")[0]
            counts = self._counts.get(device, {})
            if part not in counts:
                raise self._wrong((*trail, "component"), f"{part[:60]} is not a component of {device[:60]}")
            parts.append(self._slice(word, counts[part], (*trail, "component")))
            device = part
        size = len(nodes)
        for each in parts:
            size *= len(each)
        if size > MOST_LINKS:
            raise self._wrong(trail, f"names {size} ports, and {MOST_LINKS} is the most")
        return [_End(node, port) for node in nodes for port in product(*parts)]

    def _slice(self, text: str, count: int, trail: Trail) -> list[tuple[str, int]]:
        """`nic`, `nic[1]`, `nic[0:8]`, `nic[0:8:2]`: the name with each index."""
        match = _SLICE.fullmatch(text)
        if match is None or (match[2] == "" and not match[3]):
            raise self._wrong(
                trail, f"{text[:60]} is not a name with a slice", "write it as nic[0], nic[0:8] or nic[0:8:2]"
            )
        name, start, colon, stop, step = match.groups()
        first = int(start or 0)
        last = count if not colon and start is None else first + 1 if not colon else int(stop) if stop else count
        if first >= last or last > count or step == "0":
            raise self._wrong(trail, f"{text[:60]} is outside of its {count}", f"indices are 0 to {count - 1}")
        return [(name, index) for index in range(first, last, int(step or 1))]


def infragraph(loaded: LoadedFabric) -> tuple[str, str]:
    """The file's name and text. InputError for links that lose packets, which InfraGraph does not have."""
    fabric, found = loaded.fabric, [*hardware(loaded)]
    if any(link.loss for link in found):
        hint = "remove link.loss"
        raise InputError(Problem("", "link.loss", "cannot be in an InfraGraph, whose links lose nothing", hint))
    names: dict[tuple[int, int], str] = {}
    for link in found:
        names.setdefault((link.rate_bps, link.delay_ns), f"link{len(names) + 1}")
    switches = {fabric.level_of(node).word for node in fabric.switches}
    devices, instances = [], []
    for level in fabric.levels:
        nodes = [node for node in fabric.nodes if node.level == fabric.levels.index(level)]
        if not nodes:
            continue
        part = "port" if level.word in switches else "nic"
        ports = max(len(node.ports) for node in nodes)
        component = {"name": part, "count": ports, "choice": part}
        devices.append({"name": level.word, "components": [component], "links": [], "edges": []})
        instances.append({"name": level.word, "device": level.word, "count": len(nodes)})
    edges = []
    for _, each in groupby(found, lambda link: (link.tier, link.a[0] if link.tier else link.b[0])):
        links = [*each]
        runs = [links] if len({(link.rate_bps, link.delay_ns) for link in links}) == 1 else [[link] for link in links]
        for run in runs:
            low, high = _end(loaded, [link.a for link in run]), _end(loaded, [link.b for link in run])
            name = names[run[0].rate_bps, run[0].delay_ns]
            edges.append({"ep1": low, "ep2": high, "scheme": "one2one", "link": name})
    data = {
        "name": fabric.name, "description": f"fabric {fabric.name} of Heddle", "devices": devices,
        "links": [_physical(name, *values) for values, name in names.items()],
        "instances": instances, "edges": edges,
    }  # fmt: skip
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)
    return "infragraph.yaml", f"{own_line(loaded)}\n{text}"


def _physical(name: str, bps: int, ns: int) -> dict[str, Any]:
    rate = {"choice": "gigabits_per_second", "gigabits_per_second": bps / 10**9}
    return {"name": name, "physical": {"bandwidth": rate, "latency": {"choice": "ns", "ns": ns}}}


def _end(loaded: LoadedFabric, ends: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Ports as two slices: of nodes of one kind, and of ports that are the same in each of these nodes."""
    fabric = loaded.fabric
    nodes = [fabric.by_name[node] for node in dict.fromkeys(node for node, _ in ends)]
    word, part = fabric.level_of(nodes[0]).word, "nic" if nodes[0].role is Role.HOST else "port"
    ports = [*dict.fromkeys(int(port.removeprefix("eth")) - 1 for _, port in ends)]
    return {"instance": _sliced(word, [node.index - 1 for node in nodes]), "component": _sliced(part, ports)}


def _sliced(name: str, indices: Sequence[int]) -> str:
    return f"{name}[{indices[0]}]" if len(indices) == 1 else f"{name}[{indices[0]}:{indices[-1] + 1}]"
