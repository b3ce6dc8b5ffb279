"""What a run leaves behind, so that its paths can be proven when it is over and the fabric has moved on.

In:  a running lab, before and after; the flows with what each sender put on the wire.
Out: Evidence: FIBs and hashing as they were, counters and drops over the run, and the oracle's answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from heddle.fabric.model import Fabric
from heddle.kernel.fib import Fib, read_fib
from heddle.kernel.handle import NodeHandle
from heddle.proof import oracle
from heddle.proof.measure import key_of
from heddle.switch.counters import SwitchCounters, read_counters
from heddle.switch.hashing.hashing import SwitchHashing, pin_dir, read_hashing
from heddle.switch.hashing.maps import Tables
from heddle.switch.queues.classes import deepest_queue
from heddle.switch.queues.portqueues import read_drops
from heddle.traffic.plan import Flow

SETTLE_S: Final = 1.0  # how long counters may take to stand still after a run, beside what ports need to drain
_POLL_S: Final = 0.02
_STILL_POLLS: Final = 6  # at 1 Mb/s, the slowest that a fabric may be, three packets of 4 KB go by
_QUIET_POLLS: Final = 3  # at 1 Mb/s, a packet of 4 KB and more
_SOFTNET: Final = Path("/proc/net/softnet_stat")


class RunningLab(Protocol):
    """What of a lab is needed here."""

    @property
    def name(self) -> str:
        """The lab's name."""

    @property
    def fabric(self) -> Fabric:
        """Its fabric."""

    def handles(self) -> Mapping[str, NodeHandle]:
        """The handle of every node."""


@dataclass(frozen=True, slots=True)
class SentFlow:
    """A flow and what its sender put on the wire for it: packets, retransmitted ones too, and bytes of frames."""

    flow: Flow
    packets: int
    bytes: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SentFlow:
        """An entry of `flows` in a run's file."""
        text = {key: str(data[key]) for key in ("src", "dst", "src_ip", "dst_ip", "first_hop")}
        flow = Flow(**text, sport=int(data["sport"]), qpn=int(data["qpn"]), dport=int(data["dport"]))
        return cls(flow, int(data["packets"]), int(data["bytes"]))

    def to_json(self) -> dict[str, Any]:
        """An entry of `flows` in a run's file."""
        f = self.flow
        return {
            "src": f.src, "dst": f.dst, "src_ip": f.src_ip, "dst_ip": f.dst_ip, "sport": f.sport, "dport": f.dport,
            "qpn": f.qpn, "first_hop": f.first_hop, "packets": self.packets, "bytes": self.bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Before:
    """The state of all switches before a run.

    drops: port -> packets. backlog: the machine's, see `backlog_drops`. epochs: switch -> Tables.epoch.
    """

    fibs: Mapping[str, Fib]
    hashing: Mapping[str, SwitchHashing]
    counters: Mapping[str, SwitchCounters]
    drops: Mapping[str, int]
    backlog: int
    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """FIBs and hashing before a run, everything else over the run.

    drops: `rtsw1:eth2` -> packets its queues refused. backlog_drops: packets that this machine's receive backlog lost,
    in whatever namespace. oracle: a path for each flow, in the run's order. changed: switches whose routes or hashing
    were others after the run than before. switched: those whose hashing was switched meanwhile, there and back too.
    """

    fibs: Mapping[str, Fib]
    hashing: Mapping[str, SwitchHashing]
    counters: Mapping[str, SwitchCounters]
    drops: Mapping[str, int]
    backlog_drops: int
    oracle: tuple[tuple[str, ...], ...]
    changed: tuple[str, ...] = ()
    switched: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the run's file."""
        return {
            "fib": [fib.to_json() for fib in self.fibs.values()],
            "hashing": [row.to_json() for row in self.hashing.values()],
            "counters": [table.to_json() for table in self.counters.values()],
            "drops": dict(self.drops),
            "backlog_drops": self.backlog_drops,
            "oracle": [list(path) for path in self.oracle],
            "changed": list(self.changed),
            "switched": list(self.switched),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """What `to_json` wrote."""
        fibs = [Fib.from_json(row) for row in data["fib"]]
        hashing = [SwitchHashing.from_json(row) for row in data["hashing"]]
        counters = [SwitchCounters.from_json(row) for row in data["counters"]]
        return cls(
            {fib.switch: fib for fib in fibs},
            {row.switch: row for row in hashing},
            {table.switch: table for table in counters},
            {str(port): int(count) for port, count in data["drops"].items()},
            int(data["backlog_drops"]),
            tuple(tuple(str(port) for port in path) for path in data["oracle"]),
            tuple(str(switch) for switch in data["changed"]),
            tuple(str(switch) for switch in data["switched"]),
        )


def collect_before(lab: RunningLab) -> Before:
    """Read the state of all switches, once nothing of an earlier run is under way. MachineError when no lab runs."""
    handles = switch_handles(lab)
    counters = _quiet(lab, handles)
    fibs, hashing = read_routing(lab.fabric, handles)
    return Before(
        fibs, hashing, counters, read_drops(lab.fabric, handles), backlog_drops(), read_epochs(lab.name, handles)
    )


def collect_after(lab: RunningLab, before: Before, flows: Sequence[SentFlow]) -> Evidence:
    """Read it again when all packets have arrived, or nothing moves any more, or it takes too long."""
    handles = switch_handles(lab)
    counters = _settled(lab, handles, before, flows)
    fibs, hashing = read_routing(lab.fabric, handles)
    changed = tuple(name for name in fibs if fibs[name] != before.fibs[name] or hashing[name] != before.hashing[name])
    drops = {port: count - before.drops.get(port, 0) for port, count in read_drops(lab.fabric, handles).items()}
    asked = oracle.ask(lab.fabric, handles, before.hashing, [sent.flow for sent in flows])
    lost = backlog_drops() - before.backlog
    switched = tuple(n for n, epoch in read_epochs(lab.name, handles).items() if epoch != before.epochs[n])
    return Evidence(before.fibs, before.hashing, counters, drops, lost, tuple(asked), changed, switched)


def read_routing(fabric: Fabric, handles: Mapping[str, NodeHandle]) -> tuple[dict[str, Fib], dict[str, SwitchHashing]]:
    """FIB and hashing of every switch of a lab, by name."""
    fibs = {name: read_fib(handle, fabric.policy.ip_version) for name, handle in handles.items()}
    return fibs, {name: read_hashing(fabric.name, handle) for name, handle in handles.items()}


def read_epochs(lab: str, handles: Mapping[str, NodeHandle]) -> dict[str, int]:
    """What tells of each switch that its hashing was switched, there and back included."""
    found = {}
    for name in handles:
        with Tables.pinned(pin_dir(lab, name)) as tables:
            found[name] = tables.epoch
    return found


def backlog_drops() -> int:
    """Packets that the machine's CPUs have dropped because netdev_max_backlog was reached, since boot.

    A packet that crosses a veth waits in the receiving CPU's backlog; what is lost there is lost by the machine, and in
    no namespace's counters.
    """
    return sum(int(line.split()[1], 16) for line in _SOFTNET.read_text().splitlines())


def _quiet(lab: RunningLab, handles: Mapping[str, NodeHandle]) -> dict[str, SwitchCounters]:
    """Counters that stand still: a run that was killed leaves packets in slow ports, which are not the next one's."""
    deadline = time.monotonic() + _patience(lab.fabric)
    last = _read_all(lab.name, handles)
    still = 0
    while still < _QUIET_POLLS and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _read_all(lab.name, handles)
        still = still + 1 if {n: t.flows for n, t in now.items()} == {n: t.flows for n, t in last.items()} else 0
        last = now
    return last


def _patience(fabric: Fabric) -> float:
    """Seconds in which all that is under way has passed: it may fill the queues of a slow port."""
    deepest = max(deepest_queue(fabric, number) for number in fabric.policy.queues.numbers)
    return SETTLE_S + 8 * deepest / fabric.slowest_bps


def _settled(
    lab: RunningLab, handles: Mapping[str, NodeHandle], before: Before, flows: Sequence[SentFlow]
) -> dict[str, SwitchCounters]:
    deadline = time.monotonic() + _patience(lab.fabric)
    last: dict[str, SwitchCounters] = {}
    still = 0
    while True:
        now = {name: table.since(before.counters[name]) for name, table in _read_all(lab.name, handles).items()}
        still = still + 1 if {n: t.flows for n, t in now.items()} == {n: t.flows for n, t in last.items()} else 0
        if _arrived(lab.fabric, now, flows) or still >= _STILL_POLLS or time.monotonic() > deadline:
            return now
        last = now
        time.sleep(_POLL_S)


def _arrived(fabric: Fabric, counters: Mapping[str, SwitchCounters], flows: Sequence[SentFlow]) -> bool:
    """True when the ports that lead to hosts have counted every packet that was sent."""
    to_hosts = {port.peer_ref for host in fabric.hosts for port in host.ports}
    found: dict[tuple[str, str, int], int] = {}
    for switch, table in counters.items():
        for row in table.flows:
            if f"{switch}:{row.port}" in to_hosts:
                found[row.src, row.dst, row.qpn] = row.packets
    return all(found.get(key_of(sent.flow), 0) == sent.packets for sent in flows)


def switch_handles(lab: RunningLab) -> dict[str, NodeHandle]:
    """The handles of a lab's switches, by name. Asking a lab for its handles reads its topology file: do it once."""
    handles = lab.handles()
    return {switch.name: handles[switch.name] for switch in lab.fabric.switches}


def _read_all(lab: str, handles: Mapping[str, NodeHandle]) -> dict[str, SwitchCounters]:
    return {name: read_counters(lab, handle) for name, handle in handles.items()}
