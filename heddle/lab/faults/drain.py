"""A switch that is drained by BGP (RFC 8326): no path uses it as transit, and it forwards what still comes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from heddle.lab.control import control_of
from heddle.lab.faults.kind import NamedFault, check_rendered
from heddle.lab.faults.record import SetFault
from heddle.lab.snapshot import LabPart
from heddle.spec.impairments import DRAIN

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Drain(NamedFault):
    """`bgp graceful-shutdown` at the switch."""

    name = DRAIN
    does = "BGP graceful-shutdown: no path uses the switch as transit. Hosts stay reachable through their own leaf."
    at = "switch"
    part = "transit"
    routes = True
    listed = False
    cleared = "drained"

    def locked(self, lab: Lab) -> AbstractContextManager[None]:
        """Also during a run: no packet is lost."""
        check_rendered(lab)
        return nullcontext()

    def fresh(self, lab: Lab, places: Sequence[str]) -> Sequence[str]:
        """Switches that are drained already stay drained when this fault ends."""
        drained = lab.snapshot(LabPart.DRAINED, [*places]).drained
        return [name for name in places if name not in drained]

    def apply(self, lab: Lab, fault: SetFault) -> None:
        control_of(lab.fabric).drain(lab, fault.where, on=True)

    def effect(self, lab: Lab, fault: SetFault) -> str:
        drained = lab.snapshot(LabPart.DRAINED, [fault.where]).drained
        return control_of(lab.fabric).drained if fault.where in drained else ""

    def undo(self, lab: Lab, fault: SetFault) -> None:
        control_of(lab.fabric).drain(lab, fault.where, on=False)

    def present(self, lab: Lab, known: Sequence[SetFault]) -> list[SetFault]:
        """Also switches that were drained by hand."""
        if not lab.blueprint.rendered:
            return []
        drained = {name: SetFault(DRAIN, name) for name in lab.snapshot(LabPart.DRAINED).drained}
        return [*(drained | {each.where: each for each in known}).values()]
