"""Between two tests: make a lab as fresh as after `up`, or report what prevents it.

In:  a Lab, and the processes that it had when it was fresh.
Out: ResetResult. Undone without a warning: links that are down, drains, faults of links, hashing and thresholds that
were set live, counters, kept runs. Reported: processes that were left, which are ended, and damage, after which the lab
must be built again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.problems import HeddleError, Problem
from heddle.testing.failuretext import many
from heddle.testing.labprocesses import LabProcess, end_processes, processes_of

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_SECONDS: Final = 30.0  # for routes to come back after a fault
_SHOWN: Final = 3
# The checks of `validate` that read and send nothing: a lab that passes them is configured as its fabric file.
_CHECKED: Final = (
    "sysctls", "hashing", "queues", "offloads", "order", "programs", "thresholds", "faults", "links", "daemons", "bgp",
    "routes", "pauses",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResetResult:
    """ended: processes that were left in the lab's nodes, as texts. damage: what could not be undone, a line each."""

    ended: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()


def reset(lab: Lab, fresh: Collection[LabProcess]) -> ResetResult:
    """Undo what a test has done to the lab. It raises nothing: an error is reported as damage."""
    try:
        if lost := lost_parts(lab, fresh):
            return ResetResult(damage=tuple(lost))
        extra = sorted(processes_of(lab).difference(fresh), key=lambda each: (each.node, each.pid))
        texts = tuple(each.text() for each in extra)
        end_processes(lab, extra)
        _undo(lab)
        if wrong := _wrong(lab):
            return ResetResult(texts, tuple(wrong))
        _clear(lab)
    except HeddleError as error:
        return ResetResult(damage=tuple(map(_first_line, error.problems)))
    return ResetResult(texts)


def lost_parts(lab: Lab, fresh: Collection[LabProcess]) -> list[str]:
    """Parts that were destroyed by hand, one line each: the lab, some of its nodes, or processes of a fresh lab."""
    from heddle.base import state

    record = state.read_record(lab.name)
    if record is None or record.phase != "running":
        return [f"lab {lab.name} was taken down"]
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        return list(map(_first_line, lost))
    gone = frozenset(fresh) - processes_of(lab)
    return [_ended_text(gone)] if gone else []


def _undo(lab: Lab) -> None:
    from heddle.lab.impairments import restore_faults
    from heddle.lab.outages import undo_all
    from heddle.lab.rehash import restore_hashing
    from heddle.lab.thresholds import restore_queues

    restore_hashing(lab)
    restore_queues(lab)
    restore_faults(lab)
    undo_all(lab, _SECONDS)


def _wrong(lab: Lab) -> list[str]:
    from heddle.checks.validate import validate

    return [f"{each.name}: {each.detail}" for each in validate(lab, _CHECKED) if not each.ok]


def _clear(lab: Lab) -> None:
    """Counters and kept runs. An error when a run is still in progress: it holds the lock."""
    from heddle.base import mounts as trees
    from heddle.base import state
    from heddle.switch import counters
    from heddle.switch.queues.cells import LabQueues

    with state.lock(lab.name), LabQueues.pinned(lab.fabric) as live:
        live.forget()
        counters.clear(lab.fabric)
        if (lab.dir / "runs").is_dir():
            trees.remove(lab.dir / "runs")


def _ended_text(gone: Collection[LabProcess]) -> str:
    nodes = sorted({each.node for each in gone})
    some = ", ".join(nodes[:_SHOWN]) + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")
    return f"{many(len(gone), 'process')} of the lab ended, in {some}"


def _first_line(problem: Problem) -> str:
    return str(problem).partition("\n")[0]
