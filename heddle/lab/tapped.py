"""The ports that a capture listens at.

In:  a lab, ports as `rtsw1:eth1`.
Out: for each its namespace, its interface, MAC address and MTU, and the end of the delay line behind it, if there is
one.
A port in a shard is listened at there; its clock is compared as that of a run is (runtimes/shardcalls.py).
Packets of a link with a delay line (switch/links/portfaults.py) pass the ingress of their port twice: when they have
left their queue, and when the line returns them. They arrive when they leave the line, so a capture takes them there.
"""

from __future__ import annotations

import fcntl
import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, MachineError, Problem, Problems, did_you_mean
from heddle.fabric.model import Port
from heddle.kernel.namespace import inside
from heddle.lab.spread import only, spread

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_MOST_PORTS: Final = 64  # a process each
_SIOCGIFMTU: Final = 0x8921  # linux/sockios.h
_SIOCGIFHWADDR: Final = 0x8927
_OUTLET: Final = re.compile(r"back[0-9]+")  # DelayLine.outlet


@dataclass(frozen=True, slots=True)
class Tapped:
    """A port to capture at. mac: what its own frames come from, which tells those that leave from those that come.

    mtu: bytes of its largest IP packet; no frame is longer than that and its headers, since offloads are off.
    outlet: the interface at the end of the delay line that leads to the port; empty without one. far: for a port in a
    bridge, which sends frames from any MAC, the MAC at the other end; else empty. shard: empty on this machine; enter:
    the start of a command that runs in the port's namespace; ahead_ns: how far the clock there is ahead of ours.
    """

    ref: str
    netns: Path
    name: str
    mac: bytes
    mtu: int
    outlet: str = ""
    far: bytes = b""
    shard: str = ""
    enter: tuple[str, ...] = ()
    ahead_ns: int = 0

    def exists(self) -> bool:
        """Whether its namespace is there. Of one in a shard, the end of the listener tells."""
        return bool(self.shard) or self.netns.exists()

    def sent(self, frame: bytes) -> bool:
        """Whether the port sent a frame that was seen at it."""
        return frame[6:12] != self.far if self.far else frame[6:12] == self.mac

    def places(self, expression: str) -> Iterator[tuple[str, str]]:
        """Where to listen, each with its pcap-filter expression, so that each packet is seen once."""
        if not self.outlet:
            yield self.name, expression
            return
        # By address, as all directions of a capture. Pause frames pass no delay line.
        own = f"ether src {self.mac.hex(':')} or ether proto 0x8808"
        yield self.name, f"({own}) and ({expression})" if expression else own
        yield self.outlet, expression

    def has(self, interface: str) -> bool:
        """Whether the interface is there; a namespace that goes away just now has none. Not for one in a shard."""
        try:
            with inside(self.netns):
                return interface in (name for _, name in socket.if_nameindex())
        except (MachineError, OSError):
            return False


def find_ports(lab: Lab, text: str) -> list[Tapped]:
    """The ports meant by `rtsw1:eth1`, `rtsw1` (all of its ports) or several with commas; InputError says what is none.

    MachineError when a port should be there and is not.
    """
    problems = Problems()
    found: dict[str, Tapped] = {}
    for word in text.split(","):
        node, colon, name = word.strip().partition(":")
        try:
            if node:
                lab.handle(node)
            taps = _of_node(lab, node, name if colon else None)
        except InputError as error:
            problems.found += error.problems
            continue
        found |= {tap.ref: tap for tap in taps}
    problems.raise_if_any()
    if len(found) > _MOST_PORTS:
        why = f"are {len(found)} ports, and a capture takes at most {_MOST_PORTS}"
        raise InputError(Problem("", text, why, f"name those that matter: {next(iter(found))},..."))
    return [_in_shard(lab, tap) for tap in found.values()] if not lab.runtime.here else list(found.values())


def _in_shard(lab: Lab, tap: Tapped) -> Tapped:
    shards = lab.runtime.shards(lab.name)
    assert shards is not None  # noqa: S101  (the runtime is not here)
    node = tap.ref.partition(":")[0]
    shard = shards.of(node)
    ahead_ns = shards.clocks()[shard].ahead_ns + epoch_ns(lab, node) - (time.time_ns() - time.monotonic_ns())
    enter = shards.module(shard, ["heddle.shards.piped", str(tap.netns)])
    return replace(tap, shard=shard, enter=tuple(enter), ahead_ns=ahead_ns)


@spread(only, nodes=lambda node: [node])
def epoch_ns(lab: Lab, node: str) -> int:
    """When CLOCK_MONOTONIC was 0 where the node is, as UNIX time in ns."""
    return time.time_ns() - time.monotonic_ns()


@spread(only, nodes=lambda node, _: [node])
def _of_node(lab: Lab, node: str, name: str | None) -> list[Tapped]:
    if not node:
        example = lab.fabric.nodes[0].ports[0].ref
        raise InputError(Problem("", repr(f"{node}:{name}" if name else ""), "is not a port", f"write {example}"))
    netns = lab.handle(node).netns
    enter = ("setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={netns}")
    wanted = [port.name for port in lab.fabric.by_name[node].ports] if node in lab.fabric.by_name else []
    with inside(netns):
        there = [each for _, each in socket.if_nameindex()]
        chosen = wanted if name is None else [name]
        macs = {each: _mac(each) for each in chosen if each in there}
        mtus = {each: _mtu(each) for each in macs}
        lines = {_mac(each): each for each in there if _OUTLET.fullmatch(each)}
    for each in chosen:
        if each in macs:
            continue
        if each not in wanted:
            hint = did_you_mean(f"{node}:{each}", [f"{node}:{port}" for port in wanted or there])
            raise InputError(Problem("", f"{node}:{each}", f"is not a port of {node}", hint))
        hint = f"./inv validate says what else is wrong; ./inv down {lab.name}, then up again, recreates it"
        raise MachineError(Problem("", f"{node}:{each}", "is not there any more", hint))
    far = {port.name: _far_mac(lab, port) for port in lab.fabric.by_name[node].ports} if wanted else {}
    return [
        Tapped(
            f"{node}:{each}", netns, each, macs[each], mtus[each], lines.get(macs[each], ""), far.get(each, b""),
            enter=enter,
        )
        for each in chosen
    ]  # fmt: skip


def _far_mac(lab: Lab, port: Port) -> bytes:
    peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    return b"" if port.bridge is None else bytes.fromhex(peer.mac.replace(":", ""))


def _mac(interface: str) -> bytes:
    """The hardware address of an interface of the namespace that this thread stands in."""
    return _asked(_SIOCGIFHWADDR, interface)[18:24]


def _mtu(interface: str) -> int:
    """The MTU of an interface of the namespace that this thread stands in."""
    return int(struct.unpack_from("=i", _asked(_SIOCGIFMTU, interface), 16)[0])


def _asked(request: int, interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("256s", interface.encode()))
