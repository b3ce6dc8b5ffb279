"""A raw socket on one interface that moves frames in batches, without a Python object per packet.

In:  frames in a SendBatch, for `send`. Out: frames in a FrameBuffer with their lengths, from `recv`, for a Parser.
Frames sent by AF_PACKET go through the port's queues. It receives the frames that the port's programs have passed, also
those that bpf/nic.c hides from the host's IP stack. As in a NIC, unicast frames must have the interface's own MAC: a
packet socket would also receive others (PACKET_OTHERHOST), since veth has no filter. Linux 4.20 or newer, 64 bits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from heddle.endpoints.nic.frames import MMSGHDR, FrameBuffer, frame_bytes_for
from heddle.kernel.libc import libc
from heddle.kernel.namespace import inside
from heddle.kernel.uapi import SOL_PACKET
from heddle.wire.layout import ETHERTYPE_IPV4, ETHERTYPE_IPV6, LAYOUTS, QPN_MASK, ROCE_PORT

# asm-generic/socket.h and linux/if_packet.h; Python's socket module does not have these constants.
_SO_ATTACH_FILTER: Final = 26
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_PACKET_STATISTICS: Final = 6
_STATISTICS = struct.Struct("=II")  # packets, drops

_RECEIVE_BYTES: Final = 16 << 20
_SKB_BYTES: Final = 832  # measured on 6.x with SIOCOUTQ: 9,024 for a frame of 4,154
_PAGE_BYTES: Final = 4096
# Reasons to stop sending that are not errors: socket full, queue full, link down, interrupted.
_NOT_NOW: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENETDOWN, errno.EINTR})

libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)

_DROP: Final = -1  # where a jump ends the filter
_Op = tuple[int, int, int, int]  # code, jump if true, jump if false, value
# Classic BPF: unfragmented IPv4, UDP, destination port 4791.
_ROCE: Final[dict[int, tuple[_Op, ...]]] = {
    4: (
        (0x28, 0, 0, 12),  # ldh [12]: Ethernet type
        (0x15, 0, _DROP, ETHERTYPE_IPV4),
        (0x30, 0, 0, 23),  # ldb [23]: protocol
        (0x15, 0, _DROP, socket.IPPROTO_UDP),
        (0x28, 0, 0, 20),  # ldh [20]: fragment offset
        (0x45, _DROP, 0, 0x1FFF),
        (0xB1, 0, 0, 14),  # ldxb 4*([14]&0xf): header length
        (0x48, 0, 0, 16),  # ldh [x + 16]: UDP destination port
        (0x15, 0, _DROP, ROCE_PORT),
    ),
    # The same for IPv6, whose fragments have another next header.
    6: (
        (0x28, 0, 0, 12),
        (0x15, 0, _DROP, ETHERTYPE_IPV6),
        (0x30, 0, 0, 20),  # ldb [20]: next header
        (0x15, 0, _DROP, socket.IPPROTO_UDP),
        (0x28, 0, 0, LAYOUTS[6].udp_at + 2),
        (0x15, 0, _DROP, ROCE_PORT),
    ),
}
_DQPN_WORD: Final[dict[int, _Op]] = {
    4: (0x40, 0, 0, 14 + 12),
    6: (0x20, 0, 0, LAYOUTS[6].udp_at + 12),
}  # ld; x as above


def _filter(version: int, qpns: range | None, mac: bytes, foreign: bool) -> list[_Op]:
    """The filter of a socket that receives RoCEv2; with `qpns` only what is for these queue pairs.

    mac: of the interface. foreign: only unicast frames for other MACs; else all but these.
    """
    own, group = (_DROP, _DROP) if foreign else (0, 4)
    other = 2 if foreign else _DROP
    program = [
        (0x30, 0, 0, 0),  # ldb [0]: the bit of group addresses
        (0x45, group, 0, 1),
        (0x20, 0, 0, 0),  # ld [0]
        (0x15, 0, other, int.from_bytes(mac[:4], "big")),
        (0x28, 0, 0, 4),  # ldh [4]
        (0x15, own, 0 if foreign else _DROP, int.from_bytes(mac[4:], "big")),
        *_ROCE[version],
    ]
    if qpns is not None:
        program += [
            _DQPN_WORD[version],
            (0x54, 0, 0, QPN_MASK),  # and
            (0x35, 0, _DROP, qpns.start),  # jge
            (0x35, _DROP, 0, qpns.stop),
        ]
    program += [(0x06, 0, 0, 0x40000), (0x06, 0, 0, 0)]
    end = len(program) - 1

    def jump(at: int, where: int) -> int:
        return end - at - 1 if where == _DROP else where

    return [(code, jump(at, yes), jump(at, no), value) for at, (code, yes, no, value) in enumerate(program)]


def attach_filter(sock: socket.socket, program: Sequence[_Op]) -> None:
    """Attach a classic BPF filter to a socket (struct sock_fprog)."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *op) for op in program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def filter_count(sock: socket.socket) -> tuple[int, int]:
    """Frames that have passed the filter of a packet socket since the last call, and those of them that were dropped.

    The kernel resets its own counts with every read. That of packets includes drops (packet_getsockopt).
    """
    packets, drops = _STATISTICS.unpack(sock.getsockopt(SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size))
    return packets, drops


def true_bytes(frame_bytes: int) -> int:
    """The bytes that the kernel charges a socket for an unsent frame: skb and data, in whole pages when large.

    Source: packet_alloc_skb() and alloc_skb_with_frags(), which round data beyond a page up to pages.
    """
    return _SKB_BYTES + -(-frame_bytes // _PAGE_BYTES) * _PAGE_BYTES


class PacketSocket:
    """Sends and receives RoCEv2 frames on one interface. Non-blocking; wait with select or epoll on `fileno()`.

    errno: why the last `send` sent fewer frames than given: 0 (it sent all), EAGAIN (the socket's send buffer is full;
           poll for POLLOUT), ENOBUFS (the port's queue dropped the frame), ENETDOWN (the link is down).
    queue_drops: how often the port's queue refused a frame.
    """

    def __init__(
        self,
        netns: Path | None,
        interface: str,
        mtu_bytes: int = 4096,
        *,
        send_frames: int = 0,
        receive_bytes: int = _RECEIVE_BYTES,
        version: int = 4,
        qpns: range | None = None,
        foreign: bool = False,
    ) -> None:
        """Open on an interface of a namespace, or of the caller's (None), for QPs of this IB MTU.

        send_frames:   maximum number of full frames between this socket and the wire, the port's queue included; 0 is
                       the system's default.
        receive_bytes: the receive buffer, as the kernel counts (8 KiB and more for a frame of 4 KiB); 0: only sends.
        version:       of the received IP packets, 4 or 6.
        qpns:          numbers of the queue pairs whose packets it receives, where a port has several sockets.
        foreign:       counts frames for other MACs, and receives nothing else.
        Raises OSError (no such interface, not root) and MachineError (no such namespace).
        """
        self.interface = interface
        self._version, self._qpns = version, qpns
        self.errno = 0
        self.queue_drops = 0
        self._drops = self._passed = 0
        self._received = FrameBuffer(frame_bytes_for(mtu_bytes, version), version=version)
        self._lengths = self._received.messages["len"]
        with ExitStack() as stack:
            if netns is not None:
                stack.enter_context(inside(netns))
            # Protocol 0 receives nothing, so no frame can arrive before the filter is attached.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
            try:
                self._set_up(
                    1 if foreign else receive_bytes,
                    foreign,
                    send_frames * true_bytes(frame_bytes_for(mtu_bytes, version)),
                )
            except OSError:
                self.close()
                raise
        self._fd = self._socket.fileno()

    def _set_up(self, receive_bytes: int, foreign: bool, send_bytes: int) -> None:
        # The FORCE options override net.core.rmem_max; the kernel doubles the given value.
        if send_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, send_bytes // 2)
        self._socket.bind((self.interface, 0))
        if not receive_bytes:
            return
        mac = self._socket.getsockname()[4]
        attach_filter(self._socket, _filter(self._version, self._qpns, mac, foreign))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes // 2)
        # For one protocol: such sockets get a frame after clsact ingress (__netif_receive_skb_core), where a queue that
        # marks at dequeue has already written CE; and they do not get frames that the host itself sends.
        self._socket.bind((self.interface, LAYOUTS[self._version].ethertype))

    def send(self, batch: FrameBuffer, count: int, first: int = 0) -> int:
        """Send frames [first, first + count) of a batch; return how many the kernel accepted, in order.

        The other frames were not sent and may be offered again; `errno` has the reason. OSError for other errors (the
        interface is gone, a frame is longer than its MTU).
        """
        done = 0
        self.errno = 0
        while done < count:
            at = batch.messages_at + (first + done) * MMSGHDR.itemsize
            sent = libc.sendmmsg(self._fd, at, count - done, socket.MSG_DONTWAIT)
            if sent > 0:
                done += sent  # a short count does not show its reason; the next call does
                continue
            code = ctypes.get_errno()
            if code not in _NOT_NOW:
                raise OSError(code, os.strerror(code), self.interface)
            if code == errno.EINTR:
                continue
            self.errno = code
            # packet_snd() returns the result of dev_queue_xmit(): NET_XMIT_DROP becomes ENOBUFS.
            self.queue_drops += code == errno.ENOBUFS
            break
        return done

    def recv(self) -> tuple[FrameBuffer, list[int]]:
        """Receive up to a batch of frames: the buffer, and the length of each received frame (an empty list for none).

        Every call uses the same buffer: finish its use (and that of its views) before the next call. An interface that
        went down or was removed causes no error here, only in `send`. OSError for unexpected errors.
        """
        batch = self._received
        # With MSG_TRUNC the length is that of the whole frame even if it did not fit; a Parser marks it bad.
        flags = socket.MSG_DONTWAIT | socket.MSG_TRUNC
        count = libc.recvmmsg(self._fd, batch.messages_at, batch.slots, flags, None)
        if count < 0:
            code = ctypes.get_errno()
            if code not in _NOT_NOW:
                raise OSError(code, os.strerror(code), self.interface)
            count = 0
        return batch, self._lengths[:count].tolist()

    def drops(self) -> int:
        """Frames that were dropped because the receive buffer was full, since the socket was opened."""
        self._count()
        return self._drops

    def passed(self) -> int:
        """Frames that have passed its filter, also those that were dropped, since the socket was opened."""
        self._count()
        return self._passed

    def _count(self) -> None:
        packets, drops = filter_count(self._socket)
        self._passed += packets
        self._drops += drops

    def fileno(self) -> int:
        """The file descriptor, for select and epoll."""
        return self._fd

    def close(self) -> None:
        """Close; may be called twice."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        self.close()
