"""A lab in shards: cut links, what their tunnels lost, the state of ports; shards set up, lost, out of memory."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.base.process import Journal, dying_with_us, end_all, run
from heddle.base.tables import many, some_of
from heddle.base.units import format_size
from heddle.host.capacity import memory_kills
from heddle.lab.spread import concat, nothing, spread
from heddle.runtimes.netns import cable_space
from heddle.runtimes.netns_space import RUN_DIR
from heddle.runtimes.netns_topology import read_topology
from heddle.runtimes.sharded import ShardedRuntime, ShardPlan
from heddle.switch import install as switch
from heddle.switch.links import cuts
from heddle.switch.links.cuts import BEAT, TUNNEL, CutCount, CutEnd, TunnelUse, read_counts, tunnel_port, tunnel_uses
from heddle.switch.queues.classes import PortRef, port_ids
from heddle.switch.queues.portqueues import load_htb

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

CARRIER_KEY: Final = "carrier.key"  # in the directory of a shard's lab
_REPORT: Final = "carrier.json"
_READINGS: Final = 20
_END_S: Final = 2.0
_WAIT_S, _WAIT_LINK_S = 15.0, 0.002  # until all shards hear each other, and for each link
_DEAD_BEATS: Final = 15  # 3 s: when each shard has sent so many, one that is not heard will not be
_LOOK_S: Final = 0.1
_WATCH_S: Final = 1.0  # between two looks during a run
PROCESS: Final = "the process that carries the state of ports"
_BLOCKED: Final = (
    "allow this UDP port between the pods (NetworkPolicies), or use another one: ./inv setup kubernetes finds those "
    "that pass, ./inv up --tunnel-port takes one"
)
_CUT_OFF: Final = (
    "let the network pass fragments; IPv6 makes none: use pods of a larger MTU, or smaller link.mtu and roce.ib_mtu"
)


def cut_ends(lab: Lab) -> list[CutEnd]:
    """The ends of cut links in this shard; none on one machine."""
    return [
        CutEnd(each.end.node, each.end.interface, each.number, each.far, each.remote, each.vni, each.own_vni)
        for each in read_topology(lab.topology).cuts
    ]


def kernel_ids(lab: Lab) -> Mapping[PortRef, int]:
    """(node, port) -> its id in its own kernel."""
    if lab.runtime.here:
        return port_ids(lab.fabric)
    shards = ShardPlan.read(lab.name).shards.values()
    return {ref: number for nodes in shards for ref, number in port_ids(lab.fabric.of_shard(nodes)).items()}


@spread(nothing)
def keep_carriers(lab: Lab) -> None:
    """Start the process that carries the state of ports over this shard's cut links, if it does not run."""
    handles, place = lab.handles(), RUN_DIR / lab.name
    ends = [
        {
            "space": str(handles[each.node].netns), "port": each.port, "stub": each.stub, "number": each.own_vni,
            "far": each.vni, "row": each.far, "remote": str(each.remote),
        }
        for each in cut_ends(lab)
    ]  # fmt: skip
    if not ends:
        return
    place.mkdir(parents=True, exist_ok=True)
    key = (lab.dir / CARRIER_KEY).read_text(encoding="ascii").strip()
    frame = max(each.mtu for each in read_topology(lab.topology).cuts)
    config = {
        "lab": lab.name, "key": key, "cables": str(cable_space(lab.name)), "report": str(place / _REPORT), "ends": ends,
        "tunnel": TUNNEL, "beat": BEAT, "frame": frame,
    }  # fmt: skip
    argv = ["env", f"PYTHONPATH={resources.HERE.python_path}", sys.executable, "-P", "-m", "heddle.shards.carrier"]
    run(dying_with_us(argv, "KILL"), stdin=json.dumps(config), called="the carrier of cut links")


def _process(lab: Lab) -> int | None:
    """The process of this shard, which holds the lock of its file; None when none runs."""
    with suppress(OSError, ValueError), (RUN_DIR / lab.name / f"{_REPORT}.lock").open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(lock.read())
    return None


def end_carrier(lab: Lab) -> None:
    """End this shard's process, so that `keep_carriers` starts one with the present addresses."""
    with suppress(OSError):
        if (process := _process(lab)) is not None:
            end_all([os.pidfd_open(process)], _END_S)


@dataclass(frozen=True, slots=True)
class FarTrip:
    """The round trip to another shard, by beats through the tunnel, ns: the last one, and the longest.

    alive: whether it answers. whole: whether frames of the links' largest size come from there.
    """

    address: str
    alive: bool
    rtt_ns: int
    most_ns: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class ShardCarrier:
    """The process of a shard. working: whether it runs; also where there is no cut link. trips: to the other shards.

    beats: how many it has sent to each.
    """

    working: bool = True
    trips: tuple[FarTrip, ...] = ()
    beats: int = 0


@spread(concat)
def carriers(lab: Lab) -> list[ShardCarrier]:
    """One for each shard, in their order."""
    if not cut_ends(lab):
        return [ShardCarrier()]
    place = RUN_DIR / lab.name / _REPORT
    with suppress(OSError, ValueError):
        said = json.loads(place.read_text(encoding="utf-8"))
        trips = tuple(FarTrip(address, **row) for address, row in said["trips"].items())
        return [ShardCarrier(_process(lab) is not None, trips, said["beats"])]
    return [ShardCarrier(working=False)]


def lost_carriers(lab: Lab, found: Sequence[ShardCarrier] | None = None) -> list[Problem]:
    """Shards whose process does not run, and tunnels that carry nothing, or no large frames. None on one machine.

    found: of all shards; by default as now.
    """
    if lab.runtime.here:
        return []
    plan = ShardPlan.read(lab.name)
    shards = dict(zip(plan.shards, carriers(lab) if found is None else found, strict=True))
    why, hint = "does not run: ports at the other ends lose their carrier", f"./inv up --repair --name {lab.name}"
    silent = [name for name, each in shards.items() if not each.working]
    problems = [Problem(f"shard {name}", PROCESS, why, f"{hint} starts it again") for name in silent]
    names = {address: name for name, address in plan.addresses.items()}
    for name, trip in ((name, trip) for name, each in shards.items() for trip in each.trips):
        far, answers = names.get(trip.address, ""), trip.alive and trip.rtt_ns
        if {name, far} & {*silent} or (answers and trip.whole):
            continue
        here, there = (_placed(lab, shard) for shard in (name, far))
        what = f"the tunnel from {there} ({trip.address}, UDP port {tunnel_port(plan.target)})"
        why = (
            "loses frames of the links' MTU, and passes small ones" if answers else "is dead: nothing comes through it"
        )
        problems.append(Problem(here, what, why, _CUT_OFF if answers else _BLOCKED))
    return problems


def _placed(lab: Lab, shard: str) -> str:
    """`shard s1 on node n2`."""
    place = ""
    if isinstance(lab.runtime, ShardedRuntime):
        with suppress(HeddleError):  # the tunnel is the error to report
            place = lab.runtime.cluster(lab.name).place(lab.name, shard)
    return f"shard {shard}{place}"


def wait_for_carriers(lab: Lab) -> None:
    """Return when all shards hear each other.

    MachineError with the tunnels that are dead: when all shards have sent enough beats, or after some seconds.
    """
    until = time.monotonic() + _WAIT_S + _WAIT_LINK_S * len(lab.fabric.links)
    while problems := lost_carriers(lab, found := carriers(lab)):
        if time.monotonic() > until or all(each.beats >= _DEAD_BEATS for each in found if each.trips):
            raise MachineError(*problems)
        time.sleep(_LOOK_S)


@contextmanager
def tunnels_watched(lab: Lab, warn: Callable[[str], None]) -> Iterator[None]:
    """Tunnels that die in the with block are named at once, and in its error before anything else."""
    if lab.runtime.here:
        yield
        return
    died, ended = dict[Problem, None](), threading.Event()

    def watch() -> None:
        last = list[Problem]()
        while not ended.wait(_WATCH_S):
            with suppress(HeddleError):  # a lost shard: the run itself names it
                now = [each for each in lost_carriers(lab) if each.what != PROCESS]
                for each in now:
                    if each in last and each not in died:  # twice: a busy machine may delay beats
                        died[each] = None
                        warn(str(each))
                last = now

    thread = threading.Thread(target=watch, name="tunnels", daemon=True)
    thread.start()
    try:
        yield
    except HeddleError as error:
        raise type(error)(*died, *error.problems) from None
    finally:
        ended.set()
        thread.join()


@spread(concat)
def cut_counts(lab: Lab) -> list[CutCount]:
    """What has crossed each end of a cut link since the lab came up."""
    ends = cut_ends(lab)
    return read_counts(lab.fabric, ends) if ends else []


def tunnels(lab: Lab) -> list[TunnelUse]:
    """Both directions of each cut link: frames sent over the tunnel, and those that did not arrive.

    It reads until that is sure, a limited number of times.
    """
    readings = [cut_counts(lab)]
    while True:
        readings.append(cut_counts(lab))
        found = tunnel_uses(readings)
        if len(readings) == _READINGS or not any(each.unsure for each in found):
            return found


class TunnelSpan:
    """The cut links of a lab from one reading to the next. Nothing on one machine."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._shards = lab, lab.runtime.shards(lab.name)
        self._before = self._read()
        self.links, self.frames, self.unsure = len(self._before) // 2, 0, 0
        self.lost: dict[str, int] = {}
        self.clock_ns = 0

    def _read(self) -> dict[str, TunnelUse]:
        return {} if self._shards is None else {each.port: each for each in tunnels(self._lab)}

    def end(self) -> None:
        """The second reading."""
        now = self._read()
        self.frames = sum(each.sent - self._before[port].sent for port, each in now.items())
        moved = {port: each.lost - self._before[port].lost - self._before[port].unsure for port, each in now.items()}
        self.lost = {port: count for port, count in moved.items() if count > 0}
        self.unsure = sum(each.unsure for each in now.values())
        if self._shards is not None:
            self.clock_ns = max((each.bound_ns for each in self._shards.clocks().values()), default=0)


@spread(nothing, nodes=lambda _, nodes=None: nodes)
def install_in_shard(lab: Lab, observer: Observer, nodes: Collection[str] | None = None) -> None:
    """Queues, programs, cut links, the process of their carriers and the PFC agent, in each shard."""
    load_htb()
    journal, handles = Journal(), lab.handles()
    cables = cable_space(lab.name)
    switch.apply(lab.fabric, handles, journal, observer, lab.blueprint.own_hashing(), cables)
    if ends := cut_ends(lab):
        cuts.attach(lab.fabric, cables, ends)
        keep_carriers(lab)
    switch.start_agent(lab.fabric, handles, lab.dir, journal)


def install_over_shards(lab: Lab, observer: Observer, nodes: Collection[str] | None = None) -> None:
    """`install_in_shard` in the shards of these nodes, by default in all; return when all shards hear each other."""
    install_in_shard(lab, observer, nodes)
    wait_for_carriers(lab)


def restore_shards(lab: Lab, observer: Observer) -> list[str]:
    """Bring lost shards up again, with empty queues and new daemons. A line for each; none on one machine."""
    runtime = lab.runtime
    if not isinstance(runtime, ShardedRuntime):
        return []
    lost = runtime.restore(lab.name, lab.topology, observer)
    if not lost:
        return []
    shards = ShardPlan.read(lab.name).shards
    nodes = [node for name in lost for node in shards[name]]
    install_over_shards(lab, observer, nodes)
    runtime.start_in(lab.name, lost, observer)
    return [f"shard {name}: started again ({some_of(shards[name])})" for name in lost]


@spread(concat)
def _kills(lab: Lab) -> list[tuple[int, int]]:
    """Of each shard: processes that were ended, and the limit in bytes."""
    return [memory_kills()]


def memory_problems(lab: Lab, before: Sequence[tuple[int, int]] = ()) -> list[Problem]:
    """Shards that were out of memory since `before`; none on one machine, whose kernel has its own log."""
    if lab.runtime.here:
        return []
    plan, found = ShardPlan.read(lab.name).shards, list[Problem]()
    for number, (name, (kills, limit)) in enumerate(zip(plan, _kills(lab), strict=True)):
        count = kills - (before[number][0] if before else 0)
        if count > 0:
            why = f"was out of memory: the kernel ended {many(count, 'process')} at its limit of {format_size(limit)}"
            hint = "use smaller sizes of runs, or more --shards"
            found.append(Problem(f"shard {name}", f"({some_of(plan[name])})", why, hint))
    return found


@contextmanager
def memory_named(lab: Lab) -> Iterator[None]:
    """An error in the with block names the shards that were out of memory meanwhile, before anything else."""
    before = list[tuple[int, int]]() if lab.runtime.here else _kills(lab)
    try:
        yield
    except HeddleError as error:
        raise type(error)(*memory_problems(lab, before), *error.problems) from None
