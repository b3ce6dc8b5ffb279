"""The Blueprint of a lab made from a fabric file: everything about it can be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base.events import Observer
from heddle.fabric.fabricfile import LoadedFabric, checked
from heddle.fabric.model import Fabric, Role
from heddle.fabric.shapes import build
from heddle.kernel.handle import NodeHandle
from heddle.lab import convergence
from heddle.lab.daemons import DAEMONS, ESTABLISHED
from heddle.lab.lab import Blueprint, Difference, Lab, Setting
from heddle.lab.outages import State
from heddle.lab.sessions import NO_ANSWER, NOT_CONFIGURED, MissingSession, SessionEnd, missing_of
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.render.render import host_sysctls, render, switch_sysctls
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.spec.schema import FabricSpec

if TYPE_CHECKING:
    from heddle.base.state import Record
    from heddle.render.dialects import RenderOptions


Source = FabricSpec | LoadedFabric | Blueprint


@dataclass(frozen=True)
class Rendered:
    """A fabric file, rendered."""

    spec: FabricSpec
    fabric: Fabric
    rendered: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def of_record(cls, record: Record) -> Rendered:
        """From a lab's record; MachineError when another version of Heddle wrote it."""
        spec = load_spec(record.spec)
        return cls(spec, build(spec))

    def write(self, out: Path, options: RenderOptions) -> Path:
        """Render it."""
        return render(self.fabric, out, options)

    def spec_data(self) -> Mapping[str, Any]:
        """The whole spec, including defaults."""
        return dump_spec(self.spec)

    def recorded(self) -> Mapping[str, Any]:
        """Nothing: `spec_data` is complete."""
        return {}

    def differences(self, record: Record) -> list[Difference]:
        """Differences by key of the fabric file."""
        if record.imported:
            return [("the lab's source", record.source, "a fabric file")]
        return differences(load_spec(record.spec), self.spec)

    def own_hashing(self) -> Mapping[str, Mapping[str, str]]:
        """Nothing: all hashing sysctls are Heddle's."""
        return {}

    def own_sysctls(self) -> Mapping[str, Mapping[str, Sequence[Setting]]]:
        """Nothing: Heddle writes the whole configuration."""
        return {}

    def sysctls(self, topology: Path) -> Mapping[str, Mapping[str, str]]:
        """The rendered sysctls."""
        switch, host = switch_sysctls(self.fabric), host_sysctls(self.fabric)
        return {node.name: host if node.role is Role.HOST else switch for node in self.fabric.nodes}

    def completed(self, handles: Mapping[str, NodeHandle]) -> Rendered:
        """Unchanged: nothing has to be read from running nodes."""
        return self

    def daemons(self, switch: str) -> tuple[str, ...]:
        """The daemons that start.sh starts and that routing needs."""
        return DAEMONS

    def wait(self, lab: Lab, observer: Observer, timeout: float | None) -> None:
        """Wait until every kernel has all next hops of all shortest paths."""
        seconds = convergence.default_timeout(self.fabric) if timeout is None else timeout
        convergence.wait(self.fabric, lab.handles(), lab.daemons.sessions, observer, seconds)

    @property
    def gap_parts(self) -> LabPart:
        """Routes, and the links and drains that may explain missing ones."""
        return LabPart.FIBS | LabPart.CARRIER | LabPart.DRAINED

    def gaps(self, now: Snapshot) -> list[str]:
        """Prefixes whose next hops or weights differ from the expected ones."""
        found = convergence.gaps(self.fabric, now.fibs)
        if not found:
            return []
        state = State.of(self.fabric, now)
        causes = [state.text()] if state.text() else []
        if causes:  # report the cause once, and not every prefix that follows from it
            wanted = convergence.ExpectedRoutes.of(self.fabric, state.dead, state.drained)
            found = convergence.gaps(self.fabric, now.fibs, wanted)
        return [*causes, *(gap.text() for gap in found)]

    def routes_checked(self) -> str:
        """`96 prefixes with all their next hops, and no other route, in every kernel`."""
        count = sum(len(table) for table in self.fabric.expected_next_hops.values())
        return f"{count} prefixes with all their next hops, and no other route, in every kernel"

    def session_faults(self, now: Snapshot) -> list[str]:
        """Sessions that are not established, at both ends of every link between switches."""
        faults: list[str] = []
        for node in self.fabric.switches:
            states = now.sessions[node.name]
            if states is None:
                faults.append(f"{node.name}: bgpd does not answer")
                continue
            wanted = [p for p in node.ports if self.fabric.by_name[p.peer_node].role is Role.SWITCH]
            found = {port.ref: states.get(port.name, "not configured") for port in wanted}
            faults += [f"{ref}: {state}" for ref, state in found.items() if state != ESTABLISHED]
        return faults

    def missing_sessions(self, now: Snapshot) -> list[MissingSession]:
        """One for each link between switches where not both ends report an established session."""
        return missing_of(self._session_pairs(now))

    def sessions(self, now: Snapshot) -> tuple[int, int]:
        """One per link between switches; established when both ends report it."""
        pairs = self._session_pairs(now)
        return len(pairs) - len(missing_of(pairs)), len(pairs)

    def _session_pairs(self, now: Snapshot) -> list[tuple[SessionEnd, SessionEnd]]:
        def end_of(node: str, port: str) -> SessionEnd:
            states = now.sessions.get(node)
            state = NO_ANSWER if states is None else states.get(port, NOT_CONFIGURED)
            return SessionEnd(node, port, port, state)

        switches = {node.name for node in self.fabric.switches}
        between = [link for link in self.fabric.links if {link.a[0], link.b[0]} <= switches]
        return [(end_of(*link.a), end_of(*link.b)) for link in between]


def blueprint_from(wanted: Source) -> Blueprint:
    """The Blueprint of a fabric or spec. InputError for a spec that no fabric can be built from."""
    loaded = checked(wanted) if isinstance(wanted, FabricSpec) else wanted
    return Rendered(loaded.spec, loaded.fabric) if isinstance(loaded, LoadedFabric) else loaded
