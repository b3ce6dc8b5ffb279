"""Where a job belongs: candidates for the places of its ranks, ranked by the predicted load of the fabric's links.

In:  Fabric, Workload, the job to place; what is down or drained. The other jobs stay where the workload places them.
Out: Ranking, the best candidate first; InputError when the job does not fit.
A candidate's time is that of the busiest link that carries bytes of the job: bytes of all jobs, by the link's rate. It
is the mean over the fabric's hash seeds and some other ones, so that the luck of one seed does not choose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.tables import many, some_of, table
from heddle.base.units import format_bytes
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import BACKEND, Port
from heddle.host.preflight import frr_release
from heddle.offline.loads import Demand, Scenario, Traffic, carry, demand_of, nics_of, spread_evenly, traffic_at
from heddle.offline.wires import (
    EVEN_SPLIT,
    Trouble,
    compared,
    cuts_of,
    forwarding_of,
    other_seeds,
    rule_of,
    rules_of,
    steering_of,
    trouble_of,
    wires_of,
)
from heddle.traffic.placement import endpoint_at, no_nic
from heddle.traffic.workload import Job, Keys, Workload
from heddle.views.forecasttext import seconds_text, wrapped
from heddle_plugins.engineering import mincut
from heddle_plugins.engineering.nccldumps import DumpedHost, on_hosts

MINCUT: Final = "min-cut"
NCCL: Final = "nccl"
EQUAL: Final = 1.03  # times that hash seeds can change by as much
_SEEDS: Final = 4  # sets of hash seeds, the fabric's own first
_MANY_FLOWS: Final = 300_000  # that make luck small: one set is enough


@dataclass(frozen=True)
class PlacementAsk:
    """What to place. job: of the workload, empty for its only one. ranks: instead of the job's own number.

    seed: of random orders and of the search. dumped: the hosts of a real job, as another candidate. down, drain: as in
    predict.
    """

    job: str = ""
    ranks: int | None = None
    down: Sequence[str] = ()
    drain: Sequence[str] = ()
    seed: int = 0
    dumped: Sequence[DumpedHost] = ()


@dataclass(frozen=True)
class Candidate:
    """A placement and its prediction. nics: by rank. same: names of others with the same NICs.

    seconds: emulated, of the busiest link with bytes of the job. nic_s: of the job's busiest NIC alone, without other
    jobs. boxes, areas: their numbers that have ranks. climbed: bytes of the job by direction upwards. busiest: a port,
    with the fabric's own seeds; own: the job's share of its bytes. unreachable: flows without a path.
    """

    name: str
    nics: tuple[str, ...]
    same: tuple[str, ...]
    seconds: float
    nic_s: float
    boxes: int
    areas: int
    climbed: Mapping[str, float]
    busiest: str
    own: float
    unreachable: int

    @property
    def ratio(self) -> float:
        """The predicted completion, by the time of the busiest NIC alone: 1.0 is the best."""
        return self.seconds / self.nic_s if self.nic_s else 0.0

    def order(self, fastest: float) -> tuple[float, ...]:
        """The best first: by flows without a path, by time, by bytes on the highest links, by boxes.

        fastest: seconds of the fastest candidate. Times up to EQUAL of it count as equal.
        """
        time = max(self.seconds, fastest * EQUAL)
        return (self.unreachable, time, *[*self.climbed.values()][::-1], self.boxes)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "same": list(self.same), "completion_seconds": self.seconds, "over_nic": self.ratio,
            "boxes": self.boxes, "areas": self.areas, "bytes": dict(self.climbed), "busiest_link": self.busiest,
            "own_share": self.own, "unreachable": self.unreachable, "nics": list(self.nics),
        }  # fmt: skip


@dataclass(frozen=True)
class Ranking:
    """All candidates, the best first. others: jobs that stay in place. left_out: candidates that are not possible."""

    fabric: Fabric
    job: Job
    others: tuple[Job, ...]
    trouble: Trouble
    found: tuple[Candidate, ...]
    left_out: Mapping[str, str]

    def candidate(self, name: str) -> Candidate:
        """By its name; the best for an empty one. InputError for an unknown one."""
        for each in self.found:
            if name in ("", each.name, *each.same):
                return each
        known = [name for each in self.found for name in (each.name, *each.same)]
        raise InputError(Problem("", f"--choose {name}", "is not a candidate", did_you_mean(name, known)))

    def to_json(self) -> dict[str, Any]:
        return {
            "fabric": self.fabric.name,
            "emulated": {"k": self.fabric.policy.k},
            "job": self.job.name,
            "ranks": len(self.found[0].nics),
            "others": [job.name for job in self.others],
            "down": list(self.trouble.down),
            "drained": list(self.trouble.drained),
            "choice": self.found[0].name,
            "candidates": [each.to_json() for each in self.found],
            "left_out": dict(self.left_out),
        }


def rank_placements(fabric: Fabric, workload: Workload, ask: PlacementAsk, observer: Observer) -> Ranking:
    """Predict all candidates. InputError for a job that does not fit, and for an unknown job."""
    job = _job(workload, ask)
    others = tuple(each for each in workload.jobs if each.name != job.name)
    observer.begin("fabric")
    judge = _Judge(fabric, workload, others, ask)
    observer.end("fabric")
    wanted = replace(workload, jobs=(*others, job)).endpoints(fabric)[-1]
    ranks = len(wanted)
    free = judge.free()
    if ranks > len(free):
        count = "is free and up" if len(free) == 1 else "are free and up"
        hint = f"use --ranks {len(free)}" if len(free) > 1 else "use a larger fabric"
        problem = Problem("", f"--ranks {ranks}", f"needs {ranks} NICs, but {len(free)} {count}", hint)
        raise InputError(job.keys.located(problem))
    by_ref = {port.ref: port for port in fabric.nics}
    hosts = mincut.free_hosts(fabric, free)
    written = job.options.placement if job.slots is None else "ranks of the file"
    named = {**mincut.candidates(hosts, ranks, ask.seed), written: [by_ref[end.nic] for end in wanted]}
    if ask.dumped:
        named[NCCL] = on_hosts(ask.dumped, mincut.packed_hosts(hosts, ranks))
    found, left_out = dict[tuple[str, ...], Candidate](), dict[str, str]()
    observer.begin("placements", len(named) + 1)

    def add_one(name: str, nics: Sequence[Port]) -> None:
        refs = tuple(port.ref for port in nics)
        if refs in found:
            found[refs] = replace(found[refs], same=(*found[refs].same, name))
            return
        try:
            found[refs] = judge.candidate(job, name, nics)
        except InputError as error:
            left_out[name] = error.problems[0].why

    for number, (name, nics) in enumerate(named.items(), 1):
        add_one(name, nics)
        observer.advance("placements", number)
    try:
        places = judge.searched(job, hosts, named["spread"], ask.seed)
        best = best_first([judge.candidate(job, MINCUT, nics) for nics in places])[0]
        same = found.get(best.nics)
        found[best.nics] = replace(same, same=(*same.same, MINCUT)) if same else best
    except InputError as error:
        left_out[MINCUT] = error.problems[0].why
    observer.end("placements")
    if not found:
        judge.candidate(job, "packed", named["packed"])  # its error says why
    return Ranking(fabric, job, others, judge.trouble, best_first([*found.values()]), left_out)


def best_first(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Candidates in the order of `Candidate.order`; the earlier one first if two are equal."""
    complete = [each.seconds for each in found if not each.unreachable]
    fastest = min(complete or [each.seconds for each in found])
    return tuple(sorted(found, key=lambda each: each.order(fastest)))


def _job(workload: Workload, ask: PlacementAsk) -> Job:
    """The job to place, with the number of ranks that was typed."""
    names = [job.name for job in workload.jobs]
    if ask.job and ask.job not in names:
        hint = did_you_mean(ask.job, names) if any(names) else "leave out --job: the workload is one job without a name"
        raise InputError(Problem("", f"--job {ask.job}", "is not a job of the workload", hint))
    if not ask.job and len(names) > 1:
        why, hint = f"has {len(names)} jobs", f"add --job with one of {', '.join(names)}"
        raise InputError(Problem("", f"--workload {workload.name}", why, hint))
    job = next(job for job in workload.jobs if ask.job in ("", job.name))
    ranks = ask.ranks or sum(len(host.nics) for host in ask.dumped)
    # A number that was typed is not one of the file, so errors do not name its line.
    typed = replace(job, slots=None, options=replace(job.options, ranks=ranks), keys=Keys())
    return typed if ranks else job


class _Judge:
    """A fabric with its failures and its other jobs, in which candidates are predicted."""

    def __init__(self, fabric: Fabric, workload: Workload, others: Sequence[Job], ask: PlacementAsk) -> None:
        self.trouble = trouble_of(fabric, ask.down, ask.drain)
        self._wires = wires = wires_of(fabric)
        self._fabric = fabric
        release = frr_release() if fabric.policy.routing.ucmp else None
        before = forwarding_of(wires, None, release)
        self._forwarding = forwarding_of(wires, self.trouble, release) if self.trouble else before
        mode = compared(fabric.policy.routing.ecmp)[0]
        self._scenarios: list[Scenario] = []  # none: every switch splits evenly
        if mode != EVEN_SPLIT:
            rule, steering = rule_of(fabric.policy, mode), steering_of(wires, before)
            self._scenarios = [
                Scenario("", self._forwarding, rules_of(wires, rule, steering, other_seeds(wires.seeds, trial)))
                for trial in range(_SEEDS)
            ]
        places = replace(workload, jobs=tuple(others)).endpoints(fabric) if others else ()
        self._used = {end.nic for ends in places for end in ends}
        jobs = [traffic_at(fabric, job, ends) for job, ends in zip(others, places, strict=True)]
        nothing = np.zeros(len(wires.ports))
        self._demand = Demand(np.zeros(self._forwarding.group.shape), nothing)
        self._base: list[F64] = [nothing] * max(1, len(self._scenarios))
        for traffic in jobs:
            loads, demand, _ = self._loads(traffic)
            self._base = [base + load for base, load in zip(self._base, loads, strict=True)]
            self._demand += demand

    def free(self) -> list[Port]:
        """NICs without a rank of another job, whose link and switch are up, and whose switch is not drained."""
        dead, drained = self.trouble.dead, self.trouble.drained
        return [
            port
            for port in self._fabric.nics
            if port.ref not in self._used and not {port.ref, port.peer_ref} & dead
            and port.peer_node not in drained and not no_nic(self._fabric, port)
        ]  # fmt: skip

    def _loads(self, traffic: Traffic) -> tuple[list[F64], Demand, int]:
        """The bytes by port for each set of seeds, the demand, and the number of flows without a path."""
        nics = nics_of(self._wires, traffic, self.trouble.dead)
        demand = demand_of(self._wires, traffic, nics, self._forwarding)
        scenarios = self._scenarios[: 1 if traffic.connections.flows > _MANY_FLOWS else None]
        found = carry(self._wires, traffic, nics, scenarios or [self._any()])
        if not self._scenarios:
            return [spread_evenly(self._wires, self._forwarding, demand)], demand, found[0].unreachable
        loads = [each.bytes for each in found]
        return loads + loads * (len(self._scenarios) - len(loads)), demand, found[0].unreachable

    def _any(self) -> Scenario:
        """Some hashing: flows without a path are the same ones for all."""
        rule = rule_of(self._fabric.policy, "flow")
        rules = rules_of(self._wires, rule, steering_of(self._wires, self._forwarding), self._wires.seeds)
        return Scenario("", self._forwarding, rules)

    def _traffic(self, job: Job, nics: Sequence[Port]) -> Traffic:
        return traffic_at(self._fabric, job, [endpoint_at(self._fabric, *each) for each in enumerate(nics)])

    def candidate(self, job: Job, name: str, nics: Sequence[Port]) -> Candidate:
        """The prediction of one placement. InputError for a pattern that it does not allow."""
        wires, fabric = self._wires, self._fabric
        loads, demand, unreachable = self._loads(self._traffic(job, nics))
        times = [
            np.where(own > 0, (own + base) * 8 / wires.rate, 0.0)
            for own, base in zip(loads, self._base, strict=True)
        ]  # fmt: skip
        at = int(times[0].argmax())
        nodes = [fabric.by_name[port.node] for port in nics]
        switches = {fabric.by_name[port.peer_node] for port in nics}
        boxes = {node.group(fabric.box) for node in nodes} if fabric.box else {node.name for node in switches}
        return Candidate(
            name, tuple(port.ref for port in nics), (),
            float(np.mean([time.max() for time in times])), float((demand.direct * 8 / wires.rate).max()),
            len(boxes), len({node.group(fabric.area) for node in nodes}),
            {wires.direction_name(d): float(loads[0][wires.direction == d].sum()) for d in wires.upward
             if (wires.direction == d).any() and fabric.levels[wires.directions[d][-1]].network == BACKEND},
            wires.ports[at] if times[0][at] else "", float(loads[0][at] / (loads[0][at] + self._base[0][at] or 1)),
            unreachable,
        )  # fmt: skip

    def searched(
        self, job: Job, hosts: Sequence[mincut.FreeHost], spread: Sequence[Port], seed: int
    ) -> list[list[Port]]:
        """The placements that the search finds. InputError when it is left out."""
        ranks, free = len(spread), [nic for host in hosts for nic in host.nics]
        orders = [mincut.packed(hosts, ranks), spread]
        traffic = self._traffic(job, orders[0][:ranks])
        connections = traffic.connections
        if len(connections) > mincut.MOST_CONNECTIONS:
            raise InputError(Problem("", MINCUT, f"needs time for {len(connections):,} connections"))
        amount = traffic.volume.wire.sum(axis=1).astype(np.float64)[connections.kind]
        exchange = mincut.Exchange(connections.src.astype(np.int64), connections.dst.astype(np.int64), amount, ranks)
        nics = nics_of(self._wires, traffic, self.trouble.dead)
        demand = demand_of(self._wires, traffic, nics, self._forwarding)
        nic_s = float((demand.direct * 8 / self._wires.rate).max())
        if not nic_s:
            raise InputError(Problem("", MINCUT, "needs a job that sends bytes"))
        number = {port.ref: at for at, port in enumerate(free)}
        number_of = np.repeat(np.arange(len(hosts)), [len(host.nics) for host in hosts])
        starts = [np.array([number[port.ref] for port in order], dtype=np.int64) for order in orders]
        found = mincut.search([*self._levels(free, number_of, job)], number_of, exchange, starts, nic_s, seed)
        return [[free[at] for at in place] for place in dict.fromkeys(tuple(place.tolist()) for place in found)]

    def _levels(self, free: Sequence[Port], hosts: I64, job: Job) -> Iterator[mincut.CutLevel]:
        """Hosts, if their ranks copy inside them; edge switches; areas, if there are several."""
        wires = self._wires
        drained = [wires.switch_id[name] for name in self.trouble.drained]
        live = np.array([port not in self.trouble.dead for port in wires.ports], dtype=np.bool_)
        live &= ~(np.isin(wires.owner, drained) | np.isin(wires.peer, drained))
        cuts, between = cuts_of(wires, live), self._demand.between(wires)
        if job.options.inside_gbps(job.options.pattern):
            rates = np.bincount(hosts, weights=[port.rate_bps for port in free]).astype(np.float64)
            yield mincut.CutLevel(hosts, rates, np.zeros(len(rates)), np.zeros(len(rates)))
        edge = np.array([wires.edge[wires.switch_id[port.peer_node]] for port in free], dtype=np.int64)
        yield mincut.CutLevel(edge, cuts.edge_bps, between.sum(axis=1), between.sum(axis=0))
        if len(cuts.area_bps) > 1 and cuts.above:
            joined = cuts.joined(between)
            yield mincut.CutLevel(cuts.area_of[edge], cuts.area_bps, joined.sum(axis=1), joined.sum(axis=0))


_ROOT: Final = "fabric"
_TIER: Final = "fabric.topograph.run/tier-{}"  # Topograph, pkg/topology; tier 0 is next to the node


@dataclass(frozen=True, slots=True)
class Branch:
    """A node of the tree: hosts, or branches below it."""

    name: str
    hosts: tuple[str, ...] = ()
    below: tuple[Branch, ...] = ()

    def every(self) -> Iterator[Branch]:
        """All nodes, those next to hosts first."""
        for each in self.below:
            yield from each.every()
        yield self


def tree(fabric: Fabric) -> Branch:
    """The whole fabric."""
    leaves: dict[tuple[int, str], list[str]] = {}
    for host in fabric.hosts:
        if edges := sorted({port.peer_node for port in fabric.nics_of[host.name]}):
            area = (host.group(fabric.area) or 0) if fabric.area != fabric.box or fabric.sideways else 0
            leaf = edges[0] if len(edges) == 1 else f"{fabric.box or 'group'}{host.group(fabric.box) or 1}"
            leaves.setdefault((area, leaf), []).append(host.name)
    areas: dict[int, list[Branch]] = {}
    for (area, name), hosts in leaves.items():
        areas.setdefault(area, []).append(Branch(name, tuple(hosts)))
    if len(areas) == 1:
        return Branch(_ROOT, below=tuple(next(iter(areas.values()))))
    return Branch(_ROOT, below=tuple(Branch(f"{fabric.area}{n}", below=tuple(each)) for n, each in areas.items()))


def hostlist(names: Sequence[str]) -> str:
    """`host[1-4,7],gpu1`: Slurm's list of names that end in numbers."""
    found = []
    parts = [re.fullmatch(r"(.*?)([1-9][0-9]{0,8}|0)?", name) for name in names]
    pairs = [(part[1], part[2]) for part in parts if part]
    for prefix, group in groupby(pairs, key=lambda pair: pair[0]):
        texts = [text for _, text in group]
        numbers = [int(text) for text in texts if text]
        found += [prefix] * (len(texts) - len(numbers))
        runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0])]
        words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        if len(numbers) == 1:
            found.append(f"{prefix}{words[0]}")
        elif numbers:
            found.append(f"{prefix}[{','.join(words)}]")
    return ",".join(found)


def _slurm(fabric: Fabric) -> Iterator[str]:
    """topology.conf of topology/tree (Slurm, topology.conf(5))."""
    yield f"# topology.conf of fabric {fabric.name}, for TopologyPlugin=topology/tree"
    for each in tree(fabric).every():
        below = f"Switches={hostlist([b.name for b in each.below])}"
        yield f"SwitchName={each.name} {below if each.below else f'Nodes={hostlist(each.hosts)}'}"


def _slurm_yaml(fabric: Fabric) -> Iterator[str]:
    """topology.yaml (Slurm 25.05 or newer, topology.yaml(5))."""
    yield from ("---", f"- topology: {_quoted(fabric.name)}", "  cluster_default: true", "  tree:", "    switches:")
    for each in tree(fabric).every():
        yield f"      - switch: {_quoted(each.name)}"
        key, names = ("children", [b.name for b in each.below]) if each.below else ("nodes", each.hosts)
        yield f"        {key}: {_quoted(hostlist(names))}"


def _quoted(name: str) -> str:
    """A string for YAML, also where the name alone would be a number, a truth value or null."""
    return json.dumps(name)


def _topograph(fabric: Fabric) -> Iterator[str]:
    """Node objects of Kubernetes with the labels of NVIDIA Topograph."""
    for host, above in _paths(tree(fabric), ()):
        yield from ("---", "apiVersion: v1", "kind: Node", "metadata:", f"  name: {_quoted(host)}", "  labels:")
        yield from (f"    {_TIER.format(tier)}: {_quoted(name)}" for tier, name in enumerate(above))


def _paths(branch: Branch, above: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each host, and the nodes of the tree above it, the nearest first."""
    here = (branch.name, *above)
    yield from ((host, here) for host in branch.hosts)
    for each in branch.below:
        yield from _paths(each, here)


EXPORTS: Final[Mapping[str, Callable[[Fabric], Iterator[str]]]] = {
    "slurm": _slurm,
    "slurm-yaml": _slurm_yaml,
    "topograph": _topograph,
}


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
    areas = {node.group(fabric.area) for node in fabric.hosts if not node.serves}
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
