"""The queue pairs of a plan as columns, and the bytes of each: as heddle/traffic/plan.py, for millions of QPs.

In:  endpoints by rank, connections in plan order, QPs per connection, the choice of source ports.
Out: Connections, one per row; and flows, made for some connections at a time to limit memory: one row per QP, or one
     for each source port over which a QP sprays.
     Volume: a table with a row per kind of connection and a column per QP, of the bytes in one iteration: of frames
     from Ethernet header to ICRC, as in port counters and rates; and the payload in them.
QP numbers and source ports are exactly those of `build_plan`; a test compares them. Bytes follow from the arithmetic
that ranks and NICs apply to each packet: traffic/schedule.py (messages), endpoints/ranks.py (parts),
transports/rcstate.py (packets), transports/srd.py (an address in every packet, and source ports in turn).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32, I64, U32, U64
from heddle.endpoints.connections import PART_ALIGN
from heddle.endpoints.transports import TRANSPORTS
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import BACKEND
from heddle.predict.forwarding import FlowArrays, address_words
from heddle.traffic.collectives import Pattern
from heddle.traffic.flow import ROCE, Endpoint, Numbering
from heddle.traffic.options import TRANSPORT, QpMode
from heddle.traffic.plan import Plan
from heddle.traffic.readers import SourcePorts
from heddle.wire.layout import ETH_BYTES, IMM_BYTES, LAYOUTS, RETH_BYTES, ROCE_PORT, TCP_BYTES
from heddle.wire.sport import SPORT_RULES, entropy_sport

# The formulas for one QP; they use 64-bit arithmetic, so they work for columns too.
_SPORTS: Final = cast(Mapping[str, Callable[[U64, U64], U64]], SPORT_RULES)
_SPRAYED: Final = cast(Callable[[U64, U64], U64], entropy_sport)
BATCH: Final = 1 << 19  # flows per batch: few enough for memory, enough for numpy to be fast
FLOW_BYTES: Final = 400  # memory per flow of a batch: columns, hashes in 64 bits and their state, hops
CONNECTION_BYTES: Final = 160  # memory per connection: columns, and sorting them
LENGTH_BYTES: Final = 80  # memory per flow of a connection and different length: bytes, and their sums


@dataclass(frozen=True)
class Connections:
    """Pairs of ranks with traffic, in plan order. numbers: each end's QP number of index 0; index i has i more.

    kind: row of the Volume with the bytes of each of its flows. sports: source ports of each QP.
    """

    src: I32
    dst: I32
    src_number: U32
    dst_number: U32
    kind: I32
    qps: int
    source_ports: SourcePorts
    sports: int = 1
    numbering: Numbering = ROCE

    def __len__(self) -> int:
        return len(self.src)

    @property
    def each(self) -> int:
        """The number of flows of a connection: one for each source port of each QP."""
        return self.qps * self.sports

    @property
    def flows(self) -> int:
        """The number of flows."""
        return len(self.src) * self.each

    def batches(self, limit: int = BATCH) -> Iterator[slice]:
        """Connections in slices of at most `limit` flows, or of one connection."""
        step = max(1, limit // self.each)
        for start in range(0, len(self.src), step):
            yield slice(start, min(start + step, len(self.src)))


def connect(
    endpoints: Sequence[Endpoint], src: npt.NDArray[np.integer], dst: npt.NDArray[np.integer], kind: I32,
    qps: int, source_ports: SourcePorts, sports: int = 1, numbering: Numbering = ROCE,
) -> Connections:  # fmt: skip
    """Open `qps` QPs for every pair of ranks, in this order; each NIC assigns QP numbers in sequence."""
    ends = np.stack([src, dst], axis=1).astype(np.int32).ravel()  # in the order of number assignment
    earlier = _earlier_equal(ends, len(endpoints))
    start = np.array([numbering.before(e) for e in endpoints], dtype=np.int64)
    number = (start[ends] + 1 + earlier * qps).astype(np.uint32).reshape(-1, 2)
    return Connections(
        src.astype(np.int32), dst.astype(np.int32),
        np.ascontiguousarray(number[:, 0]), np.ascontiguousarray(number[:, 1]), kind, qps, source_ports, sports,
        numbering,
    )  # fmt: skip


def _earlier_equal(values: I32, kinds: int) -> I64:
    """For each index, the number of equal values at earlier indices. values: from 0 to kinds - 1."""
    order = np.argsort(values, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(values, minlength=kinds))[:-1]])
    earlier = np.empty(len(values), dtype=np.int64)
    earlier[order] = np.arange(len(values)) - first[values[order]]
    return earlier


def addresses(endpoints: Sequence[Endpoint]) -> U32:
    """Addresses by rank, as in FlowArrays: (ranks,) for IPv4, (ranks, 4) words, most significant first, for IPv6."""
    return address_words([endpoint.ip for endpoint in endpoints])


def flows_of(connections: Connections, part: slice | I64, address: U32) -> FlowArrays:
    """The flows of some connections, sorted by connection, index of the QP, index of the port. address: `addresses`."""
    qps, sports = connections.qps, connections.sports
    index = np.arange(qps, dtype=np.uint32)
    mine = (connections.src_number[part, None] + index).ravel()
    theirs = (connections.dst_number[part, None] + index).ravel()
    how = connections.source_ports
    rule = _SPORTS.get(how.mode)
    if rule is not None:
        base = rule(mine.astype(np.uint64), theirs.astype(np.uint64))
    else:
        turns = np.array([how.ports[i % len(how.ports)] for i in range(qps)], dtype=np.uint64)
        base = np.tile(turns, len(mine) // qps)
    more = _SPRAYED(base[:, None], np.arange(1, sports, dtype=np.uint64))
    sport = np.concatenate([base[:, None], more], axis=1).ravel().astype(np.uint32)
    src = address[np.repeat(connections.src[part], connections.each)]
    dst = address[np.repeat(connections.dst[part], connections.each)]
    number, numbering = np.repeat(theirs, sports), connections.numbering
    if numbering.protocol:
        return FlowArrays(src, dst, sport, number, number | np.uint32(numbering.key(0)))
    return FlowArrays(src, dst, sport, np.full(len(sport), ROCE_PORT, dtype=np.uint32), number)


_WORD: Final = 4  # payload is padded to whole words (BTH's pad count)


@dataclass(frozen=True)
class Volume:
    """wire: bytes of shape (kinds, qps x source ports), those of a QP side by side. payload: of shape (kinds, qps).

    doubt: why the bytes of single flows are not exact; empty if they are.
    """

    wire: I64
    payload: I64
    doubt: str = ""


_SPRAYED_UNEVENLY: Final = (
    "messages differ in length, and a run sends them in the order in which data arrives: the last packet of a message "
    "may leave by another source port of its QP than here"
)
_TURNS_DIFFER: Final = (
    "steps differ in their number of messages, and not every connection has its longer steps at the same place: some "
    "QPs may have a message more or less than here for each of them"
)


@dataclass(frozen=True)
class Sprayed:
    """A sequence of messages of queue pairs that spray, beginning with the first source port of each.

    wire: bytes of frames, of shape (..., ports). packets: their number, or one that is equal modulo the ports.
    A message begins with the port after that of the packet before it, so bytes depend on the order of messages. With P
    ports, a sequence of n packets moves what follows by n mod P ports. So n equal messages take log2(n) steps.
    """

    wire: I64
    packets: I64

    def then(self, later: Sprayed) -> Sprayed:
        """This sequence, and a later one of the same queue pairs."""
        ports = self.wire.shape[-1]
        begin, wire = np.broadcast_arrays((self.packets % ports)[..., None], later.wire)
        moved = np.take_along_axis(wire, (np.arange(ports) - begin) % ports, axis=-1)
        return Sprayed(self.wire + moved, (self.packets + later.packets) % ports)

    def times(self, number: I64) -> Sprayed:
        """This sequence, a number of times. number: shape of `packets`, or one that broadcasts with it."""
        many, power = Sprayed(np.zeros_like(self.wire), np.zeros_like(self.packets)), self
        while (number > 0).any():
            odd, more = number % 2 == 1, many.then(power)
            many = Sprayed(np.where(odd[..., None], more.wire, many.wire), np.where(odd, more.packets, many.packets))
            number, power = number // 2, power.then(power)
        return many


def of_messages(packets: I64, full: int, total: I64, ports: int) -> Sprayed:
    """One message of each element. packets: of the message; full: bytes of each but the last; total: bytes of all."""
    before, number = np.maximum(packets - 1, 0), np.arange(ports)
    wire = np.maximum(-(-(before[..., None] - number) // ports), 0) * full
    last = number == before[..., None] % ports
    return Sprayed(wire + np.where(last, (total - before * full)[..., None], 0), packets)


def in_turn(lengths: I64, of_length: Callable[[int], Sprayed]) -> Sprayed:
    """The sequence of messages of these lengths. of_length: a message of one length; all results have one shape."""
    begins = np.flatnonzero(np.diff(lengths, prepend=-1))
    runs = np.diff(np.append(begins, len(lengths)))
    found: dict[int, Sprayed] = {}
    whole = of_length(0)
    for begin, run in zip(begins.tolist(), runs, strict=True):
        length = int(lengths[begin])
        if length not in found:
            found[length] = of_length(length)
        whole = whole.then(found[length].times(run[None]) if run > 1 else found[length])
    return whole


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a message is cut into packets. ib_mtu: payload of a full packet; overhead: bytes of its headers."""

    ib_mtu: int
    overhead: int
    qps: int
    qp_mode: QpMode
    chunk: int  # bytes of one message
    addressed: bool = False  # every packet has a RETH, not only the first of a message
    sports: int = 1  # source ports of a QP, used packet by packet
    lead: int = 0  # bytes before each message of a stream

    def frames(self, payload: I64) -> I64:
        """Bytes on the wire of messages (RDMA WRITE with immediate) with this payload; 0 for no message."""
        if self.lead:
            stream: I64 = np.where(payload > 0, payload + self.lead, 0)
            return stream + -(-stream // self.ib_mtu) * self.overhead
        packets = -(-payload // self.ib_mtu)
        extended = RETH_BYTES * (packets if self.addressed else 1) + IMM_BYTES  # the immediate is in the last packet
        padded = payload + -payload % _WORD
        return np.where(payload > 0, padded + packets * self.overhead + extended, 0)

    def sprayed(self, payload: I64) -> Sprayed:
        """One message of each payload by source port, if packets are addressed."""
        full = self.ib_mtu + -self.ib_mtu % _WORD + self.overhead + RETH_BYTES
        return of_messages(-(-payload // self.ib_mtu), full, self.frames(payload), self.sports)


def cutting(
    fabric: Fabric,
    qps: int,
    qp_mode: QpMode,
    chunk: int,
    transport: str = TRANSPORT,
    sports: int = 1,
    network: str = BACKEND,
) -> Cutting:
    """The cutting of a fabric's NICs. sports: source ports of a QP, more than one only if packets are addressed."""
    policy = fabric.policy
    sizes = policy.ip_version, policy.ib_mtu, policy.of(network).mtu
    return _cutting(sizes, qps, qp_mode, chunk, transport, sports)


def cutting_of(plan: Plan) -> Cutting:
    """The cutting of a run's NICs or kernels, with one source port of each QP."""
    o = plan.options
    sizes = plan.ip_version, plan.ib_mtu, min(end.mtu for end in plan.endpoints)
    return _cutting(sizes, o.qps, o.qp_mode, o.chunk, o.transport)


def _cutting(
    sizes: tuple[int, int, int], qps: int, qp_mode: QpMode, chunk: int, transport: str, sports: int = 1
) -> Cutting:
    """sizes: IP version, payload of a full RoCE packet, and IP MTU, from which a kernel has its segment size."""
    (version, ib_mtu, mtu), kind = sizes, TRANSPORTS[transport]
    layout = LAYOUTS[version]
    if kind.lead:
        overhead = layout.udp_at + TCP_BYTES
        return Cutting(mtu + ETH_BYTES - overhead, overhead, qps, qp_mode, chunk, lead=kind.lead)
    return Cutting(ib_mtu, layout.overhead_bytes, qps, qp_mode, chunk, kind.addressed, sports)


def of_lengths(lengths: I64, cut: Cutting) -> Volume:
    """One message sequence per row. lengths: shape (kinds,), bytes that a connection carries as one transfer."""
    whole, rest = lengths // cut.chunk, lengths % cut.chunk
    full = np.full_like(lengths, cut.chunk)
    if cut.qp_mode == "split":
        often, first, last = whole[:, None], _split(full, cut), _split(rest, cut)
    else:
        turn = np.arange(cut.qps)
        often = whole[:, None] // cut.qps + (turn < (whole % cut.qps)[:, None])
        first = np.repeat(full[:, None], cut.qps, axis=1)
        last = np.where(turn == (whole % cut.qps)[:, None], rest[:, None], 0)
    return Volume(_wire(first, often, last, cut), often * first + last)


def _wire(first: I64, often: I64, last: I64, cut: Cutting) -> I64:
    """Bytes on the wire of so many messages of a payload and a last one, of shape (kinds, qps): as in Volume."""
    if cut.sports == 1:
        return often * cut.frames(first) + cut.frames(last)
    wire = cut.sprayed(first).times(often).then(cut.sprayed(last)).wire
    return wire.reshape(len(wire), -1)


def of_pattern(pattern: Pattern, ranks: int, count: int, cut: Cutting) -> tuple[I64, I32, Volume]:
    """Pairs of ranks in plan order, the kind of each, and the bytes of each kind; count: elements of a rank's array.

    Shapes: (pairs, 2), (pairs,).

    Pairs with the same label have messages of the same lengths, so one pair of each kind is computed. Round-robin
    assigns messages to QPs in the order of the pattern's steps, and so does spraying with packets and source ports.
    """
    pairs = pattern.peers(ranks)
    labels = pattern.pair_labels(ranks, count, pairs)
    lengths, first, kind = np.unique(labels, return_index=True, return_inverse=True)
    if pattern.once:
        return pairs, kind.ravel().astype(np.int32), of_lengths(lengths * pattern.element_bytes, cut)
    rows = [_of_program(pattern, ranks, pairs[at].tolist(), count, cut) for at in first]
    doubt = next((r.doubt for r in rows if r.doubt), "")
    volume = Volume(np.stack([r.wire for r in rows]), np.stack([r.payload for r in rows]), doubt)
    return pairs, kind.ravel().astype(np.int32), volume


def _of_program(pattern: Pattern, ranks: int, pair: Sequence[int], count: int, cut: Cutting) -> Volume:
    """The bytes of one connection (sender, receiver), message by message. Shapes are (qps,)."""
    sent = pattern.sent_by(ranks, pair[0], count)
    transfers = np.array([length for to, length in sent if to == pair[1]], dtype=np.int64) * pattern.element_bytes
    messages = -(-transfers // cut.chunk)
    last = (transfers - (messages - 1) * cut.chunk)[messages > 0]
    uneven = len(np.unique(np.append(last, cut.chunk) if (messages > 1).any() else last)) > 1
    doubt = _SPRAYED_UNEVENLY if uneven and cut.sports > 1 else ""
    if cut.qp_mode == "split":
        lengths, times = np.unique(transfers, return_counts=True)
        each = of_lengths(lengths, cut)
        payload = (each.payload * times[:, None]).sum(axis=0)
        if cut.sports > 1:
            return Volume(in_turn(transfers, lambda length: _parts(length, cut)).wire.ravel(), payload, doubt)
        return Volume((each.wire * times[:, None]).sum(axis=0), payload)
    ends = np.cumsum(messages)
    sizes = np.full(int(ends[-1]) if len(ends) else 0, cut.chunk, dtype=np.int64)
    sizes[ends[messages > 0] - 1] = last
    turn = np.arange(len(sizes)) % cut.qps
    wire, payload = (
        np.bincount(turn, weights=amount, minlength=cut.qps).astype(np.int64) for amount in (cut.frames(sizes), sizes)
    )
    if cut.sports > 1:
        mine = [in_turn(sizes[turn == qp], lambda size: cut.sprayed(np.array([size]))) for qp in range(cut.qps)]
        wire = np.concatenate([qp.wire for qp in mine]).ravel()
    return Volume(wire, payload, doubt or (_TURNS_DIFFER if len(np.unique(messages[messages > 0])) > 1 else ""))


def _parts(length: int, cut: Cutting) -> Sprayed:
    """A transfer of this length that is split over all QPs: shape (qps,)."""
    whole, full, rest = length // cut.chunk, np.array([cut.chunk]), np.array([length % cut.chunk])
    first, last = (cut.sprayed(_split(each, cut)[0]) for each in (full, rest))
    return first.times(np.array([whole])).then(last)


def _split(lengths: I64, cut: Cutting) -> I64:
    """The payload of messages that are split over all QPs, of shape (messages, qps): part_sizes as columns."""
    part = -(-lengths // cut.qps)
    part = -(-part // PART_ALIGN) * PART_ALIGN
    offset = part[:, None] * np.arange(cut.qps)
    return np.clip(lengths[:, None] - offset, 0, part[:, None])
