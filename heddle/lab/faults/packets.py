"""What a link does to the packets that leave by a port: loss, corruption, duplicates, delay, jitter, reordering.

In:  a Lab and a LinkFault for each port. Out: rows of the programs and delay lines; each port's fault and counters.
Of several faults of a port in the record the last counts: that of a run hides the user's, which hides the fabric
file's. An empty one stands for that of the file when the user has cleared it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.base.problems import CheckError, MachineError, Problem
from heddle.lab.faults import record
from heddle.lab.faults.kind import NamedFault, Source
from heddle.lab.faults.record import SetFault, changing
from heddle.lab.spread import nothing, spread, union
from heddle.runtimes.netns import cable_space
from heddle.spec.impairments import KINDS, NO_FAULT, PACKETS, LinkFault, read_fault
from heddle.switch.links.portfaults import (
    FaultCounts,
    LineSpaces,
    differences,
    file_faults,
    read_counts,
    require_netem,
    set_faults,
)

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Packets(NamedFault):
    """A row of the program's map, and a delay line where packets wait."""

    name = PACKETS
    does = "A share of the packets that leave by the port is lost, corrupted, duplicated or reordered, or all wait."
    at = "port"
    part = PACKETS
    settings: ClassVar[Mapping[str, str | None]] = dict.fromkeys(KINDS, "")
    listed = False
    cleared = "fault of packets"

    def read(self, given: Mapping[str, str], named: Callable[[str], str]) -> dict[str, Any]:
        return read_fault(given, "leave it out", lambda key, value: ("", f"{named(key)}{value}")).to_json()

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """MachineError when it needs netem, and the kernel of the port has none."""
        if LinkFault.from_json(values).needs_netem:
            _require_netem(lab, where)
        return dict(values)

    def start(self, lab: Lab, faults: Sequence[SetFault]) -> list[SetFault]:
        put(lab, {each.where: LinkFault.from_json(each.values) for each in faults})
        return [*faults]

    def apply(self, lab: Lab, fault: SetFault) -> None:
        self.start(lab, [fault])

    def effect(self, lab: Lab, fault: SetFault) -> str:
        ((_, found),) = self.seen(lab, [fault])
        return found

    def proof(self, lab: Lab, faults: Sequence[SetFault], timeout: float) -> list[str]:
        """CheckError when the program or the kernel does not have a fault."""
        wrong = fault_differences(lab, wanted_faults(lab))
        refs = [each.where for each in faults if each.where in wrong]
        if refs:
            raise CheckError(*(Problem(ref, "the port", wrong[ref], f"./inv fault clear {ref}") for ref in refs))
        return ["the program and the kernel have it"] * len(faults)

    def end(self, lab: Lab, faults: Sequence[SetFault]) -> None:
        """Each port has again what the rest of the record and the fabric file say."""
        known = {each.identity for each in record.read(lab.dir)}
        if refs := [each.where for each in faults if each.identity in known]:
            record.replaced(lab, faults, ())
            wanted = wanted_faults(lab)
            put(lab, {ref: wanted.get(ref, NO_FAULT) for ref in refs})

    def undo(self, lab: Lab, fault: SetFault) -> None:
        self.end(lab, [fault])

    def clear(self, lab: Lab, faults: Sequence[SetFault]) -> None:
        """No fault is left on these ports, also none of a run or of the fabric file."""
        write_faults(lab, dict.fromkeys((each.where for each in faults), NO_FAULT))

    def present(self, lab: Lab, known: Sequence[SetFault]) -> list[SetFault]:
        """The last one of each port that has one, also those of the fabric file."""
        last = {each.where: each for each in known}
        wanted = ((last.get(ref, SetFault(PACKETS, ref)), fault) for ref, fault in wanted_faults(lab).items())
        return [replace(each, values=fault.to_json()) for each, fault in wanted]

    def seen(self, lab: Lab, faults: Sequence[SetFault]) -> list[tuple[Source, str]]:
        rows = {each.port: (each.by, each.effect) for each in read_faults(lab)} if faults else {}
        return [rows.get(each.where, ("fault", "")) for each in faults]

    def text(self, fault: SetFault, k: int) -> str:
        return LinkFault.from_json(fault.values).text(k)


@dataclass(frozen=True, slots=True)
class PortFault:
    """The fault of one port. peer: the port that its packets arrive by.

    by: what set it: the fabric file, `./inv fault`, or a run, for its own time.
    counts: None where the program has no fault for that port, although one is recorded.
    """

    port: str
    peer: str
    fault: LinkFault
    by: Source
    counts: FaultCounts | None

    @property
    def effect(self) -> str:
        """What the program has counted, in words; empty where it has no fault."""
        some = [f"{count:,} {name}" for name, count in (self.counts or {}).items() if count]
        return ", ".join(some) or ("no packet has passed" if self.counts is not None else "")

    def to_json(self) -> dict[str, Any]:
        """A row of `./inv fault --format json`."""
        return {
            "port": self.port,
            "peer": self.peer,
            "by": self.by,
            "fault": self.fault.to_json(),
            "counts": dict(self.counts) if self.counts is not None else None,
        }


def wanted_faults(lab: Lab) -> dict[str, LinkFault]:
    """Port -> its fault, as set last, or else as in the fabric file; only ports that have one."""
    known = record.read(lab.dir)
    found = file_faults(lab.fabric) | _recorded(known)
    kept = [each.where for each in known if each.worker is not None and ":" in each.where]
    if kept and not lab.runtime.here:  # the process of a fault in a shard changes the record of that shard
        with suppress(MachineError):  # a lost shard is reported elsewhere
            found |= _recorded_there(lab, kept)
    return {ref: fault for ref, fault in found.items() if fault}


def _recorded(known: Iterable[SetFault]) -> dict[str, LinkFault]:
    found = dict[str, LinkFault]()
    for each in known:
        with suppress(ValueError, TypeError):  # a damaged one counts as none
            found |= {each.where: LinkFault.from_json(each.values)} if each.kind == PACKETS else {}
    return found


def read_faults(lab: Lab) -> list[PortFault]:
    """All ports that have a fault, in the fabric's order, with their counters."""
    wanted = wanted_faults(lab)
    if not wanted:
        return []
    last = {each.where: each for each in record.read(lab.dir) if each.kind == PACKETS}
    counts, usual = _fault_counts(lab), file_faults(lab.fabric)

    def source(ref: str) -> Source:
        return "run" if ref in last and last[ref].run else "file" if wanted[ref] == usual.get(ref) else "fault"

    return [
        PortFault(port.ref, port.peer_ref, wanted[port.ref], source(port.ref), counts.get(port.ref))
        for node in lab.fabric.nodes
        for port in node.ports
        if port.ref in wanted
    ]


def write_faults(lab: Lab, wanted: Mapping[str, LinkFault]) -> None:
    """Replace all faults of these ports. The caller holds CHANGES."""
    _record(lab, wanted)
    put(lab, wanted)


def write_fault(lab: Lab, ref: str, fault: LinkFault) -> None:
    """Replace the fault that a port has now, the user's or that of a run. The caller holds CHANGES."""
    last = [each for each in record.read(lab.dir) if each.key == (PACKETS, ref)][-1:]
    if any(each.run for each in last):
        record.replaced(lab, last, [replace(each, values=fault.to_json()) for each in last])
        put(lab, {ref: fault})
    else:
        write_faults(lab, {ref: fault})


def _record(lab: Lab, wanted: Mapping[str, LinkFault]) -> None:
    """Record faults of ports, where they differ from those of the fabric file."""
    usual = file_faults(lab.fabric)
    old = [each for each in record.read(lab.dir) if each.kind == PACKETS and each.where in wanted]
    own = {ref: fault for ref, fault in wanted.items() if fault != usual.get(ref, NO_FAULT)}
    record.replaced(lab, old, [SetFault(PACKETS, ref, fault.to_json()) for ref, fault in own.items()])


def put(lab: Lab, wanted: Mapping[str, LinkFault]) -> None:
    """Give ports their faults, which are recorded here."""
    _put(lab, wanted, copied=not lab.runtime.here)


def reinstall_faults(lab: Lab) -> dict[str, LinkFault]:
    """Set faults again where program or kernel differ from them; returns those. The caller holds the lab's lock."""
    wanted = wanted_faults(lab)
    if wrong := {ref: wanted.get(ref, NO_FAULT) for ref in fault_differences(lab, wanted)}:
        put(lab, wrong)
    return wrong


@spread(nothing, nodes=lambda where: [where.partition(":")[0]])
def _require_netem(lab: Lab, where: str) -> None:
    require_netem([LinkFault(delay_ns=1)])


def _spaces(lab: Lab) -> LineSpaces:
    return LineSpaces(lab.handles(), cable_space(lab.name))


@spread(union, nodes=lambda refs: [ref.partition(":")[0] for ref in refs])
def _recorded_there(lab: Lab, refs: Sequence[str]) -> dict[str, LinkFault]:
    found = _recorded(record.read(lab.dir))
    return {ref: found[ref] for ref in refs if ref in found}


@spread(nothing)
def _put(lab: Lab, wanted: Mapping[str, LinkFault], *, copied: bool) -> None:
    """Give ports their faults, in the programs and the delay lines. copied: also in the record of their shard."""
    from heddle.switch.queues.cells import LabQueues

    handles = lab.handles()
    here = {ref: fault for ref, fault in wanted.items() if ref.partition(":")[0] in handles}
    with changing(lab) if copied else nullcontext(), LabQueues.pinned(lab.fabric) as live:
        if copied:
            _record(lab, here)
        set_faults(lab.fabric, _spaces(lab), live, here)


@spread(union)
def fault_differences(lab: Lab, wanted: Mapping[str, LinkFault]) -> dict[str, str]:
    """Port -> how the program or the kernel differs from its fault."""
    from heddle.switch.queues.cells import LabQueues

    handles = lab.handles()
    here = {ref: fault for ref, fault in wanted.items() if ref.partition(":")[0] in handles}
    with LabQueues.pinned(lab.fabric) as live:
        return dict(differences(lab.fabric, _spaces(lab), live, here))


@spread(union)
def _fault_counts(lab: Lab) -> dict[str, FaultCounts]:
    from heddle.switch.queues.cells import LabQueues

    with LabQueues.pinned(lab.fabric) as live:
        return dict(read_counts(lab.fabric, _spaces(lab), live))


def extra_delay_ns(lab: Lab, more: Mapping[str, LinkFault]) -> int:
    """The most that faults add to a path, one way, on hardware, beyond the delays of the fabric file; with jitter.

    more: port -> fault that will be set, too. A path passes each level once up and once down; the slowest port of each
    counts. Sideways it passes five links at most: local, global, local, global, local. Which ones is not known.
    """
    nodes, policy = lab.fabric.by_name, lab.fabric.policy
    most: dict[tuple[int, int], int] = {}
    for ref, fault in {**wanted_faults(lab), **more}.items():
        name, _, port = ref.partition(":")
        here, there = nodes[name].level, nodes[nodes[name].port(port).peer_node].level
        known = policy.delay_ns(min(here, there)) if policy.delayed_on_links else 0
        key = here, there
        most[key] = max(most.get(key, 0), fault.delay_ns + fault.jitter_ns - known)
    return sum(each * (5 if here == there else 1) for (here, there), each in most.items())
