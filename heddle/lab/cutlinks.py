"""The cut links of a lab in shards: what they carried, what their tunnels lost, and who carries the state of ports."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.problems import MachineError, Problem
from heddle.base.process import end_all, run
from heddle.lab.spread import concat, nothing, spread
from heddle.runtimes.netns import cable_space
from heddle.runtimes.netns_space import RUN_DIR
from heddle.runtimes.netns_topology import read_topology
from heddle.runtimes.sharded import ShardPlan
from heddle.switch.links.cuts import CutCount, CutEnd, TunnelUse, read_counts, tunnel_uses

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


CARRIER_KEY: Final = "carrier.key"  # in the directory of a shard's lab
_REPORT: Final = "carrier.json"
_READINGS: Final = 20
_END_S: Final = 2.0
_WAIT_S: Final = 15.0  # until all shards hear each other
_LOOK_S: Final = 0.1
NOT_HEARD: Final = "is not heard"
_BLOCKED: Final = "allow UDP ports 4789 and 4792 between the pods: look at NetworkPolicies (docs/kubernetes.md)"


def cut_ends(lab: Lab) -> list[CutEnd]:
    """The ends of cut links in this shard; none on one machine."""
    return [
        CutEnd(each.end.node, each.end.interface, each.number, each.far, each.remote)
        for each in read_topology(lab.topology).cuts
    ]


@spread(nothing)
def keep_carriers(lab: Lab) -> None:
    """Start the process that carries the state of ports over this shard's cut links, if it does not run."""
    handles, place = lab.handles(), RUN_DIR / lab.name
    ends = [
        {
            "space": str(handles[each.node].netns), "port": each.port, "stub": each.stub, "number": each.number,
            "far": each.far, "remote": str(each.remote),
        }
        for each in cut_ends(lab)
    ]  # fmt: skip
    if not ends:
        return
    place.mkdir(parents=True, exist_ok=True)
    key = (lab.dir / CARRIER_KEY).read_text(encoding="ascii").strip()
    config = {
        "lab": lab.name, "key": key, "cables": str(cable_space(lab.name)), "report": str(place / _REPORT), "ends": ends,
    }  # fmt: skip
    argv = ["env", f"PYTHONPATH={resources.HERE.python_path}", sys.executable, "-P", "-m", "heddle.shards.carrier"]
    run(argv, stdin=json.dumps(config), called="the carrier of cut links")


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
    """The round trip to another shard, by heartbeats, ns: the last one, and the longest. alive: whether it answers."""

    address: str
    alive: bool
    rtt_ns: int
    most_ns: int


@dataclass(frozen=True, slots=True)
class ShardCarrier:
    """The process of a shard. working: whether it runs; also where there is no cut link. trips: to the other shards."""

    working: bool = True
    trips: tuple[FarTrip, ...] = ()


@spread(concat)
def carriers(lab: Lab) -> list[ShardCarrier]:
    """One for each shard, in their order."""
    if not cut_ends(lab):
        return [ShardCarrier()]
    place = RUN_DIR / lab.name / _REPORT
    with suppress(OSError, ValueError):
        rows = json.loads(place.read_text(encoding="utf-8"))
        working = _process(lab) is not None
        return [ShardCarrier(working, tuple(FarTrip(address, **row) for address, row in rows.items()))]
    return [ShardCarrier(working=False)]


def round_trips(lab: Lab) -> list[FarTrip]:
    """From each shard to each of the others that it has cut links to."""
    return [trip for each in carriers(lab) for trip in each.trips]


def lost_carriers(lab: Lab) -> list[Problem]:
    """Shards whose process does not run, and those that do not hear another one. None on one machine."""
    if lab.runtime.here:
        return []
    plan, found = ShardPlan.read(lab.name), list[Problem]()
    names = {address: name for name, address in plan.addresses.items()}
    for name, each in zip(plan.shards, carriers(lab), strict=True):
        if not each.working:
            why = "does not run: ports at the other ends lose their carrier"
            found.append(Problem(f"shard {name}", "the process that carries the state of ports", why, _again(lab)))
        for trip in each.trips:
            if each.working and not (trip.alive and trip.rtt_ns):
                what = f"shard {names.get(trip.address, '')} at {trip.address}"
                found.append(Problem(f"shard {name}", what, NOT_HEARD, _BLOCKED))
    return found


def _again(lab: Lab) -> str:
    return f"./inv up --repair --name {lab.name} starts it again"


def wait_for_carriers(lab: Lab, seconds: float = _WAIT_S) -> None:
    """Return when all shards hear each other. MachineError with those that do not after some seconds."""
    until = time.monotonic() + seconds
    while found := lost_carriers(lab):
        if time.monotonic() > until:
            raise MachineError(*found)
        time.sleep(_LOOK_S)


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
