"""Faults for one run: all of it, or from one time of it to another, again and again if asked.

In:  a Lab, and the texts of `./inv run --fault`.
Out: a FaultClock, which sets and ends each fault at its time; and RunFaultSpan, one for each time that it did.
Times are wall time since the first barrier of the run. The record of the lab (faults/record.py) is written before each
change. So a run that was killed is undone later: by the next run or fault, `up --repair` or `fault --clear`.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heddle.base.events import Observer
from heddle.base.plugins import first_line
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Role
from heddle.kernel.netlink import RouteWatch
from heddle.lab.faults import orders, record
from heddle.lab.faults.kind import check_rendered
from heddle.lab.faults.record import SetFault, changing
from heddle.lab.faults.registry import KEYS, KINDS
from heddle.lab.linkstate import wait
from heddle.lab.ports import ends_of
from heddle.lab.spread import concat, nothing, spread
from heddle.runtimes.shardcalls import Moment
from heddle.spec.faultsettings import Times
from heddle.spec.impairments import DOWN, PACKETS, LinkFault, parse_run_faults
from heddle.switch.links.portfaults import require_netem

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_POLL_S: Final = 0.002  # until the first barrier


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """What one place gets in a run. values: of the kind."""

    port: str
    kind: str
    times: Times
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """As in the record."""
        return self.kind, self.port

    @property
    def reroutes(self) -> bool:
        """Whether routes change."""
        return KINDS[self.kind].routes or KINDS[self.kind].rendered

    def what(self, k: int) -> str:
        """`rtsw1:eth3 down`, `rtsw1:eth3: 1/256 lost`. k: of the fabric."""
        text = KINDS[self.kind].text(SetFault(self.kind, self.port, dict(self.values)), k)
        return f"{self.port} {text}" if self.kind == DOWN else f"{self.port}: {text}"


@dataclass(slots=True)
class RunFaultSpan:
    """A fault that was set. CLOCK_MONOTONIC: begin_ns before the change; end_ns after it, None until the run ends.

    recorded: this run set it; a link that was down already is not. taken: another command has ended or replaced it, at
    a time that is not known.
    """

    planned: PlannedFault
    begin_ns: int
    end_ns: int | None = None
    recorded: bool = True
    taken: bool = False


def faults_on(fabric: Fabric, texts: Sequence[str], *, here: bool = True) -> tuple[PlannedFault, ...]:
    """What each place gets, from `./inv run --fault`; of several for one place and the whole run, the last counts.

    InputError for a port that the fabric does not have, and for times of one port that overlap. MachineError where a
    fault needs netem and this machine has none. here: whether the packets are on this machine.
    """
    found: dict[tuple[frozenset[str], str], list[PlannedFault]] = {}
    problems: list[Problem] = []
    for text, each in zip(texts, parse_run_faults(texts, KEYS), strict=True):
        kind = KINDS[each.kind]
        try:
            values = tuple(kind.read(each.values, lambda key: f"{key}=").items())
            places = kind.places(fabric, each.places)
        except InputError as error:
            problems += [Problem(f"--fault {text}", wrong.what, wrong.why, wrong.hint) for wrong in error.problems]
            continue
        for where in places:
            planned = PlannedFault(where, each.kind, each.times, values)
            ends = ends_of(fabric, where) if each.kind == DOWN else {where}  # both ends of a link go down together
            others = found.setdefault((frozenset(ends), each.kind), [])
            if not each.times and others and not others[-1].times:
                others[-1] = planned
                continue
            if any(each.times.overlap(other.times) for other in others):
                why = "has another fault at the same time"
                problems.append(Problem(f"--fault {text}", where, why, "give them times that do not overlap"))
            others.append(planned)
    if problems:
        raise InputError(*problems)
    every = tuple(each for planned_ones in found.values() for each in planned_ones)
    if here:
        require_netem(_links_of(every).values())
    return every


def _links_of(planned: Sequence[PlannedFault]) -> dict[PlannedFault, LinkFault]:
    return {each: LinkFault.from_json(dict(each.values)) for each in planned if each.kind == PACKETS}


def delays_of(planned: Sequence[PlannedFault]) -> dict[str, LinkFault]:
    """Port -> its fault with the longest delay in a run."""
    found: dict[str, LinkFault] = {}
    for each, fault in _links_of(planned).items():
        last = found.get(each.port, fault)
        found[each.port] = max(last, fault, key=lambda fault: fault.delay_ns + fault.jitter_ns)
    return found


class FaultClock:
    """Sets and ends the faults of one run. spans: of all that began. remarks: warnings for the run's result.

    route_changes: times of route changes in the kernels of switches (CLOCK_MONOTONIC, ns), if a fault changes routes.
    """

    def __init__(self, lab: Lab, planned: Sequence[PlannedFault]) -> None:
        self.planned = tuple(planned)
        self.spans: list[RunFaultSpan] = []
        self.remarks: list[str] = []
        self.route_changes: Sequence[int] = ()
        self._lab = lab
        self._end = threading.Event()
        self._active: dict[PlannedFault, RunFaultSpan] = {}

    def begin(self, planned: Sequence[PlannedFault]) -> list[SetFault]:
        """Set these faults; returns them. Links that are down already stay as they are."""
        with changing(self._lab):
            if self._end.is_set():
                return []
            now = time.monotonic_ns()  # before the change: packets are lost while it is made
            made = orders.start(self._lab, [(each.kind, each.port, dict(each.values)) for each in planned], run=True)
        keys = {each.key for each in made}
        for each in planned:
            self._active[each] = RunFaultSpan(each, now, recorded=each.key in keys)
            self.spans.append(self._active[each])
        return made

    def end(self, planned: Sequence[PlannedFault]) -> None:
        """End these faults, unless the user has set others meanwhile."""
        self._look()
        end_run_faults(self._lab, planned)
        for each in planned:
            if (span := self._active.pop(each, None)) is not None:
                span.end_ns = time.monotonic_ns()

    def _look(self) -> None:
        """Mark the faults that another command has ended or replaced."""
        left = {each.key for each in record.read(self._lab.dir) if each.run}
        for planned, span in [*self._active.items()]:
            if span.recorded and not span.taken and planned.key not in left:
                span.taken = True
                what = planned.what(self._lab.fabric.policy.k)
                self.remarks.append(f"{what}: another command ended or replaced it during the run; when is not known")

    @contextmanager
    def during(self, began_ns: Callable[[], int]) -> Iterator[None]:
        """Keep the times of a run in a with block. An error in it also names the faults that were set then.

        began_ns: returns the time of the first barrier (CLOCK_MONOTONIC), 0 before that.
        """
        thread = threading.Thread(target=self._work, args=(began_ns,), name="faults", daemon=True)
        if any(each.times for each in self.planned):
            thread.start()
        rerouting = any(each.times and each.reroutes for each in self.planned)
        try:
            with self._route_changes() if rerouting else nullcontext():
                yield
        except HeddleError as error:
            k, named = self._lab.fabric.policy.k, [*self._active]
            why = "was set at that time, as requested"
            raise type(error)(*error.problems, *(Problem("--fault", each.what(k), why) for each in named)) from None
        finally:
            self._end.set()
            if thread.is_alive():
                thread.join()

    @contextmanager
    def _route_changes(self) -> Iterator[None]:
        """Note route_changes in a with block."""
        _watch_routes(self._lab)
        try:
            yield
        finally:
            now = time.monotonic_ns()
            self.route_changes = sorted(now - ago for ago in _route_ages(self._lab, Moment(now)))

    def finish(self) -> None:
        """End what has a time, after the last packet, and wait until the routes are back if a link was down."""
        self._look()
        timed = [each for each in self._active if each.times]
        if timed:
            end_run_faults(self._lab, timed)
        if any(span.planned.reroutes and span.planned.times for span in self.spans):
            self.wait()

    def rerouted(self) -> list[str]:
        """Switches at the links that were down during a part of the run: their next hops changed."""
        nodes = self._lab.fabric.by_name
        ends = []
        for span in self.spans:
            if span.planned.reroutes and span.planned.times:
                node, _, name = span.planned.port.partition(":")
                ends += [node, *(port.peer_node for port in nodes[node].ports if name in ("", port.name))]
        return [name for name in ends if nodes[name].role is not Role.HOST]

    def wait(self) -> None:
        """Wait for the routes that follow from links that are down or up again; a remark when they do not come."""
        try:
            wait(self._lab)
        except HeddleError as error:
            self.remarks.append(f"after a fault of this run: {error.problems[0]}")

    def _work(self, began_ns: Callable[[], int]) -> None:
        while not (start := began_ns()):
            if self._end.wait(_POLL_S):
                return
        # (time, begins, number): at the same time, ends come first.
        due: list[tuple[int, bool, int]] = []
        for number, times in enumerate(each.times for each in self.planned):
            if times.begin_ns is not None:
                due.append((times.begin_ns, True, number))
            elif times.end_ns is not None:
                due.append((times.end_ns, False, number))
        heapq.heapify(due)
        while due:
            at, begins, _ = due[0]
            if self._end.wait(max(0, start + at - time.monotonic_ns()) / 1e9):
                return
            now = []
            while due and due[0][:2] == (at, begins):
                number = heapq.heappop(due)[2]
                times = self.planned[number].times
                now.append(self.planned[number])
                if begins and times.end_ns is not None:
                    heapq.heappush(due, (at + times.end_ns - times.first, False, number))
                elif not begins and times.every_ns and times.end_ns is not None:
                    heapq.heappush(due, (at - times.end_ns + times.first + times.every_ns, True, number))
            try:
                (self.begin if begins else self.end)(now)
            except HeddleError as error:
                self.remarks.append(f"--fault: {some_of([each.port for each in now])}: {error.problems[0]}")
            except Exception as error:  # of a plugin's kind: the faults after it keep their times
                why = f"{type(error).__name__}: {first_line(error)}"
                self.remarks.append(f"--fault: {some_of([each.port for each in now])}: its kind raised {why}")


_ROUTES: Final[dict[str, RouteWatch]] = {}  # by lab


@spread(nothing)
def _watch_routes(lab: Lab) -> None:
    """Begin to note the changes of routes in the kernels of switches."""
    handles = lab.handles()
    spaces = [handles[node.name].netns for node in lab.fabric.switches if node.name in handles]
    _ROUTES[lab.name] = RouteWatch(spaces, lab.fabric.policy.ip_version).__enter__()


@spread(concat)
def _route_ages(lab: Lab, now: Moment) -> list[int]:
    """End that; returns how long before `now` each change was, ns."""
    if (watch := _ROUTES.pop(lab.name, None)) is None:
        return []
    watch.__exit__()
    return [now.ns - each for each in watch.changes]


@contextmanager
def faults_for_run(lab: Lab, planned: Sequence[PlannedFault], observer: Observer) -> Iterator[FaultClock]:
    """Faults for a with block; afterwards each port has what it had, unless it was set meanwhile.

    Those without a beginning are set now, and routes follow. The caller holds the lab's lock. Faults that a killed run
    left are ended first, and routes follow. Where the end cannot undo them, it warns: the next run does.
    """
    clock, complete = FaultClock(lab, planned), False
    with changing(lab):
        over = orders.finish(lab, runs=True)
    if left := some_of([f"{each.where}: {orders.text_of(lab, each)}" for each in over if not each.run]):
        observer.warn(f"a fault that was not finished is undone now: {left}")
    if left := some_of([*dict.fromkeys(each.where for each in over if each.run)]):
        observer.warn(f"a run that was killed had left faults on {left}, which are cleared now")
    if any(KINDS[each.kind].routes for each in over if each.kind in KINDS):
        clock.wait()
    whole = [each for each in planned if each.times.begin_ns is None]
    if any(each.reroutes for each in planned):
        check_rendered(lab)
    for each in planned:
        KINDS[each.kind].prepared(lab, each.port, dict(each.values))
    try:
        if whole:
            orders.prove(lab, clock.begin(whole))
        yield clock
        complete = True
    finally:
        try:
            if planned:
                end_run_faults(lab)
            if complete and any(each.reroutes for each in whole):
                wait(lab)
        except HeddleError as error:
            why = str(error).partition("\n")[0]
            observer.warn(f"the faults of this run are still set ({why}): clear them with ./inv up --repair {lab.name}")


def end_run_faults(lab: Lab, which: Sequence[PlannedFault] | None = None) -> None:
    """End these faults of a run, or all, unless the user has set others meanwhile. The caller holds the lab's lock."""
    meant = None if which is None else {each.key for each in which}
    with changing(lab):
        known = record.read(lab.dir)
        orders.undo(lab, [each for each in known if each.run and (meant is None or each.key in meant)])
