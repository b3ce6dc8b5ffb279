"""A BGP session that is administratively down, while its link carries packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem
from heddle.lab.control import require_frr
from heddle.lab.daemons import ADMIN_DOWN, ESTABLISHED
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault
from heddle.lab.linkstate import configure_bgp

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


class BgpDown(NamedFault):
    """`neighbor PORT shutdown` at the named end."""

    name = "bgp-down"
    does = "One BGP session ends by an administrative shutdown at this end. The link stays up."
    at = "session"
    part = "link"
    routes = True

    def prepared(self, lab: Lab, where: str, values: object) -> dict[str, object]:
        """InputError for a session that is not established."""
        require_frr(lab, self.name)
        if self._state(lab, where) != ESTABLISHED:
            why, hint = f"is {self._state(lab, where) or 'unknown'} already", f"run ./inv status {lab.name}"
            raise InputError(Problem(where, "the BGP session", why, hint))
        return {}

    def apply(self, lab: Lab, fault: SetFault) -> None:
        self._configure(lab, fault.where, "")

    def effect(self, lab: Lab, fault: SetFault) -> str:
        node, _, name = fault.where.partition(":")
        state, there = self._state(lab, fault.where), self._state(lab, lab.fabric.by_name[node].port(name).peer_ref)
        if state != ADMIN_DOWN or there in ("", ESTABLISHED):
            return ""
        return f"the session is {state} here and {there} at the other end"

    def undo(self, lab: Lab, fault: SetFault) -> None:
        self._configure(lab, fault.where, "no ")

    @staticmethod
    def _configure(lab: Lab, where: str, word: str) -> None:
        node, _, port = where.partition(":")
        configure_bgp(lab, lab.fabric.by_name[node], f"{word}neighbor {port} shutdown")

    @staticmethod
    def _state(lab: Lab, where: str) -> str:
        node, _, port = where.partition(":")
        return (lab.daemons.sessions(node) or {}).get(port, "")
