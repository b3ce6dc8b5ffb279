"""Senders that never wait: hosts send packets of RoCEv2 to one host at line rate, and no answer slows them.

In:  a fabric whose hosts and counters are on this machine, the number of senders, seconds.
Out: OpenLoop, shares of the receiver's line and of its trims in the middle of the time: queues are full by then, and
     every sender sends.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from heddle.base.problems import CheckError, InputError, Problem
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.kernel.namespace import NodeHandle
from heddle.switch.queues.cells import CAUSES, LabQueues
from heddle.switch.queues.classes import row
from heddle.wire import layout as wire

_TURN: Final = 8  # frames that one host hands over before the next one has its turn
_WAITING: Final = 16  # frames that may wait in a host's port
_LOOK_S: Final = 0.001
_MIDDLE: Final = (0.4, 0.85)  # shares of all packets
_SLOWEST: Final = 20  # times as long as at line rate
_LEFT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """data: whole packets' share of the line. dropped: share of trims that the trim queue dropped. sent: what the
    senders sent, in lines. left: trims neither sent nor dropped, of all ports, at the end.
    """

    data: float
    dropped: float
    sent: float
    left: float


class _Source:
    """A host's socket, and the packets that it has still to send."""

    def __init__(self, fabric: Fabric, handle: NodeHandle, own: Port, to: Port, payload: int, packets: int) -> None:
        if own.address is None or to.address is None:
            raise InputError(Problem("", fabric.name, "has hosts without an address", "use a fabric file"))
        gateway = fabric.by_name[own.peer_node].port(own.peer_port)
        version = fabric.policy.ip_version
        self._flow = FlowHeader(
            src_mac=own.mac, dst_mac=gateway.mac, src_ip=str(own.address.ip), dst_ip=str(to.address.ip),
            sport=49152, dqpn=0x100, tos=wire.TOS_DATA,
        )  # fmt: skip
        self._batch = SendBatch(payload, slots=_TURN, version=version)
        self._payload = bytes(payload)
        self.left, self._psn = packets, 0
        self.socket = PacketSocket(
            handle.netns, own.name, payload, send_frames=_WAITING, receive_bytes=0, version=version
        )

    def go_on(self) -> None:
        """Send up to a turn."""
        count = min(_TURN, self.left)
        for slot in range(count):
            self._batch.put_data(slot, self._flow, wire.SEND_ONLY, self._psn + slot, self._payload)
        took = self.socket.send(self._batch, count)
        self._psn += took
        self.left -= took


def open_loop(
    fabric: Fabric, handles: Mapping[str, NodeHandle], senders: int, payload: int, seconds: float
) -> OpenLoop:
    """The first hosts send to the last one. payload: of a packet, bytes. InputError when there are not as many hosts,
    CheckError when this machine cannot send that much.
    """
    ports = [host.ports[0] for host in fabric.hosts]
    if not 0 < senders < len(ports):
        why = f"is not 1 to {len(ports) - 1}: {fabric.name} has {len(ports)} hosts"
        raise InputError(Problem("", f"senders: {senders}", why, "use fewer senders, or more hosts"))
    to, rate = ports[-1], ports[-1].rate_bps
    frame = payload + wire.LAYOUTS[fabric.policy.ip_version].overhead_bytes
    packets = round(seconds * rate / 8 / frame)
    number = fabric.policy.queues.class_of_dscp[wire.TOS_DATA >> 2]
    trim = CAUSES.index("trim")
    with LabQueues.pinned(fabric) as queues, ExitStack() as stack:
        at = row(queues.ids[to.peer_node, to.peer_port], number)
        own = [row(queues.ids[port.node, port.name], number) for port in ports[:senders]]
        before = queues.cells.copy()
        sources = [_Source(fabric, handles[port.node], port, to, payload, packets) for port in ports[:senders]]
        poll = stack.enter_context(select.epoll())
        for source in sources:
            stack.callback(source.socket.close)
            poll.register(source.socket.fileno(), select.EPOLLOUT)
        by_fd = {source.socket.fileno(): source for source in sources}
        seen, begin = list[tuple[float, ...]](), time.monotonic()
        while by_fd:
            for fd, _ in poll.poll(_LOOK_S):
                by_fd[fd].go_on()
                if not by_fd[fd].left:
                    poll.unregister(fd)
                    del by_fd[fd]
            now, cell = time.monotonic(), queues.cells[at]
            out = int((queues.cells["out_bytes"][own] - before["out_bytes"][own]).sum())
            seen.append((now, int(cell["out_bytes"]), int(cell["trims"]), int(cell["drops"][trim]), out))
            if now - begin > _SLOWEST * seconds:
                hint = "use a lower link.host"
                raise CheckError(Problem("", fabric.name, f"{len(by_fd)} hosts cannot send at their rate", hint))
        _empty(queues)
        moved = queues.cells["trims"] - queues.cells["trim_sent"] - queues.cells["drops"][:, trim]
        left = int((moved - before["trims"] + before["trim_sent"] + before["drops"][:, trim]).sum())
    times = np.array(seen, np.float64)
    done = times[:, 4] / times[-1, 4]
    middle = times[(done > _MIDDLE[0]) & (done < _MIDDLE[1])]
    if len(middle) < 2:
        raise CheckError(Problem("", fabric.name, "was looked at too seldom", "use more seconds"))
    took, data, trims, drops, sent = middle[-1] - middle[0]
    line = rate / 8 * took
    return OpenLoop(data / line, drops / max(1.0, trims), sent / line, left)


def _empty(queues: LabQueues) -> None:
    """Wait until no packet waits; CheckError after some seconds."""
    end = time.monotonic() + _LEFT_S
    while queues.cells["depth"].any():
        if time.monotonic() > end:
            raise CheckError(
                Problem("", queues.fabric.name, "has queues that do not become empty", "run ./inv validate")
            )
        time.sleep(_LOOK_S)
