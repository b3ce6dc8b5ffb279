"""`up` of a lab that is already running: check it, repair it on request, and wait for its routes.

In:  a Lab whose lock is held. Out: Resumed.
Nodes, daemons, queues, links and sessions are checked before waiting for routes. Missing routes follow from their
faults, and often name other switches than the broken one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.events import Observer
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.lab import faults, health
from heddle.lab.repair import Repaired, repair
from heddle.lab.snapshot import LabPart

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_SHOWN: Final = 4  # sessions named in one line


@dataclass(frozen=True, slots=True)
class Resumed:
    """A lab that forwards. converged: False where routes avoid links or switches down or drained on purpose.

    repaired: None when no repair was requested.
    """

    converged: bool
    repaired: Repaired | None


def resume(lab: Lab, observer: Observer, timeout: float | None, *, repairing: bool) -> Resumed:
    """Return when every route is in every kernel. repairing: repair faults first.

    MachineError when nodes are missing. CheckError with the faults and the command that repairs them, or with the
    sessions and routes that are missing after `timeout` seconds.
    """
    done = None
    if repairing:
        done = repair(lab, observer)
    elif lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        raise MachineError(*lost)
    elif wrong := health.faults(lab):
        raise CheckError(*wrong)
    elif missing := _missing(lab):
        observer.warn(f"no BGP session: {_some(missing)}")
    kept = done is not None and bool(done.left)
    try:
        # After a short link failure the kernel keeps outdated routes until bgpd has noticed it. So after a repair wait
        # for the sessions as well.
        if kept or (done is not None and done.done and lab.made.rendered):
            faults.wait(lab, faults.SECONDS if timeout is None else timeout)
        else:
            lab.wait(observer, timeout)
    except CheckError as error:
        raise CheckError(*_sessions(lab), *error.problems) from None
    if lab.made.rendered and (foreign := health.wrong_routes(lab, lab.snapshot(LabPart.FIBS))):
        raise CheckError(*foreign)  # a repair does not remove them: their origin may install them again
    return Resumed(not kept, done)


def _missing(lab: Lab) -> list[str]:
    return lab.made.session_faults(lab.snapshot(LabPart.SESSIONS))


def _sessions(lab: Lab) -> list[Problem]:
    """Missing sessions as problems, reported before the routes that are missing because of them."""
    missing = _missing(lab)
    if not missing:
        return []
    switch = missing[0].partition(":")[0]
    hint = f"./inv exec --lab {lab.name} {switch} vtysh -c 'show bgp summary'"
    return [Problem(lab.name, "BGP", f"sessions are missing: {_some(missing)}", hint)]


def _some(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
