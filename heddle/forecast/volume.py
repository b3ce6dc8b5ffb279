"""The bytes of each QP in one iteration, by the same arithmetic that ranks and NICs apply to each packet.

In:  a connection's messages (a pattern's transfers, or a matrix' bytes), split over QPs or assigned in turn.
Out: Volume: a table with a row per kind of connection and a column per QP. Bytes are of frames from Ethernet header to
     ICRC, as in port counters and rates; and the payload in them.
Source of the cutting: traffic/schedule.py (messages), endpoints/ranks.py (parts), transports/rcstate.py (packets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from heddle.base.arrays import I32, I64
from heddle.endpoints.connections import PART_ALIGN
from heddle.fabric.model import Fabric
from heddle.traffic.collectives import Pattern
from heddle.traffic.options import ELEMENT_BYTES, QpMode
from heddle.wire.layout import IMM_BYTES, LAYOUTS, RETH_BYTES

_WORD: Final = 4  # payload is padded to whole words (BTH's pad count)


@dataclass(frozen=True)
class Volume:
    """wire, payload: bytes, of shape (kinds, qps)."""

    wire: I64
    payload: I64


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a message is cut into packets. ib_mtu: payload of a full packet; overhead: bytes of its headers."""

    ib_mtu: int
    overhead: int
    qps: int
    qp_mode: QpMode
    chunk: int  # bytes of one message

    def frames(self, payload: I64) -> I64:
        """Bytes on the wire of messages (RDMA WRITE with immediate) with this payload; 0 for no message."""
        packets = -(-payload // self.ib_mtu)
        extended = RETH_BYTES + IMM_BYTES  # in the first packet and in the last one
        padded = payload + -payload % _WORD
        return np.where(payload > 0, padded + packets * self.overhead + extended, 0)


def cutting(fabric: Fabric, qps: int, qp_mode: QpMode, chunk: int) -> Cutting:
    """The cutting of a fabric's NICs."""
    return Cutting(fabric.policy.ib_mtu, LAYOUTS[fabric.policy.ip_version].overhead_bytes, qps, qp_mode, chunk)


def of_lengths(lengths: I64, cut: Cutting) -> Volume:
    """One message sequence per row. lengths: shape (kinds,), bytes that a connection carries as one transfer."""
    whole, rest = lengths // cut.chunk, lengths % cut.chunk
    full = np.full_like(lengths, cut.chunk)
    if cut.qp_mode == "split":
        wire_full, part_full = _split(full, cut)
        wire_rest, part_rest = _split(rest, cut)
        return Volume(whole[:, None] * wire_full + wire_rest, whole[:, None] * part_full + part_rest)
    turn = np.arange(cut.qps)
    dealt = whole[:, None] // cut.qps + (turn < (whole % cut.qps)[:, None])
    last = turn == (whole % cut.qps)[:, None]
    return Volume(
        dealt * cut.frames(full)[:, None] + last * cut.frames(rest)[:, None],
        dealt * cut.chunk + last * rest[:, None],
    )


def of_pattern(pattern: Pattern, ranks: int, count: int, cut: Cutting) -> tuple[I64, I32, Volume]:
    """Pairs of ranks in plan order, the kind of each, and the bytes of each kind; count: elements of a rank's array.

    Shapes: (pairs, 2), (pairs,).

    Pairs with the same label have messages of the same lengths, so one pair of each kind is computed. Round-robin
    assigns messages to QPs in the order of the pattern's steps.
    """
    pairs = pattern.peers(ranks)
    labels = pattern.pair_labels(ranks, count, pairs)
    _, first, kind = np.unique(labels, return_index=True, return_inverse=True)
    rows = [_of_program(pattern, ranks, pairs[at].tolist(), count, cut) for at in first]
    volume = Volume(np.stack([r.wire for r in rows]), np.stack([r.payload for r in rows]))
    return pairs, kind.ravel().astype(np.int32), volume


def _of_program(pattern: Pattern, ranks: int, pair: Sequence[int], count: int, cut: Cutting) -> Volume:
    """The bytes of one connection (sender, receiver), message by message. Shapes are (qps,)."""
    program = pattern.program(ranks, pair[0], count)
    transfers = np.array([t.send[1] - t.send[0] for t in program if t.send_to == pair[1]], dtype=np.int64)
    transfers *= ELEMENT_BYTES
    if cut.qp_mode == "split":
        lengths, times = np.unique(transfers, return_counts=True)
        each = of_lengths(lengths, cut)
        return Volume((each.wire * times[:, None]).sum(axis=0), (each.payload * times[:, None]).sum(axis=0))
    messages = -(-transfers // cut.chunk)
    ends = np.cumsum(messages)
    sizes = np.full(int(ends[-1]) if len(ends) else 0, cut.chunk, dtype=np.int64)
    sizes[ends[messages > 0] - 1] = (transfers - (messages - 1) * cut.chunk)[messages > 0]
    turn = np.arange(len(sizes)) % cut.qps
    wire, payload = (
        np.bincount(turn, weights=amount, minlength=cut.qps).astype(np.int64) for amount in (cut.frames(sizes), sizes)
    )
    return Volume(wire, payload)


def _split(lengths: I64, cut: Cutting) -> tuple[I64, I64]:
    """Frames and payload of messages that are split over all QPs, of shape (messages, qps): part_sizes as columns."""
    part = -(-lengths // cut.qps)
    part = -(-part // PART_ALIGN) * PART_ALIGN
    offset = part[:, None] * np.arange(cut.qps)
    parts = np.clip(lengths[:, None] - offset, 0, part[:, None])
    return cut.frames(parts), parts
