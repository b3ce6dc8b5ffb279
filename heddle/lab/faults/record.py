"""The record of the faults that are set in a lab: one list, written before each change.

    LABDIR/faults.json     {"faults": [{"kind": "down", "where": "rtsw1:eth3"},
                                       {"kind": "packets", "where": "rtsw1:eth1", "values": {"loss": 0.01},
                                        "run": true, "maker": [PID, START]}, ...]}

So all that reads faults sees each, and one whose maker was killed (SIGKILL) is undone later: by the next command that
sets a fault, by the next run, or by `up --repair`. Whether the lab has a fault is read from the lab, not from here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.base import owners, state
from heddle.base.process import start_of

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

Process = tuple[int, int]  # pid, and when it began (start_of)


@dataclass(frozen=True, slots=True)
class SetFault:
    """A fault that is set, or that is being set. where: a port or a node. values: of its kind, as plain data.

    maker: the process that sets it, until its effect was verified; for one run, the process of the run. If that process
    has ended, the fault is unfinished. worker: the process that keeps the fault going, where a kind needs one.
    run: it is for one run.
    """

    kind: str
    where: str
    values: Mapping[str, Any] = field(default_factory=dict)
    maker: Process | None = None
    worker: Process | None = None
    run: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """A place has one fault of a kind; where a run sets a second one of packets, the last counts."""
        return self.kind, self.where

    @property
    def identity(self) -> tuple[tuple[str, str], bool, Process | None]:
        """What is the same while it is set, whatever its worker is."""
        return self.key, self.run, self.maker

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


_FILE: Final = "faults.json"
_LOCK_S: Final = 10.0  # for another command that changes faults, hashing or thresholds


def read(directory: Path) -> tuple[SetFault, ...]:
    """The faults of a lab, in the order in which they were set. A damaged file, or a damaged part, counts as empty."""
    try:
        data = json.loads((directory / _FILE).read_text(encoding="utf-8"))["faults"]
    except (OSError, ValueError, TypeError, KeyError):
        return ()
    found = []
    for each in data if isinstance(data, list) else ():
        try:
            found.append(SetFault.from_json(each))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return tuple(found)


def write(directory: Path, faults: Iterable[SetFault]) -> None:
    """Replace the record of a lab."""
    state.write_file(directory / _FILE, json.dumps({"faults": [each.to_json() for each in faults]}))


def replaced(lab: Lab, old: Iterable[SetFault], new: Iterable[SetFault]) -> None:
    """Remove faults from the record and add others. The caller holds CHANGES."""
    known, gone = read(lab.dir), {each.identity for each in old}
    now = (*(each for each in known if each.identity not in gone), *new)
    if now != known:
        write(lab.dir, now)


def verified(lab: Lab, faults: Iterable[SetFault]) -> None:
    """Record that these faults were set: without their maker, and without the earlier ones that they replaced.

    Faults that another command has set meanwhile on the same places stay, as in the lab. The caller holds CHANGES.
    """
    mine, now = {each.identity for each in faults}, list[SetFault]()
    for each in read(lab.dir):
        if each.identity in mine:
            now = [*(other for other in now if other.key != each.key), replace(each, maker=None)]
        else:
            now.append(each)
    write(lab.dir, now)


def changing(lab: Lab) -> AbstractContextManager[None]:
    """The lock of what changes during runs. Another command has it for a moment; then this waits."""
    return owners.lock(lab.name, owners.CHANGES, seconds=_LOCK_S)
