"""One flow under way, raw or of RoCEv2: its state, its counters, its rates.

A flow has ended when it sends no more. It has settled when its last frame has arrived, or nothing has arrived for
_QUIET_S: then its counters are final, and it is reported as stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle_plugins.otg.qps import MessageReceiver, MessageSender
from heddle_plugins.otg.rawflows import RawCounter, RawSender

_QUIET_S: Final = 0.5
_DRAIN_S: Final = 10.0  # for messages that were posted, when a flow is stopped
_PERIOD_S: Final = 0.25  # of samples of rates
_SAMPLES: Final = 5
STARTED, PAUSED, STOPPED = "started", "paused", "stopped"
Counts = dict[str, int]


@dataclass(slots=True)
class FlowState:
    """What is known of a flow. rates: per second over the last second, for each counter. error: why it failed."""

    state: str = STOPPED
    counts: Counts = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    error: str = ""


class ActiveFlow:
    """One flow of the engine, raw or of RoCEv2."""

    def __init__(self) -> None:
        self.state, self.ending_since, self.changed_at = STOPPED, 0.0, 0.0
        self._samples: list[tuple[float, Counts]] = []
        self._last: Counts = {}
        self.error = ""

    def begin(self, now: float) -> None:
        """Start from its first packet, with counters of 0."""
        raise NotImplementedError

    def pause(self) -> None:
        """Send nothing."""
        raise NotImplementedError

    def go_on(self, now: float) -> None:
        """Continue after a pause."""
        raise NotImplementedError

    def stop(self) -> None:
        """Send nothing new any more."""
        raise NotImplementedError

    @property
    def sending(self) -> bool:
        """Whether it has something to send, now or later."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether all that was sent has arrived."""
        raise NotImplementedError

    def counts(self) -> Counts:
        """Its counters since `begin`."""
        raise NotImplementedError

    def start(self, now: float) -> None:
        """Begin, and sample from here."""
        self.begin(now)
        self.state, self.ending_since, self.error = STARTED, 0.0, ""
        self._samples, self._last = [], {}

    def look(self, now: float) -> None:
        """Sample its counters, and find out whether it has settled."""
        if self.state == STOPPED:
            return
        counts = self.counts()
        if counts != self._last:
            self._last, self.changed_at = counts, now
        if not self._samples or now - self._samples[-1][0] >= _PERIOD_S:
            self._samples = [*self._samples[1 - _SAMPLES :], (now, counts)]
        if self.state == PAUSED or self.sending:
            self.ending_since = 0.0
            return
        self.ending_since = self.ending_since or now
        quiet = now - max(self.changed_at, self.ending_since) >= _QUIET_S
        if self.complete or quiet or now - self.ending_since >= _DRAIN_S:
            self.state = STOPPED

    def row(self) -> FlowState:
        """Its state, counters and rates."""
        rates: dict[str, float] = {}
        if self.state == STARTED and len(self._samples) > 1:
            (began, before), (ended, after) = self._samples[0], self._samples[-1]
            rates = {name: (after[name] - before.get(name, 0)) / (ended - began) for name in after}
        return FlowState(self.state, self.counts(), rates, self.error)


class RawActive(ActiveFlow):
    """A raw flow. counter: None where no receiver can identify its frames."""

    def __init__(self, sender: RawSender, counter: RawCounter | None) -> None:
        super().__init__()
        self.sender, self._counter = sender, counter

    def begin(self, now: float) -> None:
        if self._counter is not None:
            self._counter.clear()
        self.sender.start(now)

    def pause(self) -> None:
        self.sender.pause()

    def go_on(self, now: float) -> None:
        self.sender.go_on(now)

    def stop(self) -> None:
        self.sender.stop()

    @property
    def sending(self) -> bool:
        return self.sender.due is not None

    @property
    def complete(self) -> bool:
        return self._counter is None or self._counter.count >= self.sender.sent

    def counts(self) -> Counts:
        sent, size = self.sender.sent, self.sender.flow.frames.size
        found = {"frames_tx": sent, "bytes_tx": sent * size}
        if self._counter is not None:
            count = self._counter.count
            found |= {"frames_rx": count, "bytes_rx": count * size}
        return found


class RoceActive(ActiveFlow):
    """The messages of a queue pair: the ends at both NICs, and their counters. nic: that of the sender."""

    def __init__(
        self, nic: Nic, sender: MessageSender, requester: QueuePair, receiver: MessageReceiver, responder: QueuePair
    ) -> None:
        super().__init__()
        self._nic, self._sender, self._requester = nic, sender, requester
        self._receiver, self._responder = receiver, responder
        self._base: Counts = {}

    def begin(self, now: float) -> None:
        self._base = self._total()
        self.go_on(now)

    def pause(self) -> None:
        self._sender.stop()

    def go_on(self, now: float) -> None:
        self._sender.run()
        self._nic.wake(self._requester)

    def stop(self) -> None:
        self._sender.stop()

    @property
    def sending(self) -> bool:
        if self._sender.error:
            self.error = self._sender.error
            return False
        return self._sender.running or not self._sender.idle

    @property
    def complete(self) -> bool:
        return self._sender.idle and not self._receiver.answering

    def _total(self) -> Counts:
        out, into = self._requester.end.counters(), self._responder.end.counters()
        arrived = sum(each.packets for each in self._responder.received)
        return {
            "data_frames_tx": self._requester.packets, "data_frames_rx": arrived,
            "data_frames_retransmitted": out["retransmitted"], "frame_sequence_error": into["out_of_order"],
            "tx_bytes": self._requester.bytes, "rx_bytes": self._receiver.bytes,
            "message_tx": self._sender.posted, "message_complete_rx": self._receiver.messages,
            "ecn_ce_rx": self._responder.ce, "cnp_tx": into.get("cnps_sent", 0),
            "cnp_rx": out.get("cnps_received", 0) + self._sender.cnps,
            "ack_tx": self._receiver.acks, "ack_rx": self._sender.acks,
            "nak_tx": self._receiver.naks, "nak_rx": self._sender.naks,
        }  # fmt: skip

    def counts(self) -> Counts:
        return {name: value - self._base.get(name, 0) for name, value in self._total().items()}
