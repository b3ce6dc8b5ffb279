"""Memory for a batch of frames, with the kernel's message vectors for it, so that one call moves all frames.

One row per frame. A row starts at an offset in a cache line (ten bytes, for IPv4) so that the bytes after Ethernet, IP,
UDP and BTH start a cache line. Immediate data and RETH keep the payload four-byte aligned, so float32 views of it are
aligned.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from heddle.wire.layout import IMM_BYTES, LAYOUTS, RETH_BYTES

LINE_BYTES: Final = 64
BATCH: Final = 64

# struct iovec and struct mmsghdr of 64-bit Linux (bits/types/struct_iovec.h, bits/socket.h).
IOVEC: Final = np.dtype([("base", "u8"), ("len", "u8")])
MMSGHDR: Final = np.dtype(
    [
        ("name", "u8"),
        ("namelen", "u4"),
        ("pad1", "u4"),
        ("iov", "u8"),
        ("iovlen", "u8"),
        ("control", "u8"),
        ("controllen", "u8"),
        ("flags", "i4"),
        ("pad2", "u4"),
        ("len", "u4"),
        ("pad3", "u4"),
    ]
)


def frame_bytes_for(mtu_bytes: int, version: int = 4) -> int:
    """The longest frame, in bytes, of a QP with this IB MTU over IPv4 or IPv6: WRITE_ONLY with immediate data."""
    return LAYOUTS[version].overhead_bytes + RETH_BYTES + IMM_BYTES + mtu_bytes


class FrameBuffer:
    """Room for `slots` frames of up to `frame_bytes` each.

    rows:    uint8 (slots, at least frame_bytes): row i is frame i, from its Ethernet header on.
    mem:     the same memory, flat; frame i starts at starts[i].
    lengths: uint64 (slots,): bytes of each frame. It *is* the kernel's iov_len: writing it sets the length.
    """

    def __init__(self, frame_bytes: int, slots: int = BATCH, version: int = 4) -> None:
        lead = LAYOUTS[version].lead_bytes
        self.slots = slots
        self.frame_bytes = frame_bytes
        self.stride = -(-(lead + frame_bytes) // LINE_BYTES) * LINE_BYTES
        room = np.zeros(slots * self.stride + LINE_BYTES, np.uint8)
        skip = -room.ctypes.data % LINE_BYTES
        self.flat: npt.NDArray[np.uint8] = room[skip : skip + slots * self.stride]
        self.rows: npt.NDArray[np.uint8] = self.flat.reshape(slots, self.stride)[:, lead:]
        self.mem = self.flat.data
        self.starts: list[int] = [slot * self.stride + lead for slot in range(slots)]
        self._iovecs = np.zeros(slots, IOVEC)
        self._iovecs["base"] = self.flat.ctypes.data + np.array(self.starts, np.uint64)
        self._iovecs["len"] = frame_bytes
        self.messages = np.zeros(slots, MMSGHDR)
        self.messages["iov"] = self._iovecs.ctypes.data + np.arange(slots, dtype=np.uint64) * np.uint64(IOVEC.itemsize)
        self.messages["iovlen"] = 1
        self.messages_at: int = self.messages.ctypes.data
        self.lengths: npt.NDArray[np.uint64] = self._iovecs["len"]

    def frame(self, slot: int) -> memoryview:
        """The bytes of frame `slot`, of its length; a view, valid until the slot is written again."""
        return self.frame_of(slot, int(self.lengths[slot]))

    def frame_of(self, slot: int, size: int) -> memoryview:
        """The first `size` bytes of a slot; a view."""
        start = self.starts[slot]
        return self.mem[start : start + size]
