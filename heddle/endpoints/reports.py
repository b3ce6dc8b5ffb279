"""The reports of a worker: its messages while it runs, and the counters of its ranks, QPs and NICs.

The lines between a worker and its crew are these values as JSON (worker.py describes when each is sent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import TypeAdapter

from heddle.base.problems import Problem
from heddle.endpoints.admission.waits import WaitCounts
from heddle.endpoints.congestion.ratecontrol import RateSteps
from heddle.endpoints.journal import RankJournal, SizeResult
from heddle.endpoints.nic.nic import NicCounters
from heddle.endpoints.nic.qpend import PathUse
from heddle.host.capacity import WorkerUse


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
    checked, by rank; none before the first size. still: its NICs have stopped (waiting.py), and this is what its
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
