"""A link that is down, at the end of its switch: a host would lose its routes with its port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle.base.problems import Problem
from heddle.fabric.model import Fabric
from heddle.lab.faults import record
from heddle.lab.faults.kind import ON_PURPOSE, NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.linkstate import State
from heddle.lab.ports import down_among, down_of, ends_of, set_links, switch_end
from heddle.lab.snapshot import LabPart
from heddle.spec.impairments import DOWN

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Down(NamedFault):
    """`ip link set down` at one end."""

    name = DOWN
    does = "The link goes down, and no packet passes it. BGP and all kernels follow."
    at = "link"
    part = "link"
    routes = True
    listed = False

    def places(self, fabric: Fabric, words: Sequence[str]) -> list[str]:
        return [switch_end(fabric, ref) for ref in super().places(fabric, words)]

    def fresh(self, lab: Lab, places: Sequence[str]) -> Sequence[str]:
        """Links that are down already stay down when this fault ends."""
        down = down_among(lab, places)
        return [ref for ref in places if ref not in down]

    def touched(self, fabric: Fabric, fault: SetFault) -> set[str]:
        return {fault.where}

    def start(self, lab: Lab, faults: Sequence[SetFault]) -> list[SetFault]:
        set_links(lab, [each.where for each in faults], "down")
        return [*faults]

    def apply(self, lab: Lab, fault: SetFault) -> None:
        self.start(lab, [fault])

    def effect(self, lab: Lab, fault: SetFault) -> str:
        node, _, name = switch_end(lab.fabric, fault.where).partition(":")
        return "no carrier" if name in down_of(lab, [node])[node] else ""

    def end(self, lab: Lab, faults: Sequence[SetFault]) -> None:
        set_links(lab, [switch_end(lab.fabric, each.where) for each in faults], "up")
        record.replaced(lab, faults, ())

    def undo(self, lab: Lab, fault: SetFault) -> None:
        self.end(lab, [fault])

    def present(self, lab: Lab, known: Sequence[SetFault]) -> list[SetFault]:
        """Also links that were taken down by hand, at whichever end."""
        if not lab.blueprint.rendered:
            return []
        recorded = {each.where: each for each in known}
        dead = State.ends(lab.fabric, lab.snapshot(LabPart.CARRIER).down)
        return [*({ref: SetFault(DOWN, ref) for ref in dead} | recorded).values()]

    def left(self, lab: Lab, faults: Sequence[SetFault]) -> list[Problem]:
        """A link stays down when it is down inside its host."""
        meant = {ref for each in faults for ref in ends_of(lab.fabric, each.where)}
        dead = State.ends(lab.fabric, lab.snapshot(LabPart.CARRIER).down)
        why, hint = "is still down", "./inv exec NODE ip link shows both ends"
        return [Problem(ref, "the link", why, hint) for ref in dead if ref in meant]

    def explained(self, problem: Problem, fault: SetFault, lab: str) -> Problem:
        if problem.what != "the link":
            return problem  # its session: the carrier is its cause
        if fault.run:
            return replace(problem, why="is down for one run")
        hint = f"./inv fault up {fault.where} --lab {lab} sets it up"
        return replace(problem, why=f"is down {ON_PURPOSE}", hint=hint)
