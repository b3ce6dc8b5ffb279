"""What a worker reports, as values: its messages while it runs, and what its ranks, QPs and NICs counted.

The lines between a worker and its crew are these values as JSON (worker.py says when each is sent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from heddle.base.problems import Problem
from heddle.endpoints.nic.nic import NicCounters
from heddle.endpoints.ranks import SizeResult
from heddle.host.saturation import WorkerUse


@dataclass(frozen=True, slots=True)
class QpReport:
    """One end of a QP. packets, bytes: data frames sent; ce: frames that arrived with a mark.

    taken: frames with a right ICRC that the NIC took for this end, whether in order or not. Of a receiving end; else 0.
    counters: of the transport, by the keys of its columns.
    """

    rank: int
    qpn: int
    packets: int
    bytes: int
    ce: int
    taken: int
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NicReport:
    """One NIC. socket_drops: frames that its socket had no room for."""

    counters: NicCounters
    socket_drops: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker at the end of a run. loop: which code drove its NICs (`compiled`, `python`)."""

    ranks: Mapping[int, tuple[SizeResult, ...]]
    qps: tuple[QpReport, ...]
    nics: tuple[NicReport, ...]
    loop: str = ""


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """One line of a worker: the only field that is not its default.

    ready: its ranks can begin the next size, and its NICs are idle. use: all its ranks have finished a size; what it
    used for that. done: that was the last size, and its NICs are idle.
    """

    ready: bool = False
    use: WorkerUse | None = None
    done: bool = False
    report: WorkerReport | None = None
    error: tuple[Problem, ...] = ()

    def line(self) -> str:
        """The message as one line of JSON, without its end."""
        return _MESSAGE.dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def of_line(cls, line: bytes) -> WorkerMessage:
        """What `line` gave."""
        return _MESSAGE.validate_json(line)


_MESSAGE: Final = TypeAdapter(WorkerMessage)
