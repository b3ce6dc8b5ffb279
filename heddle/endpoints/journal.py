"""What a rank reports: the result of each size, and a journal of the times of its iterations and messages.

In:  each message that a rank posts, and each that it has used. Out: SizeResult; RankJournal, at the end of the run.
Times of a journal are CLOCK_MONOTONIC in ns, so those of different workers can be compared. It is bounded: of each size
it has the messages of the first timed iterations, as many whole ones as fit into the rank's share of ROWS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

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
    """One rank. share: messages that each size may have. spans: of each measured size.

    Peers are numbered as in the rank's communicator.
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
