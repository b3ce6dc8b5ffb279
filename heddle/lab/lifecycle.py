"""Create and remove labs: `up`, `down`, and the cleanup after a failure.

In:  a loaded fabric file or another Blueprint (up), or a lab's name (all others).
Out: Lab (lab.py); opening.py finds a running lab by its name.
The record is written before anything is created. So a lab can be found and removed even if `up` is killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from heddle.base import owners, state
from heddle.base.events import Observer, Silent
from heddle.base.extras import KUBERNETES
from heddle.base.owners import LabOwner
from heddle.base.plugins import function, missing
from heddle.base.problems import (
    CheckError,
    HeddleError,
    InputError,
    MachineError,
    Problem,
    first_lines,
    machine_errors,
    trouble,
)
from heddle.base.process import Journal
from heddle.base.tables import many, some_of
from heddle.base.userfiles import as_root, give_to_caller
from heddle.base.version import VERSION
from heddle.fabric.deadlock import deadlock_warning
from heddle.fabric.model import Fabric
from heddle.host import limits
from heddle.host.preflight import preflight
from heddle.kernel.netlink import RouteSocket
from heddle.lab import attached, health, linkstate
from heddle.lab.control import control_of
from heddle.lab.cutlinks import install_over_shards
from heddle.lab.facts import converged, facts, parts
from heddle.lab.frr import record_loaded
from heddle.lab.health import Repaired, restore_all_routes
from heddle.lab.lab import Lab
from heddle.lab.opening import (
    Source,
    blueprint_from,
    check_free,
    check_version,
    lab_from,
    lab_of,
    open_lab,
    other_owner,
)
from heddle.lab.snapshot import LabPart
from heddle.render.dialects import RenderOptions
from heddle.render.render import DEFAULT
from heddle.runtimes.registry import HERE, RUNTIMES, Runtime, all_runtimes, get_runtime, on_machine
from heddle.runtimes.sharded import ShardPlan
from heddle.switch import install as switch
from heddle.switch.pfc import control as pfc
from heddle.switch.queues.portqueues import load_htb
from heddle.wire.layout import DSCP_DATA

BY_NETLINK: Final = "Routes of switches are computed, and installed by netlink."
_SETTLE_S: Final = 2.0  # for facts that end by themselves, after the routes have come
_WARNINGS: Final = 12  # lines on what reaches this machine, of one topology


@dataclass(frozen=True, slots=True)
class StepUse:
    """A step of `up`. cpu_s: of all processes of this machine. requests: netlink messages that this process sent."""

    seconds: float
    cpu_s: float
    requests: int

    @classmethod
    def now(cls) -> StepUse:
        """The clocks and counters now."""
        user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
        ticks = user + nice + system + interrupts + soft
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), RouteSocket.requests)

    def since(self, start: StepUse) -> StepUse:
        """What was used after `start`."""
        seconds, cpu_s = round(self.seconds - start.seconds, 3), round(self.cpu_s - start.cpu_s, 2)
        return StepUse(seconds, cpu_s, self.requests - start.requests)


@dataclass(frozen=True, slots=True)
class UpResult:
    """The result of `up`. created: False when the lab was already running; seconds: each step and `total`.

    converged: as in `status`: False with any fact, also where links are down on purpose and routes avoid them; None
    where no node runs a routing program. repaired: what --repair did; None without it. faults: the facts, in lines.
    """

    lab: Lab
    created: bool
    converged: bool | None
    seconds: Mapping[str, float]
    repaired: Repaired | None = None
    faults: tuple[str, ...] = ()
    steps: Mapping[str, StepUse] = field(default_factory=dict)


def up(
    wanted: Source,
    *,
    runtime: str = "netns",
    options: RenderOptions = DEFAULT,
    observer: Observer | None = None,
    rollback: bool = False,
    timeout: float | None = None,
    source: str = "",
    repair: bool = False,
    change: bool = False,
) -> UpResult:
    """Bring a fabric up and wait until every route is in every kernel.

    options: how the topology is rendered. timeout: seconds for convergence. source: where the spec came from. repair:
    if the lab is already running, repair its faults; without it, faults raise CheckError with the repair command.
    change: if the lab runs with another fabric, apply the difference to it; without it, that is an InputError.
    Raises MachineError when this machine cannot run it, InputError when another lab has that name; both leave nothing
    behind of a lab that this call creates. CheckError when it does not converge: the lab is left for inspection. With
    `rollback` it is taken down, if this call created it.
    """
    observer = observer or Silent()
    engine = get_runtime(runtime)
    lab = lab_from(blueprint_from(wanted), engine)
    clock = StepClock()
    check_free(lab.name)
    with owners.lock(lab.name, work="start"):
        check_free(lab.name)  # again: with the lock, the owner stays the same
        running = _running(lab, options, observer, clock, source if change else None)
        if running is None:
            done = Repaired() if repair else None
            return _created(lab, options, source, observer, timeout, clock, done, rollback=rollback)
        owners.claim_lab(lab.name)
        return _result(running, clock, _resumed(running, observer, timeout, clock, repairing=repair), observer)


def _created(
    lab: Lab, options: RenderOptions, source: str, observer: Observer, timeout: float | None, clock: StepClock,
    done: Repaired | None, *, rollback: bool,
) -> UpResult:  # fmt: skip
    """`up` of a lab that does not run."""
    engine = lab.runtime
    check_daemons(lab.fabric, engine)
    if kept := state.stored_runs(lab.name):
        observer.say(f"lab {lab.name}: kept {many(kept, 'stored run')} of an earlier lab of that name")
    for note in lab.blueprint.notes:
        observer.say(note)
    queues = lab.fabric.policy.queues
    ring = deadlock_warning(lab.fabric)
    for line in (*_shown(lab.blueprint.warnings), *queues.late_marks, *queues.lossy_data(DSCP_DATA), *ring):
        observer.warn(line)
    control_of(lab.fabric)  # InputError when its plugin is not here
    devices = lab.blueprint.spec_data().get("attach", {})
    if devices:
        function("check-devices", "attach")(lab, devices)
    if engine.here:
        preflight(lab.fabric, daemons=engine.daemons_here and lab.fabric.policy.routing.by_bgp)
        switch.check(lab.fabric)
        problems, warnings = lab.blueprint.kernel_faults()
        for line in warnings:
            observer.warn(line)
        if problems:
            raise MachineError(*problems)
    with clock.step("prepare"):
        chosen = engine.prepare(lab.fabric, options, observer)
    lab = _make(lab, chosen, source, observer, clock)
    try:
        with clock.step("converge"):
            lab.wait(observer, timeout)
        if devices:
            with clock.step("attach"):
                function("attach-devices", "attach")(lab, devices, observer)
        if lab.blueprint.rendered and lab.fabric.policy.routing.by_bgp:
            with suppress(HeddleError):  # without it `up --repair` cannot tell what was entered since
                record_loaded(lab)
        return _result(lab, clock, done, observer, created=True)
    except BaseException as error:  # Ctrl-C above all
        if rollback or not isinstance(error, CheckError):
            _undo(lab, error, observer)
            raise
        left = Problem("", f"lab {lab.name}", "is left running for inspection", f"./inv down {lab.name} removes it")
        raise CheckError(*error.problems, left) from None


def check_daemons(fabric: Fabric, engine: Runtime) -> None:
    """InputError for shared daemons where each switch is a container, or has its daemons in a shard."""
    if fabric.policy.routing.daemons == "shared" and not (engine.here and engine.daemons_here):
        why = f"is possible in runtime netns only: in runtime {engine.name} each switch runs its own"
        raise InputError(Problem("", "routing.daemons: shared", why, "add --set routing.daemons=own"))


def repair_lab(name: str | None, observer: Observer | None = None, timeout: float | None = None) -> UpResult:
    """Repair a running lab and wait for its routes, as `up` with `repair`. name: None if only one lab is running."""
    lab, clock = open_lab(name), StepClock()
    with owners.lock(lab.name, work="repair"):
        observer = observer or Silent()
        return _result(lab, clock, _resumed(lab, observer, timeout, clock, repairing=True), observer)


def _resumed(
    lab: Lab, observer: Observer, timeout: float | None, clock: StepClock, *, repairing: bool
) -> Repaired | None:
    """`up` of a running lab: return when every route is in every kernel. repairing: repair faults first.

    Nodes, daemons, queues, links and sessions are checked before waiting for routes. Missing routes follow from their
    faults, and often name other switches than the broken one. MachineError when nodes are missing. CheckError with the
    faults and the command that repairs them, or with the sessions and routes that are missing after `timeout` seconds.
    """
    with clock.step("converge"):
        done = None
        if repairing:
            done = health.repair(lab, observer)
        elif lost := lab.missing_nodes():
            raise MachineError(*lost)
        elif wrong := health.faults(lab):
            raise CheckError(*wrong)
        elif missing := _missing_sessions(lab):
            observer.warn(f"no BGP session: {some_of(missing, joint='; ')}")
        kept = done is not None and bool(done.left)  # routes avoid what is down or drained on purpose
        try:
            # After a short link failure the kernel keeps outdated routes until bgpd has noticed it. So after a repair
            # wait for the sessions as well.
            if kept or (done is not None and done.done and lab.blueprint.rendered):
                linkstate.wait(lab, linkstate.SECONDS if timeout is None else timeout)
            else:
                lab.wait(observer, timeout)
        except CheckError as error:
            if not (missing := _missing_sessions(lab)):
                raise
            # Sessions are reported before the routes that are missing because of them.
            show = f"./inv exec --lab {lab.name} {missing[0].partition(':')[0]} vtysh -c 'show bgp summary'"
            why = f"sessions are missing: {some_of(missing, joint='; ')}"
            raise CheckError(Problem(lab.name, "BGP", why, show), *error.problems) from None
        if foreign := facts(lab, lab.snapshot(parts(lab)), ("route",)):
            raise CheckError(*(each.problem for each in foreign))  # whose origin may install them again after a repair
    return done


def _result(
    lab: Lab, clock: StepClock, done: Repaired | None, observer: Observer, *, created: bool = False
) -> UpResult:
    """The state of a lab that has its routes. CheckError for what a repair could not repair."""
    with clock.step("check"):
        now, found = health.settled(lab, 0 if done and done.left else _SETTLE_S)
    verdict = converged(lab, now, found)
    if done and not created and verdict is False and (lost := [each.problem for each in found if not each.on_purpose]):
        for line in done.done:
            observer.say(f"repaired  {line}")
        again = f"./inv down {lab.name}, then up again: --repair cannot repair this"
        raise CheckError(*(replace(each, hint=again) if "--repair" in each.hint else each for each in lost))
    faults = tuple(each.text for each in found)
    return UpResult(lab, created, verdict, clock.seconds(), done, faults, clock.steps)


def _missing_sessions(lab: Lab) -> list[str]:
    found = lab.blueprint.missing_sessions(lab.snapshot(LabPart.SESSIONS))
    return [f"{each.a.text()} - {each.b.text()}" for each in found]


@dataclass(frozen=True, slots=True)
class DownResult:
    """The result of `down`; it is false when there was nothing to remove.

    runs: the number of stored runs that were removed with the lab. other: the owner of the lab on this machine, if that
    is another state directory. With `forced` its lab was removed, and its record and runs stay there; otherwise only
    this directory's record and runs of that name.
    """

    removed: bool
    runs: int = 0
    other: LabOwner | None = None
    forced: bool = False

    def __bool__(self) -> bool:
        return self.removed


def down(
    name: str, observer: Observer | None = None, *, force: bool = False, ask: Callable[[str], bool] | None = None,
    cluster: Mapping[str, str] | None = None,
) -> DownResult:  # fmt: skip
    """Remove everything of a lab, in any state.

    InputError for a lab of another state directory, unless with `force` or when `ask` answers a question with True.
    cluster: where runtime `kubernetes` looks for its shards, as in the options of a record; by default as recorded.
    """
    observer = observer or Silent()
    engines = engines_of(state.check_name(name), cluster)
    other = other_owner(name)
    if other is not None and not force and not state.lab_dir(name).exists():
        if ask is None or not ask(f"lab {name} {other.text()}. Remove it?"):
            raise InputError(Problem("", f"lab {name}", other.text(), f"./inv down {name} --force removes it"))
        force = True
    with owners.lock(name, work="removal"), owners.lock(name, owners.CHANGES):
        if (now := other_owner(name)) != other:
            why = "has another owner than a moment ago" if now is None else now.text()
            raise InputError(Problem("", f"lab {name}", why, f"run ./inv down {name} again"))
        if other is not None and force:
            remove(name, observer, *engines, keep_record=True)
            return DownResult(removed=True, other=other, forced=True)
        runs = state.stored_runs(name)
        if other is not None:  # the lab that this directory has a record of is gone
            return DownResult(state.remove_record(name), runs, other)
        _record_ending(name)
        return DownResult(remove(name, observer, *engines), runs)


def _record_ending(name: str) -> None:
    """Record what is about to happen, so that a removal which is killed is seen and finished."""
    with suppress(HeddleError):  # a damaged record or a full disk must not prevent a removal
        if (record := state.read_record(name)) is not None:
            state.write_record(replace(record, phase="ending"))


def _shown(warnings: Sequence[str]) -> list[str]:
    """The first lines, and where the others are."""
    more = len(warnings) - _WARNINGS
    last = [f"and {more} more like these: ./inv up FILE --dry-run lists all"] if more > 0 else []
    return [*warnings[:_WARNINGS], *last]


def _make(lab: Lab, options: RenderOptions, source: str, observer: Observer, clock: StepClock) -> Lab:
    """Create the lab without waiting for routes. After any failure nothing is left behind."""
    record = state.Record(
        *(lab.name, lab.runtime.name, "starting", lab.blueprint.spec_data(), source),
        options=_recorded(options),
        version=VERSION,
        imported=lab.blueprint.recorded(),
    )
    journal = Journal()
    umask = os.umask(0o022)  # no other user may write files that root reads later; daemons read them as user frr
    try:
        owners.claim_lab(lab.name)
        state.write_record(record)
        if lab.runtime.here:
            load_htb()
            limits.HERE.raise_for(lab.name, limits.needs_of(lab.fabric), on_machine, journal, observer)
        with clock.step("render"):
            lab.blueprint.write(lab.topology.parent, options)
            give_to_caller(lab.topology.parent, deep=True)
        with clock.step("create"):
            lab.runtime.create(lab.name, lab.topology, journal, observer)
        # Changes that need the kernel's RTNL lock come before the daemons, since hundreds of these take it in turn. But
        # the commands of a user-supplied topology may change its ports, so there the daemons come first.
        if lab.blueprint.rendered:
            _install(lab, journal, observer, clock)
            restore_all_routes(lab)
        with clock.step("start"):
            lab.runtime.start(lab.name, lab.topology, journal, observer)
        if not lab.fabric.policy.routing.by_bgp:
            _install_routes(lab, journal, observer, clock)
        if not lab.blueprint.rendered:
            _install(lab, journal, observer, clock)
            lab = lab_from(lab.blueprint.completed(lab.handles()), lab.runtime)
        state.write_file(lab.dir / "up.sh", journal.script())
        state.write_record(replace(record, phase="running", seconds=clock.seconds(), imported=lab.blueprint.recorded()))
        return lab
    except BaseException as error:
        _undo(lab, error, observer)
        if isinstance(error, OSError):
            raise trouble(error) from None
        raise
    finally:
        os.umask(umask)


def _undo(lab: Lab, error: BaseException, observer: Observer) -> None:
    """Remove a lab after an error of `up`. If that fails, too, a warning says so: the first error is the one to report.

    A cluster may have stopped answering, or refuse. The record stays, so `down` can finish it.
    """
    try:
        remove(lab.name, observer, lab.runtime, keep_runs=True)
    except HeddleError as second:
        if not isinstance(error, HeddleError):
            raise
        observer.warn(
            f"lab {lab.name} is not removed: {first_lines(second.problems)[0]}; ./inv down {lab.name} removes it"
        )


def _install(lab: Lab, journal: Journal, observer: Observer, clock: StepClock) -> None:
    """Queues, programs and the PFC agent."""
    if not lab.runtime.here:
        with clock.step("switch"):
            install_over_shards(lab, observer)
        return
    handles = lab.handles()
    with clock.step("switch"):
        switch.apply(lab.fabric, handles, journal, observer, lab.blueprint.own_hashing())
    with clock.step("agent"):
        switch.start_agent(lab.fabric, handles, lab.dir, journal)


def _install_routes(lab: Lab, journal: Journal, observer: Observer, clock: StepClock) -> None:
    """The routes of a lab without a routing program."""
    journal.comment(BY_NETLINK)
    with clock.step("routes"):
        observer.begin("routes")
        observer.end("routes", f"installed on {len(control_of(lab.fabric).follow(lab))} switches")


def _recorded(options: RenderOptions) -> dict[str, str]:
    """The options that distinguish two labs; not the subnet, which is any free one."""
    return {"dialect": options.dialect, "mgmt": options.mgmt, **options.target}


def _running(lab: Lab, options: RenderOptions, observer: Observer, clock: StepClock, source: str | None) -> Lab | None:
    """The lab, if it is already running as requested. Incomplete ones are removed. InputError on a name conflict.

    source: of the file whose difference is applied to a lab that runs with another one; None: it is an InputError.
    """
    record = state.read_record(lab.name)
    if (conflict := lab.runtime.name_conflict(lab.name)) is not None:
        raise InputError(conflict)
    if record is None:
        for runtime in all_runtimes():  # BPF pins are named after the lab, so no other one may use the name either
            if runtime.exists(lab.name):
                why = f"exists (runtime {runtime.name}), but this user's Heddle has no record of it"
                raise InputError(Problem("", f"lab {lab.name}", why, f"./inv down {lab.name}, or use another --name"))
        return None
    engine = get_runtime(record.runtime)
    gone = record.phase == "running" and len(engine.missing_nodes(lab.name, lab.topology)) == len(lab.handles())
    if gone or record.phase != "running" or not engine.exists(lab.name):
        what = "has lost all its nodes" if gone else "is incomplete"
        if record.phase == "ending":
            what = "was being removed"
        observer.warn(f"lab {lab.name} {what}; removing the rest of it first")
        remove(lab.name, observer, engine, keep_runs=record.phase != "ending")
        return None
    check_version(record)
    problems = [] if record.runtime == lab.runtime.name else [("runtime", record.runtime, lab.runtime.name)]
    wanted = _recorded(options)
    problems += [
        (key, old, wanted[key])
        for key, old in record.options.items()
        if wanted.get(key, old) != old and not (key == "mgmt" and engine.daemons_here)  # only containers have one
    ]
    edits = lab.blueprint.differences(record)
    if edits and not problems and source is not None and _changeable(lab, record):
        with clock.step("change"):
            return cast(Lab, function("change-lab", "up")(record, lab.blueprint, options, source, observer))
    if problems := [*problems, *edits]:
        hint = f"./inv down {lab.name} first, or use another --name"
        why = "is already running with other settings"
        details = [
            Problem("", f"{path}: {new}", f"was requested, but the running lab uses {old}")
            for path, old, new in problems
        ]
        raise InputError(Problem("", f"lab {lab.name}", why, hint), *details)
    observer.say(f"lab {lab.name} is already up with this fabric")
    return lab_of(record)


def _changeable(lab: Lab, record: state.Record) -> bool:
    """Whether the difference of two fabric files can be applied, as far as runtimes and plugins go."""
    return lab.blueprint.rendered and not record.imported and not missing("call", "change-lab")


def planned(wanted: Source) -> list[str] | None:
    """What `up` would change in the lab that runs with another fabric, in lines; None where it would not change one.

    InputError when it would refuse.
    """
    lab = lab_from(blueprint_from(wanted), get_runtime("netns"))
    record = state.read_record(lab.name)
    if record is None or record.phase != "running" or not _changeable(lab, record):
        return None
    if not lab.blueprint.differences(record):
        return None
    return list(function("change-plan", "up")(record, lab.blueprint).lines)


class StepClock:
    """Elapsed time of each step, in seconds, and what it used."""

    def __init__(self) -> None:
        self._start = StepUse.now()
        self.steps: dict[str, StepUse] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a with block."""
        start = StepUse.now()
        try:
            yield
        finally:
            self.steps[name] = StepUse.now().since(start)

    def seconds(self) -> dict[str, float]:
        """Steps so far, and `total`."""
        total = StepUse.now().since(self._start)
        return {name: each.seconds for name, each in {**self.steps, "total": total}.items()}


def _recorded_runtime(name: str) -> str:
    """The runtime of a lab's record, else of its shards; empty if there is none that can be read."""
    reads: Sequence[Callable[[str], state.Record | ShardPlan | None]] = (state.read_record, ShardPlan.read)
    for read in reads:
        with suppress(MachineError):
            if found := read(name):
                return found.runtime
    return ""


def engines_of(name: str, cluster: Mapping[str, str] | None) -> list[Runtime]:
    """All runtimes. cluster: see `lifecycle.down`; with it, InputError for a lab that is recorded on this machine.

    InputError also when the lab's runtime is of a plugin that cannot be used: its nodes would stay.
    """
    recorded = _recorded_runtime(name)
    if cluster is not None and recorded in HERE:
        hint = f"./inv down {name} removes it"
        raise InputError(Problem("", f"lab {name}", f"is on this machine (runtime {recorded})", hint))
    if (problem := missing(RUNTIMES.kind, recorded if cluster is None else KUBERNETES)) is not None:
        raise InputError(problem)
    return [get_runtime(each, cluster if each == KUBERNETES else None) for each in RUNTIMES.usable()]


def remove(
    name: str, observer: Observer, *engines: Runtime, keep_runs: bool = False, keep_record: bool = False
) -> bool:
    """Remove everything of a lab, but with `keep_runs` not its stored runs; False when there was nothing.

    keep_record: it is a lab of another state directory, where its record and its runs stay. The record is removed last,
    so that what is left after a kill is still known as a lab.
    """
    from heddle.kernel import rdma

    with _uninterrupted(), machine_errors():
        as_root()
        if not keep_record:
            attached.restore_devices(name)
        pfc.stop(name)
        rdma.remove_links(rdma.prefix_of(name))  # of a run that was killed; in a namespace, it goes with that
        count = sum(engine.destroy(name, observer) for engine in engines)
        switch.remove(name)
        limits.HERE.release(name, on_machine, observer)
        owners.disown_lab(name)
        return (not keep_record and state.remove_record(name, keep_runs=keep_runs)) or count > 0


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C: a removal takes about a second and should not be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
