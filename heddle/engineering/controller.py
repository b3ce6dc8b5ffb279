"""A controller of traffic engineering: recompute at an interval, and at once when a link or a route changes.

In:  a running lab; the interval.
Out: a TeRound for each computation, until the lab is gone; changed entries in the switches.
It has no state that matters: topology, demand and the entries in force are read from the switches each time. When it
ends, in whatever way, the switches keep their entries, and BGP's multipath remains the fall-back.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING, Any, Final

from heddle.base import owners, state
from heddle.base.problems import HeddleError
from heddle.engineering.te import PARTS, TeDemand, TePlan, TeSpread, counted, plan_for
from heddle.kernel.netlink import changes_of_links_and_routes
from heddle.lab.engineered import put_in_force
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import nothing, spread

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

LEAST_GAIN: Final = 0.05  # a smaller one is not worth a change of paths
_SHARD_SLICE_S: Final = 0.05  # all shards are waited for, also when one has a change
_SETTLE_S: Final = 0.05  # routes of several switches change together
_SLICE_S: Final = 0.5  # after so long at the latest, a lab that is gone is noticed
_MESSAGES: Final = 65536  # bytes of messages that are read at once


@dataclass(frozen=True, slots=True)
class TeRound:
    """One computation. reason: `interval`, or what changed. at: seconds since the epoch.

    plan: None without traffic, or where an error prevented it. changed: switches with changed entries. seconds: from
    the decision, when the plan was made, until the last switch had its entries; 0 if none changed.
    """

    at: float
    reason: str
    plan: TePlan | None = None
    changed: tuple[str, ...] = ()
    seconds: float = 0.0
    error: HeddleError | None = None

    @property
    def spread(self) -> tuple[TeSpread | None, TeSpread] | None:
        """Use of the links of the direction with the busiest link, before and after."""
        found = self.plan.spreads().values() if self.plan is not None else ()
        return max(found, key=lambda each: (each[0] or each[1]).most, default=None)

    def to_json(self) -> dict[str, Any]:
        before, after = self.spread or (None, None)
        return {
            "at": self.at, "reason": self.reason, "entries": self.plan.entries if self.plan else None,
            "switches_changed": list(self.changed), "seconds": self.seconds,
            "before": before.to_json() if before else None, "after": after.to_json() if after else None,
            "error": str(self.error) if self.error else None,
        }  # fmt: skip


def worth(plan: TePlan) -> bool:
    """Whether a plan relieves the busiest link by more than LEAST_GAIN, or evens out the use of all links by as much.

    The second is the sum of the squares of their uses: a link that no plan can relieve must not hide all others. True
    if the present use is not known.
    """
    uses = [link.use(plan.seconds) for link in plan.links]
    before, after = [old for old, _ in uses if old is not None], [new for _, new in uses]
    if len(before) < len(after) or not after:
        return bool(after)
    gains = (max(after), max(before)), (sum(use**2 for use in after), sum(use**2 for use in before))
    return any(new < old * (1 - LEAST_GAIN) for new, old in gains)


def rounds(lab: Lab, interval_s: float, by: str) -> Iterator[TeRound]:
    """Recompute until the lab is gone. by: the command, for the record.

    The demand is what the switches counted in the last interval. After a change of a link or a route it is the same
    demand again, or what was counted so far. A plan for a new interval is put in force if it is worth it.
    """
    owner = owners.owner_of(lab.name)

    def here() -> bool:
        """Whether it is the same lab, and `down` has not begun."""
        record = state.read_record(lab.name)
        return owners.owner_of(lab.name) == owner and record is not None and record.phase == "running"

    with ExitStack() as stack:
        _listen(lab)
        stack.callback(_close_here, lab.name)
        before, began = lab.snapshot(LabPart.COUNTERS).counters, time.monotonic()
        demand: TeDemand | None = None
        while True:
            event = _wait(lab, began + interval_s, here)
            if event is None:
                return
            reason = "a link or a route changed" if event else "interval"
            try:
                found = demand
                if not event or demand is None:
                    after, now = lab.snapshot(LabPart.COUNTERS).counters, time.monotonic()
                    found = counted(lab.fabric, before, after, now - began)
                if not event:
                    before, began, demand = after, now, found or demand
                yield _round(lab, reason, found, by, always=event)
            except HeddleError as error:
                if not here():
                    return
                yield TeRound(time.time(), reason, error=error)
                if not event:
                    began = time.monotonic()


def _round(lab: Lab, reason: str, demand: TeDemand | None, by: str, *, always: bool) -> TeRound:
    if demand is None:
        return TeRound(time.time(), reason)
    now = lab.snapshot(PARTS)
    plan = plan_for(lab, demand, now)
    decided, at = time.monotonic(), time.time()
    changed = put_in_force(lab, plan.tables, by, now.hashing) if always or worth(plan) else ()
    return TeRound(at, reason, plan, changed, time.monotonic() - decided if changed else 0.0)


def _wait(lab: Lab, until: float, here: Callable[[], bool]) -> bool | None:
    """True when a link or a route changed, False when the time is over, None when the lab is gone."""
    slice_s = _SLICE_S if lab.runtime.here else _SHARD_SLICE_S
    while here():
        if (left := until - time.monotonic()) <= 0:
            return False
        try:
            if _changed(lab, min(slice_s, left)):
                return True
        except HeddleError:
            if here():
                raise
    return None


_SOCKETS: Final[dict[str, list[socket]]] = {}  # by lab: messages of its switches


@spread(nothing)
def _listen(lab: Lab) -> None:
    """Begin to receive the changes of links and routes in the kernels of switches."""
    _close_here(lab.name)
    handles, found = lab.handles(), _SOCKETS.setdefault(lab.name, [])
    for node in lab.fabric.switches:
        if node.name in handles:
            found.append(changes_of_links_and_routes(handles[node.name].netns))


@spread(any)
def _changed(lab: Lab, seconds: float) -> bool:
    """Wait so long for a change of a link or a route; whether there was one."""
    sockets = _SOCKETS.get(lab.name, [])
    if not select.select(sockets, [], [], seconds)[0]:
        return False
    time.sleep(_SETTLE_S)
    for each in sockets:
        _drain(each)
    return True


def _close_here(lab: str) -> None:
    for each in _SOCKETS.pop(lab, []):
        each.close()


def _drain(each: socket) -> None:
    while True:
        try:
            each.recv(_MESSAGES)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: messages were lost, and more may wait
            continue
