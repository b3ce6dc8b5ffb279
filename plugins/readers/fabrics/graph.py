"""A fabric of another tool as nodes and links, and which of Heddle's shapes it has.

In:  OtherGraph, which the readers beside this file make. Out: OtherShape: keys of a fabric file, without its rates.
InputError names the first line, node or link that breaks the shape. The work grows with the number of links.

A tier is the number of links to the nearest host. Tier 1 and 2 form zones, in which each switch is linked to each of
the other tier; every switch of tier 3 is linked to all of tier 2, or to the i-th of each zone: a `fat-tree`. Where a
host has its NICs on one switch it is a `clos`, where each is on another switch a `rail`; zones that tier 3 does not
join are then its planes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration, format_rate, format_share

MOST_LINKS: Final = 1 << 21
_MOST_EXCEPTIONS: Final = 256  # links with another rate than most of their tier
_TIERS: Final = 3
_CLOS_NS: Final = (500, 1_000, 3_000)  # heddle/fabric/shapes/
_SHAPE_NS: Final = {"clos": _CLOS_NS, "rail": (600, 1_000, 0), "fat-tree": _CLOS_NS}
_WORDS: Final = {"clos": ("rtsw", "ctsw"), "rail": ("leaf", "spine"), "fat-tree": ("edge", "agg")}


class OtherLink(NamedTuple):
    """A link: its nodes, bit/s and nanoseconds of hardware, share of lost packets, and its line in the file."""

    a: int
    b: int
    rate_bps: int
    delay_ns: int
    loss: float
    line: int


@dataclass(frozen=True)
class OtherGraph:
    """A file as nodes and links.

    hosts: nodes that send, in the order of ranks; one with several links has that many NICs. switches: the others.
    named: the name of a node in messages. at: the place of a link's line. together: so many nodes in a row, with one
    link each, are the NICs of one host; 0: not known. dual: the hint where a second link of a node is an error.
    own: what Heddle wrote of the fabric beside the format (`name`, `k`, `shape`). notes: what is left out.
    """

    file: str
    hosts: Sequence[int]
    switches: Sequence[int]
    links: Sequence[OtherLink]
    named: Callable[[int], str]
    at: Callable[[int], str]
    together: int = 0
    dual: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class OtherShape:
    """keys: of the fabric file, by path, without rates. rates: usual bit/s of links of hosts, of tiers 1 to 2 and 2 to
    3. exceptions: port -> bit/s. notes: what a reader has to know. own: see OtherGraph.
    """

    keys: dict[str, Any]
    rates: tuple[int, ...]
    exceptions: dict[str, int]
    notes: list[str]
    own: Mapping[str, str]


def shape_of(graph: OtherGraph, given: Collection[str] = ()) -> OtherShape:
    """The shape. given: paths of keys that the user sets: links that differ in these are no error. InputError."""
    return _Finder(graph, given).shape()


class _Finder:
    def __init__(self, graph: OtherGraph, given: Collection[str]) -> None:
        self._graph, self._given = graph, given
        self._notes = [*graph.notes]
        self._nics: list[tuple[int, OtherLink]] = []  # the switch and the link of each, in the order of ranks
        self._inner: list[OtherLink] = []
        self._per_host, self._tree = 1, False
        self._tier: dict[int, int] = {}
        self._near: dict[int, dict[int, OtherLink]] = defaultdict(dict)  # switch -> switch -> link
        # Switches in the order of Heddle's numbers: those of tier 1, those of tier 2 by zone, those of tier 3.
        self._order: tuple[list[int], list[list[int]], list[int]] = ([], [], [])

    def shape(self) -> OtherShape:
        self._read_hosts()
        self._read_tiers()
        leaves, (zones, spines) = self._leaves(), self._zones()
        tops = self._tops(zones, spines)
        keys = self._keys(leaves, zones, spines, tops)
        classes: list[list[OtherLink]] = [[link for _, link in self._nics], [], []]
        for link in self._inner:
            classes[max(self._tier[link.a], self._tier[link.b]) - 1].append(link)
        keys |= self._delays(keys["shape"], classes) | self._losses(classes)
        rates, exceptions = self._rates(keys["shape"], classes)
        return OtherShape(keys, rates, exceptions, self._notes, self._graph.own)

    def _stop(self, link: OtherLink | None, what: str, why: str, hint: str = "") -> NoReturn:
        where = self._graph.file if link is None else self._graph.at(link.line)
        raise InputError(Problem(where, what, why, hint))

    def _pair(self, link: OtherLink) -> str:
        return f"the link of {self._graph.named(link.a)} and {self._graph.named(link.b)}"

    def _read_hosts(self) -> None:
        """The NICs of all hosts, and the links between switches."""
        graph, named = self._graph, self._graph.named
        switches = {*graph.switches}
        of: dict[int, list[tuple[int, OtherLink]]] = {host: [] for host in graph.hosts}
        for link in graph.links:
            if link.a in switches and link.b in switches:
                self._inner.append(link)
            elif link.a in switches or link.b in switches:
                host, switch = (link.b, link.a) if link.a in switches else (link.a, link.b)
                of[host].append((switch, link))
                if graph.dual and len(of[host]) > 1:
                    self._stop(link, named(host), "has a second link to a switch, but a NIC has one", graph.dual)
            else:
                self._stop(link, self._pair(link), "joins two hosts", "hosts are linked to switches only")
        if not of:
            self._stop(None, "the fabric", "has no hosts")
        first = len(of[graph.hosts[0]])
        for host, own in of.items():
            if len(own) != first or not own:
                why = f"has {len(own)} links to switches" + (
                    f", but {named(graph.hosts[0])} has {first}" if own else ""
                )
                self._stop(own[-1][1] if own else None, named(host), why, "give all hosts the same number of NICs")
            self._nics += own
        if first > 1 and graph.together > 1:
            self._stop(None, "nics_per_host", f"is {graph.together}, but each node has {first} links", "remove it")
        if first > 1:
            self._notes.append(f"each node has {first} links, which are {first} NICs: each carries a rank")
        self._per_host = first if first > 1 else graph.together or 1
        if len(self._nics) % self._per_host:
            why = f"does not divide the {len(self._nics)} NICs"
            self._stop(None, f"nics_per_host: {self._per_host}", why, "use the number of NICs of one host")

    def _read_tiers(self) -> None:
        """The tier of each switch, from those that have hosts."""
        named = self._graph.named
        for link in self._inner:
            if (before := self._near[link.a].get(link.b)) is not None:
                why = (
                    f"is there twice, first at {self._graph.at(before.line)}: Heddle has one link between two switches"
                )
                self._stop(link, self._pair(link), why, "write one link with the sum of their rates")
            self._near[link.a][link.b] = self._near[link.b][link.a] = link
        row, tier = [*dict.fromkeys(switch for switch, _ in self._nics)], 1
        while row:
            self._tier |= dict.fromkeys(row, tier)
            row, tier = [*dict.fromkeys(up for low in row for up in self._near[low] if up not in self._tier)], tier + 1
        for switch in self._graph.switches:
            if (found := self._tier.get(switch)) is None:
                self._stop(None, named(switch), "is not linked to any host, not even by other switches", "remove it")
            if found > _TIERS:
                link = next(iter(self._near[switch].values()))
                self._stop(link, named(switch), f"is in tier {found}: Heddle has {_TIERS} tiers of switches at most")
        for link in self._inner:
            if (tier := self._tier[link.a]) == self._tier[link.b]:
                what = (
                    "two switches that have hosts" if tier == 1 else f"two switches of tier {tier}, which have no hosts"
                )
                hint = "remove it: Heddle's shapes have links between neighbouring tiers only"
                self._stop(link, self._pair(link), f"joins {what}", hint)

    def _leaves(self) -> Counter[int]:
        """Switches with hosts, in the order of their first NIC -> number of their NICs."""
        found = Counter(switch for switch, _ in self._nics)
        first, *others = found
        for leaf in others:
            if found[leaf] != found[first]:
                link = next(link for switch, link in reversed(self._nics) if switch == leaf)
                named = self._graph.named
                why = f"has links to {found[leaf]} NICs, but {named(first)} has {found[first]}"
                self._stop(link, named(leaf), why, "give all switches of tier 1 the same number of hosts")
        return found

    def _ups(self, switch: int) -> frozenset[int]:
        return frozenset(up for up in self._near[switch] if self._tier[up] > self._tier[switch])

    def _zones(self) -> tuple[dict[frozenset[int], list[int]], list[list[int]]]:
        """Spines of a zone -> its leaves in order; and the spines of each zone, in the order of the file."""
        named, zones, of = self._graph.named, defaultdict[frozenset[int], list[int]](list), dict[int, int]()
        for leaf in (switch for switch, tier in self._tier.items() if tier == 1):
            spines = self._ups(leaf)
            if not spines and len(self._tier) > 1:
                self._stop(None, named(leaf), "has no link to another switch", "link it to each switch of tier 2")
            for other in {of.setdefault(spine, leaf) for spine in spines}:
                self._same(leaf, spines, other, self._ups(other))
            zones[spines].append(leaf)
        (first, row), *others = zones.items()
        for spines, leaves in others:
            for found, most, what in ((len(spines), len(first), "spines"), (len(leaves), len(row), "switches")):
                if found != most:
                    link = next(iter(self._near[leaves[0]].values()))
                    why = f"is in a zone of {found} {what}, but {named(row[0])} in one of {most}"
                    self._stop(link, named(leaves[0]), why, "give all zones the same size")
        order = {switch: place for place, switch in enumerate(self._graph.switches)}
        return zones, [sorted(spines, key=order.__getitem__) for spines in zones]

    def _same(self, one: int, ups: frozenset[int], other: int, others: frozenset[int]) -> None:
        """Whether two switches of a tier have the same neighbours above."""
        if ups == others:
            return
        named = self._graph.named
        low, high, missing = (one, other, others - ups) if others - ups else (other, one, ups - others)
        up = min(missing)
        link = self._near[high][up]
        why = f"has no link to {named(up)}, but {named(high)} has"
        hint = f"link every switch of tier {self._tier[low]} to the same ones of tier {self._tier[up]}"
        self._stop(link, named(low), why, hint)

    def _tops(self, zones: Mapping[frozenset[int], list[int]], spines: list[list[int]]) -> list[int]:
        """Switches of tier 3. Each is linked to all of tier 2, or to one of each zone: then both get one order."""
        found = [switch for switch in self._graph.switches if self._tier[switch] == _TIERS]
        parts = [self._ups(spine) for spine in spines[0]]
        half = len(parts)
        part_of = {top: number for number, part in enumerate(parts) for top in part}
        alike = all({*map(self._ups, row)} == {*parts} for row in spines)
        sizes = {*map(len, parts), *map(len, zones.values()), len(spines) / 2}
        if half > 1 and len(part_of) == half**2 and alike and sizes == {half}:
            self._tree = True
            for row in spines:
                row.sort(key=lambda spine: part_of[min(self._ups(spine))])
            return sorted(found, key=part_of.__getitem__)
        middle = [switch for switch, tier in self._tier.items() if tier == _TIERS - 1]
        if found:
            for switch in middle:
                self._same(switch, self._ups(switch), middle[0], self._ups(middle[0]))
        return found

    def _keys(
        self, leaves: Counter[int], zones: Mapping[frozenset[int], list[int]], spines: list[list[int]], tops: list[int]
    ) -> dict[str, Any]:
        each = self._per_host
        hosts = [tuple(switch for switch, _ in self._nics[at : at + each]) for at in range(0, len(self._nics), each)]
        switches = len({*hosts[0]})
        for number, host in enumerate(hosts):
            if len({*host}) != switches or switches not in (1, each):
                hint = "put the NICs of every host on one switch (clos), or each on another one (rail)"
                what, why = f"host {number + 1} of {each} NICs", f"has them on {len({*host})} switches"
                why += f", but host 1 on {switches}" if number else ""
                self._stop(self._nics[number * each][1], what, why, hint)
        if switches == 1 and not (each == 1 and self._graph.own.get("shape") == "rail" and not tops):
            return self._clos(leaves, [*zones.values()], spines, tops)
        return self._rail(hosts, zones, spines, tops)

    def _clos(
        self, leaves: Counter[int], zones: list[list[int]], spines: list[list[int]], tops: list[int]
    ) -> dict[str, Any]:
        named, each = self._graph.named, self._per_host
        if len(zones) > 1 and not tops:
            why = f"and {named(zones[1][0])} are in networks that no link joins"
            hint = "planes need hosts with a NIC in each: use --set nics_per_host=N"
            link = next(link for switch, link in self._nics if switch == zones[1][0])
            self._stop(link, named(zones[0][0]), why, hint)
        if len(zones) == 1 and tops:
            link = next(iter(self._near[tops[0]].values()))
            self._stop(link, named(tops[0]), "is in tier 3 above a single zone", "remove tier 3: it joins zones")
        if not spines[0]:
            self._notes.append("one switch: a spine is added, which no traffic uses, since a clos has at least one")
        order = [leaf for zone in zones for leaf in zone]
        self._order = order, spines, tops
        self._check_order([switch for switch, _ in self._nics], order)
        hosts = next(iter(leaves.values())) // each
        if self._tree:
            return {"shape": "fat-tree", "radix": len(zones), "hosts_per_edge": hosts, "nics_per_host": each}
        keys: dict[str, Any] = {"shape": "clos"}
        if len(zones) > 1:
            keys |= {"zones": len(zones)}
        keys |= {"racks": len(zones[0]), "ctsw": len(spines[0]) or 1}
        if tops:
            keys |= {"atsw": len(tops)}
        return keys | {"hosts_per_rack": hosts, "nics_per_host": each}

    def _rail(
        self, hosts: list[tuple[int, ...]], zones: Mapping[frozenset[int], list[int]], spines: list[list[int]],
        tops: list[int],
    ) -> dict[str, Any]:  # fmt: skip
        named, each, planes = self._graph.named, self._per_host, len(zones)
        if tops:
            self._stop(None, named(tops[0]), "is in tier 3, but a rail fabric has two tiers of switches")
        pods = [*dict.fromkeys(hosts)]
        place: dict[int, int] = {}
        plane = {leaf: number for number, zone in enumerate(zones.values()) for leaf in zone}
        for number, pod in enumerate(pods):
            host = hosts.index(pod)
            for nic, leaf in enumerate(pod):
                at, link = f"host {host + 1} of {each} NICs", self._nics[host * each + nic][1]
                if place.setdefault(leaf, number * each + nic) != number * each + nic:
                    why = f"has NIC {nic + 1} on {named(leaf)}, which is another NIC's in another pod"
                    self._stop(link, at, why, "put NIC i of all hosts of a pod on one switch")
                if plane[leaf] != nic % planes:
                    why = f"has NIC {nic + 1} in plane {plane[leaf] + 1}, not {nic % planes + 1}"
                    self._stop(link, at, why, "Heddle puts NIC i in plane (i - 1) mod planes + 1")
        self._order = [leaf for pod in pods for leaf in pod], spines, []
        self._check_order(hosts, pods)
        count = sum(map(len, spines))
        return {
            "shape": "rail", "pods": len(pods), "hosts_per_pod": len(hosts) // len(pods), "nics_per_host": each,
            "spines": count, **({"planes": planes} if planes > 1 else {}),
        }  # fmt: skip

    def _check_order(self, found: Sequence[object], order: Sequence[object]) -> None:
        place = {box: number for number, box in enumerate(order)}
        turns = [place[box] for box in found]
        if turns != sorted(turns):
            self._notes.append("the file numbers its hosts in another order than Heddle, which counts box by box")

    def _ports(self, shape: str) -> dict[int, str]:
        """id of a link -> the port at its lower end, as the builder of the shape numbers ports."""
        leaves, spines, tops = self._order
        low, high = _WORDS[shape]
        place = {leaf: number for number, leaf in enumerate(leaves)}
        nics = self._nics if shape == "rail" else sorted(self._nics, key=lambda nic: place[nic[0]])
        found = {
            id(link): f"host{number // self._per_host + 1}:eth{number % self._per_host + 1}"
            for number, (_, link) in enumerate(nics)
        }
        port = {spine: number for row in spines for number, spine in enumerate(row, 1)}
        for number, leaf in enumerate(leaves, 1):
            found |= {id(link): f"{low}{number}:eth{port[up]}" for up, link in self._near[leaf].items()}
        below = len(leaves) // len(spines)  # ports of a switch of tier 2 that lead to tier 1
        for number, spine in enumerate((spine for row in spines for spine in row), 1):
            above = [self._near[spine][top] for top in tops if top in self._near[spine]]
            found |= {id(link): f"{high}{number}:eth{below + at}" for at, link in enumerate(above, 1)}
        return found

    def _rates(self, shape: str, classes: list[list[OtherLink]]) -> tuple[tuple[int, ...], dict[str, int]]:
        usual: list[int] = []
        odd: list[OtherLink] = []
        for links in classes:
            counts = Counter(link.rate_bps for link in links)
            most = counts.most_common(1)[0][0] if counts else 0
            usual.append(most)
            others = [link for link in links if link.rate_bps != most]
            if len(others) > _MOST_EXCEPTIONS:
                rate = format_rate(others[0].rate_bps)
                why = f"has {rate}, and {len(others)} links of its tiers have another rate than {format_rate(most)}"
                hint = f"Heddle has one rate for each tier, and {_MOST_EXCEPTIONS} exceptions at most"
                self._stop(others[0], self._pair(others[0]), why, hint)
            odd += others
        ports = self._ports(shape) if odd else {}
        return tuple(usual), {ports[id(link)]: link.rate_bps for link in odd}

    def _delays(self, shape: str, classes: list[list[OtherLink]]) -> dict[str, Any]:
        """`link.delay`: `shape` where the delays are those of the shape."""
        kinds = [{link.delay_ns for link in links} for links in classes]
        if all(found <= {ns} for found, ns in zip(kinds, _SHAPE_NS[shape], strict=True)) and kinds[1]:
            return {"link.delay": "shape"}
        return self._uniform("delay", lambda link: link.delay_ns, format_duration, classes)

    def _losses(self, classes: list[list[OtherLink]]) -> dict[str, Any]:
        return self._uniform("loss", lambda link: link.loss, format_share, classes)

    def _uniform(
        self, key: str, value: Callable[[OtherLink], Any], text: Callable[[Any], str], classes: list[list[OtherLink]]
    ) -> dict[str, Any]:
        """A key of `link` that is one value for hosts and one for all other links."""
        keys: dict[str, Any] = {}
        for word, links in (("host", classes[0]), ("fabric", classes[1] + classes[2])):
            if not {f"link.{key}", f"link.{key}.{word}"}.isdisjoint(self._given) or not links:
                continue
            first = value(links[0])
            for link in links:
                if value(link) != first:
                    at = self._graph.at(links[0].line)
                    why = f"has {key} {text(value(link))}, but {text(first)} at {at}: Heddle has one for these links"
                    self._stop(link, self._pair(link), why, f"choose one: --set link.{key}.{word}={text(first)}")
            if first:
                keys[f"link.{key}.{word}"] = text(first) if key == "delay" else first
        return keys
