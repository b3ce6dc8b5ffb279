"""The whole forecast of time: from a fabric and a workload to seconds of iterations and jobs, and what bounds them.

In:  Fabric, Workload; nodes and ports that are down or drained; a hashing mode.
Out: TimeForecast. What bounds the time is tried: links are made twice as fast, and the forecast is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.base.events import Observer
from heddle.base.problems import CheckError, InputError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric
from heddle.lab.faults.slowlink import SlowLink
from heddle.lab.runfaults import PlannedFault, faults_on
from heddle.offline.forecast import Ask
from heddle.offline.loads import Traffic, traffic_of
from heddle.offline.wires import Wires, mode_note, trouble_of, wires_of
from heddle.traffic.inflight import windows_of
from heddle.traffic.options import RunOptions
from heddle.traffic.workload import Job, Workload
from heddle_plugins.time.engine import Course, Engine, NetworkState, Timing
from heddle_plugins.time.flowfiles import FlowColumns
from heddle_plugins.time.messages import messages_of
from heddle_plugins.time.network import Network, Router
from heddle_plugins.time.tasks import JobFlows, Tasks, tasks_of

TIMED: Final = 3  # iterations of a job that runs alone; the others take as long
_TRIED: Final = 12  # links that are made twice as fast, one at a time
_WORK: Final = 2_000_000  # events x flows, or 10 x crossings of packets, of all simulations with one faster link
MOST_PACKETS: Final = 1_000_000  # times that packets cross links, where they are simulated
NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class SizeTime:
    """A pass of a job. size: bytes; seconds: of an iteration; algbw, busbw: GB/s as nccl-tests has them, emulated."""

    size: int
    seconds: float
    algbw: float
    busbw: float
    waves: bool


@dataclass(frozen=True, slots=True)
class JobTime:
    """begin_s, end_s: None for a job in the background. iterations: of its course, warm-up included."""

    name: str
    ranks: int
    begin_s: float
    end_s: float | None
    iterations: int
    sizes: tuple[SizeTime, ...]


@dataclass(frozen=True, slots=True)
class Gain:
    """links: a port, or a direction in words. share: of the time, that twice the rate of these links saves."""

    links: str
    share: float
    single: bool


@dataclass(frozen=True)
class TimeForecast:
    """The result. seconds: until the last job that ends has ended; use, full: (ports,), shares of that time.

    packets: times that packets crossed links; 0 where flows share links by max-min fairness.
    """

    fabric: Fabric
    workload: Workload
    mode: str
    wires: Wires
    jobs: tuple[JobTime, ...]
    seconds: float
    use: F64
    full: F64
    gains: tuple[Gain, ...]
    notes: tuple[str, ...]
    flows: int
    factor: float = 1.0
    messages: FlowColumns | None = None
    packets: int = 0

    def to_json(self) -> dict[str, Any]:
        wires = self.wires
        rows = [int(each) for each in np.argsort(-self.use, kind="stable") if self.use[each] > 0]
        return {
            "fabric": self.fabric.name, "emulated": {"k": self.fabric.policy.k}, "workload": self.workload.name,
            "mode": self.mode, "flows": self.flows, "packets": self.packets, "factor": self.factor,
            "seconds": self.seconds,
            "jobs": [
                {
                    "name": job.name, "ranks": job.ranks, "begin_s": job.begin_s, "end_s": job.end_s,
                    "iterations": job.iterations,
                    "sizes": [
                        {"size": each.size, "seconds": each.seconds, "algbw": each.algbw, "busbw": each.busbw,
                         "steps": "waves" if each.waves else "messages"}
                        for each in job.sizes
                    ],
                }
                for job in self.jobs
            ],
            "twice_as_fast": [{"links": each.links, "single": each.single, "saves": each.share} for each in self.gains],
            "links": [
                {"port": wires.ports[at], "to": wires.ports[wires.other[at]], "rate_bps": int(wires.rate[at]),
                 "utilization": float(self.use[at]), "full": float(self.full[at])}
                for at in rows
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def time_forecast(
    fabric: Fabric, workload: Workload, ask: Ask, observer: Observer, *, factor: float = 1.0, gains: bool = True,
    log: bool = False,
) -> TimeForecast:  # fmt: skip
    """Forecast. InputError for ranks that do not fit; CheckError for flows without a path, and jobs that never end.

    factor: links carry 1 / factor of their rate (calibration.py). gains: whether to try links that are twice as fast.
    log: whether to keep all messages; InputError where there are too many.
    """
    network, simulation = simulation_of(fabric, workload, ask, observer, factor, every=log)
    observer.begin("time")
    if log and any(tasks.waves for course in simulation.courses for tasks in course.passes):
        raise InputError(Problem("", "--flows", "has too many messages to keep", "use fewer ranks, or a smaller size"))
    engine = simulation.run(log=log)
    times = engine.times
    messages = messages_of(network, simulation.flows, engine.messages) if log else None
    observer.end("time")
    observer.begin("gains")
    tried = simulation.gains(times) if gains and len(simulation.states) == 1 else ()
    observer.end("gains")
    seconds = times.seconds
    return TimeForecast(
        fabric, workload, network.mode, network.wires, tuple(simulation.jobs(times)), simulation.whole(times),
        times.bits / (network.wires.rate * (seconds or 1.0)), times.full_s / (seconds or 1.0),
        tried, tuple(simulation.notes(times)), network.paths.flows, factor, messages,
        times.packets,
    )  # fmt: skip


def simulation_of(
    fabric: Fabric, workload: Workload, ask: Ask, observer: Observer, factor: float = 1.0, *, every: bool = False
) -> tuple[Network, JobSimulation]:
    """The network of a workload and its simulation; errors and factor as of `time_forecast`, every of JobSimulation."""
    observer.begin("fabric")
    trouble = trouble_of(fabric, ask.down, ask.drain)
    wires, traffic = wires_of(fabric), traffic_of(fabric, workload)
    observer.end("fabric")
    observer.begin("flows")
    network = Router(wires, ask.mode, trouble).network(traffic)
    _check_paths(network)
    planned = faults_on(fabric, [text for job in workload.jobs for text in job.options.faults], here=False)
    states = [replace(each, capacity=each.capacity / factor) for each in _states(network, planned, ask)]
    observer.end("flows")
    return network, JobSimulation(workload, network, states, planned, every=every)


def _check_paths(network: Network) -> None:
    lost = np.flatnonzero(~network.arrives)
    for job, traffic in enumerate(network.traffic):
        first, connections = int(network.first[job]), traffic.connections
        amount = traffic.volume.wire[connections.kind].ravel()
        own = lost[(lost >= first) & (lost < first + connections.flows)] - first
        own = own[amount[own] > 0]
        if len(own):
            row = int(own[0]) // connections.each
            ends = [traffic.endpoints[int(each[row])].nic for each in (connections.src, connections.dst)]
            what = f"{len(own):,} of {connections.flows:,} flows"
            why = f"have no path, so the job never ends: the first is {ends[0]} to {ends[1]}"
            raise CheckError(Problem("", what, why, "./inv predict without --time shows the loads of the others"))


def _states(network: Network, planned: Sequence[PlannedFault], ask: Ask) -> Iterator[NetworkState]:
    """The network at first, and after each change of a fault that takes links out of use, or makes them slow."""
    fabric, wires = network.wires.fabric, network.wires
    changes = [each for each in planned if _is_modelled(each)]
    ends = {each.times.end_ns for each in changes if each.times.end_ns is not None}
    for moment in sorted({0, *(each.times.first for each in changes), *ends}):
        now = [each for each in changes if _is_set(each, moment)]
        rerouted = [each for each in now if each.reroutes]
        down = (*ask.down, *(each.port for each in rerouted if each.kind != "drain"))
        drain = (*ask.drain, *(each.port for each in rerouted if each.kind == "drain"))
        found = network
        if rerouted:
            found = Router(wires, network.mode, trouble_of(fabric, down, drain)).network(network.traffic)
        state = network_state(found, moment * NS)
        for each in now:
            if each.kind == SlowLink.name:
                state.capacity[wires.id_of[each.port]] *= dict(each.values)["rate"]
        yield state


def _is_modelled(fault: PlannedFault) -> bool:
    return fault.reroutes or fault.kind == SlowLink.name


def _is_set(fault: PlannedFault, moment: int) -> bool:
    return fault.times.first <= moment and (fault.times.end_ns is None or moment < fault.times.end_ns)


def network_state(network: Network, from_s: float = 0.0) -> NetworkState:
    """With a flow for each rank that copies inside its host."""
    ranks = sum(len(each.endpoints) for each in network.traffic)
    paths = replace(network.paths, flows=network.paths.flows + ranks)
    copies = [np.full(len(each.endpoints), _inside_bps(network, each.job)) for each in network.traffic]
    limit = np.concatenate([np.where(network.arrives, np.inf, 0.0), *copies])
    queues = network.wires.fabric.policy.queues
    flight = np.concatenate([*(_flight(network, each) for each in network.traffic), np.zeros(ranks)])
    if not (queues.pfc.enabled and flight.any()) or (paths.share < 1).any():
        return NetworkState(paths, network.capacity.copy(), limit, from_s)
    return NetworkState(paths, network.capacity.copy(), limit, from_s, 8.0 * queues.pfc.xoff, flight)


def _flight(network: Network, traffic: Traffic) -> F64:
    """(flows of a job,): bits that each may have in flight; 0 where its class is not lossless."""
    policy, options, connections = network.wires.fabric.policy, traffic.job.options, traffic.connections
    if policy.queues.class_of_dscp[options.dscp] not in policy.queues.lossless:
        return np.zeros(connections.flows)
    windows = np.array(windows_of(options.qps, options.window)) * (network.packet_bits / connections.sports)
    return np.tile(np.repeat(windows, connections.sports), len(connections))


def _inside_bps(network: Network, job: Job) -> float:
    options, k = job.options, network.wires.fabric.policy.k
    return options.inside_gbps(options.pattern) * 1e9 / k or np.inf


class JobSimulation:
    """The jobs of a workload on a network. every: simulate every iteration, also of a job that is alone."""

    def __init__(
        self, workload: Workload, network: Network, states: Sequence[NetworkState], planned: Sequence[PlannedFault],
        *, every: bool = False,
    ) -> None:  # fmt: skip
        self._every = every
        self._workload, self._network, self.states, self._planned = workload, network, states, planned
        self._fluid = ""  # why packets are not followed where flows with different bottlenecks share a paused link
        fabric, inside = network.wires.fabric, network.paths.flows
        self.flows = []
        for number, each in enumerate(network.traffic):
            self.flows.append(JobFlows(fabric, each, int(network.first[number]), inside))
            inside += len(each.endpoints)

    @cached_property
    def _alone(self) -> bool:
        """Whether iterations after the first ones need no simulation: nothing but this job happens."""
        return len(self._workload.jobs) == 1 and len(self.states) == 1 and not self._every

    @cached_property
    def courses(self) -> list[Course]:
        """The jobs, with the iterations that are simulated."""
        by_name = {job.name: number for number, job in enumerate(self._workload.jobs)}
        found = []
        for job, flows in zip(self._workload.jobs, self.flows, strict=True):
            options = flows.options
            many = options.warmup + options.iters
            if self._alone:
                many = min(1, options.warmup) + min(TIMED, options.iters)
            passes: list[Tasks] = []
            made: dict[int, Tasks] = {}
            for size, _ in options.passes(flows.pattern):
                made[size] = made[size] if size in made else tasks_of(flows, size, many, self._alone)
                passes.append(made[size])
            after = by_name[job.after] if job.after else -1
            found.append(Course(job.name, passes, job.start_s, after, 1 if self._alone else job.repeat))
        return found

    def engine(self, *, log: bool = False, watch: int = -1) -> Engine:
        """The simulation of all jobs; arguments as of Engine."""
        return Engine(self.states, self.courses, log=log, watch=watch)

    def run(self, *, log: bool = False) -> Engine:
        """Simulate all jobs: flows that share links, or their packets, where this differs and there are few."""
        engine = self.engine(log=log)
        times = engine.run()
        state, waves = self.states[0], any(tasks.waves for course in self.courses for tasks in course.passes)
        pauses = state.flight is not None and (state.flight[state.paths.flow] > 0).all()  # the classes of all flows
        if not (times.mixed and pauses and not waves and len(self.states) == 1):
            return engine
        crossings = round(float(times.bits.sum()) / self._network.packet_bits)
        class_of = self._network.wires.fabric.policy.queues.class_of_dscp
        if len({class_of[each.options.dscp] for each in self.flows}) > 1:
            self._fluid = "packets of several lossless classes are not followed: all count as one class"
        elif crossings > MOST_PACKETS:
            self._fluid = f"{crossings:,} packets that cross links are too many to follow"
        else:
            packets = self._of_packets(state, log)
            if not (ring := packets.run().ring):
                return packets
            self._fluid = self._deadlock(ring)
        return engine

    def _of_packets(self, state: NetworkState, log: bool = False) -> Engine:
        from heddle_plugins.time.packets import PacketEngine, Switching

        return PacketEngine(state, self.courses, Switching.of(self._network), log=log)

    def _deadlock(self, ring: Sequence[int]) -> str:
        ports, watchdog = self._network.wires.ports, self._network.wires.fabric.policy.queues.pfc.watchdog
        after = f"the watchdog {watchdog.action}s packets then" if watchdog.enabled else "the job never ends then"
        named = some_of([ports[each] for each in ring])
        return f"packets stop in a ring of pauses (PFC deadlock): {named}; {after}, which is not modelled"

    def jobs(self, times: Timing) -> Iterator[JobTime]:
        """Each job, with what its passes take."""
        for number, (job, flows) in enumerate(zip(self._workload.jobs, self.flows, strict=True)):
            options, pattern = flows.options, flows.pattern
            rows = []
            for at, tasks in enumerate(self.courses[number].passes):
                seconds = iteration_s(times.iterations[number][at], self._untimed(options))
                algbw = tasks.size / seconds / 1e9 if seconds else 0.0
                rows.append(
                    SizeTime(tasks.size, seconds, algbw, algbw * pattern.busbw_factor(flows.size_of), tasks.waves)
                )  # fmt: skip
            many = (options.warmup + options.iters) * len(rows) * max(1, job.repeat)
            begin, end = times.begins[number], times.ends[number]
            if self._alone:
                begin = job.start_s
                end = begin + sum(self._pass_s(marks, options) for marks in times.lasts[number]) * max(1, job.repeat)
            yield JobTime(job.name, len(flows.traffic.endpoints), begin or 0.0, end, many, tuple(rows))

    def _untimed(self, options: RunOptions) -> int:
        """Simulated iterations that are not timed."""
        return min(1, options.warmup) if self._alone else options.warmup

    def _pass_s(self, marks: Sequence[float], options: RunOptions) -> float:
        """Seconds of a pass, with the iterations that are not simulated. marks: as Timing.lasts has them."""
        left = options.warmup + options.iters - (len(marks) - 1)
        return marks[-1] - marks[0] + left * iteration_s(marks, self._untimed(options))

    def whole(self, times: Timing) -> float:
        """Seconds until the last job has ended."""
        return max((each.end_s for each in self.jobs(times) if each.end_s is not None), default=0.0)

    def gains(self, times: Timing) -> tuple[Gain, ...]:
        """All that was tried: links that were full longest, as many as there is time for, and all tiers of links."""
        wires = self._network.wires
        before, found = self.whole(times), []
        if not before:
            return ()
        work = 10 * times.packets or times.events * self._network.paths.flows
        often = min(_TRIED, max(1, _WORK // max(1, work)))
        order = np.lexsort((-times.bits, -times.full_s))
        links: dict[int, int] = {}  # of the two directions of a link, the fuller one
        for at in order.tolist():
            if not times.full_s[at] or len(links) == often:
                break
            links.setdefault(min(at, int(wires.other[at])), at)
        for at in links.values():
            name = f"{wires.ports[at]} to {wires.ports[wires.other[at]]}"
            found += [Gain(name, each, single=True) for each in self._saved(np.array([at]), times, before)]
        seen = set[frozenset[str]]()
        for direction in dict.fromkeys(wires.direction[order[times.bits[order] > 0]].tolist()):
            ends = frozenset(wires.direction_name(direction).split(" to "))
            if ends in seen:
                continue
            seen.add(ends)
            name = f"all links between {' and '.join(wires.direction_name(direction).split(' to '))}"
            doubled = np.flatnonzero(wires.direction == direction)
            found += [Gain(name, each, single=False) for each in self._saved(doubled, times, before)]
        return tuple(found)

    def _saved(self, links: I64, times: Timing, before: float) -> Iterator[float]:
        """The share of the time that these links save at twice their rate; nothing where packets then stop for good."""
        scale = self._network.doubled(links)
        states = [replace(each, capacity=each.capacity * scale) for each in self.states]
        engine = self._of_packets(states[0]) if times.packets else Engine(states, self.courses)
        if not (after := engine.run()).ring:
            yield 1 - self.whole(after) / before

    def notes(self, times: Timing) -> Iterator[str]:
        """What is assumed, and what is not modelled, here."""
        if note := mode_note(self._network.mode):
            yield note
        if any(tasks.waves for course in self.courses for tasks in course.passes):
            yield "too many messages to follow: the transfers of a step begin together, and iterations do not overlap"
        if times.at_most > 1.001:
            yield f"a step takes as long as its busiest link; as queue pairs differ, up to {times.at_most - 1:.1%} more"
        queues = self._network.wires.fabric.policy.queues
        if queues.pfc.enabled and (times.no_pauses or (self._network.paths.share < 1).any()):
            yield "pauses of PFC are not modelled here: there are too many flows, or packets of a flow are spread"
        if self._fluid:
            yield f"{self._fluid}: paused links are a steady state"
        if times.unsettled:
            yield f"pauses of PFC do not settle for {times.unsettled} sets of flows: their lowest rates count"
        k = self._network.wires.fabric.policy.k
        if ignored := [each.what(k) for each in self._planned if not _is_modelled(each)]:
            yield f"not modelled: {', '.join(ignored)}"
        if any(each.times.every_ns for each in self._planned if _is_modelled(each)):
            yield "a fault that repeats is set once"
        for job in self._workload.jobs:
            if job.options.window is not None:
                yield f"{f'job {job.name}: ' if job.name else ''}the window is not modelled"
            if job.options.admission:
                yield f"{f'job {job.name}: ' if job.name else ''}admission is not modelled"


def iteration_s(marks: Sequence[float], warmup: int) -> float:
    """Mean seconds of the timed iterations. marks: the beginning, and the end of each iteration."""
    skip = warmup if len(marks) - 1 > warmup else 0
    timed = len(marks) - 1 - skip
    return (marks[-1] - marks[skip]) / timed if timed > 0 else 0.0
