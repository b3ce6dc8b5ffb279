"""The rail and plane lint: which NIC pairs of a job cannot reach each other or cross rails, and the setting for it.

In:  RailJob. Out: findings, one for each cause, with exact counts of pairs.
Which NICs are connected (NCCL 2.31, src/graph/search.cc: ncclTopoGetNetDev, ncclTopoSearchRec; src/gin):
- Rings and trees leave a host by a NIC and enter the next by one of the same number. NCCL_CROSS_NIC=1 allows any other;
  2, the default, too, but only if that is faster.
- Send/recv (all-to-all, gather, pipelines) uses the NIC with the number of the peer's if NCCL_CROSS_NIC is 0. Else PXN
  does so through a GPU next to that NIC, where NVLink reaches it; without PXN each rank uses its own NIC.
- GIN connects, when it starts, neighbours in a ring of all ranks, on one host too. With NCCL_CROSS_NIC=0 only NICs of
  one number. Here a host has a rank for each NIC, in the order of their numbers.
- Mooncake's transfer engine connects any device with any.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise, product
from typing import Any, Final

from heddle.base.tables import filled, many, some_of
from heddle_plugins.engineering.railfile import COLLECTIVES, GIN, SEND_RECV, TRANSFER, RailJob, RailNic

Pair = tuple[RailNic, RailNic]
Test = Callable[[RailNic, RailNic], bool]
_SHOWN: Final = 2
_UNREACHABLE: Final = "cannot reach each other"
_CROSSING: Final = "cross rails"
_RAIL_ONLY: Final = "NCCL_CROSS_NIC=0"


@dataclass(frozen=True)
class RailFinding:
    """A cause. kind: the end of `NIC pairs ...`. pairs: their number, of which `first` are named."""

    kind: str
    uses: tuple[str, ...]
    pairs: int
    first: Sequence[Pair]
    why: str
    remedy: str


def findings_of(job: RailJob) -> list[RailFinding]:
    """Every finding, those of NICs that cannot reach each other first."""
    spec = job.spec
    uses = tuple(use for use in (COLLECTIVES, SEND_RECV) if use in spec.uses)
    front = [nic for nic in job.nics if nic.front]
    nics = [nic for nic in job.nics if not nic.front]
    found = list[RailFinding | None]()
    if nics and front and {*uses, GIN} & {*spec.uses}:
        names = ",".join(dict.fromkeys(nic.hca for nic in front))
        why = "the list of HCAs has NICs of the front-end, which no link joins with the back-end"
        if spec.NCCL_CROSS_NIC:
            kind, pairs = _UNREACHABLE, _pairs(job.nics, lambda a, b: a.front != b.front)
        else:
            kind, pairs = "use the front-end", _listed([*pairwise(front)], lambda a, b: a.host != b.host)
        found.append(_finding(kind, uses or (GIN,), pairs, why, f"NCCL_IB_HCA=^={names}"))
    if uses:
        found += [_unaligned(nics, uses, kind, test) for kind, test in _TESTS.items()]
    if uses and spec.NCCL_CROSS_NIC:
        pairs = _pairs(nics, lambda a, b: a.number != b.number and _apart(a, b))
        why = f"NCCL_CROSS_NIC={spec.NCCL_CROSS_NIC} allows connections between NICs of different numbers"
        found.append(_finding(_UNREACHABLE, uses, pairs, why, _RAIL_ONLY))
        pairs = _pairs(nics, lambda a, b: a.number != b.number and _crossing(a, b))
        if spec.NCCL_CROSS_NIC == 1 and COLLECTIVES in uses:
            why = "NCCL_CROSS_NIC=1 lets rings and trees change the rail from host to host"
            found.append(_finding(_CROSSING, (COLLECTIVES,), pairs, why, _RAIL_ONLY))
        if spec.NCCL_PXN_DISABLE and SEND_RECV in uses:
            why = "without PXN each rank sends by its own NIC to the NIC of its peer"
            found.append(_finding(_CROSSING, (SEND_RECV,), pairs, why, "NCCL_PXN_DISABLE=0"))
    if not spec.NCCL_CROSS_NIC and SEND_RECV in uses:
        found.append(_uneven(nics))
    if GIN in spec.uses and spec.NCCL_CROSS_NIC:
        pairs = _listed([*_ring(nics)], _apart)
        why = f"GIN connects neighbours in the ring of all ranks, since NCCL_CROSS_NIC={spec.NCCL_CROSS_NIC}; it hangs"
        remedy = f"{_RAIL_ONLY}, and programs ask for NCCL_GIN_CONNECTION_RAIL (NCCL 2.29.7)"
        found.append(_finding(_UNREACHABLE, (GIN,), pairs, why, remedy))
    if TRANSFER in spec.uses:
        why = "the transfer engine connects any device of a host with any device of another"
        remedy = _common(job.all)
        found.append(_finding(_UNREACHABLE, (TRANSFER,), _pairs(job.all, _apart), why, remedy))
    return sorted((each for each in found if each is not None), key=lambda each: each.kind == _CROSSING)


def _apart(a: RailNic, b: RailNic) -> bool:
    return a.part != b.part


def _crossing(a: RailNic, b: RailNic) -> bool:
    return a.part == b.part and a.rail != b.rail and bool(a.rail and b.rail)


_TESTS: Final[Mapping[str, Test]] = {_UNREACHABLE: _apart, _CROSSING: _crossing}


def _finding(
    kind: str, uses: tuple[str, ...], pairs: tuple[int, Sequence[Pair]], why: str, remedy: str
) -> RailFinding | None:
    return RailFinding(kind, uses, *pairs, why, remedy) if pairs[0] else None


def _pairs(nics: Iterable[RailNic], test: Test) -> tuple[int, list[Pair]]:
    """How many pairs of NICs of two hosts pass a test of number, part, rail and front; and the first of them."""
    alike: dict[object, list[RailNic]] = {}
    for nic in nics:
        alike.setdefault((nic.number, nic.part, nic.rail, nic.front), []).append(nic)
    count, first = 0, list[Pair]()
    for a, b in combinations(alike.values(), 2):  # NICs that are alike in all of this pass no test
        if test(a[0], b[0]):
            shared = len({nic.host for nic in a} & {nic.host for nic in b})
            count += len(a) * len(b) - shared
            first += islice((pair for pair in product(a, b) if pair[0].host != pair[1].host), _SHOWN - len(first))
    return count, first


def _listed(pairs: Iterable[Pair], test: Test) -> tuple[int, list[Pair]]:
    found = [pair for pair in pairs if test(*pair)]
    return len(found), found[:_SHOWN]


def _ring(nics: Sequence[RailNic]) -> Iterator[Pair]:
    """Neighbours in a ring; of two NICs only one pair."""
    yield from pairwise(nics)
    if len(nics) > 2:
        yield nics[-1], nics[0]


def _unaligned(nics: Sequence[RailNic], uses: tuple[str, ...], kind: str, test: Test) -> RailFinding | None:
    """NICs of one number on different rails, or in subnets without routes."""
    pairs = _pairs(nics, lambda a, b: a.number == b.number and test(a, b))
    rails: dict[int, Counter[str]] = {}
    for nic in nics:
        rails.setdefault(nic.number, Counter())[nic.rail] += 1
    usual = {number: of.most_common(1)[0][0] for number, of in rails.items()}
    first = {(nic.number, nic.rail): nic for nic in reversed(nics)}
    odd = [
        f"{nic} to the rail of {first[nic.number, usual[nic.number]]}" for nic in nics if nic.rail != usual[nic.number]
    ]
    why = "rings and trees connect NICs of one number, and these are on different rails"
    if odd:
        return _finding(
            kind, uses, pairs, why, f"the rails in the same order on each host: move {some_of(odd, _SHOWN)}"
        )
    why = "rings and trees connect NICs of one number, and these are in networks without a route between them"
    return _finding(
        kind, uses, pairs, why, "routes between them; networks that have routes belong in the file's routed"
    )


def _uneven(nics: Sequence[RailNic]) -> RailFinding | None:
    """NICs whose number another host does not have."""
    last = {nic.host: nic for nic in nics}  # NICs of a host come by number
    least = min((nic.number for nic in last.values()), default=0)
    fewer = sorted(last.values(), key=lambda nic: nic.number)
    more = [nic for nic in nics if nic.number > least]
    count = sum(bisect_left(fewer, nic.number, key=lambda each: each.number) for nic in more)
    pairs = ((nic, each) for nic in more for each in fewer if each.number < nic.number)
    why = "NCCL_CROSS_NIC=0 needs a NIC of the number of the peer's NIC, which the host of the second does not have"
    names = ",".join(dict.fromkeys(nic.hca for nic in nics if nic.number <= least))
    first = [*islice(pairs, _SHOWN)]
    return _finding("have no counterpart", (SEND_RECV,), (count, first), why, f"NCCL_IB_HCA=={names}")


def _common(nics: Sequence[RailNic]) -> str:
    """The largest list of devices that reach each other on all hosts."""
    parts: dict[object, dict[str, dict[str, None]]] = {}
    for nic in nics:
        parts.setdefault(nic.part, {}).setdefault(nic.host, {})[nic.hca] = None
    hosts = {nic.host for nic in nics}
    lists = [
        [hca for hca in next(iter(of.values())) if all(hca in names for names in of.values())]
        for of in parts.values()
        if of.keys() == hosts
    ]
    best = max(lists, key=len, default=[])
    return f"device_name: {','.join(best)}" if best else "a network that joins these, or routes between them"


def to_json(job: RailJob, found: Sequence[RailFinding]) -> dict[str, Any]:
    """The result for programs."""
    settings = {key: getattr(job.spec, key) for key in ("NCCL_IB_HCA", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE")}
    return {
        "file": job.file, "fabric": job.spec.fabric, "hosts": len({nic.host for nic in job.all}),
        "nics": len(job.nics), "settings": settings, "uses": [*job.spec.uses], "assumed": [*job.assumed],
        "findings": [
            {
                "kind": each.kind, "uses": [*each.uses], "pairs": each.pairs, "why": each.why, "remedy": each.remedy,
                "first": [[_end(nic) for nic in pair] for pair in each.first],
            }
            for each in found
        ],
    }  # fmt: skip


def _end(nic: RailNic) -> dict[str, str]:
    return {"host": nic.host, "hca": nic.hca, "where": nic.where}


def to_text(job: RailJob, found: Sequence[RailFinding]) -> str:
    """A paragraph for each finding; nothing without any."""
    parts = []
    for each in found:
        rest = each.pairs - len(each.first)
        parts.append("\n".join([
            f"{many(each.pairs, 'NIC pair')} {each.kind}: {', '.join(each.uses)}",
            *(f"  {a} - {b}" for a, b in each.first),
            *([f"  and {rest:,} more"] if rest else []),
            f"  why: {each.why}",
            f"  set: {each.remedy}",
        ]))  # fmt: skip
    if parts and job.assumed:
        parts.append(filled("assumed: " + "; ".join(job.assumed)))
    return "\n\n".join(parts)
