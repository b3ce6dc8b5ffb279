"""Collecting evidence: one snapshot before a run, and one after it when its last packet has been counted.

In:  a running lab; the flows with what each sender put on the wire.
Out: the snapshot before; Evidence.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from heddle.fabric.model import Fabric
from heddle.kernel.handle import NodeHandle
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.proof import oracle
from heddle.proof.evidence import PARTS, Evidence
from heddle.switch.counters import FlowCount, SwitchCounters, clear
from heddle.switch.queues.classes import deepest_queue
from heddle.traffic.flow import FlowKey, Sent

NO_PART: Final = LabPart(0)
SETTLE_S: Final = 1.0  # how long counters may take to stop after a run, beside what ports need to drain
_POLL_S: Final = 0.02
_STILL_POLLS: Final = 6  # at 1 Mb/s, the slowest that a fabric may be, three packets of 4 KB go by
_EMPTY_S: Final = 0.002
_EMPTY_POLLS: Final = 3
_QUIET_POLLS: Final = 3  # at 1 Mb/s, a packet of 4 KB and more


class RunningLab(Protocol):
    """What of a lab is needed here."""

    @property
    def fabric(self) -> Fabric:
        """Its fabric."""

    def handles(self) -> Mapping[str, NodeHandle]:
        """The handle of every node."""

    def snapshot(self, parts: LabPart, nodes: Collection[str] | None = None) -> Snapshot:
        """These parts of it, read once."""


def collect_before(lab: RunningLab, more: LabPart = NO_PART) -> Snapshot:
    """Clear the counters of flows and read all switches, once nothing of an earlier run is under way.

    The rows of earlier runs are in their evidence; kept in the map, they would fill it. The caller holds the lock of
    runs. more: parts that the caller needs beside those of evidence, so that the lab is read once. MachineError when no
    lab runs.
    """
    _wait_until_quiet(lab)
    clear(lab.fabric)
    return lab.snapshot(PARTS | more)


def wait_until_delivered(lab: RunningLab) -> None:
    """Wait until the queues of the lab are empty, or it takes too long: what was sent reached a NIC, or is lost.

    A packet between two queues is in none of them for microseconds, so they must be empty at several readings.
    """
    deadline = time.monotonic() + _patience(lab.fabric)
    empty = 0
    while empty < _EMPTY_POLLS and time.monotonic() < deadline:
        waits = bool(lab.snapshot(LabPart.QUEUES).queues.cells["depth"].any())
        empty = 0 if waits else empty + 1
        time.sleep(_EMPTY_S)


def collect_after(
    lab: RunningLab,
    before: Snapshot,
    sent: Sequence[Sent],
    received: Sequence[int] = (),
    seconds: float | None = None,
    more: LabPart = NO_PART,
) -> Evidence:
    """Read it again when all packets have arrived, or nothing moves any more, or it takes too long. more: as above.

    received: what the receiving NIC took of each flow. seconds: how long the run sent. Either where it is known.
    """
    _wait_until_counted(lab, before, sent)
    asked = oracle.ask(lab.fabric, lab.handles(), before.hashing, [each.flow for each in sent])
    now = lab.snapshot(PARTS | more)  # after the oracle: what changes meanwhile is seen
    return Evidence.of(before, now, sent, asked.paths, received, seconds, asked.choices)


def _wait_until_quiet(lab: RunningLab) -> None:
    """Until counters stop: a run that was killed leaves packets in slow ports, which are not the next one's."""
    deadline = time.monotonic() + _patience(lab.fabric)
    last = _flows(lab.snapshot(LabPart.COUNTERS).counters)
    still = 0
    while still < _QUIET_POLLS and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _flows(lab.snapshot(LabPart.COUNTERS).counters)
        still = still + 1 if now == last else 0
        last = now


def _flows(counters: Mapping[str, SwitchCounters]) -> dict[str, tuple[FlowCount, ...]]:
    return {name: table.flows for name, table in counters.items()}


def _patience(fabric: Fabric) -> float:
    """Seconds in which all that is under way has passed: it may fill the queues of a slow port."""
    deepest = max(deepest_queue(fabric, number) for number in fabric.policy.queues.numbers)
    return SETTLE_S + 8 * deepest / fabric.slowest_bps


def _wait_until_counted(lab: RunningLab, before: Snapshot, sent: Sequence[Sent]) -> None:
    deadline = time.monotonic() + _patience(lab.fabric)
    last: dict[str, tuple[FlowCount, ...]] = {}
    still = 0
    while True:
        counters = lab.snapshot(LabPart.COUNTERS).counters
        now = _flows({name: table.since(before.counters[name]) for name, table in counters.items()})
        still = still + 1 if now == last else 0
        if _arrived(lab.fabric, now, sent) or still >= _STILL_POLLS or time.monotonic() > deadline:
            return
        last = now
        time.sleep(_POLL_S)


def _arrived(fabric: Fabric, counted: Mapping[str, Sequence[FlowCount]], sent: Sequence[Sent]) -> bool:
    """True when the ports that lead to hosts have counted every packet that was sent."""
    to_hosts = {port.peer_ref for host in fabric.hosts for port in host.ports}
    found: dict[FlowKey, int] = {}
    for switch, rows in counted.items():
        for row in rows:
            if f"{switch}:{row.port}" in to_hosts:
                found[row.key] = row.packets
    return all(found.get(each.flow.key, 0) == each.packets for each in sent)
