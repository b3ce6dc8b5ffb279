"""A switch or host that is dead: all its links are down, and no daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heddle.base.problems import InputError, Problem
from heddle.base.tables import many
from heddle.fabric.model import Fabric, Role
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.frr import check_own, end_daemons, start_daemons
from heddle.lab.ports import by_node, down_of, set_links, switch_end

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class NodeDown(NamedFault):
    """Links down, then daemons ended."""

    name = "node-down"
    does = "All links of a switch or host go down. On a switch the daemons of FRR end, too."
    at = "node"
    part = "link daemons"
    routes = True

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """With the ports that go down. InputError for a node of which all links are down already."""
        if lab.fabric.by_name[where].role is Role.SWITCH:
            check_own(lab, where, self.name)
        ports = [switch_end(lab.fabric, port.ref) for port in lab.fabric.by_name[where].ports]
        down = {f"{node}:{name}" for node, names in down_of(lab, [*by_node(ports)]).items() for name in names}
        if not (fresh := [ref for ref in ports if ref not in down]):
            raise InputError(Problem(where, "the node", "has no link that is up", f"run ./inv status {lab.name}"))
        return {"ports": fresh}

    def apply(self, lab: Lab, fault: SetFault) -> None:
        set_links(lab, fault.values["ports"], "down")
        if _has_daemons(lab, fault):
            end_daemons(lab, fault.where)

    def effect(self, lab: Lab, fault: SetFault) -> str:
        ports = fault.values["ports"]
        down = down_of(lab, [*by_node(ports)])
        if any({*names} - down[node].keys() for node, names in by_node(ports).items()):
            return ""
        carrier = f"{many(len(ports), 'link')} without a carrier"
        if not _has_daemons(lab, fault):
            return carrier
        if set(lab.daemons.silent(fault.where)) != set(lab.blueprint.daemons(fault.where)):
            return ""
        return f"{carrier}, and no daemon answers"

    def undo(self, lab: Lab, fault: SetFault) -> None:
        set_links(lab, fault.values["ports"], "up")
        if _has_daemons(lab, fault):
            start_daemons(lab, fault.where)

    def touched(self, fabric: Fabric, fault: SetFault) -> set[str]:
        return {fault.where} | {ref for port in fabric.by_name[fault.where].ports for ref in (port.ref, port.peer_ref)}


def _has_daemons(lab: Lab, fault: SetFault) -> bool:
    return lab.fabric.by_name[fault.where].role is Role.SWITCH and bool(lab.blueprint.daemons(fault.where))
