"""What an edit of a fabric file means for a lab that runs: a plan, or the reasons why it cannot be applied.

In:  the lab's record and the edited fabric file.
Out: LabPlan: nodes and links to add and to remove, new rates, thresholds, lines of FRR; the fabric afterwards, in which
everything that stays has its old name, address, port id and place in the maps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.state import Record
from heddle.base.tables import many, some_of
from heddle.base.units import format_rate
from heddle.fabric.keptnumbers import numbered
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Link, MapRows, Node, Port
from heddle.lab.frr import flat_lines
from heddle.lab.opening import Rendered
from heddle.lab.thresholds import LIVE
from heddle.render.render import rendered
from heddle.spec.plain import differences
from heddle.spec.schema import FabricSpec

_RATES: Final = re.compile(r"link\.(host|fabric|exceptions\b.*)")
# Lines of FRR that can be entered and removed while packets pass.
_ENTERED: Final = re.compile(r"interface \S+|interface \S+ / .*|router bgp \d+ / neighbor \S+ interface peer-group .*")
_REPLACED: Final = re.compile(r"router bgp \d+ / .* / maximum-paths \d+")
_FIXED: Final = ("level", "index", "groups", "asn", "loopback", "prefix", "hash_seed", "router_id", "serves", "role")
_Ends = tuple[str, str, int]  # both nodes, and the number of the link between them


@dataclass(frozen=True)
class LabPlan:
    """The difference of a running lab and an edited file. old, new: the fabrics; all names in `new` are final.

    renamed: ports that have another name in a lab of the new file that is brought up again: that one, and the present.
    configs: switch that stays -> lines of FRR to remove, and to enter. numbers: of the record; see keptnumbers.
    """

    old: Fabric
    new: Rendered
    numbers: Mapping[str, Any]
    gone: tuple[Node, ...]
    fresh: tuple[Node, ...]
    gone_links: tuple[Link, ...]
    fresh_links: tuple[Link, ...]
    rates: tuple[tuple[Link, Link], ...]
    thresholds: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    configs: Mapping[str, tuple[Sequence[str], Sequence[str]]]

    @property
    def lines(self) -> list[str]:
        """The plan, a line for each kind of change."""
        found = []
        for word, nodes, links in (("remove", self.gone, self.gone_links), ("add", self.fresh, self.fresh_links)):
            if nodes:
                found.append(f"{word} {_named(nodes)}")
            if links:
                found.append(f"{word} {many(len(links), 'link')}: {some_of([_text(each) for each in links])}")
        changed = Counter((old.rate_bps, new.rate_bps) for old, new in self.rates)
        for (old_bps, new_bps), count in changed.items():
            some = [_text(new) for old, new in self.rates if (old.rate_bps, new.rate_bps) == (old_bps, new_bps)]
            rates = f"from {format_rate(old_bps)} to {format_rate(new_bps)}"
            found.append(f"set the rate of {many(count, 'link')} {rates}: {some_of(some)}")
        if self.thresholds:
            found.append(f"set thresholds of queues: {some_of(self.thresholds)}")
        if self.configs:
            found.append(f"configure FRR of {some_of([*self.configs])}, without a restart")
        if self.renamed:
            was, now = self.renamed[0]
            found.append(f"no port is renamed: {now} stays, and would be {was} after down and up")
        return [*found, self.stays]

    @property
    def stays(self) -> str:
        """What is not touched."""
        new = self.new.fabric
        return f"{len(new.nodes) - len(self.fresh)} nodes and {len(new.links) - len(self.fresh_links)} links stay"


def plan_of(record: Record, wanted: Rendered) -> LabPlan:
    """The plan. InputError with all that cannot be changed while the lab runs."""
    before = Rendered.of_record(record)
    problems = [*_fixed_keys(before.spec, wanted.spec)]
    if problems:
        raise InputError(*problems)
    old, built = before.fabric, wanted.fabric
    problems += _other_nodes(old, built)
    if problems:
        raise InputError(*problems)
    numbers = _numbers(record, old, built)
    new = replace(wanted, fabric=numbered(built, numbers))
    there, after = dict(_ends(old)), dict(_ends(new.fabric))
    kept = [(there[end], after[end]) for end in after if end in there]
    names = {node.name for node in old.nodes} & {node.name for node in new.fabric.nodes}
    there_before = {port for link in old.links for port in (link.a, link.b)}
    renamed = tuple(
        (":".join(was), ":".join(now))
        for one, other in zip(built.links, new.fabric.links, strict=True)
        for was, now in ((one.a, other.a), (one.b, other.b))
        if was != now and now in there_before
    )
    problems = [*_other_addresses(old, new.fabric, kept)]
    if renamed and (named := [name for name in wanted.spec.link.exceptions if ":" in name]):
        why = f"names a port, and {renamed[0][0]} of the file is {renamed[0][1]} in the running lab"
        problems.append(Problem("", f"link.exceptions.{named[0]}", why))
    configs = dict[str, tuple[Sequence[str], Sequence[str]]]()
    for name, rows in _configs(old, new.fabric, names).items():
        problems += rows[1]
        configs |= {name: rows[0]} if any(rows[0]) else {}
    if problems:
        raise InputError(*problems)
    keys = differences(before.spec, wanted.spec)
    return LabPlan(
        old, new, numbers,
        tuple(node for node in old.nodes if node.name not in names),
        tuple(node for node in new.fabric.nodes if node.name not in names),
        tuple(link for end, link in there.items() if end not in after),
        tuple(link for end, link in after.items() if end not in there),
        tuple((one, other) for one, other in kept if one.rate_bps != other.rate_bps),
        tuple(f"{key} {value}" for key, _, value in keys if key.startswith("queues.")),
        renamed,
        configs,
    )  # fmt: skip


def _fixed_keys(old: FabricSpec, new: FabricSpec) -> Iterator[Problem]:
    """Keys that a running lab keeps."""
    sizes = set(type(new).model_fields) - set(FabricSpec.model_fields) - {"shape"}
    for key, before, after in differences(old, new):
        queue = key.removeprefix("queues.")
        live = queue != key and any(queue == each or queue.startswith(f"{each}.") for each in LIVE)
        if type(old) is not type(new) or not (key.partition(".")[0] in sizes or _RATES.fullmatch(key) or live):
            yield Problem("", f"{key}: {after}", f"was requested, but the running lab uses {before}")


def _other_nodes(old: Fabric, new: Fabric) -> Iterator[Problem]:
    """Names that would mean another node."""
    for node in new.nodes:
        before = old.by_name.get(node.name)
        wrong = [key for key in _FIXED if before is not None and getattr(before, key) != getattr(node, key)]
        if wrong:
            was, now = (_plain(getattr(each, wrong[0])) for each in (before, node))
            yield Problem("", node.name, f"would be another node: its {wrong[0].rstrip('s')} is {was}, not {now}")


def _plain(value: object) -> str:
    return " ".join(f"{word} {number}" for word, number in value) if isinstance(value, tuple) else str(value)


def _other_addresses(old: Fabric, new: Fabric, kept: Iterable[tuple[Link, Link]]) -> Iterator[Problem]:
    for before, after in kept:
        for one, other in ((before.a, after.a), (before.b, after.b)):
            was, now = old.by_name[one[0]].port(one[1]), new.by_name[other[0]].port(other[1])
            if (was.name, was.mac, was.address, was.mtu) != (now.name, now.mac, now.address, now.mtu):
                yield Problem("", was.ref, f"would change: {was.address} becomes {now.address}")


def _ends(fabric: Fabric) -> Iterator[tuple[_Ends, Link]]:
    seen = Counter[tuple[str, str]]()
    for link in fabric.links:
        pair = link.a[0], link.b[0]
        yield (*pair, seen[pair]), link
        seen[pair] += 1


def _numbers(record: Record, old: Fabric, built: Fabric) -> Mapping[str, Any]:
    """Numbers of ports and places of nodes: what stays keeps them. InputError when the maps have no room."""
    there = dict(_ends(old))
    given: dict[tuple[str, str], int] = {}  # (node, name in the built fabric) -> number
    for end, link in _ends(built):
        if (was := there.get(end)) is not None:
            given |= {link.a: _number(was.a[1]), link.b: _number(was.b[1])}
    used = {
        node.name: {given[node.name, p.name] for p in node.ports if (node.name, p.name) in given}
        for node in built.nodes
    }
    for _, link in _ends(built):
        for ref in (link.a, link.b):
            if ref not in given:
                number = next(each for each in range(1, 1 << 16) if each not in used[ref[0]])
                given[ref] = number
                used[ref[0]].add(number)
    ports = {node.name: [given[node.name, port.name] for port in node.ports] for node in built.nodes}
    space: Sequence[int] = record.numbers.get("space") or old.space
    places = _places(old, built, ports, space)
    return {"ports": ports, "places": places, "space": list(space)}


def _number(port: str) -> int:
    return int(port.removeprefix("eth"))


def _places(
    old: Fabric, built: Fabric, ports: Mapping[str, Sequence[int]], space: Sequence[int]
) -> dict[str, list[int]]:
    """Index, first, width and cross of each node. New nodes have the first free rows that are enough."""
    kept = {node.name: old.places[node.name] for node in built.nodes if node.name in old.by_name}
    switches = {node.name for node in old.switches}
    rows, ids = {place.index for place in kept.values()}, [(place.first, place.width) for place in kept.values()]
    pairs = [(place.cross, place.pairs) for name, place in kept.items() if name in switches]
    problems, full = list[Problem](), list[str]()
    for node in built.nodes:
        if node.name in kept:
            if (most := max(ports[node.name], default=0)) > kept[node.name].width:
                problems.append(Problem("", node.name, f"has room for {kept[node.name].width} ports, and needs {most}"))
            continue
        place = built.place_at(node, 0, 0, 0)
        index = next(each for each in range(1 << 20) if each not in rows)
        first = _free(ids, place.width, 1)
        cross = _free(pairs, place.pairs, 0) if node.role is Role.SWITCH else 0
        rows.add(index)
        ids.append((first, place.width))
        pairs += [(cross, place.pairs)] * (node.role is Role.SWITCH)
        kept[node.name] = MapRows(index, first, place.width, cross, ())
        ends = index + 1, first + place.width, cross + place.pairs * (node.role is Role.SWITCH)
        if any(end > size for end, size in zip(ends, space, strict=True)):
            full.append(node.name)
    if full:
        why = "cannot be added: the lab's maps have room for a few more nodes only"
        problems.append(Problem("", some_of(full), why))
    if problems:
        raise InputError(*problems)
    return {name: [place.index, place.first, place.width, place.cross] for name, place in kept.items()}


def _free(taken: Sequence[tuple[int, int]], size: int, start: int) -> int:
    """The first of `size` free numbers."""
    for first, width in sorted(taken):
        if first - start >= size:
            break
        start = max(start, first + width)
    return start


def _configs(
    old: Fabric, new: Fabric, kept: Iterable[str]
) -> dict[str, tuple[tuple[list[str], list[str]], list[Problem]]]:
    """Switch that stays -> lines of FRR to remove and to enter, and those that cannot be."""
    before, after = rendered(old), rendered(new)
    found = {}
    for name in sorted(kept):
        if (file := f"{name}/frr.conf") not in before or before[file] == after[file]:
            continue
        was, now = (list(flat_lines(texts[file])) for texts in (before, after))
        out = [line for line in was if line not in now]
        enter = [line for line in now if line not in was]
        wrong = [line for line in (*out, *enter) if not _ENTERED.fullmatch(line) and not _REPLACED.fullmatch(line)]
        problems = [Problem("", name, f"its FRR would need another {each.split(' / ')[-1]!r}") for each in wrong[:1]]
        found[name] = (
            ([line for line in out if not line.startswith("interface") and not _REPLACED.fullmatch(line)], enter),
            problems,
        )
    return found


def ports_of(fabric: Fabric, links: Iterable[Link]) -> list[Port]:
    """Both ends of links."""
    return [fabric.by_name[node].port(port) for link in links for node, port in (link.a, link.b)]


def _text(link: Link) -> str:
    return f"{':'.join(link.a)} - {':'.join(link.b)}"


def _named(nodes: Sequence[Node]) -> str:
    return some_of([node.name for node in nodes])
