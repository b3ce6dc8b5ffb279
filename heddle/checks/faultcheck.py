"""Check that links have the faults that were set on them, and no others, for `validate`."""

from __future__ import annotations

from typing import Final

from heddle.checks.subject import Answer, Subject
from heddle.lab.impairments import fault_lines, wanted_faults
from heddle.switch.links.portfaults import differences

_RE_SET: Final = "./inv up --repair sets it again"


def faults(subject: Subject) -> Answer:
    """Compare the programs' faults and the delay lines with what was set. A fault that was set is named in a note."""
    from heddle.switch.queues.cells import LabQueues

    lab = subject.lab
    wanted = wanted_faults(lab)
    with LabQueues.pinned(lab.fabric) as live:
        wrong = differences(lab.fabric, subject.handles, live, wanted)
    count = sum(len(node.ports) for node in lab.fabric.nodes)
    notes = tuple(f"a fault is set on {line}" for line in fault_lines(lab))
    said = (
        f"{len(notes)} of {count} ports have a fault, as it was set" if notes else f"no fault is set on {count} ports"
    )
    return Answer(said, [f"{ref} {why}: {_RE_SET}" for ref, why in wrong.items()], notes)
