"""A ranking of placements as text: the choice and its reason first, then a row for each candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from heddle.base.tables import many, some_of, table
from heddle.base.units import format_bytes
from heddle.views.forecasttext import seconds_text, wrapped
from heddle_plugins.engineering.placement import EQUAL, Candidate, Ranking

_LINES = 12  # boxes of which the ranks are listed


def render(ranking: Ranking, chosen: Candidate) -> str:
    """The whole report."""
    parts = [_choice(ranking), _table(ranking), _places(ranking, chosen), _remarks(ranking)]
    return "\n\n".join("\n".join(lines) for lines in (list(part) for part in parts) if lines)


def _choice(ranking: Ranking) -> Iterator[str]:
    best, others = ranking.found[0], ranking.found[1:]
    box, area = _words(ranking)
    where = many(best.boxes, box) + (f" of {many(best.areas, area)}" if area else "")
    if best.unreachable:
        what = f"choice: {best.name}, but {many(best.unreachable, 'flow')} of it have no path"
        yield from wrapped(f"{what}: {len(best.nics)} ranks in {where}")
        return
    why = "; ".join(_reasons(best, others, box)) or "no other placement is possible"
    yield from wrapped(f"choice: {best.name}, {len(best.nics)} ranks in {where}: {why}")


def _reasons(best: Candidate, others: Sequence[Candidate], box: str) -> Iterator[str]:
    whole = [each for each in others if not each.unreachable]
    slower = [each for each in whole if each.seconds > best.seconds * EQUAL]
    if equal := [each for each in whole if each not in slower]:
        yield f"as fast as {some_of([each.name for each in equal], 3)}{_with(best, equal, box)}"
    if slower:
        slowest = max(slower, key=lambda each: each.seconds)
        times = f"{slowest.name} takes {slowest.seconds / best.seconds:.2f} times as long"
        yield f"{times}, as {slowest.busiest} carries more" if slowest.busiest else times
    if without := [each.name for each in others if each.unreachable]:
        yield f"{some_of(without, 3)} would have flows without a path"


def _with(best: Candidate, equal: Sequence[Candidate], box: str) -> str:
    """The advantage over others with the same time, in their order."""
    other, least = equal[0], "at least " * (len(equal) > 1)
    for direction, count in [*best.climbed.items()][::-1]:
        if count < other.climbed[direction]:
            share = 1 - count / other.climbed[direction]
            fewer = f"{least}{share:.0%} fewer" if count else "no"
            return f", with {fewer} bytes from {direction}"
    return f", in fewer {box}s" if best.boxes < other.boxes else ""


def _words(ranking: Ranking) -> tuple[str, str]:
    """The words of boxes and of areas; no word of areas if the fabric has only one, or the same ones."""
    fabric = ranking.fabric
    areas = {node.group(fabric.area) for node in fabric.hosts}
    return fabric.box or "switch", fabric.area if len(areas) > 1 and fabric.area != fabric.box else ""


def _table(ranking: Ranking) -> Iterator[str]:
    box, area = _words(ranking)
    directions = [*ranking.found[0].climbed]
    shared = bool(ranking.others)
    head = ["placement", "completion", "/NIC", f"{box}s", *([f"{area}s"] if area else []),
            *(name.replace(" to ", ">") for name in directions), "busiest link",
            *(["of this job"] if shared else [])]  # fmt: skip
    rows = []
    for each in ranking.found:
        numbers = [str(each.boxes), *([str(each.areas)] if area else [])]
        climbed = [format_bytes(each.climbed[name]) for name in directions]
        own = [f"{each.own:.0%}"] if shared else []
        time = [seconds_text(each.seconds), f"{each.ratio:.2f}"]
        rows.append([each.name, *time, *numbers, *climbed, each.busiest or "-", *own])
    yield table(head, rows)
    for each in ranking.found:
        if each.same:
            yield f"{', '.join(each.same)}: the same NICs as {each.name}"
        if each.unreachable:
            yield f"{each.name}: {many(each.unreachable, 'flow')} without a path"
    for name, why in ranking.left_out.items():
        yield from wrapped(f"{name} is left out: {why}")


def _places(ranking: Ranking, chosen: Candidate) -> Iterator[str]:
    fabric = ranking.fabric
    box, _ = _words(ranking)
    found: dict[str, list[int]] = {}
    for rank, nic in enumerate(chosen.nics):
        host = fabric.by_name[nic.partition(":")[0]]
        number = host.group(fabric.box)
        where = f"{box} {number}" if number else host.port(nic.partition(":")[2]).peer_node
        found.setdefault(where, []).append(rank)
    yield f"ranks of {chosen.name}"
    for where, ranks in [*found.items()][:_LINES]:
        hosts = list(dict.fromkeys(chosen.nics[rank].partition(":")[0] for rank in ranks))
        numbers = "rank" if len(ranks) == 1 else "ranks"
        yield f"  {where}: {numbers} {ranges(ranks)} on {some_of(hosts, 8)}"
    if len(found) > _LINES:
        yield f"  and {len(found) - _LINES} more {box}s"


def ranges(numbers: Sequence[int]) -> str:
    """`0-3, 8`, of increasing numbers; the first eight of them."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    return some_of([str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs], 8)


def _remarks(ranking: Ranking) -> Iterator[str]:
    yield "completion: the busiest link with bytes of the job, the mean over hash seeds; /NIC: by its busiest NIC alone"
    k = ranking.fabric.policy.k
    yield f"times are emulated, at 1/{k} of the hardware's rates; up to {EQUAL - 1:.0%} more counts as equal"
    if ranking.others:
        names = some_of([job.name for job in ranking.others], 8)
        yield from wrapped(f"other jobs, which stay in place: {names}; one iteration of each")
    for word, refs in (("down", ranking.trouble.down), ("drained", ranking.trouble.drained)):
        if refs:
            yield from wrapped(f"{word}: {some_of(refs, 8)}")
