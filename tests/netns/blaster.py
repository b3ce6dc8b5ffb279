"""Real RoCEv2 packets in bounded numbers, from many hosts at once, as fast as their ports let them go.

For tests in which ranks would be too slow, or would react. One thread, no protocol: nothing is sent again.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from heddle.endpoints.nic.frames import FlowHeader, Parser, SendBatch
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.wire import layout as wire
from tests.netns.static_fabric import StaticLab, address

_TURN = 8  # frames that one host hands over before the next one has its turn
_SEND_FRAMES = 16  # that may wait in a host's port
_QUIET_S = 3.0  # nothing has come for so long: what is missing is lost


@dataclass(frozen=True)
class Blast:
    """So many packets from a host to another, of so much payload."""

    src: str
    dst: str
    packets: int
    payload: int = 1024
    tos: int = wire.TOS_DATA
    sport: int = 49152


@dataclass
class Heard:
    """What arrived of a blast: whole packets with the right ICRC, those with a mark, those ahead of an earlier one."""

    packets: int = 0
    marked: int = 0
    early: int = 0
    bad: int = 0  # frames for its destination that were not sound
    psns: set[int] = field(default_factory=set)


class _Source:
    """A host's socket, and what it has still to send."""

    def __init__(self, lab: StaticLab, blast: Blast, qpn: int) -> None:
        here, there = lab.fabric.by_name[blast.src], lab.fabric.by_name[blast.dst]
        port = here.ports[0]
        gateway = lab.fabric.by_name[port.peer_node].port(port.peer_port)
        version = lab.fabric.policy.ip_version
        self.blast = blast
        self._flow = FlowHeader(
            src_mac=port.mac, dst_mac=gateway.mac, src_ip=address(here), dst_ip=address(there),
            sport=blast.sport, dqpn=qpn, tos=blast.tos,
        )  # fmt: skip
        self._batch = SendBatch(blast.payload, slots=_TURN, version=version)
        self._payload = bytes(range(256)) * (blast.payload // 256 + 1)
        self.socket = PacketSocket(
            lab.handle(here.name).netns, port.name, blast.payload, send_frames=_SEND_FRAMES, receive_bytes=0,
            version=version,
        )  # fmt: skip
        self.sent = 0

    @property
    def left(self) -> int:
        return self.blast.packets - self.sent

    def go_on(self) -> bool:
        """Send up to a turn; True when the port has taken all of it."""
        count = min(_TURN, self.left)
        for slot in range(count):
            data = self._payload[slot : slot + self.blast.payload]
            self._batch.put_data(slot, self._flow, wire.SEND_ONLY, self.sent + slot, data)
        took = self.socket.send(self._batch, count)
        self.sent += took
        return took == count


def blast(
    lab: StaticLab,
    blasts: Sequence[Blast],
    seconds: float = 60.0,
    watch: Callable[[], object] | None = None,
) -> list[Heard]:
    """Send all blasts at the same time; what arrived of each. watch: called between turns, every millisecond or so.

    Ends when all that was sent has arrived, when nothing has for three seconds, or after so many seconds
    (AssertionError: not all could be sent).
    """
    heard = [Heard() for _ in blasts]
    with ExitStack() as stack:
        sources = [_Source(lab, each, 0x100 + at) for at, each in enumerate(blasts)]
        for source in sources:
            stack.enter_context(source.socket)
        version, sinks = lab.fabric.policy.ip_version, {}
        for name in {each.dst for each in blasts}:
            port, most = lab.fabric.by_name[name].ports[0], max(each.payload for each in blasts)
            sink = PacketSocket(lab.handle(name).netns, port.name, most, version=version)
            sinks[stack.enter_context(sink).fileno()] = sink
        poll = stack.enter_context(select.epoll())
        by_fd = {source.socket.fileno(): source for source in sources}
        for fd in by_fd:
            poll.register(fd, select.EPOLLOUT)
        for fd in sinks:
            poll.register(fd, select.EPOLLIN)
        parser = Parser(version=version)
        begin = latest = time.monotonic()
        while True:
            for fd, _ in poll.poll(0.001):
                if fd in sinks:
                    latest = _hear(sinks[fd], parser, heard) or latest
                elif by_fd[fd].go_on() and not by_fd[fd].left:
                    poll.unregister(fd)
            if watch is not None:
                watch()
            now, sending = time.monotonic(), any(source.left for source in sources)
            if not sending and sum(h.packets for h in heard) == sum(each.packets for each in blasts):
                break
            if not sending and now - latest > _QUIET_S:
                break
            assert now - begin < seconds, f"{sum(source.left for source in sources)} packets could not be sent"
        drops = sum(sink.drops() for sink in sinks.values())
        assert drops == 0, f"the test itself was too slow for {drops} packets"
    return heard


def _hear(sink: PacketSocket, parser: Parser, heard: Sequence[Heard]) -> float:
    """Take in what waits; when, or 0 for nothing."""
    buffer, lengths = sink.recv()
    if not lengths:
        return 0.0
    now = time.monotonic()
    got = parser.parse(buffer, lengths)
    for sound, qpn, psn, kind in zip(got.sounds, got.dqpns, got.psns, got.kinds, strict=True):
        if not 0x100 <= qpn < 0x100 + len(heard):
            continue
        row = heard[qpn - 0x100]
        if not sound:
            row.bad += 1
            continue
        row.early += psn != row.packets
        row.psns.add(psn)
        row.packets = len(row.psns)
        row.marked += kind.ce
    return now
