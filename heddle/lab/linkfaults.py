"""Faults of the links of a running lab: set, list, clear, restore.

In:  a Lab and a LinkFault.
Out: the fault of each port, with its counters. What was set is recorded (onpurpose.py), so that `status`, `validate`
and `up --repair` know it. A fault concerns the packets that leave by a port: the other direction is another port.
Faults that are set for one run are in runfaults.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from heddle.base import state
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.model import Fabric, Port
from heddle.lab.onpurpose import before_run, link_faults, note_link_faults
from heddle.spec.impairments import NO_FAULT, LinkFault
from heddle.switch.links.portfaults import differences, file_faults, read_counts, require_netem, set_faults

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.switch.links.portfaults import FaultCounts


@dataclass(frozen=True, slots=True)
class PortFault:
    """The fault of one port. peer: the port that its packets arrive by.

    by: what set it: the fabric file, `./inv fault`, or a run, for its own time.
    counts: None where the program has no fault for that port, although one is recorded.
    """

    port: str
    peer: str
    fault: LinkFault
    by: Literal["file", "fault", "run"]
    counts: FaultCounts | None

    def to_json(self) -> dict[str, Any]:
        """A row of `./inv fault --format json`."""
        return {
            "port": self.port,
            "peer": self.peer,
            "by": self.by,
            "fault": self.fault.to_json(),
            "counts": self.counts.to_json() if self.counts is not None else None,
        }


def wanted_faults(lab: Lab) -> dict[str, LinkFault]:
    """Port -> its fault, as set last, or else as in the fabric file; only ports that have one."""
    found = file_faults(lab.fabric) | link_faults(lab.dir)
    return {ref: fault for ref, fault in found.items() if fault}


def set_fault(lab: Lab, refs: Sequence[str], fault: LinkFault) -> list[str]:
    """Set a fault on ports (`rtsw1:eth3`, `rtsw1`, patterns); returns the ports. Their counters start again.

    InputError for a port that the lab does not have, and for values that do not fit together. MachineError when this
    kernel has no netem and the fault needs it. In both cases nothing is changed.
    """
    key, why, hint = fault.complaint()
    if why:
        raise InputError(Problem("", f"--{key}", why, hint))
    ports = ports_of(lab.fabric, refs)
    return _set(lab, dict.fromkeys((port.ref for port in ports), fault))


def clear_faults(lab: Lab, refs: Sequence[str] = ()) -> list[str]:
    """Clear the faults of ports, or of all; returns the ports that had one. Those of the file are cleared, too."""
    named = {port.ref for port in ports_of(lab.fabric, refs)} if refs else None
    had = [ref for ref in wanted_faults(lab) if named is None or ref in named]
    return _set(lab, dict.fromkeys(had, NO_FAULT))


def restore_faults(lab: Lab) -> bool:
    """Restore the faults of the fabric file on every port; False when there was nothing to do."""
    own, usual = link_faults(lab.dir), file_faults(lab.fabric)
    if not own:
        return False
    _set(lab, {ref: usual.get(ref, NO_FAULT) for ref in own}, recorded={})
    return True


def reinstall_faults(lab: Lab) -> list[str]:
    """Set faults again where program or kernel differ from them; returns the ports. The caller holds the lab's lock."""
    from heddle.switch.queues.cells import LabQueues

    wanted = wanted_faults(lab)
    with LabQueues.pinned(lab.fabric) as live:
        wrong = differences(lab.fabric, lab.handles(), live, wanted)
        if wrong:
            set_faults(lab.fabric, lab.handles(), live, {ref: wanted.get(ref, NO_FAULT) for ref in wrong})
    return [*wrong]


def read_faults(lab: Lab) -> list[PortFault]:
    """All ports that have a fault, in the fabric's order, with their counters."""
    from heddle.switch.queues.cells import LabQueues

    own, wanted, running = link_faults(lab.dir), wanted_faults(lab), before_run(lab.dir)
    if not wanted:
        return []
    with LabQueues.pinned(lab.fabric) as live:
        found = read_counts(lab.fabric, lab.handles(), live)
    return [
        PortFault(
            port.ref, port.peer_ref, wanted[port.ref],
            "run" if port.ref in running else "fault" if port.ref in own else "file", found.get(port.ref),
        )
        for node in lab.fabric.nodes
        for port in node.ports
        if port.ref in wanted
    ]  # fmt: skip


def fault_lines(lab: Lab) -> tuple[str, ...]:
    """One line for each port that has a fault, as recorded: `rtsw1:eth3: 1/256 lost`, `...: 1/256 lost (one run)`."""
    k, running = lab.fabric.policy.k, before_run(lab.dir)
    return tuple(
        f"{ref}: {fault.text(k)}{' (one run)' if ref in running else ''}"
        for ref, fault in sorted(wanted_faults(lab).items())
    )


def extra_delay_ns(lab: Lab, more: Mapping[str, LinkFault]) -> int:
    """The most that faults add to a path, one way, on hardware, beyond the delays of the fabric file; with jitter.

    more: port -> fault that will be set, too. A path passes each level once up and once down; the slowest port of each
    counts. Which ports it passes is not known.
    """
    nodes, policy = lab.fabric.by_name, lab.fabric.policy
    most: dict[tuple[int, bool], int] = {}
    for ref, fault in {**wanted_faults(lab), **more}.items():
        name, _, port = ref.partition(":")
        here, there = nodes[name].level, nodes[nodes[name].port(port).peer_node].level
        known = policy.delay_ns(min(here, there)) if policy.delayed_on_links else 0
        key = min(here, there), here < there
        most[key] = max(most.get(key, 0), fault.delay_ns + fault.jitter_ns - known)
    return sum(most.values())


def ports_of(fabric: Fabric, refs: Sequence[str]) -> list[Port]:
    """The ports that names or patterns select; InputError for one that selects none. A node is all of its ports."""
    every = [port for node in fabric.nodes for port in node.ports]
    typed = [each.strip() for ref in refs for each in ref.split(",") if each.strip()]
    patterns = [each if ":" in each else f"{each}:*" for each in typed]
    names = [port.ref for port in every]
    problems = [
        Problem("", word, f"is not a port of {fabric.name}", _near(word, fabric))
        for word, pattern in zip(typed, patterns, strict=True)
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise InputError(*problems)
    return [port for port in every if any(fnmatchcase(port.ref, pattern) for pattern in patterns)]


def _near(word: str, fabric: Fabric) -> str:
    node = fabric.by_name.get(word.partition(":")[0])
    if node is None:
        return did_you_mean(word.partition(":")[0], fabric.by_name)
    names = [port.name for port in node.ports]
    return f"{node.name} has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def _set(lab: Lab, wanted: dict[str, LinkFault], recorded: dict[str, LinkFault] | None = None) -> list[str]:
    """Set faults and record them. recorded: what the record has afterwards, where that is not `wanted`."""
    if not wanted:
        return []
    require_netem(wanted.values())  # before the record says that it is set
    with state.lock(lab.name, state.HASHING):  # as `queues set`: also during a run, which holds the lab's lock
        after = link_faults(lab.dir) | wanted if recorded is None else recorded
        # The end of a run does not undo what is set now.
        before = {ref: each for ref, each in before_run(lab.dir).items() if ref not in wanted}
        write_faults(lab, wanted, after, before)
    return [*wanted]


def write_faults(
    lab: Lab, wanted: Mapping[str, LinkFault], recorded: Mapping[str, LinkFault], before: Mapping[str, LinkFault | None]
) -> None:
    """Record faults, then set those of `wanted`. recorded, before: see onpurpose.py. The caller holds HASHING."""
    from heddle.switch.queues.cells import LabQueues

    usual = file_faults(lab.fabric)
    own = {ref: fault for ref, fault in recorded.items() if fault != usual.get(ref, NO_FAULT)}
    note_link_faults(lab.dir, own, before)
    with LabQueues.pinned(lab.fabric) as live:
        set_faults(lab.fabric, lab.handles(), live, wanted)
