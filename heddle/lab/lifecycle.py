"""The life of a lab: up, open, status, down.

In:  FabricSpec or another Blueprint (up), or a lab's name (everything else).
Out: Lab, a handle to a running fabric; rooms above take nothing else.
What a lab is, is written to its record before anything is made, so that whatever is killed can be found and removed.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from heddle.base import state
from heddle.base.events import Observer, Silent
from heddle.base.problems import CheckError, InputError, MachineError, Problem, did_you_mean, machine_errors, trouble
from heddle.base.process import Journal
from heddle.fabric.model import Fabric
from heddle.host.preflight import preflight, warnings
from heddle.lab import daemons as bgp
from heddle.lab.blueprint import Blueprint, Rendered, reopened, spec_of
from heddle.render.dialects import RenderOptions, check_deployable, installed_version
from heddle.render.render import DEFAULT, topology_name
from heddle.runtimes.registry import RUNTIMES, NodeHandle, Runtime, get_runtime
from heddle.spec.schema import FabricSpec


@dataclass(frozen=True, slots=True)
class Lab:
    """A running fabric."""

    name: str
    fabric: Fabric
    runtime: Runtime
    dir: Path  # the lab's state directory; what is written there goes with the lab
    topology: Path  # the rendered NAME.clab.yml, or a copy of somebody's own
    made: Blueprint  # what it was made from, and so what it should be

    def handles(self) -> Mapping[str, NodeHandle]:
        """Every node's handle, by name."""
        return self.runtime.nodes(self.name, self.topology)

    def handle(self, node: str) -> NodeHandle:
        """One node's handle; InputError when the lab has no such node."""
        handles = self.handles()
        if node not in handles:
            raise InputError(Problem("", node, f"is no node of {self.name}", did_you_mean(node, handles)))
        return handles[node]

    def exec(self, node: str, argv: Sequence[str]) -> int:
        """Run argv in a node with this terminal's streams; its exit code."""
        return self.runtime.exec(self.name, self.topology, self.handle(node).name, argv)

    def capture(self, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        """Run argv in a node and return what it prints; MachineError when it fails. timeout: seconds."""
        return self.runtime.capture(self.name, self.topology, self.handle(node).name, argv, timeout)

    def neighbours(self, switch: str) -> Mapping[str, str] | None:
        """Port -> BGP state of a switch; None when its bgpd does not answer."""
        return bgp.neighbours(self.runtime, self.name, self.topology, switch, self.fabric.spec.ip_version)

    def faults(self) -> list[Problem]:
        """What somebody or something has done to the lab: nodes that do not run, daemons that do not answer, queues
        that are not Heddle's, links that are down. A problem each; routes alone do not tell, since they outlive zebra.
        """
        if lost := self.runtime.lacking(self.name, self.topology):
            return lost  # what else is wrong follows from that
        return [*self.silent_daemons(), *self.foreign_queues(), *self.lost_agent(), *self.down_or_drained()]

    def silent_daemons(self) -> list[Problem]:
        """Daemons that do not answer."""
        # Started again alone, zebra often stays without the routes of a bgpd that knew the old one.
        hint = f"./inv down {self.name}, then up again, makes it anew"
        return [
            Problem(node.name, daemon, "does not answer", hint)
            for node in self.fabric.switches
            for daemon in bgp.silent(self.runtime, self.name, self.topology, node.name, self.made.daemons(node.name))
        ]

    def down_or_drained(self) -> list[Problem]:
        """Links that are down and switches that BGP drains, by a fault on purpose or by hand."""
        from heddle.lab.faults import state_of

        return state_of(self).problems() if self.made.rendered else []

    def foreign_queues(self) -> list[Problem]:
        """Ports whose root qdisc is not Heddle's: somebody's `tc`, or `containerlab tools netem`, took its place."""
        from heddle.switch.queues import portqueues as queues

        hint = f"./inv down {self.name}, then up again, puts it back"
        return [
            Problem(f"{node.name}:{port}", "the queue", f"is not Heddle's: {kind} stands at its root", hint)
            if kind
            else Problem(f"{node.name}:{port}", "the port", "is gone: somebody removed it", hint)
            for node in self.fabric.nodes
            for port, kind in queues.foreign(self.handle(node.name).netns, [p.name for p in node.ports]).items()
        ]

    def lost_agent(self) -> list[Problem]:
        """Of a lab that can pause: that nobody runs who carries pauses out."""
        from heddle.switch.pfc import control as pfc
        from heddle.switch.queues import portqueues as queues

        if not queues.Setup.of(self.fabric).gated or pfc.alive(self.name).agent is not None:
            return []
        why = "does not run, so pauses are neither sent nor obeyed"
        return [Problem("", "the agent of PFC", why, f"./inv run --lab {self.name} starts it again")]

    def check_ports(self) -> None:
        """MachineError for nodes that do not run, CheckError for foreign queues: nothing is measured over those."""
        if lost := self.runtime.lacking(self.name, self.topology):
            raise MachineError(*lost)
        if foreign := self.foreign_queues():
            raise CheckError(*foreign)

    def wait(self, observer: Observer | None = None, timeout: float | None = None) -> None:
        """Wait until every route is in every kernel; CheckError with what is missing after `timeout` seconds."""
        self.made.wait(self, observer or Silent(), timeout)


@dataclass(frozen=True, slots=True)
class UpResult:
    """What `up` did. `created` is False when the lab ran already; `seconds` has each step and `total`."""

    lab: Lab
    created: bool
    converged: bool
    seconds: Mapping[str, float]


def up(
    wanted: FabricSpec | Blueprint,
    *,
    runtime: str = "netns",
    options: RenderOptions = DEFAULT,
    observer: Observer | None = None,
    rollback: bool = False,
    timeout: float | None = None,
    source: str = "",
) -> UpResult:
    """Bring a fabric up and wait until every route is in every kernel.

    options: how the topology is rendered. timeout: seconds for convergence. source: where the spec came from.
    Raises MachineError when this machine cannot, InputError when a lab of that name is in the way; both leave nothing
    behind. CheckError when it does not converge: the lab is left for inspection; with `rollback` it is taken down, if
    this call made it.
    """
    from heddle.switch import install as switch

    observer = observer or Silent()
    engine = get_runtime(runtime)
    lab = _lab(_blueprint(wanted), engine)
    clock = _Clock()
    with state.lock(lab.name):
        running = _running(lab, options, observer)
        if running is not None:
            lab = running
        else:
            for note in lab.made.notes:
                observer.say(note)
            preflight(lab.fabric, daemons=engine.daemons_here)
            switch.check(lab.fabric)
            for text in warnings(lab.fabric):
                observer.warn(text)
            with clock.step("prepare"):
                chosen = engine.prepare(lab.fabric, options, observer)
            lab = _make(lab, chosen, source, observer, clock)
        try:
            if running is not None:
                lab.check_ports()  # what has lost its queues may never converge: the other ends count what comes out
            with clock.step("converge"):
                lab.wait(observer, timeout)
            if running is not None and (faults := lab.faults()):
                raise CheckError(*faults)
        except CheckError as error:
            if rollback and running is None:  # what this call made, and nothing else
                _remove(lab.name, observer, engine)
                raise
            left = Problem("", f"lab {lab.name}", "is left for inspection", f"./inv down {lab.name} removes it")
            raise CheckError(*error.problems, left) from None
        except BaseException:  # Ctrl-C above all
            if running is None:
                _remove(lab.name, observer, engine)
            raise
    return UpResult(lab, created=running is None, converged=True, seconds=clock.seconds())


def down(name: str, observer: Observer | None = None) -> bool:
    """Remove everything of a lab, however it ended; False when there was nothing."""
    with state.lock(name), state.lock(name, state.HASHING):
        return _remove(name, observer or Silent(), *map(get_runtime, RUNTIMES))


def open_lab(name: str | None = None) -> Lab:
    """The running lab of that name, or the only one; InputError when there is none, or no telling which."""
    names = state.labs()
    if name is None:
        name = _only(names)
    record = state.read_record(name)
    if record is None:
        hint = did_you_mean(name, names) if names else "no lab is running; ./inv up zone brings one up"
        raise InputError(Problem("", f"lab {name}", "is not running", hint))
    lab = _lab_of(record)
    if record.phase != "running" or not lab.runtime.exists(name):
        why = "is not up: its `up` has not ended, or was killed, or the machine was restarted"
        raise InputError(Problem("", f"lab {name}", why, f"./inv down {name} removes what is left of it"))
    if (lost := lab.runtime.lacking(name, lab.topology)) and len(lost) == len(lab.handles()):
        why = "is not up: all of its nodes are gone or stopped, by hand or with the machine"
        raise InputError(Problem("", f"lab {name}", why, f"./inv down {name} removes what is left of it"))
    return lab


def _only(names: Sequence[str]) -> str:
    """The one lab that can be meant: the only one that is up, else the only one there is a record of."""
    records = {name: state.read_record(name) for name in names} if len(names) > 1 else {}
    running = [name for name, record in records.items() if record is not None and record.phase == "running"]
    candidates = running or names
    if not candidates:
        raise InputError(Problem("", "no lab", "is running", "./inv up zone brings one up"))
    if len(candidates) > 1:
        raise InputError(Problem("", "--lab", "is needed, since several labs run", "one of: " + ", ".join(candidates)))
    return candidates[0]


def explain(wanted: FabricSpec | Blueprint, runtime: str = "netns", options: RenderOptions = DEFAULT) -> str:
    """What `up` would run, as a shell script; nothing is run. InputError when `up` would refuse the options."""
    made = _blueprint(wanted)
    check_deployable(options, runtime, installed_version() if runtime == "containerlab" else None)
    name = made.fabric.name
    journal = Journal()
    with tempfile.TemporaryDirectory(prefix="heddle-") as scratch:
        topology = made.write(Path(scratch, "topology"), options)
        journal.comment(f"The files of {name} are written to {_topology_path(name).parent}:")
        where = "./inv render FABRIC --out DIR writes them elsewhere, to be read."
        journal.comment(where if made.rendered else "a copy of the topology, with all that nodes inherit written out.")
        get_runtime(runtime).explain(name, topology, journal)
        handles = get_runtime(runtime).nodes(name, topology)
    _explain_ports(made.fabric, handles, journal)
    return journal.script().replace(str(topology.parent), str(_topology_path(name).parent))


def _explain_ports(fabric: Fabric, handles: Mapping[str, NodeHandle], journal: Journal) -> None:
    """What heddle/switch does to every port; offloads and programs are set by system calls, so in words."""
    from heddle.switch.queues.portqueues import Setup

    setup = Setup.of(fabric)
    for node in fabric.nodes:
        lines = [line for port in node.ports for line in setup.discipline.lines(port, setup.plan)]
        journal.note(["nsenter", f"--net={handles[node.name].netns}", "tc", "-batch", "-"], "\n".join(lines))
    programs = "BPF at clsact: dequeue and hash (in; hosts: dequeue, nic), count and enqueue (out; hosts: enqueue)"
    journal.comment(f"On every port: GRO, GSO, TSO and checksum offloads off; {programs}.")
    if setup.gated:
        journal.comment("An agent is started, which sends pause frames and closes and opens the gates (tbf).")


def _make(lab: Lab, options: RenderOptions, source: str, observer: Observer, clock: _Clock) -> Lab:
    """Everything but waiting; whatever goes wrong, nothing is left behind."""
    from heddle.switch import install as switch

    record = state.Record(
        *(lab.name, lab.runtime.name, "starting", spec_of(lab.made), source),
        options=_recorded(options),
        brought=lab.made.recorded(),
    )
    journal = Journal()
    umask = os.umask(0o022)  # nobody else writes where root looks again, and daemons read as user frr
    try:
        state.write_record(record)
        with clock.step("render"):
            lab.made.write(lab.topology.parent, options)
            state.give_to_caller(lab.topology.parent, deep=True)
        with clock.step("create"):
            lab.runtime.create(lab.name, lab.topology, journal, observer)
        with clock.step("start"):
            lab.runtime.start(lab.name, lab.topology, journal, observer)
        with clock.step("switch"):  # while FRR finds its neighbours
            switch.apply(lab.fabric, lab.handles(), journal, observer, lab.made.kept())
        lab = _lab(lab.made.settled(lab), lab.runtime)
        with clock.step("agent"):
            switch.start_agent(lab.fabric, lab.handles(), lab.dir, journal)
        with machine_errors(str(lab.dir / "up.sh")):
            (lab.dir / "up.sh").write_text(journal.script(), encoding="utf-8")
        state.write_record(replace(record, phase="running", seconds=clock.seconds(), brought=lab.made.recorded()))
        return lab
    except OSError as error:
        _remove(lab.name, observer, lab.runtime)
        raise trouble(error) from None
    except BaseException:
        _remove(lab.name, observer, lab.runtime)
        raise
    finally:
        os.umask(umask)


def _recorded(options: RenderOptions) -> dict[str, str]:
    """What of the options makes another lab of it; the subnet is whichever was free."""
    return {"dialect": options.dialect, "mgmt": options.mgmt}


def _running(lab: Lab, options: RenderOptions, observer: Observer) -> Lab | None:
    """The lab, when this very one runs already. Half-made ones are removed; InputError when another has the name."""
    record = state.read_record(lab.name)
    if (stranger := lab.runtime.stranger(lab.name)) is not None:
        raise InputError(stranger)
    if record is None:
        for runtime in RUNTIMES:  # pins and counters go by the lab's name, so no other runtime may have it either
            if get_runtime(runtime).exists(lab.name):
                why = f"is on this machine (runtime {runtime}), but this user's Heddle has no record of it"
                raise InputError(Problem("", f"lab {lab.name}", why, f"./inv down {lab.name}, or take another --name"))
        return None
    engine = get_runtime(record.runtime)
    gone = record.phase == "running" and len(engine.lacking(lab.name, lab.topology)) == len(lab.handles())
    if gone or record.phase != "running" or not engine.exists(lab.name):
        what = "has lost all its nodes" if gone else "was left half-made"
        observer.warn(f"lab {lab.name} {what}; removing what is left first")
        _remove(lab.name, observer, engine)
        return None
    problems = [] if record.runtime == lab.runtime.name else [("runtime", record.runtime, lab.runtime.name)]
    wanted = _recorded(options)
    problems += [
        (key, old, wanted[key])
        for key, old in record.options.items()
        if wanted.get(key, old) != old and (key, record.runtime) != ("mgmt", "netns")  # namespaces have none either way
    ]
    problems += lab.made.differences(record)
    if problems:
        hint = f"./inv down {lab.name} first, or give this one another --name"
        why = "runs, and not as it was asked for now"
        details = [Problem("", f"{path}: {new}", f"was asked for, and {old} runs") for path, old, new in problems]
        raise InputError(Problem("", f"lab {lab.name}", why, hint), *details)
    observer.say(f"lab {lab.name} is up already, with this very fabric")
    return _lab_of(record)


def _remove(name: str, observer: Observer, *engines: Runtime) -> bool:
    """Everything of a lab, in an order that can be cut short and taken up again: the record goes last."""
    from heddle.switch import install as switch
    from heddle.switch.pfc import control as pfc

    with _uninterrupted(), machine_errors():
        pfc.stop(name)
        count = sum(engine.destroy(name, observer) for engine in engines)
        switch.remove(name)
        return state.remove_record(name) or count > 0


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait: a removal takes a second and should not be cut in two."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _topology_path(name: str) -> Path:
    return state.lab_dir(name) / "topology" / topology_name(name)


def _blueprint(wanted: FabricSpec | Blueprint) -> Blueprint:
    return Rendered(wanted) if isinstance(wanted, FabricSpec) else wanted


def _lab(made: Blueprint, runtime: Runtime) -> Lab:
    name = made.fabric.name
    return Lab(name, made.fabric, runtime, state.lab_dir(name), _topology_path(name), made)


def _lab_of(record: state.Record) -> Lab:
    return _lab(reopened(record), get_runtime(record.runtime))


class _Clock:
    """Wall time of each step, in seconds."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._steps: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a with block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._steps[name] = round(time.monotonic() - start, 3)

    def seconds(self) -> dict[str, float]:
        """Steps so far, and `total`."""
        return {**self._steps, "total": round(time.monotonic() - self._start, 3)}
