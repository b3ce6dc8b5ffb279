"""The plan of a run: ranks, connections and queue pairs, all known before the first packet.

In:  Fabric and RunOptions (the arguments of `./inv run`).
Out: Plan, frozen and plain data, so that a worker in another process, container or machine can get it as JSON.
QP numbers, source ports and packet sequence numbers depend only on the fabric and the options.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final

import numpy as np

from heddle.base.declared import options_of
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.fabric.model import Fabric
from heddle.fabric.pathdelay import PathDelays
from heddle.switch.queues.classes import deepest_queue
from heddle.traffic.admission import Admission
from heddle.traffic.collectives import Pattern
from heddle.traffic.collectives.pattern import MAX_STEPS, DType
from heddle.traffic.communicators import (
    AUTO,
    Communicators,
    between_hosts,
    check_paths,
    colors_of,
    communicators_of,
    hosted,
)
from heddle.traffic.flow import ROCE, Endpoint, Flow, Numbering, QpNumbers, source_port
from heddle.traffic.inflight import InFlight, Propagation, delay_between, windows_of
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import place
from heddle.traffic.schedule import MAX_MESSAGES, messages_of
from heddle.traffic.sequence import STEPS, Part, PartSequence, parts_text, pattern_of
from heddle.traffic.tunables import Control
from heddle.wire.layout import DSCP_TRIMMED, DSCP_TRIMMED_LAST, LAYOUTS, ROCE_PORT
from heddle.wire.sport import entropy_sports

ACK_TIMEOUT_UNIT_S: Final = 4.096e-6


@dataclass(frozen=True, slots=True)
class Qp:
    """One RC queue pair, seen from the data sender: its data flow, and fields that only its two ends use."""

    flow: Flow
    index: int  # within its connection
    src_qpn: int  # of the sender; the receiver's is the flow's
    psn: int  # 24 bits, the first that the sender uses
    window: int  # unacknowledged packets that it may have
    delay_s: float  # the NIC at the end delays frames by the path's propagation; 0 if links do, or none is modelled
    rtt_s: float  # propagation of the path there and back, emulated
    answer_sport: int  # UDP source port of the receiver's answers
    sports: tuple[int, ...]  # UDP source ports of data, used in turn; the first is that of the flow

    @property
    def flows(self) -> tuple[Flow, ...]:
        """Its data direction as switches see it: a flow for each source port."""
        return (self.flow, *(replace(self.flow, sport=sport) for sport in self.sports[1:]))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run will do."""

    lab: str
    k: int
    ib_mtu: int
    timeout_s: float  # how long a requester waits for an acknowledgement
    options: RunOptions
    endpoints: tuple[Endpoint, ...]  # by rank
    qps: tuple[Qp, ...]  # by communicator, connection, then index
    communicators: Communicators  # each runs the collective among its ranks, all at the same time
    propagation: Propagation  # of the paths of all QPs
    in_flight: InFlight  # of each connection
    admission: Admission | None = None
    control: Control | None = None  # congestion control
    trims: bool = False  # switches trim its data
    trim_dscps: tuple[int, int] = (DSCP_TRIMMED, DSCP_TRIMMED_LAST)  # of trimmed packets, and of those of the last hop
    inside_bps: float = 0.0  # of copies between ranks of one host, emulated; 0: they use their NICs
    pattern: Pattern = field(init=False)  # that of the options

    def __post_init__(self) -> None:
        hosts = [self.endpoints[rank].host for rank in self.communicators[0]]
        object.__setattr__(self, "pattern", self.options.pattern.hosted(hosts))

    def inside(self, src: int, dst: int) -> bool:
        """Whether one rank copies to the other inside their host."""
        return self.inside_bps > 0 and self.endpoints[src].host == self.endpoints[dst].host

    @property
    def processes(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that must run in one process: each one alone, or all of a host. By communicator, then rank."""
        order = [rank for members in self.communicators for rank in members]
        if not self.inside_bps:
            return tuple((rank,) for rank in order)
        hosts: dict[str, list[int]] = {}
        for rank in order:
            hosts.setdefault(self.endpoints[rank].host, []).append(rank)
        return tuple(map(tuple, hosts.values()))

    @property
    def ip_version(self) -> int:
        """4 or 6, for all packets."""
        return ip_address(self.endpoints[0].ip).version

    @property
    def window(self) -> int:
        """The largest window of a QP, in packets; each QP has its own (`Qp.window`)."""
        return max(qp.window for qp in self.qps)

    @property
    def passes(self) -> tuple[tuple[int, bool], ...]:
        """All measurements: bytes, and whether they are in place."""
        return self.options.passes(self.pattern)

    @property
    def size(self) -> int:
        """The number of ranks of each communicator."""
        return len(self.communicators[0])

    @property
    def max_seconds(self) -> float:
        """The time after which a run counts as hung: fifty times the time on idle links, at least ten minutes.

        Every step of the collective and every window of packets waits for the propagation delay.
        """
        o, size = self.options, self.pattern.element_bytes
        chains = [self.pattern.serial(self.size, each // size) for each, _ in self.passes]
        data, steps = size * sum(elements for elements, _, _ in chains), sum(steps for _, steps, _ in chains)
        window = self.window * o.qps * self.ib_mtu
        slowest = min(e.rate_bps for e in self.endpoints) * min([1.0, *(share for _, share in o.slow)])
        if self.admission is not None:
            window = min(window, self.admission.budget_bytes)
        each = 8 * data / slowest + self.propagation.rtt_s * (steps + data / window)
        each += sum(seconds for _, _, seconds in chains)
        return max(600.0, 50 * (o.iters + o.warmup) * each)

    def flows(self) -> tuple[Flow, ...]:
        """The flows of every QP, in the order of `qps`."""
        return tuple(flow for qp in self.qps for flow in qp.flows)


def build_plan(
    fabric: Fabric,
    options: RunOptions,
    more_ns: int = 0,
    numbering: Numbering = ROCE,
    nics_delay: bool = True,
    endpoints: tuple[Endpoint, ...] | None = None,
    job: str = "",
    spread: int = 1,
) -> Plan:
    """Place the ranks, create the QPs; InputError when the fabric has no such ranks or hosts.

    more_ns: the most that faults of links add to a path, one way, on hardware; only timers take it into account.
    numbering: of the transport's queue pairs.
    nics_delay: the NICs add the propagation delay where links do not; those of the kernel cannot.
    endpoints: the ranks of a job in a workload; by default as the options place them. job: its name.
    spread: UDP source ports that each queue pair uses in turn.
    """
    problems = Problems()
    options.check_live(problems)
    problems.raise_if_any()
    if endpoints is None:
        endpoints = place(
            fabric, options.placement, options.ranks, named=bool(options.steps), network=options.network
        )  # fmt: skip
    pattern, communicators, options = grouped(fabric, endpoints, options)
    size = len(communicators[0])
    _check_slow(endpoints, options)
    options, admission = rounded(pattern, size, options), options.admitted
    if why := pattern.too_large(size):
        raise InputError(Problem("", pattern.typed, why, "use fewer or smaller steps"))
    _check_messages(pattern, size, options, admission)
    numbers, delays = QpNumbers(endpoints, numbering), PathDelays(fabric)
    qps = []
    pairs = pattern.peers(size)
    connections: Sequence[Sequence[int]] = np.array(communicators)[:, pairs].reshape(-1, 2).tolist()
    inside_bps = options.inside_gbps(pattern) * 1e9 / fabric.policy.k
    if inside_bps:
        connections = between_hosts(endpoints, connections)
    if pattern.by_rank or inside_bps:
        check_paths(fabric, endpoints, connections, pattern.typed)
    delays_ns = [delay_between(delays, endpoints[src], endpoints[dst]) for src, dst in connections]
    left_out_ns = 0
    if not (nics_delay or fabric.policy.delayed_on_links):
        left_out_ns, delays_ns = max(delays_ns), [0] * len(delays_ns)
    propagation = Propagation.of(fabric, endpoints, delays_ns, left_out_ns, segments=bool(numbering.protocol))
    windows = windows_of(options.qps, options.window, propagation.bdp_packets)
    in_flight = InFlight.of(windows, propagation.bdp_packets, chosen=options.window is not None)
    for (src, dst), delay_ns in zip(connections, delays_ns, strict=True):
        one_way_s, here, there = delay_ns * fabric.policy.k * 1e-9, endpoints[src], endpoints[dst]
        delay_s, rtt_s = 0.0 if fabric.policy.delayed_on_links else one_way_s, 2 * one_way_s
        for index in range(options.qps):
            own, peer = numbers.next(src), numbers.next(dst)
            sport = source_port(options.source_ports, index, own, peer)
            sports = entropy_sports(sport, spread)
            answer_sport = source_port(options.source_ports, index, peer, own)
            flow = Flow(
                here.host, there.host, here.ip, there.ip, sport, numbering.key(peer), here.first_hop,
                peer if numbering.protocol else ROCE_PORT, here.rank, there.rank, job, options.dscp,
            )  # fmt: skip
            psn, window = numbers.psn(src, own), windows[index]
            qps.append(Qp(flow, index, own, psn, window, delay_s, rtt_s, answer_sport, sports))
    fan_in = int(np.bincount([dst for _, dst in connections]).max())
    slowest = replace(propagation, most_ns=propagation.most_ns + more_ns)
    timeout_s = ack_timeout(fabric, options, slowest, fan_in * in_flight.connection)
    policy, queues = fabric.policy, fabric.policy.of(options.network).queues
    if queues.trim_queue and options.dscp in queues.trimming.marks.values():
        why = f"is the DSCP of trimmed packets: data would fill class {queues.trimming.queue}, their own"
        raise InputError(Problem("", f"--dscp {options.dscp}", why, "use another one"))
    return Plan(
        fabric.name, policy.k, policy.ib_mtu, timeout_s, options, endpoints, tuple(qps), communicators, propagation,
        in_flight, admission, trims=queues.trims(queues.class_of_dscp[options.dscp]),
        trim_dscps=(queues.trimming.dscp, queues.trimming.last_hop_dscp), inside_bps=inside_bps,
    )  # fmt: skip


def grouped(
    fabric: Fabric, endpoints: Sequence[Endpoint], options: RunOptions
) -> tuple[Pattern, Communicators, RunOptions]:
    """What a job runs, its communicators, and its options, where all that depends on the ranks is known."""
    options = bound_steps(options, endpoints, fabric.policy.k)
    asked = options.pattern
    pattern = asked.bound(endpoints, options.sizes).scaled(fabric.policy.k)
    apart = pattern.inside_gbps and options.inside_gbps(pattern) and options.split == AUTO
    chosen = dict(options.parameters)
    values = ((each, getattr(pattern, each.name)) for each in options_of(type(pattern)))
    parameters = tuple((each.name, value) for each, value in values if each.name in chosen or value != each.usual)
    communicators: Communicators = (tuple(range(len(endpoints))),)
    if not pattern.by_rank and not apart:
        communicators = communicators_of(fabric, endpoints, options.split)
    elif options.split != AUTO and pattern.by_rank:
        what = "steps" if options.steps else "rows"
        why = f"is not for {what}, which name ranks of the whole job"
        raise InputError(Problem("", f"--split {options.split}", why, "leave --split out"))
    pattern = hosted(pattern, endpoints, communicators, options.split)
    if options.in_place == "on" and not pattern.replaces:
        why = f"is not possible for {options.collective}: a rank would receive into data that it has not sent yet"
        raise InputError(Problem("", "--in-place on", why, "leave --in-place out, or use both, which gives N/A"))
    if found := pattern.unfit(len(communicators[0])):
        why, _, hint = found.partition("; ")
        raise InputError(Problem("", asked.typed, why, hint or "choose another value, or other --ranks"))
    chunk, admission = options.chunk, options.admitted
    if admission is not None:  # a message needs a slot
        chunk = min(chunk, admission.slot_bytes)
    return pattern, communicators, replace(options, parameters=parameters, chunk=chunk)


def rounded(pattern: Pattern, ranks: int, options: RunOptions) -> RunOptions:
    """The options with the sizes that are actually sent, rounded down as in nccl-tests.

    InputError for a size that becomes 0. nccl-tests prints a row of 0 bytes for it; a fabric shows nothing without
    packets.
    """
    sizes = tuple(pattern.whole(ranks, size // pattern.element_bytes) * pattern.element_bytes for size in options.sizes)
    for size, rounded in zip(options.sizes, sizes, strict=True):
        if rounded == 0:
            why = f"is rounded down to 0 bytes by {options.collective} over {ranks} ranks, as in nccl-tests"
            least = smallest_size(pattern, ranks)
            raise InputError(Problem("", f"--size {size}", why, f"use --size {least} or more, or fewer --ranks"))
    return replace(options, sizes=sizes)


def smallest_size(pattern: Pattern, ranks: int) -> int:
    """The smallest number of bytes of a rank's array that is not rounded down to 0."""
    count = 1
    while not pattern.whole(ranks, count):
        count *= 2
    return pattern.whole(ranks, count) * pattern.element_bytes


def _check_messages(pattern: Pattern, ranks: int, options: RunOptions, admission: Admission | None) -> None:
    """InputError when a step of the largest size has more messages than an immediate can number."""
    longest = pattern.longest(ranks, max(options.sizes) // pattern.element_bytes)
    if (messages := messages_of(longest, options.chunk, pattern.element_bytes)) > MAX_MESSAGES:
        least = -(-messages * options.chunk // MAX_MESSAGES // 1024)
        why = f"cuts a step of {max(options.sizes)} bytes into {messages} messages; the limit is {MAX_MESSAGES}"
        hint = f"try --chunk {least}K"
        if admission is not None and admission.slot_bytes < least * 1024:
            hint = f"try --admission-set buffsize={least * admission.steps}K"
        raise InputError(Problem("", f"--chunk {options.chunk}", why, hint))


def _check_slow(endpoints: Sequence[Endpoint], options: RunOptions) -> None:
    hosts = list(dict.fromkeys(end.host for end in endpoints))
    problems = [
        Problem("", f"--slow {host}={share:.0%}", "names a host without a rank", did_you_mean(host, hosts))
        for host, share in options.slow
        if host not in hosts
    ]
    if problems:
        raise InputError(*problems)


def ack_timeout(fabric: Fabric, options: RunOptions, propagation: Propagation, packets: int) -> float:
    """Seconds until a packet counts as lost: 4.096 us x 2^exponent (IBTA vol. 1, section 9.7.6.1.3).

    A NIC's timer does not stop while its packets wait in the fabric. So the default is the shortest such time that is
    not below the longest wait without a loss. That wait is the propagation of the packet and its ACK, and the time in
    which three of the deepest queues drain (up, down, to the host). If data is paused instead of dropped, two times are
    added: that in which the windows of all connections to a rank pass its NIC's link, and the longest pause that the
    watchdog allows.

    propagation: with the delay of faults of links. packets: in these windows.
    """
    if options.timeout is not None:
        return ACK_TIMEOUT_UNIT_S * 2.0**options.timeout
    queues = fabric.policy.queues
    nic = min(port.rate_bps for port in fabric.nics)
    number = queues.class_of_dscp[options.dscp]
    wait = propagation.rtt_s + 3 * 8 * deepest_queue(fabric, number) / fabric.slowest_bps
    if queues.pfc.enabled and number in queues.lossless:
        frame = fabric.policy.ib_mtu + LAYOUTS[fabric.policy.ip_version].overhead_bytes
        wait += 8 * packets * frame / nic
        wait += queues.pfc.watchdog.detect * 1e-9 if queues.pfc.watchdog.enabled else 0.0
    return ACK_TIMEOUT_UNIT_S * 2.0 ** max(16, math.ceil(math.log2(wait / ACK_TIMEOUT_UNIT_S)))


def bound_steps(options: RunOptions, endpoints: Sequence[Endpoint], k: int) -> RunOptions:
    """Options with parts (`parts_text`): groups as ranks, times multiplied by k. Without steps they are unchanged.

    InputError with every step that cannot run, by its place in the file.
    """
    data = json.loads(options.steps) if options.steps else {}
    if "steps" not in data:
        return options
    dtype: DType = dict(options.parameters).get("dtype", "float32")  # type: ignore[assignment]
    problems: list[Problem] = []
    parts: list[Part] = []
    # By step: the part of a rank. Where a step of a file has none, the parts for which the step waits (`through`).
    of_step: list[dict[int, set[int]]] = []
    for number, step in enumerate(data["steps"]):
        before: dict[int, set[int]] = {}
        for each in step.get("after", ()):
            for rank, found in of_step[each].items():
                before.setdefault(rank, set()).update(found)
        try:
            groups = _groups(number, step, endpoints)
            made = [_part(number, step, group, endpoints, dtype, k) for group in groups]
        except InputError as error:
            problems += error.problems
            made = []
        own: dict[int, set[int]] = {}
        for part in made:
            own |= {rank: {len(parts)} for rank in part.ranks}
            after = {each for rank in part.ranks for each in before.get(rank, ())}
            parts.append(replace(part, after=tuple(sorted(after))))
        of_step.append(before | own if step.get("through") else own)
    if not problems and not any(part.pattern is not None for part in parts):
        problems.append(Problem("", STEPS, "have no collective, so no rank sends anything", "add a step that sends"))
    if problems:
        raise InputError(*problems)
    bound = replace(options, steps=parts_text(parts, data.get("note", "")))
    sequence = PartSequence(steps=bound.steps, dtype=dtype)
    if (many := sequence.most_steps(len(endpoints))) > MAX_STEPS:
        why = f"make {many:,} steps of one rank in an iteration; the limit is {MAX_STEPS:,}"
        raise InputError(Problem("", STEPS, why, "use fewer parts, or algorithms with fewer steps"))
    return replace(bound, sizes=(sequence.whole(len(endpoints), 0) * sequence.element_bytes,))


def _problem(number: int, step: Mapping[str, Any], key: str, why: str, hint: str = "") -> Problem:
    places = step.get("places", {})
    where, path = places.get(key) or places.get("") or ("", f"step {number + 1} ({step['name']})")
    return Problem(where, path, why, hint)


def _groups(number: int, step: Mapping[str, Any], endpoints: Sequence[Endpoint]) -> list[tuple[int, ...]]:
    """The ranks of each part of a step. InputError for ranks that the job does not have, and for lonely ones."""
    groups = step.get("groups")
    if isinstance(groups, list):
        found, key = [tuple(group) for group in groups], "groups"
    else:
        found, key = [tuple(step["ranks"]) if "ranks" in step else tuple(range(len(endpoints)))], "ranks"
    if beyond := [rank for group in found for rank in group if rank >= len(endpoints)]:
        why = f"names rank {beyond[0]}, which this job does not have"
        raise InputError(_problem(number, step, key, why, f"ranks are 0 to {len(endpoints) - 1}"))
    if isinstance(groups, str):
        colors, (ranks,), key = colors_of(groups, len(endpoints)), found, "groups"
        by_color: dict[int, list[int]] = {}
        for rank in ranks:
            by_color.setdefault(colors[rank], []).append(rank)
        found = [tuple(by_color[color]) for color in sorted(by_color)]
    if "collective" in step and (lonely := [group for group in found if len(group) < 2]):
        why = f"make a group of rank {lonely[0][0]} alone" if key == "groups" else "are one rank"
        raise InputError(_problem(number, step, key, f"{why}, but a collective needs two", "use other ranks"))
    return found


def _part(
    number: int, step: Mapping[str, Any], ranks: tuple[int, ...], endpoints: Sequence[Endpoint], dtype: DType, k: int
) -> Part:
    size, seconds = step.get("size", 0), step.get("seconds", 0.0) * k
    asked = pattern_of(step, dtype)
    if asked is None:
        return Part(step["name"], ranks, seconds=seconds)
    ends = [replace(endpoints[rank], rank=place) for place, rank in enumerate(ranks)]
    try:
        pattern = asked.bound(ends, (size,)).scaled(k).hosted([end.host for end in ends])
    except InputError as error:
        raise InputError(*(_located(number, step, each) for each in error.problems)) from None
    if why := pattern.unfit(len(ranks)):
        why, _, hint = why.partition("; ")
        raise InputError(_problem(number, step, "collective", why, hint or "use other ranks"))
    if not pattern.whole(len(ranks), size // pattern.element_bytes):
        why = f"is rounded down to 0 bytes by {pattern.collective} over {len(ranks)} ranks"
        raise InputError(_problem(number, step, "size", why, "use a larger size, or fewer ranks"))
    return Part(step["name"], ranks, pattern, size, seconds)


def _located(number: int, step: Mapping[str, Any], problem: Problem) -> Problem:
    """A problem with a parameter, at the step's place; one that has a place of its own stays there."""
    if problem.where:
        return problem
    own = _problem(number, step, "", problem.why, problem.hint)
    return replace(own, what=f"{own.what} {problem.what}")
