"""Measured paths: the counters of every switch port for every QP, and whether they prove a path.

In:  the counters of all switches (a difference over a run), the flows of that run, and which of them are spread.
Out: for each flow the ordered egress ports that counted it, the packets of each, and counts at other ports; between
     two steps, the ingress and egress counts of each switch. With the expected path of each flow and the counters of
     queues, link faults and machine: the reason that a path is not proven, '' if it is; port -> packets that were lost
     behind it, or arrived twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heddle.fabric.model import Fabric
from heddle.predict.walk import element, ports_of
from heddle.proof.evidence import Evidence
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.switch.queues.cells import Tally
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

    At the first switch, the port is the sender's NIC. At the destination, packets_out is the count of the NIC, and
    bytes_out is None, since NICs report no bytes.
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
        """Packets that are missing: at least so many were lost in between."""
        return max(0, self.packets_in - self.packets_out)

    @property
    def copied(self) -> int:
        """Packets that are too many: at least so many arrived twice."""
        return max(0, self.packets_out - self.packets_in)

    @property
    def cut(self) -> int:
        """Bytes that are missing though all packets are there: trimmed."""
        whole = self.bytes_out is None or self.packets_in != self.packets_out
        return 0 if whole else max(0, self.bytes_in - (self.bytes_out or 0))


def peers_of(fabric: Fabric) -> dict[str, str]:
    """Port of a switch -> the port at the other end of its link."""
    return {port.ref: port.peer_ref for node in fabric.switches for port in node.ports}


def _node(ref: str) -> str:
    return ref.partition(":")[0]


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
        here = list(dict.fromkeys(_node(peers.get(count.port, "")) for count in steps[-1]))
    stray += [(f"{name}:{row.port}", row.packets) for name, rows in seen.items() for row in rows]
    return Measured(tuple(steps), tuple(sorted(stray)))


def natural(word: str) -> list[tuple[int, str]]:
    """A sort key that puts eth10 after eth9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", word) if part]


def passages(sent: Sent, seen: Measured, peers: Mapping[str, str]) -> Iterator[Passage]:
    """The passages at each switch on the path, and at the NIC after the last step."""
    first = [Count(peers[sent.flow.first_hop], sent.packets, sent.bytes)]
    for before, after in zip((first, *seen.steps), seen.steps or ((),), strict=False):
        into: dict[str, list[Count]] = {}
        for count in before:
            into.setdefault(_node(sent.flow.first_hop if before is first else peers.get(count.port, "")), []).append(
                count
            )
        for switch, counts in into.items():
            out = [count for count in after if _node(count.port) == switch]
            yield Passage(
                tuple(count.port for count in counts),
                sum(count.packets for count in counts), sum(count.bytes for count in counts),
                sum(count.packets for count in out), sum(count.bytes for count in out),
            )  # fmt: skip
    if seen.steps and seen.received is not None:
        ports = tuple(count.port for count in seen.steps[-1])
        yield Passage(ports, seen.packets[-1], seen.bytes[-1], seen.received, None)


Path = tuple[str, ...]


def measured_why(sent: Sent, expected: Path, seen: Measured, behind: Behind, peers: Mapping[str, str]) -> str:
    """The reason that the counters do not prove a path; empty when they do."""
    if seen.stray:
        return "also seen at " + ", ".join(f"{port} ({count} packets)" for port, count in seen.stray)
    if not sent.packets and not seen.steps:
        return ""  # a QP without data has no measured path
    outside = _outside_why(expected, seen)
    return outside or _count_why(sent, seen, behind, peers) or _other_path_why(expected, seen)


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


def _count_why(sent: Sent, seen: Measured, behind: Behind, peers: Mapping[str, str]) -> str:
    """The error in the counts along a measured path; empty when they add up."""
    for passage in passages(sent, seen, peers):
        at_first = passage.ports == (peers[sent.flow.first_hop],)
        reasons = [behind.unexplained[port] for port in passage.ports if port in behind.unexplained]
        out, name = passage.packets_out, passage.name
        if reasons and passage.lost + passage.copied:
            if at_first:
                return f"{sent.packets} packets were sent, the first hop counted {out}"
            if passage.copied and passage.bytes_out is None:
                reasons.insert(0, f"the NIC took {out} packets, {name} counted {passage.packets_in}")
            return "; ".join(reasons)
        if passage.packets_in == out and passage.bytes_out not in (None, passage.bytes_in):
            if passage.cut and not at_first and behind.trims(passage):
                continue  # their heads went on
            if behind.mixed.issuperset(passage.ports) and not reasons:
                continue  # one packet was lost and another came twice
            if at_first:
                return f"{sent.bytes} bytes were sent, the first hop counted {passage.bytes_out}"
            return f"other packets after {name} than at it: {passage.bytes_in} bytes became {passage.bytes_out}"
    return ""


@dataclass(frozen=True, slots=True)
class Behind:
    """What happened to the packets of the proven flows behind each port. lost, copied: port -> packets.

    unexplained: port -> the reason that counters of queues and links do not explain it. mixed: ports whose links both
    lost and copied packets of the flows' class. numbers: that class, and the trim queue if it was trimmed.
    cuts: port -> bytes that were cut off packets there, as far as the queue's counters explain them.
    unused: port -> trimmed packets that it sent to a NIC which cannot use them, and did not report them; not in `lost`.
    """

    lost: Mapping[str, int]
    copied: Mapping[str, int]
    unexplained: Mapping[str, str]
    mixed: frozenset[str]
    numbers: tuple[int, ...] = ()
    cuts: Mapping[str, int] = field(default_factory=dict)
    unused: Mapping[str, int] = field(default_factory=dict)

    def trims(self, passage: Passage) -> bool:
        """Whether the queues of a passage's ports cut what is missing after them."""
        return passage.cut <= sum(self.cuts.get(port, 0) for port in passage.ports)

    @classmethod
    def by_class(
        cls,
        evidence: Evidence,
        measured: Sequence[Measured],
        peers: Mapping[str, str],
        classes: Sequence[tuple[int, ...]],
        queue: Sequence[int] = (),
    ) -> dict[int, Behind]:
        """The same for the flows of each class, by its number. classes: as of Sent, for each flow. queue: as below."""
        found = {}
        for number in sorted({each[0] for each in classes}):
            rows = [at for at, each in enumerate(classes) if each[0] == number]
            again = sorted({each for at in rows for each in classes[at][1:]})
            back = tuple(evidence.answered[at] for at in rows) if evidence.answered else ()
            part = replace(evidence, sent=tuple(evidence.sent[at] for at in rows), answered=back)
            numbers = evidence.with_trims((number, *again), queue)
            found[number] = cls.of(part, [measured[at] for at in rows], peers, numbers, queue)
        return found

    @classmethod
    def of(
        cls, evidence: Evidence, measured: Sequence[Measured], peers: Mapping[str, str],
        numbers: Sequence[int], queue: Sequence[int] = (),
    ) -> Behind:  # fmt: skip
        """From the counters of a run. numbers: the flows' classes, and that of trimmed packets, if there are any.

        If a flow reached a switch over several ports, what it lost or got twice is assigned to those whose queues or
        links lost or copied packets of its class.
        """
        lost, copied, ours, cuts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        shared: list[Passage] = []
        for sent, seen in zip(evidence.sent, measured, strict=True):
            ours[peers[sent.flow.first_hop]] += sent.packets
            ours.update({count.port: count.packets for step in seen.steps for count in step})
            ours.update(dict(seen.stray))
            for passage in passages(sent, seen, peers):
                if len(passage.ports) > 1:
                    shared.append(passage)
                else:
                    lost[passage.ports[0]] += passage.lost
                    copied[passage.ports[0]] += passage.copied
                    cuts[passage.ports[0]] += passage.cut
        for passage in shared:
            ports = passage.ports
            tallies = {port: evidence.tally(port, *numbers) for port in ports}
            _share(lost, passage.lost, {port: evidence.class_drops(port, *numbers) or 0 for port in ports})
            _share(copied, passage.copied, {port: each.copies for port, each in tallies.items()})
            _share(cuts, passage.cut, {port: each.trimmed_bytes for port, each in tallies.items()})
        unused: dict[str, int] = {}
        for port in {seen.steps[-1][0].port for seen in measured if seen.steps and seen.received is not None}:
            heads, drops = evidence.heads(port, numbers, queue), evidence.class_drops(port, *numbers) or 0
            if heads and lost[port] == drops + heads:
                lost[port] -= heads
                unused[port] = heads
        others = OtherChanges.of(evidence, peers)
        why = {
            port: _unexplained(port, (lost[port], copied[port]), ours[port], evidence, numbers, others)
            for port in lost | copied
        }
        mixed = [port for port in evidence.tallies if evidence.tally(port, *numbers).mixed]
        explained = {
            port: cut for port, cut in (+cuts).items()
            if _cut_there(cut, evidence.tally(port, *numbers), ours[port], lost[port] + copied[port])
        }  # fmt: skip
        wrong = {port: each for port, each in why.items() if each}
        return cls(+lost, +copied, wrong, frozenset(mixed), tuple(numbers), explained, unused)


def _cut_there(cut: int, tally: Tally, counted: int, changed: int) -> bool:
    """Whether a port's queue cut so many bytes off the flows' packets: not more than it cut in all, and just as many if
    its class had only their packets, none of which was lost or copied. counted: as below.
    """
    alone = tally.offered == counted and not changed
    return cut == tally.trimmed_bytes if alone else cut <= tally.trimmed_bytes


def _share(change: Counter[str], left: int, known: Mapping[str, int]) -> None:
    """Assign packets to ports, at most as many as the counters of each know of; the rest to the first one."""
    for port, most in known.items():
        part = min(left, max(0, most - change[port]))
        change[port] += part
        left -= part
    change[next(iter(known))] += left


def _unexplained(
    port: str, ours: tuple[int, int], counted: int, evidence: Evidence, numbers: Sequence[int], others: OtherChanges
) -> str:
    """The reason that the counters of a port's queue and link do not explain what flows lost behind it, or got twice.

    ours: lost and copied packets of the flows. counted: all of their packets at the port. numbers: their class, and the
    trim queue if it was trimmed.
    Drops and copies are counted by port and class, not by flow. They explain a change only if each of them must be of
    these flows. There are three cases. The class had no other packets at that port; or no other RoCEv2 flow lost any
    there or got any twice: then drops less copies of the class are those of these flows. Or drops less copies of all
    classes are those of all RoCEv2 flows. Otherwise some were of other traffic, and it is not known which. The
    machine's backlog drops have no port, class or flow.
    """
    (lost, copied), drops, tally = ours, evidence.class_drops(port, *numbers), evidence.tally(port, *numbers)
    number = " and ".join(map(str, numbers))
    if not lost and not copied:
        return ""
    if copied > tally.copies:
        link = f"its link copied {tally.copies} of class {number}"
        return f"more packets after {port} than at it: {copied} too many, and {link}"
    if drops is None:
        return (
            f"{lost} packets were lost after {port}, whose queue dropped {evidence.drops[port]}, "
            "of which class is not recorded: not attributable"
        )
    if drops < lost:
        machine = (
            f"; the machine's backlog dropped {evidence.backlog_drops} of any traffic: not attributable"
            if evidence.backlog_drops
            else ""
        )
        packets = "1 packet" if lost == 1 else f"{lost} packets"
        return f"{packets} vanished after {port}, whose queue dropped {drops} of class {number}{machine}"
    known, wanted, alone = drops - tally.copies, lost - copied, tally.offered == counted
    if not alone and (more := (others.lost.get(port, 0), others.copied.get(port, 0))) != (0, 0):
        known, wanted = evidence.all_drops(port) - evidence.all_copies(port), wanted + more[0] - more[1]
    if known == wanted and (alone or port not in others.unknown):
        return ""
    twice = f" and {copied} came twice" if copied else ""
    link = f" and whose link copied {tally.copies}" if tally.copies else ""
    return (
        f"{lost} packets were lost{twice} after {port}, whose queue dropped {drops} of class {number}{link}, "
        "perhaps of other traffic: not attributable"
    )


@dataclass(frozen=True, slots=True)
class OtherChanges:
    """Flows that are not to be proven. lost, copied: port -> packets missing, or too many, at the next switch.

    unknown: ports to hosts that sent some of them: the counts of those NICs are not known.
    """

    lost: Mapping[str, int]
    copied: Mapping[str, int]
    unknown: frozenset[str]

    @classmethod
    def of(cls, evidence: Evidence, peers: Mapping[str, str]) -> OtherChanges:
        """From the counters of a run.

        Answers of the proven flows count at their last port if the senders' kernels counted them, as of TCP streams.
        If a flow reached a switch over several ports, its change counts after each of them.
        """
        ours = {sent.flow.key for sent in evidence.sent}
        answered = {(sent.flow.dst_ip, sent.flow.src_ip) for sent in evidence.sent}
        into: dict[tuple[FlowKey, str], list[Count]] = {}
        back = zip(evidence.sent, evidence.answered, strict=False)
        out = Counter({(sent.flow.reverse, sent.flow.src): count for sent, count in back if count})
        unknown: set[str] = set()
        for switch, table in evidence.counters.items():
            for row in table.flows:
                if row.key in ours:
                    continue
                count = Count(f"{switch}:{row.port}", row.packets, row.bytes)
                out[row.key, switch] += row.packets
                if (peer := _node(peers.get(count.port, ""))) in evidence.counters or (row.key, peer) in out:
                    into.setdefault((row.key, peer), []).append(count)
                elif (row.src, row.dst) not in answered:
                    unknown.add(count.port)
        lost, copied = Counter[str](), Counter[str]()
        for at, counts in into.items():
            missing = sum(count.packets for count in counts) - out[at]
            change = lost if missing > 0 else copied
            for port in {count.port for count in counts} if missing else ():
                change[port] += abs(missing)
        return cls(dict(lost), dict(copied), frozenset(unknown))
