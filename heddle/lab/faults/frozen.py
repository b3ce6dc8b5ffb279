"""A switch whose control plane hangs: its daemons are stopped, and its kernel forwards with the routes that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.frr import CONTINUE, STOP, on_daemons

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Frozen(NamedFault):
    """SIGSTOP for all daemons of FRR."""

    name = "frozen"
    does = "All daemons of FRR stop. The switch forwards with its last routes, until hold timers end its sessions."
    at = "switch"
    part = "daemons"
    routes = True
    settles = False

    def apply(self, lab: Lab, fault: SetFault) -> None:
        """Stop the daemons."""
        on_daemons(lab, fault.where, STOP)

    def effect(self, lab: Lab, fault: SetFault) -> str:
        """Every daemon is stopped, and the kernel has routes."""
        states = on_daemons(lab, fault.where)
        if not states or any(state != "T" for state in states.values()):
            return ""
        return f"{', '.join(states)} are stopped; neighbours keep their routes until the hold timer ends"

    def undo(self, lab: Lab, fault: SetFault) -> None:
        """Let the daemons continue."""
        on_daemons(lab, fault.where, CONTINUE)
