"""One end of a queue pair: the interface between a NIC and a transport (heddle/endpoints/transports/protocol.py).

In:  messages from a rank, frames that arrived, the time.
Out: frames to send, bytes written into a rank's memory, the time of the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch

NEVER: Final = float("inf")
E = TypeVar("E", bound="QpEnd")


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes to write into the peer's memory at `va`, with its remote key; `imm` (32 bits) announces the end."""

    payload: memoryview
    va: int
    rkey: int
    imm: int


@dataclass(frozen=True, slots=True)
class PathUse:
    """One path of a QP that an end used, by the handle that chose it: the UDP source port.

    packets: frames on it. bytes: of these frames; 0 at a receiving end, which does not count them.
    """

    sport: int
    packets: int
    bytes: int = 0


class Access(Protocol):
    """The memory of one rank, which a receiving end writes."""

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """The bytes [va, va+length), or None when the key does not permit access to such a region."""

    def arrived(self, imm: int) -> None:
        """Report a complete message with this immediate. Must be called exactly once for each message."""


@dataclass(frozen=True, slots=True)
class QpInfo:
    """One end of a queue pair, from the plan.

    qpn: of this end. flow: headers of the frames that it sends; `flow.dqpn` is the QP number of the peer.
    psn: the first packet sequence number of the data direction (24 bits), the same for both ends.
    window: packets of the data direction that may be unacknowledged; 0: the transport's default.
    delay_s: propagation delay of the path from the peer to this end. A frame of this QP, data or answer, counts as
    arrived that many seconds after the kernel has delivered it.
    sprayed: for a sending end that sprays, the headers to use in turn: `flow` with different UDP source ports.
    rtt_s: propagation of the path there and back, whether NICs or links delay frames.
    peer_sport: for a receiving end, the UDP source port of the peer's data, if they use only one.
    """

    qpn: int
    flow: FlowHeader
    psn: int
    window: int = 0
    delay_s: float = 0.0
    sprayed: tuple[FlowHeader, ...] = ()
    rtt_s: float = 0.0
    peer_sport: int = 0


class QpEnd:
    """One end of a queue pair. It has no socket and no clock: the NIC calls it and reads its properties afterwards.

    The defaults do nothing: override the methods that an end needs. The NIC reads properties every few packets, so they
    must be cheap. `now` is in seconds, of a monotonic clock.
    """

    __slots__ = ()

    @property
    def ready(self) -> bool:
        """Whether `take` has at least one frame to send now."""
        return False

    @property
    def answering(self) -> bool:
        """Whether `answer` has a frame to send now."""
        return False

    @property
    def deadline(self) -> float:
        """The time when `expire` must be called, or NEVER. After that call it must be later, or NEVER."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether everything that was posted has reached the peer, as far as this transport can know."""
        return True

    @property
    def in_flight(self) -> int:
        """Packets of a sending end that are not acknowledged, without those that it will retransmit."""
        return 0

    @property
    def requested(self) -> int:
        """Packets that the peer has requested one by one: `take` sends them first, and no window delays them."""
        return 0

    @property
    def reports_marks(self) -> bool:
        """Whether its answers report the marks of single packets. Who reads them needs no CNPs."""
        return False

    @property
    def error(self) -> str:
        """The reason why this end has failed, which ends the run. Empty while it works."""
        return ""

    def post(self, message: Message) -> None:
        """Queue a message. The caller must not change its payload before `idle`."""
        raise ValueError("this end of a queue pair only receives")

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        """Write up to `limit` data frames into slots from `slot` on; return their number. They count as sent."""
        return 0

    def answer(self, batch: SendBatch, slot: int) -> None:
        """Write one answer (acknowledgement, grant, notification) into a slot. Called only when `answering`.

        Answers have a separate traffic class, with priority over data. The payload is at most the transport's
        `answer_bytes`.
        """

    def receive(self, got: Received, index: int, now: float) -> bool:
        """Take frame `index`, which is sound and from the peer; False when this end does not accept such a frame."""
        return False

    def trimmed(self, got: Received, index: int, now: float) -> bool:
        """Take frame `index`, from the peer, which a switch has cut behind its headers; False when it is of no use.

        It has no ICRC: nothing in it may change data, or what this end takes as arrived.
        """
        return False

    def expire(self, now: float) -> None:
        """Handle the end of the deadline."""

    def hold(self, seconds: float) -> None:
        """Move the timers that wait for an answer: the port has sent no data for this time."""

    def counters(self) -> Mapping[str, int]:
        """This end's share of the transport's columns. No key is reported by both ends of a queue pair."""
        return {}

    def paths(self, sent: PathUse) -> tuple[PathUse, ...]:
        """The paths that a sending end used, each once; first that of the QP's own header.

        sent: all of its data frames, as if they had used only that one, as by default. An end that chooses other paths
        reports them here, also those that the plan does not have.
        """
        return (sent,)

    @property
    def standing(self) -> str:
        """How far a receiving end has come, for the report of a run that has stopped; empty: it does not say."""
        return ""

    def rates(self) -> tuple[tuple[int, float], ...]:
        """The sending rate over time, if congestion control limits it: (CLOCK_MONOTONIC in ns, bit/s), ascending."""
        return ()

    def waits(self) -> tuple[tuple[int, int], ...]:
        """How long messages waited for a CTS, with admission: (bucket, messages), as in WaitCounts."""
        return ()


def passes_on(to: str, *names: str) -> Callable[[type[E]], type[E]]:
    """A decorator of ends: these properties and methods are those of the object in the attribute `to`."""

    def passing(end: type[E]) -> type[E]:
        for name in names:
            setattr(end, name, property(attrgetter(f"{to}.{name}")))
        return end

    return passing


@passes_on("_end", *(name for name in vars(QpEnd) if not name.startswith("_") and name != "expire"))
class WrappedEnd(QpEnd):
    """An end around another one: override what it adds. Everything else is passed on."""

    __slots__ = ("_end",)

    def __init__(self, end: QpEnd) -> None:
        self._end = end

    def expire(self, now: float) -> None:
        """Pass it on when the deadline of the inner end has passed: a wrapper may have an earlier one."""
        if self._end.deadline <= now:
            self._end.expire(now)
