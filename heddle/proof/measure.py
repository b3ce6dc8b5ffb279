"""Measured paths: the counters of every switch port for every QP, and whether they prove a path.

In:  the counters of all switches (a difference over a run), the flows of that run, and which of them are spread.
Out: for each flow the ordered egress ports that counted it, the packets of each, and counts at other ports; between
     two steps, the ingress and egress counts of each switch. With the expected path of each flow and the drop counters
     of queues and machine: the reason that a path is not proven, '' if it is; port -> packets lost after it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from heddle.fabric.model import Fabric
from heddle.predict.walk import element, ports_of
from heddle.proof.evidence import Evidence
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.traffic.flow import Flow, FlowKey, Sent


@dataclass(frozen=True, slots=True)
class Count:
    """The count of one flow at one port."""

    port: str  # rtsw1:eth1
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One flow. steps: the ports that counted it, one per step unless it is spread; stray: other ports, with packets.

    received: packets that the receiving NIC took; None if it did not report.
    """

    steps: tuple[tuple[Count, ...], ...]
    stray: tuple[tuple[str, int], ...] = ()
    received: int | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """The steps in words."""
        return tuple(element([count.port for count in step]) for step in self.steps)

    @property
    def packets(self) -> tuple[int, ...]:
        """The packets counted at each step."""
        return tuple(sum(count.packets for count in step) for step in self.steps)

    @property
    def bytes(self) -> tuple[int, ...]:
        """The same in bytes."""
        return tuple(sum(count.bytes for count in step) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Passage:
    """One flow at one switch: the ports that lead to it, their counts, and the counts of the switch's own ports.

    Or at its destination: packets_out is the count of the NIC, and bytes_out is None, since NICs report no bytes.
    """

    ports: tuple[str, ...]
    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int | None

    @property
    def name(self) -> str:
        """The ports in words."""
        return element(self.ports)

    @property
    def lost(self) -> int:
        """Packets that were lost in between."""
        return max(0, self.packets_in - self.packets_out)


def peers_of(fabric: Fabric) -> dict[str, str]:
    """Port of a switch -> the node behind it."""
    return {port.ref: port.peer_node for node in fabric.switches for port in node.ports}


def measure(
    fabric: Fabric,
    counters: Mapping[str, SwitchCounters],
    flows: Sequence[Flow],
    spread: Sequence[bool] = (),
    received: Sequence[int] = (),
) -> list[Measured]:
    """Follow every flow from its first switch along the ports that counted it.

    received: packets of each flow that the receiving NIC took; empty if NICs did not report.
    spread: whether each flow may leave a switch at several ports; empty: none may. If two ports of a switch counted
    another flow (its path moved during the run), the busier port is followed, and the other is a stray.
    """
    seen: dict[FlowKey, dict[str, list[FlowCount]]] = {}
    for switch, table in counters.items():
        for row in table.flows:
            seen.setdefault(row.key, {}).setdefault(switch, []).append(row)
    peers = peers_of(fabric)
    wide = spread or [False] * len(flows)
    taken: Sequence[int | None] = received or [None] * len(flows)
    return [
        replace(_follow(flow, dict(seen.get(flow.key, {})), peers, wide=each), received=count)
        for flow, each, count in zip(flows, wide, taken, strict=True)
    ]


def _follow(flow: Flow, seen: dict[str, list[FlowCount]], peers: Mapping[str, str], *, wide: bool) -> Measured:
    steps: list[tuple[Count, ...]] = []
    stray: list[tuple[str, int]] = []
    here = [flow.first_hop.partition(":")[0]]
    while any(switch in seen for switch in here):
        step: list[Count] = []
        for switch in here:
            rows = sorted(seen.pop(switch, []), key=lambda row: -row.packets)
            taken = rows if wide else rows[:1]
            step += [Count(f"{switch}:{row.port}", row.packets, row.bytes) for row in taken]
            stray += [(f"{switch}:{row.port}", row.packets) for row in rows[len(taken) :]]
        steps.append(tuple(sorted(step, key=lambda count: natural(count.port))))
        here = list(dict.fromkeys(peers.get(count.port, "") for count in steps[-1]))
    stray += [(f"{name}:{row.port}", row.packets) for name, rows in seen.items() for row in rows]
    return Measured(tuple(steps), tuple(sorted(stray)))


def natural(word: str) -> list[tuple[int, str]]:
    """A sort key that puts eth10 after eth9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", word) if part]


def passages(seen: Measured, peers: Mapping[str, str]) -> Iterator[Passage]:
    """The passages at each switch on the path, and at the NIC after the last step."""
    for before, after in zip(seen.steps, seen.steps[1:], strict=False):
        into: dict[str, list[Count]] = {}
        for count in before:
            into.setdefault(peers.get(count.port, ""), []).append(count)
        for switch, counts in into.items():
            out = [count for count in after if count.port.partition(":")[0] == switch]
            yield Passage(
                tuple(count.port for count in counts),
                sum(count.packets for count in counts), sum(count.bytes for count in counts),
                sum(count.packets for count in out), sum(count.bytes for count in out),
            )  # fmt: skip
    if seen.steps and seen.received is not None:
        ports = tuple(count.port for count in seen.steps[-1])
        yield Passage(ports, seen.packets[-1], seen.bytes[-1], seen.received, None)


Path = tuple[str, ...]


def measured_why(
    sent: Sent, expected: Path, seen: Measured, unexplained: Mapping[str, str], peers: Mapping[str, str]
) -> str:
    """The reason that the counters do not prove a path; empty when they do."""
    if seen.stray:
        return "also seen at " + ", ".join(f"{port} ({count} packets)" for port, count in seen.stray)
    if not sent.packets and not seen.steps:
        return ""  # a QP without data has no measured path
    outside = _outside_why(expected, seen)
    return outside or _count_why(sent, seen, unexplained, peers) or _other_path_why(expected, seen)


def _outside_why(expected: Path, seen: Measured) -> str:
    """The ports outside its set that counted a spread flow; empty when there are none."""
    for word, step in zip(expected, seen.steps, strict=False):
        allowed = ports_of(word)
        if len(allowed) > 1 and (outside := [count.port for count in step if count.port not in allowed]):
            return f"seen at {', '.join(outside)}, outside {word}"
    return ""


def _other_path_why(expected: Path, seen: Measured) -> str:
    """The first step at which other ports than the expected ones counted a flow; empty when there is none."""
    for word, step, seen_word in zip(expected, seen.steps, seen.path, strict=False):
        if any(count.port not in ports_of(word) for count in step):
            return f"the counters saw another path: expected {word}, counted {seen_word}"
    if len(expected) == len(seen.steps):
        return ""
    at = min(len(expected), len(seen.steps))
    words = (" ".join(path[at : at + 1]) or "nothing" for path in (expected, seen.path))
    return "the counters saw another path: expected {}, counted {}".format(*words)


def _count_why(sent: Sent, seen: Measured, unexplained: Mapping[str, str], peers: Mapping[str, str]) -> str:
    """The error in the counts along a measured path; empty when they add up."""
    if seen.packets[:1] != (sent.packets,):
        return f"{sent.packets} packets were sent, the first hop counted {seen.packets[0] if seen.packets else 0}"
    if seen.bytes[:1] != (sent.bytes,):
        return f"{sent.bytes} bytes were sent, the first hop counted {seen.bytes[0] if seen.bytes else 0}"
    for passage in passages(seen, peers):
        if passage.packets_out > passage.packets_in:
            nic = f"the NIC took {passage.packets_out} packets, {passage.name} counted {passage.packets_in}"
            return nic if passage.bytes_out is None else f"more packets after {passage.name} than at it"
        if passage.lost:
            reasons = [unexplained[port] for port in passage.ports if port in unexplained]
            if reasons:
                return "; ".join(reasons)
        elif passage.bytes_out not in (None, passage.bytes_in):
            return f"other packets after {passage.name} than at it: {passage.bytes_in} bytes became {passage.bytes_out}"
    return ""


def lost_behind(
    measured: Sequence[Measured], peers: Mapping[str, str], evidence: Evidence, number: int
) -> dict[str, int]:
    """Port -> packets that it counted, but the next switch on their path, or the NIC at its end, did not.

    If a flow reached a switch over several ports, the loss is assigned to those whose queues dropped packets of the
    flows' class.
    """
    lost: dict[str, int] = {}
    shared: list[Passage] = []
    for passage in (each for seen in measured for each in passages(seen, peers) if each.lost):
        if len(passage.ports) == 1:
            lost[passage.ports[0]] = lost.get(passage.ports[0], 0) + passage.lost
        else:
            shared.append(passage)
    for passage in shared:
        left = passage.lost
        for port in passage.ports:
            part = min(left, max(0, (evidence.class_drops(port, number) or 0) - lost.get(port, 0)))
            if part:
                lost[port] = lost.get(port, 0) + part
            left -= part
        if left:
            lost[passage.ports[0]] = lost.get(passage.ports[0], 0) + left
    return lost


@dataclass(frozen=True, slots=True)
class OtherLosses:
    """Losses of RoCEv2 flows that are not to be proven. lost: port -> packets missing at the next switch.

    unknown: ports to hosts that sent some of them: the counts of those NICs are not known.
    """

    lost: Mapping[str, int]
    unknown: frozenset[str]

    @classmethod
    def of(cls, evidence: Evidence, peers: Mapping[str, str]) -> OtherLosses:
        """From the counters of a run. Answers of the proven flows do not count at their last port.

        If a flow reached a switch over several ports, its loss counts after each of them.
        """
        ours = {sent.flow.key for sent in evidence.sent}
        answered = {(sent.flow.dst_ip, sent.flow.src_ip) for sent in evidence.sent}
        into: dict[tuple[FlowKey, str], list[Count]] = {}
        out: Counter[tuple[FlowKey, str]] = Counter()
        unknown: set[str] = set()
        for switch, table in evidence.counters.items():
            for row in table.flows:
                if row.key in ours:
                    continue
                count = Count(f"{switch}:{row.port}", row.packets, row.bytes)
                out[row.key, switch] += row.packets
                if (peer := peers.get(count.port, "")) in evidence.counters:
                    into.setdefault((row.key, peer), []).append(count)
                elif (row.src, row.dst) not in answered:
                    unknown.add(count.port)
        lost: Counter[str] = Counter()
        for at, counts in into.items():
            missing = max(0, sum(count.packets for count in counts) - out[at])
            for port in {count.port for count in counts} if missing else ():
                lost[port] += missing
        return cls(dict(lost), frozenset(unknown))


def unexplained_losses(lost: Mapping[str, int], evidence: Evidence, number: int, others: OtherLosses) -> dict[str, str]:
    """Port -> the reason that its drop counters do not explain the packets that these flows lost after it.

    number: the class of the flows. Drops are counted by port and class, not by flow. They explain a loss only if each
    drop must be one of the lost packets. There are two cases: the class dropped as many packets as these flows lost,
    and no other RoCEv2 flow lost any there; or all classes together dropped as many as all RoCEv2 flows lost there.
    Otherwise some drops were of other traffic, and it is not known which. The machine's backlog drops have no port,
    class or flow.
    """
    found: dict[str, str] = {}
    for port, count in lost.items():
        drops, more = evidence.class_drops(port, number), others.lost.get(port, 0)
        if drops is None:
            found[port] = (
                f"{count} packets were lost after {port}, whose queue dropped {evidence.drops[port]}, "
                "of which class is not recorded: not attributable"
            )
        elif drops < count:
            machine = (
                f"; the machine's backlog dropped {evidence.backlog_drops} of any traffic: not attributable"
                if evidence.backlog_drops
                else ""
            )
            found[port] = (
                f"{count} packets vanished after {port}, whose queue dropped {drops} of class {number}{machine}"
            )
        elif port in others.unknown or (drops != count if not more else evidence.drops[port] != count + more):
            found[port] = (
                f"{count} packets were lost after {port}, whose queue dropped {drops} of class {number}, "
                "perhaps of other traffic: not attributable"
            )
    return found
