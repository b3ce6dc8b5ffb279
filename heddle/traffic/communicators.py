"""Divide ranks into communicators: one, or several that run the same collective at the same time.

In:  a fabric, endpoints by rank, and the split as typed: `auto`, or the words of nccl-tests' NCCL_TESTS_SPLIT.
Out: communicators, each a tuple of its ranks, in order. InputError for those that cannot work.
nccl-tests (README.md, "Running multiple operations in parallel") computes a color of each rank by one operation, as
`MOD 8` or `AND 0x7`; ranks of one color form a communicator. `auto` makes one communicator per connected part of the
fabric that has ranks: one per plane in a fabric of disconnected planes, a single one in any other fabric.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric

if TYPE_CHECKING:
    from heddle.traffic.collectives import Pattern
    from heddle.traffic.flow import Endpoint

AUTO: Final = "auto"
Communicators = tuple[tuple[int, ...], ...]
_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "AND": lambda rank, value: rank & value,
    "OR": lambda rank, value: rank | value,
    "MOD": lambda rank, value: rank % value,
    "DIV": lambda rank, value: rank // value,
}
_SIGNS: Final[Mapping[str, str]] = {"&": "AND", "|": "OR", "%": "MOD", "/": "DIV"}
_TYPED: Final = re.compile(r"(AND|OR|MOD|DIV|[&|%/])\s*(0x[0-9a-f]{1,8}|0b[01]{1,32}|[0-9]{1,10})", re.IGNORECASE)


def parse_split(text: str) -> str:
    """`auto`, `MOD 8`, `% 8`, `and 0x7`: in one spelling, as `MOD 8`; ValueError with the reason."""
    if text.strip().lower() == AUTO:
        return AUTO
    found = _TYPED.fullmatch(text.strip())
    if found is None:
        raise ValueError("is neither auto nor an operation and a number; write 'MOD 8', 'DIV 8', 'AND 0x7' or 'OR 0x7'")
    word, value = _SIGNS.get(found[1], found[1].upper()), int(found[2], 0)
    if word in ("MOD", "DIV") and not value:
        raise ValueError("divides by 0; write 'MOD 2'")
    return f"{word} {value}"


def communicators_of(fabric: Fabric, endpoints: Sequence[Endpoint], split: str) -> Communicators:
    """The ranks by communicator, in the order of colors. split: as `parse_split` returns it."""
    parts = [fabric.part_of[endpoint.first_hop.partition(":")[0]] for endpoint in endpoints]
    colors = parts if split == AUTO else colors_of(split, len(endpoints))
    groups: dict[int, list[int]] = {}
    for rank, color in enumerate(colors):
        groups.setdefault(color, []).append(rank)
    found = tuple(tuple(groups[color]) for color in sorted(groups))
    _check(fabric, endpoints, parts, split, found)
    return found


def colors_of(split: str, ranks: int) -> list[int]:
    """The color of each rank by an operation. split: as `parse_split` returns it."""
    word, value = split.split()
    return [_OPERATIONS[word](rank, int(value)) for rank in range(ranks)]


def _check(
    fabric: Fabric, endpoints: Sequence[Endpoint], parts: Sequence[int], split: str, found: Communicators
) -> None:
    """InputError for a communicator of one rank, for different sizes, and for ranks without a path between them."""
    what = f"--ranks {len(endpoints)}" if split == AUTO else f"--split {split}"
    part = fabric.area or "part"
    for ranks in found:
        other = next((rank for rank in ranks if parts[rank] != parts[ranks[0]]), None)
        if other is not None:
            here, there = endpoints[ranks[0]].nic, endpoints[other].nic
            why = f"puts {here} and {there} into one communicator, but there is no path between their {part}s"
            raise InputError(Problem("", what, why, f"use the default split: it makes one communicator per {part}"))
    sizes = sorted({len(ranks) for ranks in found})
    if len(sizes) > 1:
        fit = len(found) * sizes[0]
        why = f"makes communicators of {' and '.join(map(str, sizes))} ranks, but all must have the same size"
        hint = f"try --ranks {fit}" if fit >= 2 * len(found) else "place the same number of ranks on each"
        raise InputError(Problem("", what, why, hint))
    if sizes[0] < 2:
        why = f"makes {len(found)} communicators of one rank, but a collective needs two"
        hint = f"try --ranks {2 * len(found)}" if split == AUTO else "use the default split"
        raise InputError(Problem("", what, why, hint))


def check_paths(fabric: Fabric, endpoints: Sequence[Endpoint], pairs: Iterable[Sequence[int]], what: str) -> None:
    """InputError for ranks that send to others without a path. what: the option that says so."""
    parts = [fabric.part_of[endpoint.first_hop.partition(":")[0]] for endpoint in endpoints]
    for src, dst in pairs:
        if parts[src] != parts[dst]:
            here, there, part = endpoints[src].nic, endpoints[dst].nic, fabric.area or "part"
            why = f"sends from {here} to {there}, but there is no path between their {part}s"
            raise InputError(Problem("", what, why, f"send between ranks of one {part}"))


def hosted(pattern: Pattern, endpoints: Sequence[Endpoint], found: Communicators, split: str) -> Pattern:
    """The pattern with the host of each rank. InputError where that differs between communicators and matters."""
    each = [pattern.hosted([endpoints[rank].host for rank in ranks]) for ranks in found]
    if any(other != each[0] for other in each):
        why = "makes communicators with other numbers of ranks on a host, or in another order"
        raise InputError(Problem("", f"--split {split}", why, "place the same ranks on each"))
    return each[0]


def between_hosts(endpoints: Sequence[Endpoint], pairs: Iterable[Sequence[int]]) -> Sequence[Sequence[int]]:
    """The pairs of ranks on different hosts. InputError if there are none."""
    found = [(src, dst) for src, dst in pairs if endpoints[src].host != endpoints[dst].host]
    if not found:
        why, hint = "puts all ranks on one host, so no NIC sends", "use several hosts, or --nvlink-rate 0"
        raise InputError(Problem("", f"--ranks {len(endpoints)}", why, hint))
    return found


def describe(fabric: Fabric, endpoints: Sequence[Endpoint], found: Communicators) -> str:
    """`2 communicators of 4 ranks at the same time, one per plane`; empty if there is only one."""
    if len(found) < 2:
        return ""
    parts = [{fabric.part_of[endpoints[rank].first_hop.partition(":")[0]] for rank in ranks} for ranks in found]
    alone = len({part for each in parts for part in each}) == len(found)
    per = f", one per {fabric.area or 'part'}" if alone else ""
    return f"{len(found)} communicators of {len(found[0])} ranks at the same time{per}"
