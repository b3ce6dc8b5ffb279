"""The whole offline prediction: from a fabric and a workload to the loads in every mode.

In:  Fabric, Workload; nodes and ports that are down or drained; the number of trials.
Out: Prediction (result.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Final

import numpy as np

from heddle.base.arrays import F64, Bools
from heddle.base.events import Observer
from heddle.fabric.hashmodes import EXACT_MATCH, TE
from heddle.fabric.model import Fabric
from heddle.host.preflight import frr_release
from heddle.offline.columns import flows_of
from heddle.offline.loads import (
    Demand,
    Loads,
    Nics,
    Scenario,
    Traffic,
    carry,
    demand_of,
    nics_of,
    spread_evenly,
    traffic_of,
)
from heddle.offline.result import ModeResult, MovedFlows, Percentiles, Prediction, Roofline
from heddle.offline.wires import (
    HASHED,
    Trouble,
    Wires,
    compared,
    cuts_of,
    forwarding_of,
    mode_note,
    other_seeds,
    rule_of,
    rules_of,
    steering_of,
    trouble_of,
    wires_of,
)
from heddle.predict.cspf import Demands, cspf
from heddle.predict.forwarding import NOWHERE, Forwarding
from heddle.predict.rules import HashingRule, SteeringTables, exact_keys
from heddle.predict.selftest import SelfTest
from heddle.predict.statistics import Entropy, Evenness, evenness_of_groups, max_over_mean
from heddle.traffic.admission import NOT_PREDICTED
from heddle.traffic.collectives.pattern import CREDIT_BYTES
from heddle.traffic.workload import Workload

_GROUPS: Final = {
    "threshold": False,
    "resilient": True,
}  # how next hops are selected -> whether it is resilient
_DISTINCT: Final = 1 << 22  # inputs of hashes that are counted exactly


@dataclass(frozen=True)
class Ask:
    """Options of a prediction. mode: instead of the fabric's own; trials: with other seeds, 0 for none."""

    mode: str | None = None
    trials: int = 0
    down: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()


def forecast(
    fabric: Fabric, workload: Workload, ask: Ask, observer: Observer, checked: SelfTest | None = None
) -> Prediction:
    """Predict. checked: the self-test of this machine's kernel. InputError for ranks that do not fit the fabric."""
    release = frr_release() if fabric.policy.routing.ucmp else None
    observer.begin("fabric")
    trouble = trouble_of(fabric, ask.down, ask.drain)
    traffic = traffic_of(fabric, workload)
    wires = wires_of(fabric)
    before = forwarding_of(wires, None, release)
    after = forwarding_of(wires, trouble, release) if trouble else before
    observer.end("fabric")
    jobs = [(each, nics_of(wires, each, trouble.dead)) for each in traffic]
    return _Forecast(workload, wires, jobs, trouble, before, after, ask).result(observer, checked)


class _Forecast:
    """State of all steps: arrays of the fabric before and after the failures."""

    def __init__(
        self,
        workload: Workload,
        wires: Wires,
        jobs: Sequence[tuple[Traffic, Nics]],
        trouble: Trouble,
        before: Forwarding,
        after: Forwarding,
        ask: Ask,
    ) -> None:
        self._workload, self._wires, self._jobs, self._trouble = workload, wires, jobs, trouble
        self._before, self._after, self._ask = before, after, ask
        self._own = ask.mode or wires.fabric.policy.routing.ecmp
        self._flows = sum(traffic.connections.flows for traffic, _ in jobs)
        left = TE if self._flows > QUICK and self._own != TE else ""
        self._modes = [mode for mode in compared(self._own) if mode != left]
        self._steering = steering_of(wires, before)
        self._ranked = wires.above(np.concatenate([nics.up for _, nics in jobs]))
        self._live = np.ones(len(wires.ports), dtype=bool)
        self._live[[wires.id_of[port] for port in trouble.dead]] = False

    def result(self, observer: Observer, checked: SelfTest | None) -> Prediction:
        with ThreadPoolExecutor(1) as pool:
            return self._result(observer, checked, pool.submit(self._entropy))

    def _result(self, observer: Observer, checked: SelfTest | None, entropy: Future[Entropy]) -> Prediction:
        scenarios, befores = self._scenarios()
        if TE in self._modes:
            observer.begin("te")
            rule = rule_of(self._wires.fabric.policy, EXACT_MATCH)
            tables = engineered(self._wires, self._jobs, self._after, self._steering)
            scenarios.append(Scenario(TE, self._after, rules_of(self._wires, rule, tables, self._wires.seeds)))
            befores.append(None)
            observer.end("te")
        observer.begin("flows")
        of_jobs = self._carry(scenarios, befores)
        every = {s.key: Loads.together(loads) for s, loads in zip(scenarios, of_jobs, strict=True)}
        demands = [demand_of(self._wires, traffic, nics, self._after) for traffic, nics in self._jobs]
        demand = reduce(add, demands)
        even = spread_evenly(self._wires, self._after, demand)
        self._live &= ~(self._drained() & (even == 0))
        observer.end("flows")
        roofline = self._roofline(demand)
        trials = self._trials(roofline, observer)
        results = tuple(self._mode(mode, every.get(mode), even, roofline, trials) for mode in self._modes)
        main = every[HASHED[0]]  # flows without a path are the same in all modes
        first = every.get(self._modes[0])
        nics = [self._wires.ports[at] for pair in main.named for at in pair]
        return Prediction(
            self._workload, self._wires, tuple(traffic for traffic, _ in self._jobs), self._trouble, results, roofline,
            self._evenness(first) if first and not self._trouble and self._modes[0] != TE else {}, entropy.result(),
            main.unreachable, tuple(f"{a} to {b}" for a, b in zip(nics[::2], nics[1::2], strict=True)),
            self._moved(every), self._ask.trials, checked, tuple(self._notes()), self._ranked,
            "; ".join(self._idle()), self._shares(scenarios, of_jobs, demands),
        )  # fmt: skip

    def _carry(self, scenarios: Sequence[Scenario], befores: Sequence[int | None] = ()) -> list[tuple[Loads, ...]]:
        every = [carry(self._wires, traffic, nics, scenarios, befores) for traffic, nics in self._jobs]
        return list(zip(*every, strict=True))

    def _shares(
        self, scenarios: Sequence[Scenario], of_jobs: Sequence[Sequence[Loads]], demands: Sequence[Demand]
    ) -> tuple[F64, ...]:
        """Bytes by port of each job in the first mode; nothing for a single job."""
        if len(self._jobs) == 1:
            return ()
        for scenario, loads in zip(scenarios, of_jobs, strict=True):
            if scenario.key == self._modes[0]:
                return tuple(each.bytes for each in loads)
        return tuple(spread_evenly(self._wires, self._after, demand) for demand in demands)

    def _drained(self) -> Bools:
        """Ports at both ends of links of drained switches. Those that carry nothing do not count for the MMR."""
        wires = self._wires
        ids = [wires.switch_id[name] for name in self._trouble.drained]
        found: Bools = np.isin(wires.owner, ids) | np.isin(wires.peer, ids)
        return found

    def _hashed(self, trial: int) -> list[Scenario]:
        """Each mode in which a flow has one path, with the file's seeds (trial 0) or with others."""
        wires, policy = self._wires, self._wires.fabric.policy
        scenarios = []
        for mode in HASHED:
            rule = rule_of(policy, mode)
            rules = rules_of(wires, rule, self._steering, other_seeds(wires.seeds, trial))
            scenarios.append(Scenario(mode, self._after, rules))
        return scenarios

    def _scenarios(self) -> tuple[list[Scenario], list[int | None]]:
        """The modes with the file's seeds; then the pairs for `moved`."""
        wires, policy = self._wires, self._wires.fabric.policy
        scenarios = self._hashed(0)
        befores: list[int | None] = [None] * len(scenarios)
        if self._trouble and self._modes[0] in HASHED:
            for key, on in _GROUPS.items():
                if on and policy.routing.ucmp:
                    continue  # buckets have no weights: a file with both is refused
                rule = rule_of(policy, self._modes[0], resilient=on)
                rules = rules_of(wires, rule, self._steering, wires.seeds)
                scenarios += [Scenario(f"{key}/before", self._before, rules), Scenario(key, self._after, rules)]
                befores += [None, len(scenarios) - 2]
        return scenarios, befores

    def _moved(self, every: Mapping[str, Loads]) -> MovedFlows | None:
        if "threshold" not in every:
            return None
        both = {key: every[key] for key in _GROUPS if key in every}
        return MovedFlows(
            both["threshold"].compared,
            {key: loads.moved for key, loads in both.items()},
            {key: loads.lost for key, loads in both.items()},
        )

    def _trials(self, roofline: Roofline, observer: Observer) -> dict[str, dict[str, Percentiles]]:
        """Mode -> figure -> spread. Trials run one after the other, so that memory does not grow with their number."""
        drawn: dict[str, dict[str, list[float]]] = {mode: {} for mode in HASHED}
        if self._ask.trials:
            observer.begin("trials", self._ask.trials)
        for trial in range(1, self._ask.trials + 1):
            scenarios = self._hashed(trial)
            for scenario, of_jobs in zip(scenarios, self._carry(scenarios), strict=True):
                loads = Loads.together(of_jobs)
                figures = drawn[scenario.key]
                if roofline.seconds:
                    ratio = float((loads.bytes * 8 / self._wires.rate).max()) / roofline.seconds
                    figures.setdefault("ratio", []).append(ratio)
                for direction, value in self._mmr(loads.bytes).items():
                    if value is not None:
                        figures.setdefault(f"mmr {direction}", []).append(value)
            observer.advance("trials", trial)
        if self._ask.trials:
            observer.end("trials")
        return {mode: {key: Percentiles.of(row) for key, row in figures.items()} for mode, figures in drawn.items()}

    def _mode(
        self,
        mode: str,
        loads: Loads | None,
        even: F64,
        roofline: Roofline,
        trials: Mapping[str, dict[str, Percentiles]],
    ) -> ModeResult:
        carried = even if loads is None else loads.bytes
        seconds = carried * 8 / self._wires.rate
        busiest = int(seconds.argmax())
        ratio = float(seconds[busiest]) / roofline.seconds if roofline.seconds else None
        flows = None if loads is None else loads.flows
        return ModeResult(
            mode, carried, flows, float(seconds[busiest]), busiest, ratio, self._mmr(carried), trials.get(mode, {})
        )

    def _mmr(self, carried: F64) -> dict[int, float | None]:
        """Max/mean by direction, over live ports of links with ranks below them (fabric/wiring.py)."""
        of = self._wires.direction
        chosen = self._live & self._ranked
        return {d: max_over_mean(carried[(of == d) & chosen]) for d in self._wires.of_directions()}

    def _roofline(self, demand: Demand) -> Roofline:
        """The busiest NIC, or the busiest cut around an edge or an area, by the rate of its live links."""
        wires = self._wires
        nic = demand.direct * 8 / wires.rate
        at = int(nic.argmax())
        best = Roofline(float(nic[at]), wires.ports[at], float(nic[at]))
        for what, seconds in self._cuts(demand):
            if seconds > best.seconds * (1 + 1e-9):
                best = Roofline(seconds, what, best.nic_s)
        return best

    def _cuts(self, demand: Demand) -> Iterator[tuple[str, float]]:
        wires = self._wires
        cuts = cuts_of(wires, self._live)
        between = demand.between(wires)
        leaves = np.flatnonzero(wires.edge >= 0)
        names = {int(wires.edge[s]): wires.switches[s] for s in leaves}
        yield from _busiest(between.sum(axis=1), cuts.edge_bps, lambda i: f"all uplinks of {names[i]}")
        yield from _busiest(between.sum(axis=0), cuts.edge_bps, lambda i: f"all links down to {names[i]}")
        if len(cuts.area_bps) > 1 and cuts.above:
            word, above = wires.fabric.area, cuts.above
            joined = cuts.joined(between)
            bps = cuts.area_bps
            yield from _busiest(joined.sum(axis=1), bps, lambda i: f"all links from {word} {i + 1} to {above}")
            yield from _busiest(joined.sum(axis=0), bps, lambda i: f"all links from {above} to {word} {i + 1}")

    def _evenness(self, loads: Loads) -> dict[int, Evenness]:
        """Evenness of flows over the ports of switches that choose; each switch counts separately (statistics.py)."""
        wires = self._wires
        found = {}
        weighted = bool(loads.hoped.any())
        for direction in wires.upward:
            ports = np.flatnonzero((wires.direction == direction) & ((not weighted) | (loads.hoped > 0)))
            if not len(ports):
                continue
            # Weights differ between edges, so the expected flows of all edges are added up.
            weights = loads.hoped[ports] if weighted else np.ones(len(ports))
            cuts = np.flatnonzero(np.diff(wires.owner[ports])) + 1
            groups = zip(np.split(loads.flows[ports], cuts), np.split(weights, cuts), strict=True)
            found[direction] = evenness_of_groups(list(groups))
        return found

    def _entropy(self) -> Entropy:
        """Entropy of the fields that the first mode hashes; of 5-tuples where it hashes none, or where they vary."""
        rules = [HashingRule()]
        if self._modes[0] in HASHED:
            rules = [rule_of(self._wires.fabric.policy, self._modes[0]), *rules]
        return next(found for rule in rules if (found := self._entropy_of(rule)) is not None)

    def _entropy_of(self, rule: HashingRule) -> Entropy | None:
        """The inputs of a hash; None where packets of one flow differ.

        Beyond _DISTINCT inputs a sample of them is kept (P. Flajolet, "On adaptive sampling", Computing 43, 1990).
        """
        kept, counts, thin = np.zeros(0, dtype=np.uint64), np.zeros(0), 1
        for traffic, _ in self._jobs:
            for part in traffic.connections.batches():
                new = rule.inputs(flows_of(traffic.connections, part, traffic.address))
                if new is None:
                    return None
                new = new[new % np.uint64(thin) == 0]
                new, more = np.unique(new, return_counts=True)
                if len(kept):
                    new, where = np.unique(np.concatenate([kept, new]), return_inverse=True)
                    more = np.bincount(where, np.concatenate([counts, more]), len(new))
                kept, counts = new, more.astype(np.float64)
                while len(kept) > _DISTINCT:
                    thin *= 2
                    stays = kept % np.uint64(thin) == 0
                    kept, counts = kept[stays], counts[stays]
        alike = thin * float((counts * np.log2(counts)).sum())
        bits = max(0.0, float(np.log2(self._flows)) - alike / self._flows) if self._flows else 0.0
        return Entropy(self._flows, len(kept) * thin, bits, rule.hashed)

    def _notes(self) -> Iterator[str]:
        if note := mode_note(self._own):
            yield note
        if TE not in self._modes:
            yield f"{TE} is left out, because it needs longer for {self._flows:,} flows: --mode {TE} computes it"
        if self._wires.fabric.policy.routing.ucmp and frr_release() is None:
            yield "weights are bandwidths in lowest terms: no FRR is installed here, and its release sets the weights"
        yield from dict.fromkeys(traffic.volume.doubt for traffic, _ in self._jobs if traffic.volume.doubt)
        if any(traffic.job.options.admission for traffic, _ in self._jobs):
            yield NOT_PREDICTED

    def _idle(self) -> Iterator[str]:
        """For each job the number of QPs that carry nothing, and the reason."""
        for traffic, _ in self._jobs:
            payload = traffic.volume.payload
            silent = np.where(payload.sum(axis=1) > CREDIT_BYTES, (payload == 0).sum(axis=1), 0)
            quiet = int(silent[traffic.connections.kind].sum())
            if not quiet:
                continue
            why = "messages are too short for so many parts of 128 bytes"
            if traffic.job.options.qp_mode == "round-robin":
                why = "there are fewer messages than QPs"
            whose = f"QPs of job {traffic.job.name}" if traffic.job.name else "QPs"
            yield f"{quiet:,} of {len(traffic.connections) * traffic.connections.qps:,} {whose} carry nothing: {why}"


def _busiest(amount: F64, capacity: F64, name: Callable[[int], str]) -> Iterator[tuple[str, float]]:
    """The cut that takes longest; nothing if no traffic crosses a cut."""
    there = np.flatnonzero((amount > 0) & (capacity > 0))
    if len(there):
        seconds = amount[there] * 8 / capacity[there]
        at = int(seconds.argmax())
        yield name(int(there[at])), float(seconds[at])


QUICK: Final = 8_192  # flows that are placed in a second or two; for more, the user asks for the mode


def engineered(
    wires: Wires, jobs: Sequence[tuple[Traffic, Nics]], forwarding: Forwarding, steering: SteeringTables
) -> SteeringTables:
    """The tables with an entry for each flow that has a choice, as `./inv te plan` makes them.

    forwarding: after failures. The controller knows all flows and failures: its plan is for the state after them.
    """
    entries = cspf(forwarding, wires.rate, demands_of(jobs)).entries
    keys = exact_keys(entries.switch, entries.destination, entries.sport, forwarding.group.shape[1])
    backup = np.where(entries.backup == NOWHERE, entries.port, entries.backup)
    return replace(steering, exact_key=keys, exact_port=np.stack([entries.port, backup], axis=1))


def demands_of(jobs: Sequence[tuple[Traffic, Nics]]) -> Demands:
    """The flows of all jobs that carry bytes between live NICs."""
    columns = []
    for traffic, nics in jobs:
        connections = traffic.connections
        for part in connections.batches():
            src, dst = (np.repeat(column[part], connections.each) for column in (connections.src, connections.dst))
            amount = traffic.volume.wire[connections.kind[part]].ravel().astype(np.float64)
            sport = flows_of(connections, part, traffic.address).sport
            rows = np.flatnonzero(nics.alive[src] & nics.alive[dst] & (amount > 0))
            src, dst = src[rows], dst[rows]
            columns.append((nics.switch[src], nics.switch[dst], nics.edge[dst], sport[rows], amount[rows]))
    return Demands(*(np.concatenate(column) for column in zip(*columns, strict=True)))
