"""Apply the difference of an edited fabric file to a lab that runs, without loss of a packet of what stays.

In:  a LabPlan (labplan.py).
Out: the changed lab, with its record. Nodes that go are drained first: no path uses them, and their queues are empty,
before their sessions, links and namespaces are removed. A new spine is drained until its kernel has every route: BGP
announces a route before the kernel has it (FRR's suppress-fib-pending is off). Daemons that stay are not restarted.
While this runs the record says that the lab is incomplete: after a kill `up` makes it again, and `down` removes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, cast

from heddle.base import mounts as trees
from heddle.base import owners, state
from heddle.base.ethernet import CLASSES
from heddle.base.events import Observer
from heddle.base.problems import CheckError, HeddleError, InputError, MachineError, Problem
from heddle.base.process import Journal, dying_with_us, run
from heddle.base.tables import some_of
from heddle.base.userfiles import give_to_caller
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Port
from heddle.host import limits
from heddle.kernel.grace import grace
from heddle.lab import convergence, health, linkstate
from heddle.lab.faults import record as faults
from heddle.lab.frr import record_loaded
from heddle.lab.lab import Blueprint, Lab
from heddle.lab.opening import Rendered, lab_from, lab_of
from heddle.lab.snapshot import LabPart
from heddle.lab.thresholds import reapply_queues
from heddle.render.dialects import RenderOptions
from heddle.runtimes.netns import NetnsRuntime
from heddle.runtimes.netns_cleanup import BPF_DIR, end_processes, remove_directories
from heddle.runtimes.netns_space import RUN_DIR
from heddle.runtimes.netns_topology import read_topology
from heddle.runtimes.registry import on_machine
from heddle.spec.impairments import NO_FAULT
from heddle.switch import install as switch
from heddle.switch.hashing import hashing
from heddle.switch.links.portfaults import LineSpaces, file_faults, set_faults
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.portqueues import Setup
from heddle_plugins.engineering.labplan import LabPlan, plan_of, ports_of

_EMPTY_S: Final = 10.0  # for the queues of nodes that go; no path leads through them
_LOOK_S: Final = 0.05
_AT_ONCE: Final = 4  # switches whose FRR is configured
_DRAIN, _UNDRAIN = "bgp graceful-shutdown", "no bgp graceful-shutdown"


def plan(record: state.Record, wanted: Blueprint) -> LabPlan:
    """What `change` would do. InputError when the lab cannot be changed so while it runs."""
    if record.runtime != NetnsRuntime.name:
        hint = f"./inv down {record.name} first, or use another --name"
        why = f"runs in {record.runtime}, where a lab cannot be changed; other settings were requested"
        raise InputError(Problem("", f"lab {record.name}", why, hint))
    live = [key for key in ("hashing", "engineering", "queues", "before_run") if getattr(record, key)]
    if live:
        hint = f"undo them, or run ./inv down {record.name}, then up"
        raise InputError(Problem("", f"lab {record.name}", f"has live changes: {', '.join(live)}", hint))
    try:
        found = plan_of(record, cast(Rendered, wanted))
        routing = wanted.fabric.policy.routing
        if routing.daemons != "own" and (found.gone_links or found.fresh_links):
            why = "excludes a change of links: one FRR has several switches"
            raise InputError(Problem("", "routing.daemons: shared", why))
        if routing.control == "static":
            raise InputError(Problem("", "routing.control: static", "excludes a change: no daemon computes new routes"))
        return found
    except InputError as error:
        why, hint = "is already running with other settings", f"./inv down {record.name} first, or use another --name"
        raise InputError(Problem("", f"lab {record.name}", why, hint), *error.problems) from None


def change(record: state.Record, wanted: Blueprint, options: RenderOptions, source: str, observer: Observer) -> Lab:
    """Change the running lab; the caller holds its lock. Returns the lab as it is then.

    InputError, CheckError or MachineError before anything was changed; the latter two also in the middle, saying so.
    """
    found, old = plan(record, wanted), lab_of(record)
    _check(old, found)
    for line in found.lines:
        observer.say(line)
    new = lab_from(found.new, old.runtime)
    switch.check(new.fabric)
    work = _Change(found, old, new, options, observer)
    after = replace(record, spec=found.new.spec_data(), source=source, numbers=found.numbers)
    with owners.lock(record.name, owners.CHANGES):
        limits.HERE.raise_for(new.name, limits.needs_of(new.fabric), on_machine, work.journal, observer)
        state.write_record(replace(after, phase="starting"))
        try:
            work.all()
            record_loaded(new)
            state.write_record(after)
        except BaseException as error:
            done = f"done: {some_of(work.done, most=20)}" if work.done else "no step was finished"
            hint = f"run ./inv up again to make the lab again, or ./inv down {new.name}"
            left = Problem("", f"lab {new.name}", f"is changed in part; {done}", hint)
            if not isinstance(error, HeddleError):
                observer.warn(f"{left}")
                raise
            kind = CheckError if isinstance(error, CheckError) else MachineError
            raise kind(*error.problems, left) from None
    return new


def _check(lab: Lab, found: LabPlan) -> None:
    if known := faults.read(lab.dir):
        hint = f"./inv fault clear --lab {lab.name} removes them"
        raise InputError(Problem("", f"lab {lab.name}", f"has faults: {some_of([e.where for e in known])}", hint))
    if lost := lab.missing_nodes():
        raise MachineError(*lost)
    if wrong := health.faults(lab):
        raise CheckError(*wrong)
    if found.gone and lab.fabric.nodes[0] in found.gone:
        hint = f"./inv down {lab.name}, then up again"
        raise InputError(Problem("", found.gone[0].name, "cannot be removed: the PFC agent is in its namespace", hint))


class _Change:
    """One change in progress. done: what is finished, for the message of an error."""

    def __init__(self, found: LabPlan, old: Lab, new: Lab, options: RenderOptions, observer: Observer) -> None:
        self.plan, self.old, self.new, self.options, self.observer = found, old, new, options, observer
        self.runtime = cast(NetnsRuntime, old.runtime)
        self.journal, self.done = Journal(), list[str]()
        self.before = read_topology(old.topology)
        self.handles = {**old.handles()}

    def all(self) -> None:
        """Every step, in order."""
        if self.plan.gone_links or self.plan.gone:
            self._hash(self.old.fabric, self._without_gone())
            self._step("drained what goes", self._drain)
            self._step("removed it", self._remove)
        self.new.blueprint.write(self.new.topology.parent, self.options)
        for node in self.plan.gone:
            trees.remove(self.new.topology.parent / node.name)
        give_to_caller(self.new.topology.parent, deep=True)
        self.handles = {**self.new.handles()}
        if self.plan.rates:
            self._step("set rates", self._rates)
        if self.plan.gone_links or self.plan.fresh_links:
            self._step("added ports and queues", self._add)
        if self.plan.gone_links or self.plan.fresh_links:
            switch.start_agent(self.new.fabric, self.handles, self.new.dir, self.journal)
        reapply_queues(self.new)
        self._step("configured FRR", self._configure)
        self._hash(self.old.fabric if not self.plan.gone_links else self._without_gone(), self.new.fabric)
        with (self.new.dir / "up.sh").open("a", encoding="utf-8") as file:
            file.write(self.journal.script())

    def _step(self, what: str, work: Callable[[], None]) -> None:
        work()
        self.done.append(what)

    # What goes

    def _drain(self) -> None:
        """No route of a switch that stays leads to what goes, and nothing waits in its queues."""
        old, gone = self.old, {node.name for node in self.plan.gone}
        switches = [node for node in self.plan.gone if node.role is Role.SWITCH]
        for node in switches:
            linkstate.configure_bgp(old, node, _DRAIN)
        if switches:
            linkstate.wait(old)
        ends = ports_of(old.fabric, self.plan.gone_links)
        self._empty(ends)
        self._enter(old, {name: out for name, (out, _) in self.plan.configs.items()}, "no ")
        shut = [port.ref for port in ends]
        wanted = convergence.ExpectedRoutes.of(old.fabric, (), [node.name for node in switches], shut)
        stays = [node.name for node in old.fabric.switches if node.name not in gone]
        end = time.monotonic() + linkstate.SECONDS
        while left := convergence.gaps(old.fabric, old.snapshot(LabPart.FIBS, stays).fibs, wanted, strict=True):
            if time.monotonic() > end:
                raise CheckError(*(each.problem for each in left[:4]))
            time.sleep(_LOOK_S)
        self._empty(ends)

    def _empty(self, ports: Sequence[Port]) -> None:
        """Wait until nothing waits at these ports, and nothing that came by them waits elsewhere."""
        end = time.monotonic() + _EMPTY_S
        with LabQueues.pinned(self.old.fabric) as live:
            rows = [live.ids[port.node, port.name] * CLASSES + each for port in ports for each in range(CLASSES)]
            while live.cells["depth"][rows].any() or live.ingress["occupancy"][rows].any():
                if time.monotonic() > end:
                    why = f"do not become empty in {_EMPTY_S:g} s: packets still come"
                    raise CheckError(Problem(self.old.name, f"the queues of {some_of([p.ref for p in ports])}", why))
                time.sleep(_LOOK_S)

    def _remove(self) -> None:
        old, gone = self.old, {node.name for node in self.plan.gone}
        ends = ports_of(old.fabric, self.plan.gone_links)
        refs = {port.ref for port in ends}
        lines = {ref: NO_FAULT for ref in file_faults(old.fabric) if ref in refs}
        if lines:
            with LabQueues.pinned(old.fabric) as live:
                set_faults(old.fabric, LineSpaces(self.handles), live, lines)
        stays = [port for port in ends if port.node not in gone]
        # When a port is deleted, zebra 10.3 sends its last router advertisement, with its MAC, over another port: the
        # switch there would send all packets to that MAC.
        self._enter(
            old,
            {
                name: [f"interface {port.name} / ipv6 nd suppress-ra" for port in stays if port.node == name]
                for name in sorted({port.node for port in stays if old.fabric.by_name[port.node].role is Role.SWITCH})
            },
        )
        for port in stays:  # the other end goes with it, also while a process still has its namespace
            self._ip(port.node, [f"link del dev {port.name}"])
        grace()
        switch.reduce(old.fabric, self.handles, ends)
        spaces = [self.handles[name].netns for name in gone]
        end_processes(old.name, spaces)
        if spaces:
            text = "".join(f"netns del {path.name}\n" for path in spaces)
            argv = ["ip", "-force", "-batch", "-"]
            self.journal.note(argv, text)
            # It must not remove what the next `up` makes.
            run(dying_with_us(argv, "KILL"), stdin=text, called=" ".join(argv))
        for name in gone:
            for directory in (RUN_DIR / old.name / name, BPF_DIR / old.name / name):
                remove_directories(directory)
        for port in stays:
            if old.fabric.by_name[port.node].role is Role.SWITCH:  # zebra keeps the block of a port that is gone
                words = ["-c", "configure terminal", "-c", f"no interface {port.name}"]
                run(old.command(port.node, ["vtysh", *words]), check=False)

    # What changes, and what comes

    def _rates(self) -> None:
        setup = Setup.of(self.new.fabric)
        by_node: dict[str, list[str]] = {}
        ends = ports_of(self.new.fabric, [link for _, link in self.plan.rates])
        for port in ends:
            lines = setup.discipline.lines(port, setup.queues)
            words = [line.replace("class add", "class change", 1) for line in lines if line.startswith("class add")]
            by_node.setdefault(port.node, []).extend(words)
        for name, lines in by_node.items():
            argv = ["nsenter", f"--net={self.handles[name].netns}", "tc", "-batch", "-"]
            run(argv, stdin="\n".join(lines) + "\n", journal=self.journal)
        with LabQueues.pinned(self.new.fabric) as live:
            for port in ends:
                live.links["rate"][live.ids[port.node, port.name]] = port.rate_bps

    def _add(self) -> None:
        topo, fresh = read_topology(self.new.topology), {node.name for node in self.plan.fresh}
        links = {frozenset((link.a, link.b)) for link in self.plan.fresh_links}
        part = replace(
            topo,
            nodes={name: node for name, node in topo.nodes.items() if name in fresh},
            links=tuple(
                each for each in topo.links
                if frozenset(((each.a.node, each.a.interface), (each.b.node, each.b.interface))) in links
            ),
        )  # fmt: skip
        stays = {name: node for name, node in topo.nodes.items() if name not in fresh}
        there = {name: replace(node, exec=()) for name, node in stays.items()}
        if part.links:
            self.runtime.create_part(self.new.name, part, self.journal, self.observer, there)
        for name, node in stays.items():
            was = self.before.nodes[name].exec
            self._ip(name, [_undone(line) for line in was if line not in node.exec], force=True)
            self._ip(name, [line.removeprefix("ip ") for line in node.exec if line not in was])
        ends = ports_of(self.new.fabric, self.plan.fresh_links)
        touched = dict.fromkeys(
            [*(p.node for p in ends), *(p.node for p in ports_of(self.old.fabric, self.plan.gone_links))]
        )
        added = {name: [port for port in ends if port.node == name] for name in touched if name in self.handles}
        switch.extend(self.new.fabric, self.handles, added, self.journal)
        health.restore_all_routes(self.new)
        if part.nodes:
            self.runtime.start_part(self.new.name, part, self.journal, self.observer)

    def _without_gone(self) -> Fabric:
        """The old fabric with the nodes and links that stay."""
        old, gone = self.old.fabric, {port.ref for port in ports_of(self.old.fabric, self.plan.gone_links)}
        nodes = [
            replace(node, ports=tuple(port for port in node.ports if port.ref not in gone))
            for node in old.nodes
            if node not in self.plan.gone
        ]
        links = tuple(link for link in old.links if link not in self.plan.gone_links)
        return replace(old, nodes=tuple(nodes), links=links, kept_places={})

    def _hash(self, old: Fabric, new: Fabric) -> None:
        """Tables of next hops, by which all modes but `flow` choose: never with a port that has no route yet."""
        rows = []
        for node in (node for node in new.switches if node.name in old.by_name):
            wanted = hashing.hashing_of(new, node)
            if wanted != hashing.hashing_of(old, old.by_name[node.name]):
                rows.append((self.handles[node.name], wanted))
        if rows:
            hashing.change(new.name, rows, new.policy.ip_version)

    def _configure(self) -> None:
        transit = [
            node for node in self.plan.fresh if node.role is Role.SWITCH and not self.new.fabric.level_of(node).is_edge
        ]
        for node in transit:
            linkstate.configure_bgp(self.new, node, _DRAIN)
        self._enter(self.new, {name: lines for name, (_, lines) in self.plan.configs.items()})
        if transit:
            linkstate.wait(self.new, self.new.blueprint.timeout)
        for node in transit:
            linkstate.configure_bgp(self.new, node, _UNDRAIN)
        linkstate.wait(self.new, self.new.blueprint.timeout)

    @staticmethod
    def _enter(lab: Lab, configs: Mapping[str, Sequence[str]], prefix: str = "") -> None:
        """Enter lines of FRR on switches, each after the blocks that it is in. prefix: `no ` removes them."""

        def enter(name: str) -> None:
            words = ["configure terminal"]
            for line in configs[name]:
                *blocks, last = line.split(" / ")
                words += [*blocks, prefix + last, "end", "configure terminal"]
            lab.output(name, ["vtysh", *(part for word in words for part in ("-c", word))], timeout=60)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(enter, [name for name, lines in configs.items() if lines]))

    def _ip(self, name: str, lines: Sequence[str], *, force: bool = False) -> None:
        if lines:
            argv = ["ip", "-n", self.handles[name].netns.name, *["-force"] * force, "-batch", "-"]
            run(argv, stdin="\n".join(lines) + "\n", check=not force, journal=self.journal)


def _undone(line: str) -> str:
    """`ip route add ...` as the line of a batch that removes it."""
    return line.removeprefix("ip ").replace(" add ", " del ", 1)
