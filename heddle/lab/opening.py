"""Open a running lab by its name; and the Blueprint of a lab made from a fabric file, which can be predicted wholly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from heddle.base import owners, state
from heddle.base.events import Observer
from heddle.base.owners import LabOwner
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.base.state import Record
from heddle.base.tables import many
from heddle.base.version import VERSION
from heddle.fabric.fabricfile import LoadedFabric, checked
from heddle.fabric.keptnumbers import numbered
from heddle.fabric.model import Role
from heddle.fabric.shapes import build
from heddle.lab import convergence, linkstate
from heddle.lab.control import control_of
from heddle.lab.daemons import DAEMONS, NO_ANSWER, NOT_CONFIGURED, Daemons, SessionEnd
from heddle.lab.frr import announce
from heddle.lab.lab import Blueprint, Difference, Lab
from heddle.lab.linkstate import State
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.render.dialects import RenderOptions
from heddle.render.render import host_sysctls, render, switch_sysctls, topology_name
from heddle.runtimes.registry import Runtime, get_runtime, on_machine
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.spec.schema import FabricSpec

_SESSIONS_S = 10.0  # without any new session: what is missing does not come by itself
Source = FabricSpec | LoadedFabric | Blueprint


@dataclass(frozen=True)
class Rendered(Blueprint):
    """A fabric file, rendered."""

    spec: FabricSpec
    rendered: ClassVar[bool] = True

    @classmethod
    def of_record(cls, record: Record) -> Rendered:
        """From a lab's record; MachineError when another version of Heddle wrote it."""
        return _of_spec(json.dumps([record.spec, record.numbers]), frozenset(record.shard))

    def write(self, out: Path, options: RenderOptions) -> Path:
        return render(self.fabric, out, options)

    def spec_data(self) -> Mapping[str, Any]:
        return dump_spec(self.spec)

    def differences(self, record: Record) -> list[Difference]:
        if record.imported:
            return [("the lab's source", record.source, "a fabric file")]
        return differences(load_spec(record.spec), self.spec)

    def sysctls(self, topology: Path) -> Mapping[str, Mapping[str, str]]:
        switch, host = switch_sysctls(self.fabric), host_sysctls(self.fabric)
        return {node.name: host if node.role is Role.HOST else switch for node in self.fabric.nodes}

    def daemons(self, switch: str) -> tuple[str, ...]:
        return DAEMONS if self.fabric.policy.routing.by_bgp else ()

    @property
    def asked(self) -> type[Daemons]:
        return control_of(self.fabric).daemons

    @property
    def timeout(self) -> float:
        """It grows with the number of links (4,536 links took 110 s on two cores), with a margin."""
        return 30 + len(self.fabric.links) / 20

    def wait(self, lab: Lab, observer: Observer, timeout: float) -> None:
        if not self.fabric.policy.routing.by_bgp:  # what is not there does not come
            linkstate.wait(lab, 0)
            return
        daemons, handles = lab.daemons, lab.handles()
        convergence.solicit(self.fabric, handles)
        announce(lab, _SESSIONS_S)
        convergence.wait(
            self.fabric, handles, daemons.sessions, observer, timeout, partial(convergence.revive, daemons, handles)
        )

    @property
    def gap_parts(self) -> LabPart:
        """Routes, and the links, drains and sessions that may explain missing ones."""
        return LabPart.FIBS | LabPart.CARRIER | LabPart.DRAINED | LabPart.SESSIONS | LabPart.SILENT

    def gaps(self, now: Snapshot) -> list[Problem]:
        """Prefixes with other next hops or weights than the present links, drains and sessions give."""
        if not convergence.gaps(self.fabric, now.fibs, convergence.ExpectedRoutes.of(self.fabric)):
            return []
        state, lost = State.of(self.fabric, now), self.missing_sessions(now)
        shut = [*state.shut, *(end.ref for each in lost for end in (each.a, each.b))]
        wanted = convergence.ExpectedRoutes.of(self.fabric, state.dead, state.drained, shut)
        fibs = {name: fib for name, fib in now.fibs.items() if name not in now.silent}
        return [gap.problem for gap in convergence.gaps(self.fabric, fibs, wanted)]

    def routes_checked(self) -> str:
        count = sum(len(table) for table in self.fabric.expected_next_hops.values())
        return f"{count} prefixes with all their next hops, and no other route, in every kernel"

    def session_pairs(self, now: Snapshot) -> list[tuple[SessionEnd, SessionEnd]]:
        def end_of(node: str, port: str) -> SessionEnd:
            states = now.sessions.get(node)
            state = NO_ANSWER if states is None else states.get(port, NOT_CONFIGURED)
            return SessionEnd(node, port, port, state)

        switches = {node.name for node in self.fabric.switches if self.fabric.policy.routing.by_bgp}
        between = [link for link in self.fabric.links if {link.a[0], link.b[0]} <= switches]
        return [(end_of(*link.a), end_of(*link.b)) for link in between]


@lru_cache(maxsize=4)  # the agent of a shard opens its lab for each call
def _of_spec(text: str, shard: frozenset[str]) -> Rendered:
    data, numbers = json.loads(text)
    spec = load_spec(data)
    fabric = numbered(build(spec), numbers)
    return Rendered(fabric.of_shard(shard) if shard else fabric, spec)


def blueprint_from(wanted: Source) -> Blueprint:
    """The Blueprint of a fabric or spec. InputError for a spec that no fabric can be built from."""
    loaded = checked(wanted) if isinstance(wanted, FabricSpec) else wanted
    return Rendered(loaded.fabric, loaded.spec) if isinstance(loaded, LoadedFabric) else loaded


def open_lab(name: str | None = None) -> Lab:
    """The running lab of that name. name: None if only one lab is running. InputError for none, or several."""
    names = state.labs()
    if name is None:
        name = _only(names)
    record = state.read_record(name)
    check_ours(name)
    if record is None:
        hint = did_you_mean(name, names) if names else "no lab is running; run ./inv up zone to start one"
        raise InputError(Problem("", f"lab {name}", "is not running", hint))
    if record.phase == "ending":
        why = "is not up: its `down` is running or was killed"
        raise InputError(Problem("", f"lab {name}", why, f"./inv down {name} finishes it"))
    lab = lab_of(record)
    if record.phase != "running" or not lab.runtime.exists(name):
        why = "is not up: its `up` is running or was killed, or the machine was restarted"
        raise InputError(Problem("", f"lab {name}", why, _again(name)))
    if (lost := lab.missing_nodes()) and len(lost) == len(lab.handles()):
        why = "is not up: all of its nodes are missing or stopped"
        raise InputError(Problem("", f"lab {name}", why, _again(name)))
    if lost or lab.blueprint.rendered:
        return lab
    return lab_from(lab.blueprint.refreshed(lab.handles()), lab.runtime)


def _again(name: str) -> str:
    """The hint for a lab whose part on this machine is gone: `up` keeps its runs, `down` does not."""
    runs = state.stored_runs(name)
    if not runs:
        return f"./inv down {name} removes the rest of it"
    return (
        f"./inv up brings it up again and keeps its runs; ./inv down {name} removes it with {many(runs, 'stored run')}"
    )


def _only(names: Sequence[str]) -> str:
    """The only lab that is up, or else the only lab that has a record."""
    records = {name: state.read_record(name) for name in names} if len(names) > 1 else {}
    running = [name for name, record in records.items() if record is not None and record.phase == "running"]
    candidates = running or names
    if not candidates:
        raise InputError(Problem("", "no lab", "is running", "run ./inv up zone to start one"))
    if len(candidates) > 1:
        raise InputError(Problem("", "--lab", "is needed, since several labs run", "one of: " + ", ".join(candidates)))
    return candidates[0]


def reopened(record: state.Record) -> Blueprint:
    """The Blueprint of a recorded lab; MachineError when another version of Heddle recorded it."""
    if not record.imported:
        return Rendered.of_record(record)
    from heddle.lab.imported.imported import ImportedLab

    return ImportedLab.of_record(record)


def topology_path(name: str) -> Path:
    """The path of a lab's topology file, which may not exist yet."""
    return state.lab_dir(name) / "topology" / topology_name(name)


def lab_from(blueprint: Blueprint, runtime: Runtime) -> Lab:
    """The handle of a lab with this Blueprint, whether it is up or not."""
    name = blueprint.fabric.name
    return Lab(name, blueprint.fabric, runtime, state.lab_dir(name), topology_path(name), blueprint)


def check_version(record: state.Record) -> None:
    """InputError when another version of Heddle brought the lab up.

    The format of BPF maps and records depends on the version. `down` works with labs of every version.
    """
    if record.version != VERSION:
        why = f"was brought up by Heddle {record.version}, and this is Heddle {VERSION}"
        hint = f"use the version that brought it up, or run ./inv down {record.name} and bring it up again"
        raise InputError(Problem("", f"lab {record.name}", why, hint))


def lab_of(record: state.Record) -> Lab:
    """The handle of a recorded lab; InputError when another version of Heddle brought it up."""
    check_version(record)
    return lab_from(reopened(record), get_runtime(record.runtime))


def other_owner(lab: str) -> LabOwner | None:
    """The owner of a lab of another state directory; None for one of ours, and for one that is gone."""
    found = owners.owner_of(lab)
    return found if found is not None and not found.ours and _is_there(found) else None


def _is_there(owner: LabOwner) -> bool:
    return owner.starting or on_machine(owner.lab)


def other_labs() -> list[LabOwner]:
    """The labs of other state directories. Records of labs that are gone are removed."""
    found = []
    for each in owners.owned_labs():
        if _is_there(each):
            found += [] if each.ours else [each]
            continue
        with suppress(HeddleError), owners.lock(each.lab):  # `up` may have begun meanwhile
            if (now := owners.owner_of(each.lab)) is not None and not _is_there(now):
                owners.disown_lab(each.lab)
    return found


def check_free(lab: str) -> None:
    """InputError when another state directory has the lab: `up` of that name would change it."""
    if (other := other_owner(lab)) is not None:
        hint = f"use another --name, or remove it: ./inv down {lab} --force"
        raise InputError(Problem("", f"lab {lab}", other.text(), hint))


def check_ours(lab: str) -> None:
    """InputError when this machine's lab of that name is not the one that this state directory has a record of."""
    if (other := other_owner(lab)) is not None:
        hint = f"its owner, and root, work with it with HEDDLE_STATE_DIR={other.state}"
        if state.lab_dir(lab).exists():
            hint += f"; ./inv down {lab} removes what is left of yours"
        raise InputError(Problem("", f"lab {lab}", other.text(), hint))
