"""Test that every host reaches every other: UDP datagrams of MTU size with DF set, sent and received here.

In:  a fabric and handles. Out: Reach: how many pairs were tried, which of them failed, and why.
One process holds the sockets of all hosts of a machine, each opened in its host's namespace.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from heddle.fabric.model import Fabric, Port
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside
from heddle.lab.lab import Lab
from heddle.lab.spread import spread

_PORT: Final = 4790  # next to RoCEv2's 4791, which NICs keep for themselves
# Level, option and value that forbid fragments (linux/in.h, in6.h: PMTUDISC_DO); then bytes of UDP and IP header.
_DO_NOT_FRAGMENT: Final[Mapping[int, tuple[int, int, int]]] = {
    4: (socket.IPPROTO_IP, 10, 2),
    6: (socket.IPPROTO_IPV6, 23, 2),
}
_HEADERS: Final[Mapping[int, int]] = {4: 8 + 20, 6: 8 + 40}
_MARK: Final = struct.Struct("!4sII")  # random identifier of this probe, sender, receiver
_MAX_PEERS: Final = 31  # NICs that one NIC probes at most; a larger fabric is sampled by a pattern of distances
_TRIES: Final = 3
_OPEN_S: Final = 0.1  # until the sockets of other shards are open, too


@dataclass(frozen=True, slots=True)
class Reach:
    """Ordered pairs of NICs that were tried, and a sentence for each that failed."""

    tried: int
    faults: tuple[str, ...]


def probe(lab: Lab) -> Reach:
    """Send a datagram of its MTU from each host port to all others of its network (at most 31). Lost ones: again."""
    fabric = lab.fabric
    nics = [port for port in fabric.host_ports if port.address is not None]
    pairs = _pairs(fabric, nics)
    seen = ProbesSeen()
    nonce = os.urandom(4)
    for _ in range(_TRIES):
        left = [pair for pair in pairs if pair not in seen.arrived and pair not in seen.refused]
        if not left:
            break
        seen = both([seen, one_round(lab, nonce, left)])
    faults = []
    for source, target in pairs:
        if (source, target) not in seen.arrived:
            why = seen.refused.get((source, target), f"no {nics[source].mtu}-byte packet arrives")
            faults.append(f"{nics[source].ref} to {nics[target].ref}: {why}")
    return Reach(len(pairs), tuple(faults))


@dataclass(frozen=True, slots=True)
class ProbesSeen:
    """Pairs of NICs, by number: whose datagram arrived, and whose kernel refused it, with its error."""

    arrived: frozenset[tuple[int, int]] = frozenset()
    refused: Mapping[tuple[int, int], str] = field(default_factory=dict)


def both(seen: Sequence[ProbesSeen]) -> ProbesSeen:
    """All of several."""
    arrived = frozenset(pair for each in seen for pair in each.arrived)
    return ProbesSeen(arrived, {pair: why for each in seen for pair, why in each.refused.items()})


@spread(both)
def one_round(lab: Lab, nonce: bytes, pairs: Sequence[tuple[int, int]]) -> ProbesSeen:
    """Send from the NICs that are here, and receive with them. pairs: numbers of NICs in the whole fabric."""
    nics, handles = [port for port in lab.fabric.host_ports if port.address is not None], lab.handles()
    own = {number for number, nic in enumerate(nics) if nic.node in handles}
    with ExitStack() as stack:
        sockets = {number: stack.enter_context(_open(handles[nics[number].node], nics[number])) for number in own}
        if len(own) < len(nics):
            time.sleep(_OPEN_S)
        arrived: set[tuple[int, int]] = set()
        refused = _send(sockets, nics, [pair for pair in pairs if pair[0] in own], nonce, arrived)
        # Those of other shards may arrive until the end, so only on one machine is the number known.
        wanted = len(pairs) - len(refused) if len(own) == len(nics) else len(pairs) + 1
        _drain(sockets, nonce, arrived, wanted, _patience(lab.fabric, len(pairs), len(nics)))
    return ProbesSeen(frozenset(arrived), refused)


def _pairs(fabric: Fabric, nics: Sequence[Port]) -> list[tuple[int, int]]:
    """Pairs (sender, receiver) of one network in one connected part of the fabric: between planes there is no path."""
    parts: dict[tuple[str, int | None], list[int]] = {}
    for number, nic in enumerate(nics):
        parts.setdefault((nic.network, fabric.part_of.get(nic.peer_node)), []).append(number)
    return [
        (members[place], members[(place + step) % len(members)])
        for members in parts.values()
        for step in _steps(len(members))
        for place in range(len(members))
    ]


def _steps(count: int) -> Sequence[int]:
    """Distances on the ring of NICs at which each NIC probes: all, or powers of two and the nearest."""
    if count - 1 <= _MAX_PEERS:
        return range(1, count)
    doubling = [1 << i for i in range(count.bit_length()) if 1 << i < count]
    return sorted({*doubling, *range(1, _MAX_PEERS - len(doubling))})


def _patience(fabric: Fabric, packets: int, nics: int) -> float:
    """Seconds for a round: twice what the slowest port needs for its share, plus a margin for scheduling."""
    rate = min(port.rate_bps for port in fabric.host_ports)
    return 0.5 + 2 * 8 * fabric.policy.mtu * (packets / nics) / rate


@contextlib.contextmanager
def _open(handle: NodeHandle, nic: Port) -> Iterator[socket.socket]:
    version = 4 if nic.address is None else nic.address.version
    with inside(handle.netns):
        udp = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    with udp:
        udp.setblocking(False)
        udp.setsockopt(*_DO_NOT_FRAGMENT[version])
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with contextlib.suppress(OSError):  # another validate has the port: nothing arrives here, and is reported
            udp.bind(("" if nic.address is None else str(nic.address.ip), _PORT))
        yield udp


def _send(
    sockets: Mapping[int, socket.socket],
    nics: Sequence[Port],
    pairs: Sequence[tuple[int, int]],
    nonce: bytes,
    arrived: set[tuple[int, int]],
) -> dict[tuple[int, int], str]:
    """Send to every pair, and receive what arrives meanwhile. Returns pair -> the kernel's error."""
    refused: dict[tuple[int, int], str] = {}
    for sent, (source, target) in enumerate(pairs):
        address = nics[target].address
        size = nics[source].mtu - _HEADERS[4 if address is None else address.version]
        body = _MARK.pack(nonce, source, target).ljust(size, b"\0")
        try:
            sockets[source].sendto(body, (str(address.ip) if address else "", _PORT))
        except BlockingIOError:
            pass  # the socket's queue is full: the next round sends it
        except OSError as error:
            refused[source, target] = os.strerror(error.errno or 0)
        if sent % len(nics) == len(nics) - 1:
            _drain(sockets, nonce, arrived, len(pairs), 0.0)
    return refused


def _drain(
    sockets: Mapping[int, socket.socket], nonce: bytes, arrived: set[tuple[int, int]], wanted: int, seconds: float
) -> None:
    """Receive until `wanted` pairs have arrived or `seconds` have passed; 0 s: only what has already arrived."""
    poll = select.poll()
    by_fd = {each.fileno(): number for number, each in sockets.items()}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while len(arrived) < wanted:
        ready = poll.poll(max(0, (deadline - time.monotonic()) * 1000))
        if not ready:
            return
        for fd, _ in ready:
            _receive(sockets[by_fd[fd]], by_fd[fd], nonce, arrived)
        if seconds and time.monotonic() > deadline:
            return


def _receive(udp: socket.socket, here: int, nonce: bytes, arrived: set[tuple[int, int]]) -> None:
    while True:
        try:
            data = udp.recv(1 << 16)
        except OSError:
            return  # nothing more; or an ICMP error: then the pair is missing in `arrived`
        if len(data) >= _MARK.size:
            found, source, target = _MARK.unpack_from(data)
            if found == nonce and target == here:
                arrived.add((source, target))
