"""The interface of a worker's loop, which drives the NICs of its ranks, and the error of a NIC.

| loop | drives | for |
|---|---|---|
| nicloop.py | packet sockets, in Python | every transport that builds its own frames |
| fastpath/fastloop.py | packet sockets, compiled | those whose ends it knows (`Transport.fast`) |
| rdma/verbsloop.py, plugins' | the hosts' own kernel | those that have a `Transport.stack` |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from heddle.endpoints.connections import Connection, Destinations, Wants
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.ranks import Rank
from heddle.endpoints.reports import NicReport, QpReport
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import QpMode


class NicError(Exception):
    """A NIC of one rank, or one of its queue pairs, has failed. qpn: of that queue pair; None: the NIC."""

    def __init__(self, rank: int, why: str, qpn: int | None = None) -> None:
        super().__init__(why)
        self.rank = rank
        self.why = why
        self.qpn = qpn


class NicLoop(Protocol):
    """The NICs of one worker. Ranks are numbered as in the plan."""

    name: ClassVar[str]

    def open(self, endpoint: Endpoint, netns: Path, rkey: int) -> None:
        """Open a rank's NIC; OSError when its port cannot be opened."""

    def sender(self, rank: int, qp: QpInfo) -> int:
        """Open the sending end of a queue pair; return its number, for `link`."""

    def link(self, rank: int, ends: Sequence[int], mode: QpMode) -> Connection:
        """The queue pairs to one peer."""

    def destinations(self, rank: int) -> Destinations | None:
        """The object that needs the destinations of messages in advance, or None if the rank is asked per message."""
        return None

    def wants(self, rank: int) -> Wants | None:
        """The object that grants messages to the rank's senders, or None: without admission."""
        return None

    def receiver(self, rank: int, qp: QpInfo, memory: Rank) -> None:
        """Open the receiving end of a queue pair."""

    def begin(self) -> None:
        """All workers are ready, and ranks are about to send. Called before each size; NicError as of `turn`."""
        return

    def turn(self, until: float, stop_fd: int) -> bool:
        """Work until that time (CLOCK_MONOTONIC, seconds), or shorter; True when `stop_fd` is readable.

        NicError when a port is gone or a queue pair has failed.
        """

    def take_rest(self) -> None:
        """Receive the frames that were not read yet, and those that wait for their delay. Called at the end of a run,
        when copies of packets may arrive after their queue pair was done.
        """

    def idle(self) -> bool:
        """Nothing to send, nothing unacknowledged."""

    def qp_reports(self) -> Iterable[QpReport]:
        """The counters of each end."""

    def nic_reports(self) -> Iterable[NicReport]:
        """The frames of each NIC that were for no queue pair."""

    def foreign(self, rank: int) -> int:
        """Unicast frames for another MAC that a rank's NIC has dropped."""
        return 0

    def close(self) -> None:
        """Release all resources."""
