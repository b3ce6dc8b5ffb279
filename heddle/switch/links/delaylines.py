"""Delay lines: where the packets of a link with a delay wait, after they have left their queue.

In:  the namespace of the receiving node, its port, and the id of the sending port.
Out: a pair of veths in that namespace. Netem is the root of `lineN`; the program `back` at `backN` returns every packet
to the ingress of its port, where one CPU takes all packets, so that they keep their order. `dequeue` sends packets into
the line, after it has subtracted them from their queue (bpf/fault.h).
So netem is behind the shaper, the marks and the counters, and not at the root of any port.

Netem with jitter alone sorts packets by the time at which they leave, which reorders them. With a rate it does not
start a packet before the one in front of it (netem_enqueue), so a very high rate keeps the order. Packets that
`reorder` selects skip the delay.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel.netlink import refusal
from heddle.spec.impairments import NETEM_KINDS, PROGRAM_KINDS, FaultKind
from heddle.switch.queues.portids import classid

_LIMIT: Final = 1_000_000  # packets; more than any link of a lab has in flight
_RATE: Final = "rate 100gbit"  # keeps the order; a packet of 4 KB takes 0.3 us
_QOPT: Final = struct.Struct("=6I")  # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
_POLL_S: Final = 0.02
_LONGEST_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DelayLine:
    """One direction of a link. port: where the packets arrive. sender: id of the port that they leave by.

    values: key of each kind of fault by netem -> emulated nanoseconds, or a share from 0 to 1.
    """

    port: str
    sender: int
    values: Mapping[str, float]

    @property
    def inlet(self) -> str:
        """The interface that packets are sent to."""
        return f"line{self.sender}"

    @property
    def outlet(self) -> str:
        """The interface where they arrive, and return to the port."""
        return f"back{self.sender}"

    def netem(self) -> str:
        """The options of netem."""
        words = [
            kind.netem.format(f"{value}ns" if kind.unit == "time" else f"{100 * value:.7f}%")
            for kind in NETEM_KINDS
            if (value := self.values.get(kind.key, 0))
        ]
        return " ".join([f"netem limit {_LIMIT}", *words, _RATE])


@dataclass(frozen=True, slots=True)
class LineState:
    """A delay line as read from the kernel. values: as of DelayLine. waiting: packets. dropped: by netem itself, which
    should not happen.
    """

    ifindex: int
    values: Mapping[str, float]
    waiting: int
    dropped: int


@cache
def missing() -> str:
    """Empty when this kernel has netem, else the reason."""
    return refusal("netem", _QOPT.pack(0, _LIMIT, 0, 0, 0, 0))


def require(what: str) -> None:
    """MachineError when this kernel has no netem. what: the setting that needs it."""
    if why := missing():
        others = ", ".join(kind.key for kind in PROGRAM_KINDS)
        hint = f"use a kernel with netem, as that of --place vm; on any kernel: {others}"
        raise MachineError(Problem("kernel", what, f"is not possible: {why}", hint))


def put(netns: Path, lines: Sequence[DelayLine], back: Path) -> Mapping[int, tuple[int, int]]:
    """Create delay lines, or change those that are there, without packet loss.

    back: the pin of the program. Returns sender -> ifindex of the line's inlet, and of the port behind it.
    MachineError with the message of ip or tc.
    """
    found = read(netns)
    ports = _links(netns)
    fresh = [line for line in lines if line.sender not in found]
    partial = [name for line in fresh for name in (line.inlet,) if name in ports]
    _ip(netns, [f"link del dev {name}" for name in partial])
    steps, rules = [], []
    for line in fresh:
        mac, mtu = ports[line.port]["address"], ports[line.port]["mtu"]
        # The outlet has the port's MAC: else eth_type_trans would take its packets for those of another host.
        steps.append(f"link add {line.inlet} mtu {mtu} type veth peer name {line.outlet} mtu {mtu} address {mac}")
        for name in (line.inlet, line.outlet):  # no addresses: only packets of the link are in the line
            steps += [f"link set dev {name} addrgenmode none", f"link set dev {name} arp off multicast off up"]
        program = f"bpf direct-action object-pinned {back} classid {classid(line.sender)}"
        rules += [
            f"qdisc add dev {line.outlet} clsact",
            f"filter add dev {line.outlet} ingress pref 1 handle 1 {program}",
        ]
    rules += [f"qdisc replace dev {line.inlet} root handle 1: {line.netem()}" for line in lines]
    _ip(netns, steps)
    ends = {name: line.sender for line in fresh for name in (line.inlet, line.outlet)}
    inorder.switch_off(netns, ends)
    inorder.apply(netns, ends, delivery.chosen().delivery, inorder.cpus_here())
    _tc(netns, rules)
    inorder.pin_receive(netns, {line.port: line.sender for line in fresh}, inorder.cpus_here())
    now = read(netns)
    return {line.sender: (now[line.sender].ifindex, ports[line.port]["ifindex"]) for line in lines}


def remove(netns: Path, senders: Mapping[int, str]) -> None:
    """Remove delay lines, after the packets in them have arrived. Nothing may be sent into them any more.

    senders: id of the sending port -> the port that its packets return to.
    """
    wanted = set(senders)
    end = time.monotonic() + _LONGEST_WAIT_S
    while time.monotonic() < end and any(row.waiting for key, row in read(netns).items() if key in wanted):
        time.sleep(_POLL_S)
    there = _links(netns)
    _ip(netns, [f"link del dev line{sender}" for sender in sorted(wanted) if f"line{sender}" in there])
    if delivery.chosen().delivery is delivery.Delivery.NAPI:  # else ports keep the CPU that they always have
        inorder.pin_receive(netns, {port: sender for sender, port in senders.items()}, ())


def read(netns: Path) -> dict[int, LineState]:
    """Sender -> its delay line in this namespace, of those that are complete."""
    links = _links(netns)
    inlets = {name: int(name[4:]) for name in links if name.startswith("line") and name[4:].isdigit()}
    if not inlets:
        return {}
    rows = json.loads(run(["nsenter", f"--net={netns}", "tc", "-s", "-j", "qdisc", "show"]).out or "[]")
    found: dict[int, LineState] = {}
    for row in rows:
        name = row.get("dev", "")
        if name not in inlets or row.get("kind") != "netem" or f"back{inlets[name]}" not in links:
            continue
        options = row.get("options", {})
        values = {kind.key: _value(kind, options) for kind in NETEM_KINDS}
        waiting, dropped = int(row.get("qlen", 0)), int(row.get("drops", 0))
        found[inlets[name]] = LineState(links[name]["ifindex"], values, waiting, dropped)
    return found


def _value(kind: FaultKind, options: Mapping[str, Any]) -> float:
    """A value in `tc -j`, which has times in seconds."""
    part: Any = options
    for word in kind.reads.split("."):
        part = part.get(word, {})
    number = float(part or 0)
    return round(1e9 * number) if kind.unit == "time" else number


def _links(netns: Path) -> dict[str, Any]:
    """Interface name -> what `ip -j link` reports of it."""
    done = run(["nsenter", f"--net={netns}", "ip", "-j", "link", "show"])
    return {row["ifname"]: row for row in json.loads(done.out or "[]")}


def _ip(netns: Path, lines: Sequence[str]) -> None:
    if lines:
        run(["nsenter", f"--net={netns}", "ip", "-batch", "-"], stdin="\n".join(lines) + "\n")


def _tc(netns: Path, lines: Sequence[str]) -> None:
    if lines:
        run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n")
