"""The ports of a lab by number, and the policy of each class of each port: the numbers that programs and agent use.

In:  a Fabric and its `queues` (`queues set` may have changed those of a switch).
Out: port ids; ClassPolicy: thresholds in bytes, marking curve, times in nanoseconds.
Port ids come from the fabric alone, so they are the same in every program and process of a kernel: from 1, in the order
of its nodes and of their ports, with room behind each switch (Wiring.places). The shared maps use them as index. The
ports of one node have consecutive ids, and mostly consecutive interface indexes: so they share filters, whose classid
is the difference (port_of in bpf/port.h). Each shard has ids of its own; over tunnels a port has its number in the
whole fabric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Final, Literal

from heddle.base.ethernet import CLASSES, HEADER
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policy import Budget, buffer_bytes, too_small
from heddle.fabric.wiring import BACKEND, Node, Port
from heddle.spec.queuepolicy import ClassKind, QueuePolicy

MOST_PORTS: Final = 65535  # the minor number of a classid

OWNER: Final = "_queues"  # the directory of the lab's pins; not a valid node name
PortRef = tuple[str, str]  # node, port


def port_ids(fabric: Fabric) -> Mapping[PortRef, int]:
    """(node, port) -> its id, for the ports of this kernel."""
    return {(port.node, port.name): number for number, port in numbered_ports(fabric)}


def numbered_ports(fabric: Fabric) -> Iterator[tuple[int, Port]]:
    """Every port of this kernel with its id, in ascending order."""
    places = fabric.places
    rows = (zip(places[node.name].ids, node.ports, strict=True) for node in fabric.nodes_here)
    return (
        iter(sorted(chain.from_iterable(rows), key=itemgetter(0))) if fabric.kept_places else chain.from_iterable(rows)
    )


def far_ids(fabric: Fabric) -> Mapping[PortRef, int]:
    """The same for ports of other shards at the ends of cut links: their ids follow. Empty on one machine."""
    here = fabric.shard
    cut = (port for _, port in numbered_ports(fabric) if here is not None and port.peer_node not in here)
    return {(port.peer_node, port.peer_port): number for number, port in enumerate(cut, fabric.space[1])}


def check_ids(fabric: Fabric, what: str = "") -> None:
    """InputError when a kernel has more ports than there are ids. what: the shard."""
    if (highest := fabric.space[1] - 1 + len(far_ids(fabric))) > MOST_PORTS:
        why = f"has {highest} ports; the maximum of one kernel is {MOST_PORTS}"
        hint = "use more --shards" if what else f"use fewer {fabric.box}s, hosts or NICs, or --runtime kubernetes"
        raise InputError(Problem("", what or fabric.name, why, hint))


def classid(port_id: int) -> str:
    """A port id in tc's form: `0:1f`."""
    return f"0:{port_id:x}"


def base_of(port_id: int, ifindex: int) -> int:
    """The classid, from 1, of the filters of a port: the same for all ports with that difference of id and index."""
    return (port_id - ifindex - 1) % MOST_PORTS + 1


def port_at(base: int, ifindex: int) -> int:
    """The id of the port with this interface index, by the classid of its filters."""
    return (base + ifindex - 1) % MOST_PORTS + 1


def row(port_id: int, number: int) -> int:
    """The row of class `number` of a port, in the maps that have a row for each class of each port."""
    return port_id * CLASSES + number


_LEAST_BURST_US: Final = 6


def held_bps(rate_bps: int) -> int:
    """The rate of a shaper for a link of `rate_bps`, both in bit/s: HTB uses whole bytes per second."""
    # struct tc_ratespec and TCA_HTB_RATE64 are in bytes a second; tc rounds down (get_rate64 in iproute2).
    return rate_bps // 8 * 8


def burst_bytes(mtu: int, packets: int, rate_bps: int) -> int:
    """HTB's `burst` and `cburst` of a port on which one timer interrupt releases `packets` full packets.

    With htb_hysteresis, a class sends until its tokens are below -cburst, and then waits until they are 0
    (htb_class_mode in net/sched/sch_htb.c): floor(cburst / packet) + 1 packets. Not 0 for one packet, because tokens
    above 0 make up for late interrupts. A port that was idle sends as many more. Without hysteresis a port sends that
    much only after it was idle, and each packet of a backlog has its own interrupt.
    tc stores whole microseconds, rounded down, so the bytes of two are added: with less than a packet's time the last
    packet of a burst would wait. At several Gb/s it is what passes in 6 us: interrupts are later than that.
    """
    a_microsecond = rate_bps // 8_000_000
    wanted = mtu * 9 // 10 if packets == 1 else (packets - 1) * mtu + 2 * a_microsecond
    return max(wanted, _LEAST_BURST_US * a_microsecond)


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """The policy of one class of one port, for packets that leave by it; xoff to action for packets that arrive by it.

    Sizes in bytes of frames, Ethernet header included. Ports of hosts have a `buffer`, the limit for this class at
    the port, and `pfc` if they obey pauses.
    kind: `unused` for a class that does not exist. ecn: the program marks. red: the kernel's RED marks, and the program
    counts the marks. pfc: the class is lossless and pauses.
    shared, buffer: of the whole switch, the same on all its ports. quanta: of pause frames that this port sends.
    detect_ns: 0 without a watchdog.
    trim_size: bytes of IP to which a packet is cut that the buffer refuses, with that DSCP, into that class; 0: it is
    dropped. last_hop: a host is at the other end, so trimmed packets get their original IP length back.
    """

    kind: ClassKind | Literal["unused"] = "unused"
    ecn: bool = False
    red: bool = False
    at_dequeue: bool = False
    kmin: int = 0
    kmax: int = 0
    pmax: float = 0.0
    pfc: bool = False
    xoff: int = 0
    xon: int = 0
    headroom: int = 0
    quanta: int = 0
    detect_ns: int = 0
    restore_ns: int = 0
    action: Literal["drop", "forward"] = "drop"
    reserve: int = 0
    alpha: float = 1.0
    shared: int = 0
    buffer: int = 0
    trim_size: int = 0
    trim_dscp: int = 0
    trim_queue: int = 0
    last_hop: bool = False


UNUSED: Final = ClassPolicy()
Policies = Mapping[PortRef, tuple[ClassPolicy, ...]]  # a policy for each of the eight classes


def policies_of(
    fabric: Fabric, queues: QueuePolicy | None = None, own: Mapping[str, QueuePolicy] | None = None
) -> Policies:
    """(node, port) -> the policy of each of its eight classes, for every port of every switch and host of this kernel.

    queues: those of the file when None. own: nodes with other ones, at ports of the network with ranks.
    InputError names the switches whose buffer is smaller than the sum of its reserves and headroom.
    """
    usual = {name: policy.queues for name, policy in fabric.policy.others.items()}
    usual[BACKEND] = queues or fabric.policy.queues
    found: dict[PortRef, tuple[ClassPolicy, ...]] = {}
    known: dict[tuple[int, Budget | None, int, int, bool], tuple[ClassPolicy, ...]] = {}
    problems: list[Problem] = []
    for node in fabric.nodes_here:
        policies = {**usual, BACKEND: (own or {}).get(node.name, usual[BACKEND])}
        # A switch is in one network, so its ports share a buffer of one policy.
        policy = policies[node.ports[0].network if node.ports else BACKEND]
        budget = None if node.role is Role.HOST else budget_of(fabric, node, policy)
        frame = max((port.mtu for port in node.ports), default=0) + HEADER
        if budget is not None and node.ports and budget.shared < frame:
            why, hint = too_small(policy, node.name, len(node.ports), budget, frame - HEADER)
            problems.append(Problem(node.name, "queues.buffer", why, hint))
        for port in node.ports:
            policy = policies[port.network]
            last = bool(policy.trim_queue) and fabric.by_name[port.peer_node].role is Role.HOST
            key = (id(policy), budget, port.rate_bps, port.mtu, last)
            if key not in known:
                made = _policies(policy, budget, port.rate_bps, port.mtu)
                known[key] = tuple(_trimming(policy, n, each, last=last) for n, each in enumerate(made))
            found[node.name, port.name] = known[key]
    if problems:
        raise InputError(*problems)
    return found


def budget_of(fabric: Fabric, switch: Node, queues: QueuePolicy) -> Budget:
    """The partition of a switch's buffer, in bytes."""
    ports = [(port.rate_bps, port.mtu) for port in switch.ports]
    return buffer_bytes(queues, switch.level, ports, is_edge=fabric.level_of(switch).is_edge)


def deepest_queue(fabric: Fabric, number: int) -> int:
    """The most bytes of one class that can wait at one port of a switch.

    With pauses: the sum of all ingress ports, each up to xoff plus its headroom. Otherwise the dynamic threshold: a
    single queue grows to alpha / (1 + alpha) of the shared buffer (Choudhury and Hahne 1998).
    """
    queues = fabric.policy.queues
    found = [queues.buffer.host]
    for node in (node for node in fabric.switches if any(port.network == BACKEND for port in node.ports)):
        budget = budget_of(fabric, node, queues)
        if number in queues.paused:
            held = sum(queues.pfc.xoff + queues.pfc.headroom_bytes(port.rate_bps, port.mtu) for port in node.ports)
            found.append(min(budget.buffer, held))
        else:
            found.append(queues.reserve + round(budget.shared * queues.alpha / (1 + queues.alpha)))
    return max(found)


def _policies(queues: QueuePolicy, budget: Budget | None, rate_bps: int, mtu: int) -> tuple[ClassPolicy, ...]:
    """budget: None for a host's port."""
    if budget is None:
        bare = Budget(queues.buffer.host, 0, 0)
        kinds = {number: _of_host(_policy(queues, number, bare, rate_bps, mtu)) for number in queues.numbers}
    else:
        kinds = {number: _policy(queues, number, budget, rate_bps, mtu) for number in queues.numbers}
    return tuple(kinds.get(number, UNUSED) for number in range(CLASSES))


def _trimming(queues: QueuePolicy, number: int, policy: ClassPolicy, *, last: bool) -> ClassPolicy:
    """The policy of a class with what is trimmed. last: at a port to a host. Ports of hosts, without shares, do not."""
    if not queues.trim_queue or not policy.shared:
        return policy
    trimming, found = queues.trimming, replace(policy, last_hop=last)
    if not queues.trims(number) or policy.kind == "unused":
        return found
    dscp = trimming.last_hop_dscp if last else trimming.dscp
    return replace(found, trim_size=trimming.size, trim_dscp=dscp, trim_queue=queues.trim_queue[0])


def _of_host(policy: ClassPolicy) -> ClassPolicy:
    """The policy at a host's port: hosts obey pauses, but neither mark nor pause, since they receive without delay.

    The watchdog is a function of switches. A NIC that is paused waits: deep incasts pause it longer than any switch,
    since the shares of its path multiply, and dropping its own packets would not relieve another port.
    """
    return replace(policy, ecn=False, red=False, at_dequeue=False, kmin=0, kmax=0, pmax=0.0, reserve=0, shared=0,
                   xoff=0, xon=0, headroom=0, detect_ns=0)  # fmt: skip


def _policy(queues: QueuePolicy, number: int, budget: Budget, rate_bps: int, mtu: int) -> ClassPolicy:
    kind, ecn, pfc = queues.kind(number), queues.ecn, queues.pfc
    kmin, kmax, pmax = ecn.curve(number)
    marks = ecn.enabled and kind != "control"
    common = ClassPolicy(
        kind=kind, ecn=marks and ecn.marker == "bpf", red=marks and ecn.marker == "red", at_dequeue=ecn.at == "dequeue",
        kmin=kmin, kmax=kmax, pmax=pmax,
        reserve=queues.reserve_of(number), alpha=queues.alpha, shared=budget.shared, buffer=budget.buffer,
    )  # fmt: skip
    if kind != "lossless" or not pfc.enabled:
        return common
    watchdog = pfc.watchdog
    return replace(
        common, pfc=True, xoff=pfc.xoff, xon=pfc.xon, headroom=pfc.headroom_bytes(rate_bps, mtu),
        quanta=pfc.quanta_at(rate_bps), detect_ns=watchdog.detect if watchdog.enabled else 0,
        restore_ns=watchdog.restore, action=watchdog.action,
    )  # fmt: skip
