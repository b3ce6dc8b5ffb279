"""Faults of links as text: a table of ports and their counters, and what the counters mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from heddle.base.tables import table

if TYPE_CHECKING:
    from heddle.lab.impairments import PortFault

_COLUMNS: Final = ("port", "to", "fault", "packets", "lost", "corrupted", "duplicated", "delayed", "waiting")
_LEGEND: Final = (
    "A fault concerns packets that leave by the port, after its queue. Counters start when the fault is set;\n"
    "delayed: packets that entered the delay line; waiting: packets in it now"
)
_SCALE: Final = "times are of the hardware; here they are k = {k} times as long"
_SOURCES: Final = {
    "file": "(file): set by `link` of the fabric file",
    "run": "(run): set for one run, until it ends; if that run was killed, the next run clears it",
}


def faults_text(faults: Sequence[PortFault], k: int, example: str) -> str:
    """The output of `./inv fault`. k: of the fabric. example: a port."""
    if not faults:
        return f"no fault is set on any link; set one as in ./inv fault {example} --loss 1/256"
    lines = [table(_COLUMNS, [_cells(each, k) for each in faults]), "", _LEGEND]
    if any(each.fault.delay_ns for each in faults):
        lines.append(_SCALE.format(k=k))
    lines += [text for by, text in _SOURCES.items() if any(each.by == by for each in faults)]
    return "\n".join(lines)


def _cells(each: PortFault, k: int) -> tuple[str, ...]:
    found = each.counts
    what = each.fault.text(k) + (f" ({each.by})" if each.by in _SOURCES else "")
    if found is None:
        return each.port, each.peer, f"{what}: missing, ./inv up --repair sets it again", *["-"] * 6
    counts = (found.packets, found.lost, found.corrupted, found.duplicated, found.delayed, found.waiting)
    return each.port, each.peer, what, *(f"{count:,}" if count else "-" for count in counts)
