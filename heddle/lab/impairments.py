"""Faults of the links of a running lab: set, list, clear, restore.

In:  a Lab and a LinkFault.
Out: the fault of each port, with its counters. What was set is recorded, so that `status`, `validate` and
`up --repair` know it; so are ports that were taken down (outages.py):

    LABDIR/faults.json     {"down": ["rtsw1:eth3", ...], "links": {"rtsw1:eth3": {"loss": 0.01}, ...},
                            "run": {"rtsw1:eth3": {"loss": 0.5} or null, ...}, "run_down": ["rtsw1:eth1", ...],
                            "more": [{"kind": "bgp-down", "where": "rtsw1:eth1"}, ...]}

Whether a port is down now is read from its kernel, not from this file. The caller holds the lab's lock.
A fault concerns the packets that leave by a port: the other direction is another port.
A fault for one run is recorded in the same way, with what its port had before (runfaults.py). So all that reads faults
sees it, and a run that was killed (SIGKILL) is undone later: by the next run, `up --repair` or `fault --clear`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from heddle.base import owners, state
from heddle.base.problems import CheckError, InputError, MachineError, Problem, did_you_mean
from heddle.base.process import Done, run, start_of
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.kernel.netlink import down_ports
from heddle.lab.spread import nothing, only, spread, union
from heddle.runtimes.netns import cable_space
from heddle.spec.impairments import NO_FAULT, LinkFault
from heddle.switch.links.portfaults import (
    FaultCounts,
    LineSpaces,
    differences,
    file_faults,
    read_counts,
    require_netem,
    set_faults,
)

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

Process = tuple[int, int]  # pid, and when it began (start_of)


@dataclass(frozen=True, slots=True)
class SetFault:
    """A fault that is set, or that is being set. where: a port or a node. values: of its kind, as plain data.

    maker: the process that sets it, until its effect was verified. If that process has ended, the fault is unfinished.
    worker: the process that keeps the fault going, where a kind needs one. run: it is for one run.
    """

    kind: str
    where: str
    values: Mapping[str, Any] = field(default_factory=dict)
    maker: Process | None = None
    worker: Process | None = None
    run: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """A place has one fault of a kind."""
        return self.kind, self.where

    @property
    def unfinished(self) -> bool:
        """Whether the process that was setting it has ended before its effect was verified."""
        return self.maker is not None and not runs(self.maker)

    def being_set(self) -> Self:
        """The same, with this process as its maker."""
        return replace(self, maker=(os.getpid(), start_of(os.getpid()) or 0))

    def to_json(self) -> dict[str, Any]:
        data = {"kind": self.kind, "where": self.where, "values": dict(self.values), "run": self.run}
        return {key: value for key, value in {**data, "maker": self.maker, "worker": self.worker}.items() if value}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """What `to_json` wrote; ValueError, TypeError or KeyError for other data."""
        maker, worker = (None if data.get(key) is None else _process(data[key]) for key in ("maker", "worker"))
        values = dict(data.get("values", {}))
        return cls(str(data["kind"]), str(data["where"]), values, maker, worker, bool(data.get("run")))


def _process(data: Any) -> Process:
    pid, started = data
    return int(pid), int(started)


def runs(process: Process) -> bool:
    """Whether the process still runs, and is not another one with its pid."""
    return start_of(process[0]) == process[1]


_FILE: Final = "faults.json"


@dataclass(frozen=True, slots=True)
class Requested:
    """The record of one lab.

    down: ports that were taken down. `up --repair` leaves them down; `up` and `status` report them. links: port that
    packets leave by -> the fault that was set on its link, an empty one where that of the fabric file was cleared.
    before_run: port whose fault in `links` is for one run -> what `links` had of it before; None: nothing.
    run_down: ports that a run took down, and that it sets up again. more: faults of the kinds
    of faults/registry.py.
    """

    down: frozenset[str] = frozenset()
    links: Mapping[str, LinkFault] = field(default_factory=dict)
    before_run: Mapping[str, LinkFault | None] = field(default_factory=dict)
    run_down: frozenset[str] = frozenset()
    more: tuple[SetFault, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> Self:
        """directory: the lab's. A damaged file, or a damaged part of it, counts as empty."""
        try:
            data = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        if not isinstance(data, dict):
            return cls()
        links = {ref: fault for ref, fault in _faults(data.get("links")).items() if fault is not None}
        down, run_down = _ports(data.get("down")), _ports(data.get("run_down"))
        return cls(down, links, _faults(data.get("run")), run_down, _more(data.get("more")))

    def write(self, directory: Path) -> None:
        """Replace the record."""
        data: dict[str, Any] = {"down": sorted(self.down)}
        if self.links:
            data["links"] = {ref: fault.to_json() for ref, fault in sorted(self.links.items())}
        if self.before_run:
            run = sorted(self.before_run.items())
            data["run"] = {ref: None if fault is None else fault.to_json() for ref, fault in run}
        if self.run_down:
            data["run_down"] = sorted(self.run_down)
        if self.more:
            data["more"] = [each.to_json() for each in self.more]
        state.write_json(directory / _FILE, data)


def _ports(refs: Any) -> frozenset[str]:
    return frozenset(each for each in refs if isinstance(each, str)) if isinstance(refs, list) else frozenset()


def _more(data: Any) -> tuple[SetFault, ...]:
    found = []
    for each in data if isinstance(data, list) else ():
        try:
            found.append(SetFault.from_json(each))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return tuple(found)


def _faults(data: Any) -> dict[str, LinkFault | None]:
    found: dict[str, LinkFault | None] = {}
    for ref, values in data.items() if isinstance(data, dict) else ():
        try:
            found[ref] = None if values is None else LinkFault.from_json(values)
        except (ValueError, TypeError, AttributeError):
            continue
    return found


_LOCK_S: Final = 10.0  # for another command that changes faults, hashing or thresholds
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PortFault:
    """The fault of one port. peer: the port that its packets arrive by.

    by: what set it: the fabric file, `./inv fault`, or a run, for its own time.
    counts: None where the program has no fault for that port, although one is recorded.
    """

    port: str
    peer: str
    fault: LinkFault
    by: Literal["file", "fault", "run"]
    counts: FaultCounts | None

    def to_json(self) -> dict[str, Any]:
        """A row of `./inv fault --format json`."""
        return {
            "port": self.port,
            "peer": self.peer,
            "by": self.by,
            "fault": self.fault.to_json(),
            "counts": dict(self.counts) if self.counts is not None else None,
        }


def wanted_faults(lab: Lab) -> dict[str, LinkFault]:
    """Port -> its fault, as set last, or else as in the fabric file; only ports that have one."""
    requested = Requested.read(lab.dir)
    found = file_faults(lab.fabric) | dict(requested.links)
    kept = [each.where for each in requested.more if each.worker is not None and ":" in each.where]
    if kept and not lab.runtime.here:  # the process of a fault in a shard changes the record of that shard
        with suppress(MachineError):  # a lost shard is reported elsewhere
            found |= _links_there(lab, kept)
    return {ref: fault for ref, fault in found.items() if fault}


def set_fault(lab: Lab, refs: Sequence[str], fault: LinkFault) -> list[str]:
    """Set a fault on ports (`rtsw1:eth3`, `rtsw1`, patterns); returns the ports. Their counters start again.

    InputError for a port that the lab does not have, and for values that do not fit together. MachineError when this
    kernel has no netem and the fault needs it. In both cases nothing is changed. CheckError when the program and the
    kernel do not have the fault afterwards.
    """
    key, why, hint = fault.complaint()
    if why:
        raise InputError(Problem("", f"--{key}", why, hint))
    ports = ports_of(lab.fabric, refs)
    done = _set(lab, dict.fromkeys((port.ref for port in ports), fault))
    wrong = fault_differences(lab, wanted_faults(lab))
    if found := [Problem(ref, "the port", wrong[ref], f"./inv fault clear {ref}") for ref in done if ref in wrong]:
        raise CheckError(*found)
    return done


def clear_faults(lab: Lab, refs: Sequence[str] = ()) -> list[str]:
    """Clear the faults of ports, or of all; returns the ports that had one. Those of the file are cleared, too."""
    named = {port.ref for port in ports_of(lab.fabric, refs)} if refs else None
    had = [ref for ref in wanted_faults(lab) if named is None or ref in named]
    return _set(lab, dict.fromkeys(had, NO_FAULT))


def restore_faults(lab: Lab) -> bool:
    """Restore the faults of the fabric file on every port; False when there was nothing to do."""
    own, usual = Requested.read(lab.dir).links, file_faults(lab.fabric)
    if not own:
        return False
    _set(lab, {ref: usual.get(ref, NO_FAULT) for ref in own})
    return True


def reinstall_faults(lab: Lab) -> list[str]:
    """Set faults again where program or kernel differ from them; returns the ports. The caller holds the lab's lock."""
    wanted = wanted_faults(lab)
    wrong = fault_differences(lab, wanted)
    if wrong:
        _put_faults(lab, {ref: wanted.get(ref, NO_FAULT) for ref in wrong}, copied=not lab.runtime.here)
    return [*wrong]


@spread(nothing, nodes=lambda wanted: [ref.partition(":")[0] for ref in wanted])
def require_kernel(lab: Lab, wanted: Mapping[str, LinkFault]) -> None:
    """MachineError when one of these needs netem, and the kernel of its port has none. wanted: by port."""
    require_netem(wanted.values())


def _spaces(lab: Lab) -> LineSpaces:
    return LineSpaces(lab.handles(), cable_space(lab.name))


@spread(union, nodes=lambda refs: [ref.partition(":")[0] for ref in refs])
def _links_there(lab: Lab, refs: Sequence[str]) -> dict[str, LinkFault]:
    links = Requested.read(lab.dir).links
    return {ref: links[ref] for ref in refs if ref in links}


@spread(nothing)
def _put_faults(lab: Lab, wanted: Mapping[str, LinkFault], *, copied: bool) -> None:
    """Give ports their faults, in the programs and the delay lines. copied: also in the record of their shard."""
    from heddle.switch.queues.cells import LabQueues

    handles = lab.handles()
    here = {ref: fault for ref, fault in wanted.items() if ref.partition(":")[0] in handles}
    with changing(lab) if copied else nullcontext(), LabQueues.pinned(lab.fabric) as live:
        if copied:
            requested = Requested.read(lab.dir)
            replace(requested, links=_own(lab.fabric, {**requested.links, **here})).write(lab.dir)
        set_faults(lab.fabric, _spaces(lab), live, here)


@spread(union)
def fault_differences(lab: Lab, wanted: Mapping[str, LinkFault]) -> dict[str, str]:
    """Port -> how the program or the kernel differs from its fault."""
    from heddle.switch.queues.cells import LabQueues

    handles = lab.handles()
    here = {ref: fault for ref, fault in wanted.items() if ref.partition(":")[0] in handles}
    with LabQueues.pinned(lab.fabric) as live:
        return dict(differences(lab.fabric, _spaces(lab), live, here))


@spread(union)
def _fault_counts(lab: Lab) -> dict[str, FaultCounts]:
    from heddle.switch.queues.cells import LabQueues

    with LabQueues.pinned(lab.fabric) as live:
        return dict(read_counts(lab.fabric, _spaces(lab), live))


def read_faults(lab: Lab) -> list[PortFault]:
    """All ports that have a fault, in the fabric's order, with their counters."""
    requested, wanted = Requested.read(lab.dir), wanted_faults(lab)
    if not wanted:
        return []
    counts, usual = _fault_counts(lab), file_faults(lab.fabric)

    def source(ref: str) -> Literal["file", "fault", "run"]:
        return "run" if ref in requested.before_run else "file" if wanted[ref] == usual.get(ref) else "fault"

    return [
        PortFault(port.ref, port.peer_ref, wanted[port.ref], source(port.ref), counts.get(port.ref))
        for node in lab.fabric.nodes
        for port in node.ports
        if port.ref in wanted
    ]


def packet_lines(lab: Lab) -> tuple[str, ...]:
    """One line for each port with a fault of its packets, as recorded: `rtsw1:eth3: 1/256 lost (one run)`."""
    k, running = lab.fabric.policy.k, Requested.read(lab.dir).before_run
    return tuple(
        f"{ref}: {fault.text(k)}{' (one run)' if ref in running else ''}"
        for ref, fault in sorted(wanted_faults(lab).items())
    )


def extra_delay_ns(lab: Lab, more: Mapping[str, LinkFault]) -> int:
    """The most that faults add to a path, one way, on hardware, beyond the delays of the fabric file; with jitter.

    more: port -> fault that will be set, too. A path passes each level once up and once down; the slowest port of each
    counts. Which ports it passes is not known.
    """
    nodes, policy = lab.fabric.by_name, lab.fabric.policy
    most: dict[tuple[int, bool], int] = {}
    for ref, fault in {**wanted_faults(lab), **more}.items():
        name, _, port = ref.partition(":")
        here, there = nodes[name].level, nodes[nodes[name].port(port).peer_node].level
        known = policy.delay_ns(min(here, there)) if policy.delayed_on_links else 0
        key = min(here, there), here < there
        most[key] = max(most.get(key, 0), fault.delay_ns + fault.jitter_ns - known)
    return sum(most.values())


def ports_of(fabric: Fabric, refs: Sequence[str]) -> list[Port]:
    """The ports that names or patterns select; InputError for one that selects none. A node is all of its ports."""
    every = [port for node in fabric.nodes for port in node.ports]
    typed = [each.strip() for ref in refs for each in ref.split(",") if each.strip()]
    patterns = [each if ":" in each else f"{each}:*" for each in typed]
    names = [port.ref for port in every]
    problems = [
        Problem("", word, f"is not a port of {fabric.name}", nearest_port(word, fabric))
        for word, pattern in zip(typed, patterns, strict=True)
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise InputError(*problems)
    return [port for port in every if any(fnmatchcase(port.ref, pattern) for pattern in patterns)]


def nearest_port(word: str, fabric: Fabric) -> str:
    """A hint for a word that is no port: the nearest node, or the ports of the node."""
    node = fabric.by_name.get(word.partition(":")[0])
    if node is None:
        return did_you_mean(word.partition(":")[0], fabric.by_name)
    names = [port.name for port in node.ports]
    return f"{node.name} has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def _set(lab: Lab, wanted: Mapping[str, LinkFault]) -> list[str]:
    """Set faults and record them."""
    if not wanted:
        return []
    require_kernel(lab, wanted)  # before the record says that it is set
    with owners.lock(lab.name, owners.CHANGES):  # as `queues set`: also during a run, which holds the lab's lock
        requested = Requested.read(lab.dir)
        # The end of a run does not undo what is set now.
        before = {ref: fault for ref, fault in requested.before_run.items() if ref not in wanted}
        write_faults(lab, wanted, replace(requested, links={**requested.links, **wanted}, before_run=before))
    return [*wanted]


def write_faults(lab: Lab, wanted: Mapping[str, LinkFault], requested: Requested) -> None:
    """Record faults, then set those of `wanted`. The caller holds CHANGES."""
    replace(requested, links=_own(lab.fabric, requested.links)).write(lab.dir)
    _put_faults(lab, wanted, copied=not lab.runtime.here)


def _own(fabric: Fabric, links: Mapping[str, LinkFault]) -> dict[str, LinkFault]:
    """Those that differ from the faults of the fabric file."""
    usual = file_faults(fabric)
    return {ref: fault for ref, fault in links.items() if fault != usual.get(ref, NO_FAULT)}


@contextmanager
def changing(lab: Lab) -> Iterator[None]:
    """The lock of what changes during runs. Another command has it for a moment; then this waits."""
    end = time.monotonic() + _LOCK_S
    while True:
        lock = owners.lock(lab.name, owners.CHANGES)
        try:
            lock.__enter__()
        except InputError:
            if time.monotonic() > end:
                raise
            time.sleep(_POLL_S)
            continue
        break
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


@spread(only, nodes=lambda node, *_: [node])
def in_network(lab: Lab, node: str, argv: Sequence[str], stdin: str = "") -> Done:
    """Run a program of the node's machine, such as ip or tc, in the node's network. Its exit code is the caller's."""
    return run(["nsenter", f"--net={lab.handle(node).netns}", *argv], stdin=stdin, check=False)


@spread(union, nodes=lambda nodes: nodes)
def down_of(lab: Lab, nodes: Collection[str]) -> dict[str, Mapping[str, bool]]:
    """Node -> its ports without a carrier -> whether they are set down at this end."""
    handles = lab.handles()
    return {name: down_ports(handles[name]) for name in nodes if name in handles}
