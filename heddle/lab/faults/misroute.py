"""A wrong static route at a switch: packets to one host leave by one port, against the routes of the fabric."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.fabric.model import Role
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.ports import in_network
from heddle.lab.snapshot import LabPart

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class Misroute(NamedFault):
    """A route to each address of the host, longer than the fabric's prefix, over one port."""

    name = "misroute"
    does = "A static route at the switch sends packets to one host by this port. Prediction and proof must notice it."
    at = "session"
    part = "routes"
    settings: ClassVar[Mapping[str, str | None]] = {"host": None}
    rendered = True

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """With prefixes and the gateway. InputError for a host that is not there, or a route that would be right."""
        node, _, name = where.partition(":")
        switch, host = lab.fabric.by_name[node], lab.fabric.by_name.get(values["host"])
        if host is None or host.role is not Role.HOST:
            hint = did_you_mean(values["host"], [each.name for each in lab.fabric.hosts])
            raise InputError(Problem("", f"host {values['host']}", f"is not a host of {lab.name}", hint))
        port = switch.port(name)
        if lab.fabric.by_name[port.peer_node].role is Role.HOST:
            why = "leads to a host, which forwards nothing"
            raise InputError(Problem("", where, why, "name a port that leads to a switch"))
        fib = lab.snapshot(LabPart.FIBS, [node]).fibs[node]
        gateways = [hop.gateway for hops in fib.routes.values() for hop in hops if hop.port == name and hop.gateway]
        if not gateways:
            why = f"has no next hop over {name}, so its neighbour's address is not known"
            raise InputError(Problem("", node, why, "name a port with a BGP session that is established"))
        prefixes = [str(ip_network(each.address.ip)) for each in host.ports if each.address is not None]
        usual = {hop.port for prefix in prefixes for hop in fib.routes.get(_covering(fib.routes, prefix), ())}
        if usual == {name}:
            why = f"is the only path to {host.name} already"
            raise InputError(Problem("", where, why, "name a port that is not"))
        return {"host": host.name, "prefixes": prefixes, "gateway": gateways[0]}

    def apply(self, lab: Lab, fault: SetFault) -> None:
        _routes(lab, fault, "replace")

    def effect(self, lab: Lab, fault: SetFault) -> str:
        node, _, name = fault.where.partition(":")
        for prefix in fault.values["prefixes"]:
            address = prefix.partition("/")[0]
            done = in_network(lab, node, ["ip", "route", "get", address])
            if f" dev {name} " not in done.out:
                return ""
        return f"the kernel of {node} looks up {', '.join(fault.values['prefixes'])} and returns {name}"

    def undo(self, lab: Lab, fault: SetFault) -> None:
        _routes(lab, fault, "del")

    def text(self, fault: SetFault, k: int) -> str:
        return f"misroute of packets to {fault.values['host']}"

    def touched(self, fabric: Any, fault: SetFault) -> set[str]:
        return {fault.where.partition(":")[0]}


def _covering(routes: Mapping[Any, Any], prefix: str) -> Any:
    """The longest prefix of a table that contains this one."""
    wanted = ip_network(prefix)
    wider = (wanted.supernet(new_prefix=length) for length in reversed(range(wanted.prefixlen + 1)))
    return next((each for each in wider if each in routes), None)


def _routes(lab: Lab, fault: SetFault, word: str) -> None:
    node, _, name = fault.where.partition(":")
    over = f"via {fault.values['gateway']} dev {name} onlink proto static"
    lines = "".join(f"route {word} {prefix} {over}\n" for prefix in fault.values["prefixes"])
    done = in_network(lab, node, ["ip", "-force", "-batch", "-"], lines)
    if done.code and word != "del":  # what was removed already is no error
        raise MachineError(Problem(fault.where, "the route", f"cannot be set: {done.reason}"))
