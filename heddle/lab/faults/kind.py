"""What every kind of fault has, and how a fault is set: record, change, proof of its effect, and its undo.

In:  a Lab; places (ports or nodes) and the values of a kind.
Out: faults in the kernels and daemons of the lab, each recorded before its change. So a fault whose maker was killed is
undone by the next command. A kind is one file here that defines a subclass of NamedFault, and one line of registry.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from heddle.base import owners, resources
from heddle.base.problems import CheckError, InputError, MachineError, Problem
from heddle.base.process import end_all, start_of
from heddle.fabric.model import Fabric, Role, matching_names, split_words
from heddle.lab.faults import record
from heddle.lab.faults.record import Process, SetFault, changing, runs
from heddle.lab.linkstate import wait
from heddle.lab.ports import ends_of, ports_of
from heddle.lab.spread import nothing, only, spread
from heddle.spec.faultsettings import SETTINGS

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_LOOK_S: Final = 0.05
Source = Literal["file", "fault", "run"]


class NamedFault(ABC):
    """A kind of fault. A subclass states what it is as class variables, and how it is set, seen and undone.

    name: the word of `./inv fault`. does: a sentence. at: what it is set on. part: what it changes there; two faults of
    one part cannot be on one place. settings: keys of SETTINGS, each with the text that stands for a value that is not
    typed; None where it must be typed, empty where the kind chooses it. rendered: the lab must have been rendered by
    Heddle. routes: that, too, since routes change; no run may be in progress. settles: False where the routes with the
    fault do not stay, or not yet come. lasting: False where the fault ends by itself. listed: False where the lab shows
    the fault also without its record: facts and tables of their own name it, and it excludes no other. cleared: what is
    reported when it was cleared, if not its text.
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
    listed: ClassVar[bool] = True
    cleared: ClassVar[str] = ""

    @abstractmethod
    def apply(self, lab: Lab, fault: SetFault) -> SetFault | None:
        """Change the lab; the caller holds CHANGES. Returns the fault with its worker, if it has one."""

    @abstractmethod
    def effect(self, lab: Lab, fault: SetFault) -> str:
        """The evidence that the fault works, read from the lab now; empty when there is none (yet)."""

    @abstractmethod
    def undo(self, lab: Lab, fault: SetFault) -> None:
        """Restore what `apply` changed; it may have been changed in part, or not at all."""

    def text(self, fault: SetFault, k: int) -> str:
        """The fault in words, behind its place: `slow-link at 10% of its rate`. k: of the fabric."""
        return self.name

    def explained(self, problem: Problem, fault: SetFault, lab: str) -> Problem:
        """What is wrong at a place that the fault touches, with the fault and what ends it."""
        why = f"{problem.why}, {ON_PURPOSE} ({self.name} {fault.where})"
        return replace(problem, why=why, hint=undo_of(lab, fault))

    def prepared(self, lab: Lab, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as recorded. InputError where they do not fit this place, or the lab cannot have this fault."""
        return dict(values)

    def touched(self, fabric: Fabric, fault: SetFault) -> set[str]:
        """Nodes and ports at which `status` and `validate` see the effect, and name this fault."""
        if not self.listed:
            return set()
        return ends_of(fabric, fault.where) if self.at in ("link", "session") else {fault.where}

    def fresh(self, lab: Lab, places: Sequence[str]) -> Sequence[str]:
        """Those of these places where there is something to change."""
        return places

    def present(self, lab: Lab, known: Sequence[SetFault]) -> list[SetFault]:
        """The faults of this kind that the lab has, also those of a run. known: those that are recorded."""
        return [*known] if lab.runtime.here else [each for each in known if not self.over(lab, each)]

    def seen(self, lab: Lab, faults: Sequence[SetFault]) -> list[tuple[Source, str]]:
        """What has set each, and its effect that is seen now."""
        return [("run" if each.run else "fault", self.effect(lab, each)) for each in faults]

    def over(self, lab: Lab, fault: SetFault) -> bool:
        """Whether a fault that is recorded has ended by itself. A shard cannot say so in the record."""
        return False

    def start(self, lab: Lab, faults: Sequence[SetFault]) -> list[SetFault]:
        """Make the changes of faults that are recorded; returns the faults with their workers. CHANGES is held."""
        made = list(faults)
        for number, fault in enumerate(faults):
            if (changed := self.apply(lab, fault)) is not None:
                record.replaced(lab, [fault], [changed])
                made[number] = changed
        return made

    def end(self, lab: Lab, faults: Sequence[SetFault]) -> None:
        """Undo faults and remove them from the record. CHANGES is held."""
        for fault in faults:
            self.undo(lab, fault)
            record.replaced(lab, [fault], ())

    def clear(self, lab: Lab, faults: Sequence[SetFault]) -> None:
        """End what `present` returned, as the user wants it. CHANGES is held."""
        self.end(lab, faults)

    def left(self, lab: Lab, faults: Sequence[SetFault]) -> list[Problem]:
        """What the lab still has of faults that were cleared."""
        return []

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

    def proof(self, lab: Lab, faults: Sequence[SetFault], timeout: float) -> list[str]:
        """Wait for the effect of each; returns the evidence. CheckError when one does not come in `timeout` seconds."""
        end, shown = time.monotonic() + timeout, []
        for fault in faults:
            while not (found := self.effect(lab, fault)):
                if time.monotonic() > end:
                    why, hint = f"shows no effect after {timeout:g} s, so it was undone", "run ./inv status"
                    raise CheckError(Problem(fault.where, self.name, why, f"{hint} to see the state of the lab"))
                time.sleep(_LOOK_S)
            shown.append(found)
        if self.routes and self.settles:
            wait(lab, min(timeout, max(0.001, end - time.monotonic())))
            which = "every switch" + " whose BGP answers" * lab.fabric.policy.routing.by_bgp
            shown = [f"{each}; {which} has the routes that follow" for each in shown]
        return shown


ON_PURPOSE: Final = "on purpose"


def undo_of(lab: str, fault: SetFault) -> str:
    """The command that ends the faults of a place."""
    return f"./inv fault clear {fault.where} --lab {lab}"


def check_rendered(lab: Lab) -> None:
    """InputError for an imported lab."""
    if not lab.blueprint.rendered:
        why = "was imported, so its routes after a fault cannot be predicted"
        raise InputError(Problem("", f"lab {lab.name}", why, "use a lab of a fabric file for faults"))


Going = Callable[[float], bool]  # sleeps for these seconds; False when the fault is to end
_PATIENCE_S: Final = 2.0


class KeptFault(NamedFault):
    """A kind of fault with a process, which `undo` of a subclass ends first."""

    @abstractmethod
    def work(self, lab: Lab, fault: SetFault, going: Going) -> bool:
        """Keep the fault going, in that process; True when it has ended by itself."""

    def apply(self, lab: Lab, fault: SetFault) -> SetFault:
        """Start the process, in the namespace of the fault's node."""
        return _start(lab, fault, _node_of(fault), copied=not lab.runtime.here)

    def undo(self, lab: Lab, fault: SetFault) -> None:
        _end(lab, fault, _node_of(fault), copied=not lab.runtime.here)

    def over(self, lab: Lab, fault: SetFault) -> bool:
        with suppress(MachineError):  # a lost shard is reported elsewhere
            return not self.lasting and fault.worker is not None and not self.kept(lab, fault)
        return False

    def kept(self, lab: Lab, fault: SetFault) -> bool:
        """Whether the process runs. MachineError when its shard does not answer."""
        return fault.worker is not None and _runs(lab, fault.worker, _node_of(fault))


def _node_of(fault: SetFault) -> str:
    at: str = fault.values.get("port", fault.where)  # `port`: the end of a link that was chosen
    return at.partition(":")[0]


@spread(only, nodes=lambda _, node, **__: [node])
def _start(lab: Lab, fault: SetFault, node: str, *, copied: bool) -> SetFault:
    """Start the process of a fault in a node's namespace; returns the fault with it."""
    if copied:
        _keep_copy(lab, fault, (fault,))
    argv = ["nsenter", f"--net={lab.handle(node).netns}", sys.executable, "-P", "-m", __package__]
    env = {**os.environ, "PYTHONPATH": str(resources.HERE.python_path)}
    quiet = subprocess.DEVNULL
    made = subprocess.Popen(
        [*argv, lab.name, fault.kind, fault.where], env=env, stdin=quiet, stdout=quiet, stderr=quiet,
        start_new_session=True,
    )  # fmt: skip
    return replace(fault, worker=(made.pid, start_of(made.pid) or 0))


@spread(nothing, nodes=lambda _, node, **__: [node])
def _end(lab: Lab, fault: SetFault, node: str, *, copied: bool) -> None:
    """End the process of a fault, if it still runs."""
    if fault.worker is not None:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(fault.worker[0])
            if runs(fault.worker):
                end_all([fd], _PATIENCE_S)
            else:
                os.close(fd)
    if copied:
        _keep_copy(lab, fault, ())


@spread(only, nodes=lambda _, node: [node])
def _runs(lab: Lab, worker: Process, node: str) -> bool:
    return runs(worker)


def _keep_copy(lab: Lab, fault: SetFault, now: tuple[SetFault, ...]) -> None:
    """The record of a shard: what was there of a fault is replaced."""
    with changing(lab):
        record.replaced(lab, [each for each in record.read(lab.dir) if each.key == fault.key], now)
