"""What a job does, as tasks: sets of flows with bits to carry, seconds of computation, and what each waits for.

In:  the Traffic of a job on a Network; a size; the number of iterations.
Out: Tasks, columns. Of few messages a task is one message, from the schedules of the ranks (traffic/schedule.py): ranks
     then run ahead of each other as live ones do. Of many it is a wave (waves.py), whose transfers begin together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I64, Bools
from heddle.endpoints.connections import part_sizes
from heddle.endpoints.transports import find_transport
from heddle.fabric.model import Fabric
from heddle.fabric.pathdelay import PathDelays
from heddle.offline import columns
from heddle.offline.loads import Traffic
from heddle.traffic.collectives import Pattern
from heddle.traffic.inflight import delay_between
from heddle.traffic.plan import grouped, rounded
from heddle.traffic.schedule import Key, Local, Schedule, Send, build_schedule

MOST_MESSAGES: Final = 60_000  # of all iterations that are simulated one by one


@dataclass
class Tasks:
    """Tasks as columns. flows, bits: of each task, arrays. after: tasks that wait for it; needs: how many it waits for.

    compute_s: before its first bit. delay_s: after its last bit, until what waits may begin. messages: into which a
    transfer is cut, so that the next one may begin before this one has ended. times: so many equal tasks in a row.
    ends: tasks that end iterations, by iteration. size: bytes, of the job's option.
    """

    size: int
    flows: list[I64] = field(default_factory=list)
    bits: list[F64] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    waves: bool = False

    def add(
        self, flows: I64, bits: F64, waits: Sequence[int] = (), *, compute_s: float = 0.0, delay_s: float = 0.0,
        messages: int = 1, times: int = 1,
    ) -> int:  # fmt: skip
        """One more task; its number. waits: the tasks that it waits for."""
        number = len(self.flows)
        self.flows.append(flows)
        self.bits.append(bits)
        self.compute_s.append(compute_s)
        self.delay_s.append(delay_s)
        self.messages.append(messages)
        self.times.append(times)
        self.after.append([])
        self.needs.append(0)
        for each in waits:
            self.need(number, each)
        return number

    def need(self, number: int, other: int) -> None:
        """A task waits for another one."""
        self.after[other].append(number)
        self.needs[number] += 1


_NOTHING: Final = np.zeros(0, dtype=np.int64), np.zeros(0)


class JobFlows:
    """The flows of one job: which of them carry a transfer from rank to rank, with how many bits.

    first: number of the job's first flow. inside: number of the flow of rank 0 for copies inside its host; the other
    ranks' follow. Shapes and rounding as in offline/columns.py.
    """

    def __init__(self, fabric: Fabric, traffic: Traffic, first: int, inside: int) -> None:
        self.traffic, self.options = traffic, traffic.job.options
        self.pattern, self.communicators, options = grouped(fabric, traffic.endpoints, self.options)
        self.options = options = rounded(self.pattern, len(self.communicators[0]), options)
        self._connections, self._first, self.inside = traffic.connections, first, inside
        sports = traffic.connections.sports
        self._cut = columns.cutting(
            fabric, options.qps, options.qp_mode, options.chunk, options.transport, sports, options.network
        )  # fmt: skip
        ranks = len(traffic.endpoints)
        key = traffic.connections.src.astype(np.int64) * ranks + traffic.connections.dst
        self._order = np.argsort(key)
        self._keys, self._ranks = key[self._order], ranks
        self.inside_bps = options.inside_gbps(self.pattern) * 1e9 / fabric.policy.k
        hosts = np.unique([end.host for end in traffic.endpoints], return_inverse=True)[1]
        self._host = hosts if self.inside_bps else np.arange(ranks)
        self.payloads: dict[int, int] = {}  # of the parts of messages, by their bits on the wire
        self._delays, self._k, self._delay_of = PathDelays(fabric), fabric.policy.k, dict[tuple[str, str], float]()
        # As in runs: the NICs of kernels add no delay.
        self._delayed = fabric.policy.delayed_on_links or find_transport(options.transport).stack is None

    @property
    def size_of(self) -> int:
        """The number of ranks of each communicator."""
        return len(self.communicators[0])

    def copies(self, src: I64, dst: I64) -> Bools:
        """Which transfers stay inside a host."""
        return np.asarray(self._host[src] == self._host[dst]) if self.inside_bps else np.zeros(len(src), dtype=bool)

    def delay_s(self, src: int, dst: int) -> float:
        """Propagation of the path, one way, emulated."""
        if not self._delayed:
            return 0.0
        ends = self.traffic.endpoints[src], self.traffic.endpoints[dst]
        key = ends[0].first_hop.partition(":")[0], ends[1].first_hop.partition(":")[0]
        if key not in self._delay_of:
            self._delay_of[key] = delay_between(self._delays, *ends) * self._k * 1e-9
        return self._delay_of[key]

    def longest_delay_s(self, src: I64, dst: I64) -> float:
        """Of some transfers, by the switches of their NICs."""
        switches = [end.first_hop.partition(":")[0] for end in self.traffic.endpoints]
        names, at = np.unique(switches, return_inverse=True)
        _, first = np.unique(at[src] * len(names) + at[dst], return_index=True)
        return max((self.delay_s(int(src[each]), int(dst[each])) for each in first[: 1 << 14].tolist()), default=0.0)

    def transfers(self, src: I64, dst: I64, payload: I64) -> tuple[I64, F64]:
        """The flows of transfers between ranks of the job, each cut into messages, and the bits of each flow."""
        rows = self._order[np.searchsorted(self._keys, src * self._ranks + dst)]
        lengths, kind = np.unique(payload, return_inverse=True)
        bits = columns.of_lengths(lengths, self._cut).wire[kind.ravel()] * 8.0
        flows = self._first + rows[:, None] * self._connections.each + np.arange(self._connections.each)
        there = bits.ravel() > 0
        return flows.ravel()[there].astype(np.int64), bits.ravel()[there].astype(np.float64)

    def message(self, src: int, dst: int, payload: int, turn: int) -> tuple[I64, F64]:
        """The flows of one message. turn: chooses the queue pair where messages are not split."""
        cut = self._cut
        row = int(self._order[np.searchsorted(self._keys, src * self._ranks + dst)])
        if cut.qp_mode == "split":
            parts = np.array([size for _, size in part_sizes(payload, cut.qps)], dtype=np.int64)
            qps = np.arange(len(parts))
        else:
            parts, qps = np.array([payload], dtype=np.int64), np.array([turn % cut.qps])
        bits = cut.frames(parts) * 8.0
        self.payloads.update(zip(bits.astype(np.int64).tolist(), parts.tolist(), strict=True))
        sports = self._connections.sports  # packets use the source ports of a queue pair in turn
        flows = self._first + row * self._connections.each + qps[:, None] * sports + np.arange(sports)
        return flows.ravel(), np.repeat(bits / sports, sports).astype(np.float64)


def tasks_of(
    job: JobFlows, size: int, iterations: int, alone: bool = False, most: int | None = None
) -> Tasks:  # fmt: skip
    """Of some iterations of a size: message by message, if these are few enough (`most`), else in waves.

    alone: the iterations only serve to measure one; of waves, all are equal.
    """
    pattern, ranks = job.pattern, job.size_of
    count = size // pattern.element_bytes
    chunk = job.options.chunk
    if _messages(pattern, ranks, count, chunk) * len(job.communicators) * iterations > (
        MOST_MESSAGES if most is None else most
    ):
        return _in_waves(job, size, count, 1 if alone else iterations)
    schedules = [build_schedule(pattern, ranks, rank, count, chunk) for rank in range(ranks)]
    found = Tasks(size, ends=[[] for _ in range(iterations)])
    for members in job.communicators:
        before: list[int] = []
        for iteration in range(iterations):
            before = _iteration(job, found, schedules, members, before)
            found.ends[iteration] += before
    return found


def _messages(pattern: Pattern, ranks: int, count: int, chunk: int) -> int:
    """About how many messages an iteration has; without the programs of all ranks."""
    if ranks * ranks > MOST_MESSAGES and pattern.connections(ranks) > MOST_MESSAGES:
        return MOST_MESSAGES + 1
    least = pattern.element_bytes
    sent = [(length, rank) for rank in (0, ranks - 1) for _, length in pattern.sent_by(ranks, rank, count)]
    return ranks * sum(-(-length * least // chunk) for length, _ in sent) // 2


def _iteration(
    job: JobFlows, found: Tasks, schedules: Sequence[Schedule], members: Sequence[int], before: Sequence[int]
) -> list[int]:
    """Add one iteration of a communicator. before: each rank's end of the one before. Return the new ends, by rank."""
    done: list[dict[Key, int]] = [{} for _ in schedules]  # what fulfils a key at a rank
    waits: list[tuple[int, int, Sequence[Key]]] = []
    for place, schedule in enumerate(schedules):
        begin = before[place : place + 1]
        for action in schedule.actions:
            if isinstance(action, Send):
                src, dst, payload = members[place], members[action.peer], action.hi - action.lo
                if job.inside_bps and bool(job.copies(np.array([src]), np.array([dst]))[0]):
                    flows, bits, delay = np.array([job.inside + src]), np.array([payload * 8.0]), 0.0
                else:
                    flows, bits = job.message(src, dst, payload, action.turn)
                    delay = job.delay_s(src, dst)
                number = found.add(flows, bits, begin, delay_s=delay)
                done[action.peer][action.key] = number
            else:
                seconds = 0.0 if isinstance(action, Local) else action.seconds
                number = done[place][action.key] = found.add(*_NOTHING, begin, compute_s=seconds)
            waits.append((number, place, action.needs))
    for number, place, needs in waits:
        for key in needs:
            found.need(number, done[place][key])
    ends = []
    for place, schedule in enumerate(schedules):
        keys = [*schedule.receives, *(each.key for each in schedule.actions if not isinstance(each, Send))]
        ends.append(found.add(*_NOTHING, [*(done[place][key] for key in keys), *before[place : place + 1]]))
    return ends


def _in_waves(job: JobFlows, size: int, count: int, iterations: int) -> Tasks:
    """The waves of all communicators together, one after the other: they have equal ones, as they run one pattern."""
    from heddle_plugins.time.waves import Wave, waves_of

    found = Tasks(size, ends=[[] for _ in range(iterations)], waves=True)
    of = np.array(job.communicators, dtype=np.int64)
    carried: list[tuple[Wave, I64, F64, float]] = []
    for wave in waves_of(job.pattern, job.size_of, count, job.options.chunk):
        src, dst = of[:, wave.src].ravel(), of[:, wave.dst].ravel()
        payload = np.tile(wave.bytes.astype(np.int64), len(of))
        copies = job.copies(src, dst)
        flows, bits = job.transfers(src[~copies], dst[~copies], payload[~copies])
        flows = np.concatenate([flows, job.inside + src[copies]])
        bits = np.concatenate([bits, payload[copies] * 8.0])
        if wave.follows and carried and carried[-1][0].messages == 1:
            carried[-1] = (*carried[-1][:3], 0.0)  # its messages follow on the same links: the delay counts once
        carried.append((wave, flows, bits, job.longest_delay_s(src[~copies], dst[~copies])))
    last: list[int] = []
    pace_s = job.pattern.pace(0, count)
    for iteration in range(iterations):
        paced = [found.add(*_NOTHING, last, compute_s=pace_s)] if pace_s else []
        for wave, flows, bits, delay in carried:
            number = found.add(
                flows, bits, last, compute_s=wave.compute_s, delay_s=delay, messages=max(1, wave.messages),
                times=wave.times,
            )  # fmt: skip
            last = [number]
        if paced:
            last = [found.add(*_NOTHING, [*last, *paced])]
        found.ends[iteration] += last
    return found
