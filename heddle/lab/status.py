"""The state of the running labs, for `./inv status`.

In:  a lab's name, or None for all.
Out: one LabStatus per lab. Convergence is read from the kernels now, BGP and silent daemons from the daemons' sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from heddle.base import state
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean, first_lines
from heddle.lab import attached
from heddle.lab.daemons import MissingSession
from heddle.lab.facts import NEXT_HOPS, SESSION, LabLook, converged, known_facts, parts
from heddle.lab.faults.kind import ON_PURPOSE
from heddle.lab.faults.orders import fault_lines
from heddle.lab.lab import Lab
from heddle.lab.opening import check_ours, open_lab
from heddle.lab.snapshot import LabPart


@dataclass(frozen=True, slots=True)
class BgpStatus:
    """Sessions between the lab's switches; a session counts as established when both ends report it."""

    established: int
    expected: int


@dataclass(frozen=True, slots=True)
class LabStatus:
    """One lab. `broken`: incomplete, as `up` or `down` runs or was killed, or nodes are missing or stopped; `down`
    removes what there is.

    converged: every route is in every kernel, and there are no faults; None where no node runs a routing program, and
    there are none. faults: in lines; a missing session is one of
    them only if that was set. gaps: routes that are missing or have other next hops, neighbours that are not up. None
    are read where nodes are not running. link_faults: what `./inv fault` or the fabric file set on links, in lines;
    routes do not depend on them. networks: names, where there are several. control: `routing.control` but `bgp`.
    attached: ports with devices of users, in lines.
    """

    lab: str
    runtime: str
    state: Literal["up", "broken"]
    converged: bool | None
    switches: int
    hosts: int
    links: int
    bgp: BgpStatus
    source: str = ""
    faults: tuple[str, ...] = ()
    missing_sessions: tuple[MissingSession, ...] = ()
    link_faults: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    control: str = ""
    attached: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """An entry of `./inv status --format json`; the last seven only where there are any."""
        data = asdict(self)
        optional = {
            "networks": list(data.pop("networks")),
            "control": data.pop("control"),
            "attached": list(data.pop("attached")),
            "faults": list(data.pop("faults")),
            "gaps": list(data.pop("gaps")),
            "missing_sessions": [each.to_json() for each in self.missing_sessions],
            "link_faults": list(data.pop("link_faults")),
        }
        del data["missing_sessions"]
        return data | {key: value for key, value in optional.items() if value}


def status(name: str | None = None) -> list[LabStatus]:
    """All labs that have a record, or the named lab; InputError when it does not exist."""
    names = state.labs()
    if name is not None and name not in names:
        check_ours(name)
        hint = did_you_mean(name, names) if names else "no lab is running; run ./inv up zone to start one"
        raise InputError(Problem("", f"lab {name}", "is not running", hint))
    return [_status(each) for each in ([name] if name is not None else names)]


def _status(name: str) -> LabStatus:
    try:
        lab = open_lab(name)
        record = state.read_record(name)
        lost = lab.missing_nodes()
        # Where nodes are missing, other faults follow from that. The daemons of the others can still be asked.
        more = LabPart.CARRIER | LabPart.SILENT if lost else parts(lab)
        stopped = _stopped(lab, lost)
        running = [each.name for each in lab.fabric.nodes if each.name not in stopped]
        now = lab.snapshot(LabPart.SESSIONS | more, running, keep_errors=True)
        found = () if lost else known_facts(lab, now)
        own = (each for each in found if each.kind != NEXT_HOPS and (each.kind != SESSION or ON_PURPOSE in each.text))
        faults = lost or [each.problem for each in own]
        sessions = LabLook(lab, now, stopped).missing
    except HeddleError as error:  # show any reason why it cannot be opened or read; `down` works all the same
        return LabStatus(name, "", "broken", False, 0, 0, 0, BgpStatus(0, 0), faults=first_lines(error.problems))
    return LabStatus(
        lab=name,
        runtime=lab.runtime.name,
        state="broken" if lost else "up",
        converged=False if lost else converged(lab, now, found),
        switches=len(lab.fabric.switches),
        hosts=len(lab.fabric.hosts),
        links=len(lab.fabric.links),
        bgp=BgpStatus(*lab.blueprint.sessions(now)),
        source=record.source if record else "",
        faults=first_lines(faults),
        missing_sessions=sessions,
        link_faults=fault_lines(lab),
        gaps=tuple(each.text for each in found if each.kind == NEXT_HOPS),
        networks=lab.fabric.networks if len(lab.fabric.networks) > 1 else (),
        attached=tuple(each.text for each in attached.read(lab.dir)),
        control="" if lab.fabric.policy.routing.by_bgp else lab.fabric.policy.routing.control,
    )


def _stopped(lab: Lab, lost: Sequence[Problem]) -> list[str]:
    """Nodes that are not running, also those of shards that are not: nothing can be asked there."""
    where, shards = {each.where for each in lost}, lab.runtime.shards(lab.name)
    names = [each.name for each in lab.fabric.nodes]
    return [each for each in names if each in where or (shards is not None and f"shard {shards.of(each)}" in where)]
