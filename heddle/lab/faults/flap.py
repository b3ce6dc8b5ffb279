"""A link that goes down and comes back, again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration, format_share
from heddle.lab.control import control_of
from heddle.lab.faults.kind import Going, KeptFault
from heddle.lab.faults.record import SetFault
from heddle.lab.ports import down_of, set_links, switch_end
from heddle.lab.snapshot import LabPart

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_CHANGES: Final = 2  # of the carrier: down and up again


class Flap(KeptFault):
    """A process sets the port down for a share of each period."""

    name = "flap"
    does = "The link goes down and comes back: once a period, for a share of it (duty). BGP follows each time."
    at = "link"
    part = "link"
    settings: ClassVar[Mapping[str, str | None]] = {"period": "2s", "duty": "50%"}
    routes = True
    settles = False

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """With the end that goes down. InputError for a link that is down already."""
        port = switch_end(lab.fabric, where)
        node, _, name = port.partition(":")
        if name in down_of(lab, [node])[node]:
            hint = f"./inv fault up {where} --lab {lab.name}"
            raise InputError(Problem(where, "the link", "is down already", hint))
        return {**values, "port": port, "changes": _changes(lab, port)}

    def effect(self, lab: Lab, fault: SetFault) -> str:
        if not self.kept(lab, fault):
            return ""
        count = _changes(lab, fault.values["port"]) - fault.values["changes"]
        return f"the carrier of {fault.values['port']} has changed {count} times" if count >= _CHANGES else ""

    def undo(self, lab: Lab, fault: SetFault) -> None:
        super().undo(lab, fault)
        set_links(lab, [fault.values["port"]], "up")

    def work(self, lab: Lab, fault: SetFault, going: Going) -> bool:
        period_s, duty, ports = fault.values["period"] / 1e9, fault.values["duty"], [fault.values["port"]]
        while True:
            _set(lab, ports, "down")
            if not going(period_s * duty):
                return False
            _set(lab, ports, "up")
            if not going(period_s * (1 - duty)):
                return False

    def text(self, fault: SetFault, k: int) -> str:
        values = fault.values
        return f"flap every {format_duration(values['period'])}, down for {format_share(values['duty'])} of it"


def _set(lab: Lab, ports: Sequence[str], word: str) -> None:
    set_links(lab, ports, word)
    control_of(lab.fabric).follow(lab)


def _changes(lab: Lab, port: str) -> int:
    node, _, name = port.partition(":")
    return (lab.snapshot(LabPart.CARRIER, [node]).nodes[node].carrier_changes or {})[name]
