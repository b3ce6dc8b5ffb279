"""Faults of links for one run: set before its first packet, undone at its end.

In:  the texts of `./inv run --fault`, a Lab whose lock is held. Out: port -> LinkFault; a context that has them set.
They are recorded as those of `./inv fault`, with what each port had before. So all that reads faults sees them, and a
run that was killed (SIGKILL) is undone later: by the next run, `up --repair` or `fault --clear`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from heddle.base import state
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.lab.linkfaults import ports_of, write_faults
from heddle.lab.onpurpose import before_run, link_faults
from heddle.spec.impairments import NO_FAULT, LinkFault, parse_run_faults
from heddle.switch.links.portfaults import file_faults, require_netem

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab

_LOCK_S: Final = 10.0  # for another command that changes faults, hashing or thresholds
_POLL_S: Final = 0.05
_SHOWN: Final = 4


def faults_on(fabric: Fabric, texts: Sequence[str]) -> dict[str, LinkFault]:
    """Port -> its fault for a run; of several for one port, the last counts.

    InputError for a port that the fabric does not have. MachineError where a fault needs netem and there is none.
    """
    found: dict[str, LinkFault] = {}
    problems: list[Problem] = []
    for text, each in zip(texts, parse_run_faults(texts), strict=True):
        try:
            found |= dict.fromkeys((port.ref for port in ports_of(fabric, each.ports)), each.fault)
        except InputError as error:
            problems += [Problem(f"--fault {text}", wrong.what, wrong.why, wrong.hint) for wrong in error.problems]
    if problems:
        raise InputError(*problems)
    require_netem(found.values())
    return found


@contextmanager
def faults_for_run(lab: Lab, faults: Mapping[str, LinkFault], observer: Observer) -> Iterator[None]:
    """Set faults for a with block; afterwards each port has what it had, unless it was set meanwhile.

    Those that a killed run left are cleared first. Where the end cannot undo them, it warns: the next run does.
    """
    if left := end_run_faults(lab):
        observer.warn(f"a run that was killed had left faults on {_some(left)}, which are cleared now")
    try:
        if faults:
            with _locked(lab):
                own = link_faults(lab.dir)
                write_faults(lab, faults, own | dict(faults), {ref: own.get(ref) for ref in faults})
        yield
    finally:
        if faults:
            _end(lab, observer)


def end_run_faults(lab: Lab) -> list[str]:
    """Undo the faults of a run that has ended; returns the ports. The caller holds the lab's lock, so no run is on."""
    if not before_run(lab.dir):
        return []
    with _locked(lab):
        before, usual = before_run(lab.dir), file_faults(lab.fabric)
        own = {ref: fault for ref, fault in link_faults(lab.dir).items() if ref not in before}
        own |= {ref: fault for ref, fault in before.items() if fault is not None}
        write_faults(lab, {ref: own.get(ref, usual.get(ref, NO_FAULT)) for ref in before}, own, {})
    return [*before]


def _end(lab: Lab, observer: Observer) -> None:
    try:
        end_run_faults(lab)
    except HeddleError as error:
        why = str(error).partition("\n")[0]
        observer.warn(f"the faults of this run are still set ({why}): clear them with ./inv fault --clear")


@contextmanager
def _locked(lab: Lab) -> Iterator[None]:
    """The lock of what changes during runs. Another command has it for a moment; then this waits."""
    end = time.monotonic() + _LOCK_S
    while True:
        lock = state.lock(lab.name, state.HASHING)
        try:
            lock.__enter__()
        except InputError:
            if time.monotonic() > end:
                raise
            time.sleep(_POLL_S)
            continue
        break
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _some(refs: Sequence[str]) -> str:
    more = f" and {len(refs) - _SHOWN} more" if len(refs) > _SHOWN else ""
    return ", ".join(refs[:_SHOWN]) + more
