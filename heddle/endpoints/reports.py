"""The reports of a worker: its messages while it runs, and the counters of its ranks, QPs and NICs.

The lines between a worker and its crew are these values as JSON (worker.py describes when each is sent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import TypeAdapter

from heddle.base.problems import Problem
from heddle.endpoints.congestion.ratecontrol import RateSteps
from heddle.endpoints.nic.nic import NicCounters
from heddle.endpoints.nic.qpend import PathUse
from heddle.host.capacity import WorkerUse
from heddle.traffic.admission import WaitCounts
from heddle.traffic.schedule import Key, Schedule, Send

ROWS: Final = 32768  # messages in the journals of all ranks of a job


@dataclass(frozen=True, slots=True)
class SizeResult:
    """One rank's result for one size: seconds for all timed iterations together, and the number of errors.

    wrong: wrong elements of the last iteration, plus wrong blocks of all earlier ones, warm-up included.
    iterations: seconds of each timed iteration, in order; their sum is `seconds`.
    """

    size: int
    seconds: float
    wrong: int
    iterations: tuple[float, ...] = ()


Span = tuple[int, int, tuple[int, ...]]  # the epoch of its first timed iteration, bytes, its beginning and all ends
Post = tuple[int, int, int, int, int, int]  # epoch, step, index, peer, turn, when it was posted
Use = tuple[int, int, int, int, int, int]  # epoch, step, index, bytes, when it was complete, when it was used


@dataclass(slots=True)
class RankJournal:
    """Times of a rank's iterations and messages, CLOCK_MONOTONIC in ns, so those of several workers can be compared.

    Of each size it has the messages of the first timed iterations, as many whole ones as fit into the rank's share of
    ROWS. share: messages that each size may have. spans: of each measured size. Peers are numbered as in the rank's
    communicator.
    """

    share: int = 0
    spans: list[Span] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    kept: bool = False  # whether it has the messages of the current iteration
    left: int = 0

    @classmethod
    def of(cls, ranks: int, sizes: int) -> RankJournal:
        """The journal of one of `ranks` ranks."""
        return cls(max(1, ROWS // ranks // sizes))

    def earlier(self, ns: int) -> RankJournal:
        """A copy with all times moved back."""
        spans = [(epoch, size, tuple(each - ns for each in times)) for epoch, size, times in self.spans]
        posts = [(*row[:5], row[5] - ns) for row in self.posts]
        uses = [(*row[:4], row[4] - ns, row[5] - ns) for row in self.uses]
        return RankJournal(self.share, spans, posts, uses, self.kept, self.left)

    def begin(self, schedule: Schedule, iteration: int, *, timed: bool) -> None:
        """An iteration of a size begins."""
        if not iteration:
            self.left = self.share
        count = max(len(schedule.receives), sum(schedule.messages.values()))
        self.kept = timed and count <= self.left and len(self.posts) + len(self.uses) < 2 * ROWS
        if timed:
            self.left = self.left - count if self.kept else 0

    def posted(self, epoch: int, send: Send, turn: int, now: float) -> None:
        """A message was given to a queue pair."""
        if self.kept:
            self.posts.append((epoch, *send.key, send.peer, turn, ns(now)))

    def used(self, epoch: int, key: Key, size: int, complete: float, now: float) -> None:
        """A message was used; its last byte had arrived at `complete`."""
        if self.kept:
            self.uses.append((epoch, *key, size, ns(complete), ns(now)))

    def end(self, epoch: int, size: int, began: float, ends: list[float]) -> None:
        """All iterations of a size have ended. epoch: of the first timed one."""
        if len(self.spans) < ROWS:
            self.spans.append((epoch, size, tuple(ns(each) for each in (began, *ends))))


def ns(seconds: float) -> int:
    """Whole nanoseconds."""
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class QpReport:
    """One end of a QP. sent: its data frames by path, in the order of QpEnd.paths; ce: frames that arrived with a mark.

    received: frames with a correct ICRC that the NIC received for this end, in order or not, by path.
    counters: of the transport and of congestion control, by the keys of their columns. rates: of a sending end that
    congestion control limits, the rate over time. standing: see QpEnd. waits: of a sending end, for CTS packets, with
    admission. damaged: UDP source port -> frames with a wrong ICRC that the NIC received for this end.
    """

    rank: int
    qpn: int
    sent: tuple[PathUse, ...]
    received: tuple[PathUse, ...]
    ce: int
    counters: Mapping[str, int]
    rates: RateSteps = ()
    standing: str = ""
    waits: WaitCounts = ()
    damaged: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NicReport:
    """One NIC. socket_drops: frames that were dropped because its socket was full.

    Both are None where the hosts' own stack received the frames, and does not report this.
    """

    counters: NicCounters | None
    socket_drops: int | None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker at the end of a run. loop: the code that drove its NICs (`compiled`, `python`). journals: by rank."""

    qps: tuple[QpReport, ...]
    nics: tuple[NicReport, ...]
    loop: str = ""
    journals: Mapping[int, RankJournal] = field(default_factory=dict)

    def earlier(self, ns: int) -> WorkerReport:
        """The same with all times of a clock that is `ns` behind: that of the machine where the run is controlled."""
        if not ns:
            return self
        return replace(self, journals={rank: each.earlier(ns) for rank, each in self.journals.items()})


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """One line of a worker. Exactly one field differs from its default; `results` come with `ready` and `done`.

    ready: its ranks can begin the next size, and its NICs are idle. use: all its ranks have finished a size; the
    resources that it used. done: that was the last size, and its NICs are idle. results: of the size that was
    checked, by rank; none before the first size. still: its NICs have stopped (worker.py), and this is what its
    ranks wait for; nothing if they have finished. moving: they are not still any more. waits: what its ranks wait for
    now, or which NICs have dropped frames for another MAC, because the parent process asked.
    """

    ready: bool = False
    use: WorkerUse | None = None
    done: bool = False
    results: Mapping[int, SizeResult] = field(default_factory=dict)
    report: WorkerReport | None = None
    still: tuple[Problem, ...] | None = None
    moving: bool = False
    waits: tuple[Problem, ...] | None = None
    error: tuple[Problem, ...] = ()

    def earlier(self, ns: int) -> WorkerMessage:
        """The same by a clock that is `ns` behind."""
        return self if self.report is None else replace(self, report=self.report.earlier(ns))

    def line(self) -> str:
        """The message as one line of JSON, without a newline."""
        return _MESSAGE.dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def of_line(cls, line: bytes) -> WorkerMessage:
        """Parse the text of `line`."""
        return _MESSAGE.validate_json(line)


_MESSAGE: Final = TypeAdapter(WorkerMessage)
