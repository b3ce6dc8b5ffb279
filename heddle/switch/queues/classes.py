"""Traffic classes of a lab, and what holds for each class of each port: the numbers that programs and agent go by.

In:  a Fabric and its `queues` (a switch may have others than the file says, see `queues set`).
Out: ClassPlan: which class a packet is of; ClassPolicy: thresholds in bytes, marking curve, times in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from heddle.base.ethernet import CLASSES, DSCPS, HEADER
from heddle.base.problems import InputError, Problem
from heddle.fabric.buffers import Budget, buffer_bytes, too_small
from heddle.fabric.model import Fabric, Node, Role
from heddle.fabric.policy import ClassKind, QueuePolicy

PortKey = tuple[str, str]  # node, port
BURST_PACKETS: Final = 2  # that the shaper of a port sends at once
_NETWORK_CONTROL: Final = (6, 7)  # DSCPs 48 to 63: CS6 and CS7 (RFC 4594), which switches talk to each other with


def held_bps(rate_bps: int) -> int:
    """The rate that a shaper holds for a link of `rate_bps`, both in bit/s: HTB counts whole bytes a second."""
    # struct tc_ratespec and TCA_HTB_RATE64 are in bytes a second; tc rounds down (get_rate64 in iproute2).
    return rate_bps // 8 * 8


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """Which classes there are, the same on every port of a lab.

    numbers: ascending; the other tuples have an entry for each number. weights: 0 for control. dscp: class of each of
    the 64 DSCPs.
    """

    numbers: tuple[int, ...]
    kinds: tuple[ClassKind, ...]
    weights: tuple[int, ...]
    control: int
    best_effort: int
    dscp: tuple[int, ...]

    @property
    def lossless(self) -> tuple[int, ...]:
        """Classes that may be paused."""
        return tuple(n for n, kind in zip(self.numbers, self.kinds, strict=True) if kind == "lossless")

    def kind(self, number: int) -> ClassKind:
        """What a class in use is; KeyError for another."""
        return dict(zip(self.numbers, self.kinds, strict=True))[number]

    def weight(self, number: int) -> int:
        """A class's share of what control leaves; 0 for control; KeyError for a class that is not in use."""
        return dict(zip(self.numbers, self.weights, strict=True))[number]


def class_plan(queues: QueuePolicy) -> ClassPlan:
    """The classes that a file asks for.

    DSCPs 8n to 8n+7 are of class n where there is one (its upper three bits, as IP precedence and 802.1p have it);
    48 to 63 of control otherwise, all others of best effort. `queues.dscp` goes before that.
    """
    numbers = queues.numbers

    def usual(dscp: int) -> int:
        if dscp // 8 in numbers:
            return dscp // 8
        return queues.control if dscp // 8 in _NETWORK_CONTROL else queues.best_effort

    weights = tuple(0 if n == queues.control else queues.weight(n) for n in numbers)
    dscp = tuple(queues.dscp.get(each, usual(each)) for each in range(DSCPS))
    return ClassPlan(numbers, tuple(map(queues.kind, numbers)), weights, queues.control, queues.best_effort, dscp)


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """What holds for one class of one port: of its packets as they leave there, and (xoff ... action) as they come in.

    Sizes in bytes of frames, Ethernet header included. Ports of hosts have a `buffer`, which is what may wait there of
    the class, and `pfc` where they obey pauses.
    kind: `unused` where the class does not exist. ecn: the program marks; red: the kernel's RED does, and the program
    counts. pfc: the class is lossless and pauses.
    shared, buffer: of the whole switch, the same on all its ports. quanta: of pause frames that this port sends.
    detect_ns: 0 without a watchdog.
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


UNUSED: Final = ClassPolicy()
Policies = Mapping[PortKey, tuple[ClassPolicy, ...]]  # a policy for each of the eight classes


def policies_of(
    fabric: Fabric, queues: QueuePolicy | None = None, own: Mapping[str, QueuePolicy] | None = None
) -> Policies:
    """(node, port) -> the policy of each of its eight classes, for every port of every switch and host.

    queues: the file's when None. own: switches that have another.
    InputError names switches whose buffer is smaller than what is set aside in it.
    """
    usual = queues or fabric.policy.queues
    found: dict[PortKey, tuple[ClassPolicy, ...]] = {}
    made: dict[tuple[int, Budget | None, int, int], tuple[ClassPolicy, ...]] = {}
    problems: list[Problem] = []
    for node in fabric.nodes:
        mine = (own or {}).get(node.name, usual)
        budget = None if node.role is Role.HOST else budget_of(node, mine)
        frame = max((port.mtu for port in node.ports), default=0) + HEADER
        if budget is not None and node.ports and budget.shared < frame:
            why, hint = too_small(mine, node.name, len(node.ports), budget, frame - HEADER)
            problems.append(Problem(node.name, "queues.buffer", why, hint))
        for port in node.ports:
            key = (id(mine), budget, port.rate_bps, port.mtu)
            if key not in made:
                made[key] = _policies(mine, budget, port.rate_bps, port.mtu)
            found[node.name, port.name] = made[key]
    if problems:
        raise InputError(*problems)
    return found


def budget_of(switch: Node, queues: QueuePolicy) -> Budget:
    """How a switch's buffer is laid out, in bytes."""
    return buffer_bytes(queues, switch.level, [(port.rate_bps, port.mtu) for port in switch.ports])


def deepest_queue(fabric: Fabric, number: int, queues: QueuePolicy | None = None) -> int:
    """Bytes of one class that can wait in one port of a switch at most.

    Paused: what all ingress ports may hold, each up to xoff and its headroom. Otherwise the dynamic threshold: a queue
    that is alone grows to alpha / (1 + alpha) of what is shared (Choudhury and Hahne 1998).
    """
    spec = queues or fabric.policy.queues
    found = [spec.buffer.host]
    for node in fabric.switches:
        budget = budget_of(node, spec)
        if spec.pfc.enabled and number in spec.lossless:
            held = sum(spec.pfc.xoff + spec.pfc.headroom_bytes(port.rate_bps, port.mtu) for port in node.ports)
            found.append(min(budget.buffer, held))
        else:
            found.append(spec.reserve + round(budget.shared * spec.alpha / (1 + spec.alpha)))
    return max(found)


def _policies(queues: QueuePolicy, budget: Budget | None, rate_bps: int, mtu: int) -> tuple[ClassPolicy, ...]:
    """budget: None for a host's port."""
    if budget is None:
        bare = Budget(queues.buffer.host, 0, 0)
        kinds = {number: _of_host(_policy(queues, number, bare, rate_bps, mtu)) for number in queues.numbers}
    else:
        kinds = {number: _policy(queues, number, budget, rate_bps, mtu) for number in queues.numbers}
    return tuple(kinds.get(number, UNUSED) for number in range(CLASSES))


def _of_host(policy: ClassPolicy) -> ClassPolicy:
    """Hosts are paused, and neither mark nor pause: what comes in is taken at once."""
    return replace(policy, ecn=False, red=False, at_dequeue=False, kmin=0, kmax=0, pmax=0.0, reserve=0, shared=0,
                   xoff=0, xon=0, headroom=0)  # fmt: skip


def _policy(queues: QueuePolicy, number: int, budget: Budget, rate_bps: int, mtu: int) -> ClassPolicy:
    kind, ecn, pfc = queues.kind(number), queues.ecn, queues.pfc
    kmin, kmax, pmax = ecn.curve(number)
    marks = ecn.enabled and kind != "control"
    common = ClassPolicy(
        kind=kind, ecn=marks and ecn.marker == "bpf", red=marks and ecn.marker == "red", at_dequeue=ecn.at == "dequeue",
        kmin=kmin, kmax=kmax, pmax=pmax,
        reserve=queues.reserve, alpha=queues.alpha, shared=budget.shared, buffer=budget.buffer,
    )  # fmt: skip
    if kind != "lossless" or not pfc.enabled:
        return common
    watchdog = pfc.watchdog
    return replace(
        common, pfc=True, xoff=pfc.xoff, xon=pfc.xon, headroom=pfc.headroom_bytes(rate_bps, mtu),
        quanta=pfc.quanta_at(rate_bps), detect_ns=watchdog.detect if watchdog.enabled else 0,
        restore_ns=watchdog.restore, action=watchdog.action,
    )  # fmt: skip
