"""One end of a queue pair, as its NIC sees it: what a transport implements (heddle/endpoints/transports/protocol.py).

In:  messages from a rank, frames that arrived, the time.
Out: frames to send, bytes written into a rank's memory, when to be called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.parse import Received

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes to write into the peer's memory at `va`, with the key that opens it; `imm` (32 bits) announces the end."""

    payload: memoryview
    va: int
    rkey: int
    imm: int


class Access(Protocol):
    """What a receiving end writes into: the memory of one rank."""

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """The bytes [va, va+length), or None when no such region is open to that key."""

    def arrived(self, imm: int) -> None:
        """A message with this immediate is complete. Must be called exactly once for each message."""


@dataclass(frozen=True, slots=True)
class QpInfo:
    """One end of a queue pair, as the plan has it.

    qpn: of this end. flow: headers of the frames that it sends; `flow.dqpn` is the QP number of the peer.
    psn: the first packet sequence number of the data direction (24 bits), the same for both ends.
    window: packets of the data direction that may be unacknowledged; 0: as the transport has it.
    delay_s: propagation of the path from the peer to this end. A frame of this QP, data or answer, counts as arrived so
    many seconds after the kernel has delivered it.
    """

    qpn: int
    flow: FlowHeader
    psn: int
    window: int = 0
    delay_s: float = 0.0


class QpEnd:
    """One end of a queue pair. It has no socket and no clock: the NIC calls it and reads its properties afterwards.

    The defaults are those of an end that does nothing: override what the end does. The NIC reads properties every few
    packets, so they must be cheap. `now` is in seconds, of a clock that only advances.
    """

    __slots__ = ()

    @property
    def ready(self) -> bool:
        """`take` has at least one frame to send now."""
        return False

    @property
    def answering(self) -> bool:
        """`answer` has a frame to send now."""
        return False

    @property
    def deadline(self) -> float:
        """When `expire` must be called, or NEVER. After that call it must be later, or NEVER."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Completion: everything that was posted has reached the peer, as far as this transport can know."""
        return True

    @property
    def error(self) -> str:
        """Why this end cannot go on, which ends the run. Empty while it works."""
        return ""

    def post(self, message: Message) -> None:
        """Queue a message. Its payload does not change before `idle`."""
        raise ValueError("this end of a queue pair only receives")

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        """Write up to `limit` data frames into slots from `slot` on; how many. They count as sent."""
        return 0

    def answer(self, batch: SendBatch, slot: int) -> None:
        """Write one answer (acknowledgement, grant, notification) into a slot. Called only when `answering`.

        Answers have a traffic class of their own, which goes ahead of data. The payload is at most the transport's
        `answer_bytes`.
        """

    def receive(self, got: Received, index: int, now: float) -> int:
        """Frame `index` arrived: sound, and from the peer. Take it; frames up to `got.run_end(index)` may go with it.

        Returns the index behind the last frame taken, or `index` when this end has no use for such a frame.
        """
        return index

    def expire(self, now: float) -> None:
        """The deadline has passed."""

    def hold(self, seconds: float) -> None:
        """The port let no data leave for so long: move the timers that wait for an answer to it."""

    def counters(self) -> Mapping[str, int]:
        """This end's share of the transport's columns. No key is reported by both ends of a queue pair."""
        return {}
