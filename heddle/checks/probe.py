"""Does every host reach every other at full size? UDP datagrams of one MTU with DF set, sent and received here.

In:  a fabric and handles. Out: Reach: how many pairs were tried, and which of them failed, and how.
All sockets live in this process, each opened in its host's namespace; no helper runs anywhere.
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
from dataclasses import dataclass
from typing import Final

from heddle.fabric.model import Fabric, Port
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside

_PORT: Final = 4790  # next to RoCEv2's 4791, which NICs keep for themselves
# Level, option and value that forbid fragments (linux/in.h, in6.h: PMTUDISC_DO); the UDP header and the IP header.
_WHOLE: Final[Mapping[int, tuple[int, int, int]]] = {4: (socket.IPPROTO_IP, 10, 2), 6: (socket.IPPROTO_IPV6, 23, 2)}
_HEADERS: Final[Mapping[int, int]] = {4: 8 + 20, 6: 8 + 40}
_MARK: Final = struct.Struct("!4sII")  # a word of this run, sender, receiver
_MAX_PEERS: Final = 31  # a host probes so many others; larger fabrics are covered by a pattern, not in full
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Reach:
    """Ordered pairs of NICs that were tried, and a sentence for each that failed."""

    tried: int
    faults: tuple[str, ...]


def probe(fabric: Fabric, handles: Mapping[str, NodeHandle]) -> Reach:
    """Send a datagram of the fabric's MTU between all pairs of NICs (at most 31 others each), lost ones again."""
    nics = [port for host in fabric.hosts for port in host.ports if port.address is not None]
    pairs = _pairs(fabric, nics)
    refused: dict[tuple[int, int], str] = {}
    arrived: set[tuple[int, int]] = set()
    with ExitStack() as stack:
        wires = [stack.enter_context(_open(handles[nic.node], nic)) for nic in nics]
        word = os.urandom(4)
        for _ in range(_TRIES):
            left = [pair for pair in pairs if pair not in arrived and pair not in refused]
            if not left:
                break
            refused |= _send(wires, nics, left, word, arrived)
            _drain(wires, word, arrived, len(pairs) - len(refused), _patience(fabric, len(left), len(nics)))
    faults = []
    for source, target in pairs:
        if (source, target) not in arrived:
            why = refused.get((source, target), f"no {nics[source].mtu}-byte packet arrives")
            faults.append(f"{nics[source].ref} to {nics[target].ref}: {why}")
    return Reach(len(pairs), tuple(faults))


def _pairs(fabric: Fabric, nics: Sequence[Port]) -> list[tuple[int, int]]:
    """Which NICs send to which. Only NICs of one connected part of the fabric can: planes have no path between them."""
    parts: dict[int | None, list[int]] = {}
    for number, nic in enumerate(nics):
        parts.setdefault(fabric.part_of.get(nic.peer_node), []).append(number)
    return [
        (members[place], members[(place + step) % len(members)])
        for members in parts.values()
        for step in _steps(len(members))
        for place in range(len(members))
    ]


def _steps(count: int) -> Sequence[int]:
    """By how many places round the ring of NICs each one looks: all, or powers of two and the nearest."""
    if count - 1 <= _MAX_PEERS:
        return range(1, count)
    doubling = [1 << i for i in range(count.bit_length()) if 1 << i < count]
    return sorted({*doubling, *range(1, _MAX_PEERS - len(doubling))})


def _patience(fabric: Fabric, packets: int, nics: int) -> float:
    """Seconds for a round: twice what the slowest port needs for its share, and some for the machine."""
    rate = min(port.rate_bps for host in fabric.hosts for port in host.ports)
    return 0.5 + 2 * 8 * fabric.policy.mtu * (packets / nics) / rate


@contextlib.contextmanager
def _open(handle: NodeHandle, nic: Port) -> Iterator[socket.socket]:
    version = 4 if nic.address is None else nic.address.version
    with inside(handle.netns):
        wire = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    with wire:
        wire.setblocking(False)
        wire.setsockopt(*_WHOLE[version])
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with contextlib.suppress(OSError):  # another validate has the port: then nothing arrives here, and that is said
            wire.bind(("" if nic.address is None else str(nic.address.ip), _PORT))
        yield wire


def _send(
    wires: Sequence[socket.socket],
    nics: Sequence[Port],
    pairs: Sequence[tuple[int, int]],
    word: bytes,
    arrived: set[tuple[int, int]],
) -> dict[tuple[int, int], str]:
    """Send to every pair, taking in what arrives meanwhile; pair -> the kernel's refusal."""
    refused: dict[tuple[int, int], str] = {}
    for sent, (source, target) in enumerate(pairs):
        address = nics[target].address
        size = nics[source].mtu - _HEADERS[4 if address is None else address.version]
        body = _MARK.pack(word, source, target).ljust(size, b"\0")
        try:
            wires[source].sendto(body, (str(address.ip) if address else "", _PORT))
        except BlockingIOError:
            pass  # its queue is full: the next round sends it
        except OSError as error:
            refused[source, target] = os.strerror(error.errno or 0)
        if sent % len(nics) == len(nics) - 1:
            _drain(wires, word, arrived, len(pairs), 0.0)
    return refused


def _drain(
    wires: Sequence[socket.socket], word: bytes, arrived: set[tuple[int, int]], wanted: int, seconds: float
) -> None:
    """Take in datagrams until `wanted` pairs have arrived or `seconds` have passed; 0: only what is there."""
    poll = select.poll()
    by_fd = {wire.fileno(): i for i, wire in enumerate(wires)}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while len(arrived) < wanted:
        ready = poll.poll(max(0, (deadline - time.monotonic()) * 1000))
        if not ready:
            return
        for fd, _ in ready:
            _take(wires[by_fd[fd]], by_fd[fd], word, arrived)
        if seconds and time.monotonic() > deadline:
            return


def _take(wire: socket.socket, here: int, word: bytes, arrived: set[tuple[int, int]]) -> None:
    while True:
        try:
            data = wire.recv(1 << 16)
        except OSError:
            return  # nothing more; or an ICMP error, which the missing pair tells of
        if len(data) >= _MARK.size:
            said, source, target = _MARK.unpack_from(data)
            if said == word and target == here:
                arrived.add((source, target))
