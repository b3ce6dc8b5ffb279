"""struct tcp_info of Linux (include/uapi/linux/tcp.h), as far as 4.19 has it."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

_INFO: Final = struct.Struct("=8B 24I 4Q 6I Q 3Q 2I 2Q 2I")
_LATER: Final = struct.Struct("=7I")  # tcpi_rcv_ooopack, 5.4 and later, to tcpi_received_ce, 6.18 and later
_TIMESTAMPS: Final = 1  # of tcpi_options


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """The state of a connection. Times in us; segments_out, segments_in: all, also without data. 0: not known."""

    options: int
    mss: int
    rtt: int
    cwnd: int
    retransmitted: int
    segments_out: int
    segments_in: int
    min_rtt: int
    delivered_ce: int
    bytes_sent: int
    out_of_order: int
    received_ce: int

    @classmethod
    def of(cls, sock: socket.socket) -> TcpInfo:
        """Read it. OSError when the kernel's is shorter."""
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
        if len(raw) < _INFO.size:
            raise OSError(0, "this kernel's TCP_INFO has no bytes_sent: it is older than 4.19")
        row = _INFO.unpack_from(raw)
        late = _LATER.unpack_from(raw.ljust(_INFO.size + _LATER.size, b"\0"), _INFO.size)
        return cls(
            row[5], row[10], row[23], row[26], row[31], row[36], row[37], row[39], row[47], row[48], late[0], late[6]
        )

    def frames(self, ip_bytes: int, syns: int) -> int:
        """Bytes of all frames that it has sent, from Ethernet header on. syns: those without acknowledgement.

        A SYN has options for MSS, SACK, timestamps and window scale: 20 bytes (tcp_syn_options). Other segments of a
        sender that receives no data have timestamps only, 12 bytes (tcp_established_options).
        """
        options = 12 if self.options & _TIMESTAMPS else 0
        syn = 20 if options else 12
        return self.bytes_sent + self.segments_out * (14 + ip_bytes + 20 + options) + syns * (syn - options)


NONE: Final = TcpInfo(*[0] * 12)
