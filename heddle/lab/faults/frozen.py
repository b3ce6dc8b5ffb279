"""A switch whose control plane hangs: its daemons are stopped, and its kernel forwards with the routes that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heddle.base.tables import many
from heddle.lab.control import require_frr
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.frr import CONTINUE, STOP, check_own, on_daemons
from heddle.lab.snapshot import LabPart

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

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """InputError where it is not possible: without FRR, and for shared daemons."""
        require_frr(lab, self.name)
        check_own(lab, where, self.name)
        return dict(values)

    def apply(self, lab: Lab, fault: SetFault) -> None:
        on_daemons(lab, fault.where, STOP)

    def effect(self, lab: Lab, fault: SetFault) -> str:
        """Every daemon is stopped; and what follows: sessions and routes of its neighbours."""
        states = on_daemons(lab, fault.where)
        if not states or any(state != "T" for state in states.values()):
            return ""
        ends = [(p.peer_node, p.peer_port) for p in lab.fabric.by_name[fault.where].ports]
        now = lab.snapshot(LabPart.SESSIONS | LabPart.FIBS, sorted({node for node, _ in ends}))
        all_of = [state for node, port in ends if (state := (now.sessions.get(node) or {}).get(port))]
        up, stopped = all_of.count(ESTABLISHED), f"{', '.join(states)} are stopped"
        if up:
            return f"{stopped}; {up} of {many(len(all_of), 'neighbour')} have a session until their hold timers expire"
        kept = sum(
            any(hop.port == port and hop.gateway for hop in hops)
            for node, port in ends
            if node in now.fibs
            for hops in now.fibs[node].routes.values()
        )
        return (
            f"{stopped}; no neighbour has a session with it now, and their kernels have {many(kept, 'route')} over it"
        )

    def undo(self, lab: Lab, fault: SetFault) -> None:
        on_daemons(lab, fault.where, CONTINUE)
