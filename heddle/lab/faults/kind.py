"""What every kind of fault has, and how a fault is set: record, change, proof of its effect, and its undo.

In:  a Lab; places (ports or nodes) and the values of a kind.
Out: faults in the kernels and daemons of the lab, each recorded before its change. So a fault whose maker was killed is
undone by the next command. A kind is one file here that defines a subclass of NamedFault, and one line of registry.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

from heddle.base import owners
from heddle.base.problems import CheckError, InputError, Problem
from heddle.fabric.model import Fabric, Role, matching_names, split_words
from heddle.lab.faults.record import SetFault
from heddle.lab.impairments import ports_of
from heddle.lab.outages import check_rendered, wait
from heddle.spec.faultsettings import SETTINGS

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_LOOK_S: Final = 0.05


class NamedFault(ABC):
    """A kind of fault. A subclass states what it is as class variables, and how it is set, seen and undone.

    name: the word of `./inv fault`. does: a sentence. at: what it is set on. part: what it changes there; two faults of
    one part cannot be on one place. settings: keys of SETTINGS, each with the text that stands for a value that is not
    typed; None where it must be typed, empty where the kind chooses it. rendered: the lab must have been rendered by
    Heddle. routes: that, too, since routes change; no run may be in progress. settles: False where the routes with the
    fault do not stay, or not yet come. lasting: False where the fault ends by itself.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    at: ClassVar[str]  # port, link, session, node, switch or host
    part: ClassVar[str]  # several with blanks
    settings: ClassVar[Mapping[str, str | None]] = {}
    rendered: ClassVar[bool] = False
    routes: ClassVar[bool] = False
    settles: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    @abstractmethod
    def apply(self, lab: Lab, fault: SetFault) -> SetFault | None:
        """Change the lab; the caller holds CHANGES. Returns the fault with its worker, if it has one."""

    @abstractmethod
    def effect(self, lab: Lab, fault: SetFault) -> str:
        """The evidence that the fault works, read from the lab now; empty when there is none (yet)."""

    @abstractmethod
    def undo(self, lab: Lab, fault: SetFault) -> None:
        """Restore what `apply` changed; it may have been changed in part, or not at all."""

    def text(self, fault: SetFault) -> str:
        """The fault in words, behind its place: `slow-link at 10% of its rate`."""
        return self.name

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as recorded. InputError where they do not fit this place, or the lab cannot have this fault."""
        return dict(values)

    def touched(self, fabric: Fabric, fault: SetFault) -> set[str]:
        """Nodes and ports at which `status` and `validate` see the effect."""
        if self.at not in ("link", "session"):
            return {fault.where}
        node, _, name = fault.where.partition(":")
        return {fault.where, fabric.by_name[node].port(name).peer_ref}

    def places(self, fabric: Fabric, words: Sequence[str]) -> list[str]:
        """The places that names and patterns select; InputError for a word that selects none."""
        if self.at in ("node", "switch", "host"):
            nodes = {"switch": fabric.switches, "host": fabric.hosts}.get(self.at, fabric.nodes)
            found = matching_names(split_words(words), [n.name for n in nodes], f"is not a {self.at} of {fabric.name}")
            return [str(each) for each in found]
        ports = ports_of(fabric, words)
        if self.at == "port":
            return [port.ref for port in ports]
        between = ports
        if self.at == "session":
            between = [p for p in ports if {fabric.by_name[n].role for n in (p.node, p.peer_node)} == {Role.SWITCH}]
        if not between:
            why = "leads to a host: there is no BGP session"
            raise InputError(Problem("", ports[0].ref, why, "name a link between two switches"))
        seen: dict[frozenset[str], str] = {}
        for port in between:
            seen.setdefault(frozenset({port.ref, port.peer_ref}), port.ref)
        return list(seen.values())

    def read(self, given: Mapping[str, str], named: Callable[[str], str]) -> dict[str, Any]:
        """Values from their texts; InputError with every wrong one. named: key -> how the user writes it
        before its value (`--rate `)."""
        problems, found = [], dict[str, Any]()
        for key in given:
            if key not in self.settings:
                takes = ", ".join(named(each).rstrip() for each in self.settings) or "no value"
                problems.append(
                    Problem("", named(key).rstrip(), f"is not for {self.name}", f"{self.name} takes {takes}")
                )
        for key, usual in self.settings.items():
            text = given.get(key, usual)
            if text is None:
                hint = f"add {named(key)}{SETTINGS[key].example}"
                problems.append(Problem("", self.name, f"needs {named(key).rstrip()}", hint))
            if not text:
                continue
            try:
                found[key] = SETTINGS[key].read(text)
            except ValueError as error:
                why, _, hint = str(error).partition("; ")
                problems.append(Problem("", f"{named(key)}{text[:40]}", why, hint))
        if problems:
            raise InputError(*problems)
        return found

    def locked(self, lab: Lab) -> AbstractContextManager[None]:
        """The lab's lock where routes change, so that no run measures meanwhile."""
        if self.routes or self.rendered:
            check_rendered(lab)
        if not self.routes:
            return nullcontext()
        return owners.lock(lab.name, work="fault")

    def proof(self, lab: Lab, fault: SetFault, timeout: float) -> str:
        """Wait for the effect; returns the evidence. CheckError when it does not come in `timeout` seconds."""
        end = time.monotonic() + timeout
        while not (found := self.effect(lab, fault)):
            if time.monotonic() > end:
                why = f"shows no effect after {timeout:g} s, so it was undone"
                raise CheckError(Problem(fault.where, self.name, why, "run ./inv status to see the state of the lab"))
            time.sleep(_LOOK_S)
        if self.routes and self.settles:
            wait(lab, max(0.001, end - time.monotonic()))
            found += "; every switch whose BGP answers has the routes that follow"
        return found
