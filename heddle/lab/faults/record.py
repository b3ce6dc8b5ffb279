"""The record of one fault that a kind of registry.py has set; impairments.Requested stores all of a lab."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from heddle.base.process import start_of

Process = tuple[int, int]  # pid, and when it began (start_of)


@dataclass(frozen=True, slots=True)
class SetFault:
    """A fault that is set, or that is being set. where: a port or a node. values: of its kind, as plain data.

    maker: the process that sets it, until its effect was verified. If that process has ended, the fault is unfinished.
    worker: the process that keeps the fault going, where a kind needs one. run: it is for one run.
    """

    kind: str
    where: str
    values: Mapping[str, Any] = field(default_factory=dict)
    maker: Process | None = None
    worker: Process | None = None
    run: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """A place has one fault of a kind."""
        return self.kind, self.where

    @property
    def unfinished(self) -> bool:
        """Whether the process that was setting it has ended before its effect was verified."""
        return self.maker is not None and not runs(self.maker)

    def being_set(self) -> Self:
        """The same, with this process as its maker."""
        return replace(self, maker=(os.getpid(), start_of(os.getpid()) or 0))

    def to_json(self) -> dict[str, Any]:
        data = {"kind": self.kind, "where": self.where, "values": dict(self.values), "run": self.run}
        return {key: value for key, value in {**data, "maker": self.maker, "worker": self.worker}.items() if value}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """What `to_json` wrote; ValueError, TypeError or KeyError for other data."""
        maker, worker = (None if data.get(key) is None else _process(data[key]) for key in ("maker", "worker"))
        values = dict(data.get("values", {}))
        return cls(str(data["kind"]), str(data["where"]), values, maker, worker, bool(data.get("run")))


def _process(data: Any) -> Process:
    pid, started = data
    return int(pid), int(started)


def runs(process: Process) -> bool:
    """Whether the process still runs, and is not another one with its pid."""
    return start_of(process[0]) == process[1]
