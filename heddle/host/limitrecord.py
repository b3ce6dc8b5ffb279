"""The record of the machine's limits: which lab needs how much, and what Heddle has raised.

RUN/heddle-limits.json, root's. A process holds RUN/heddle-limits.lock while it changes the record or a sysctl in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from heddle.base.owners import held, late
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import start_of

_LOCK_S: Final = 30.0  # a holder needs milliseconds


@dataclass(frozen=True, slots=True)
class Claim:
    """A lab's needs: sysctl -> number. process: the `up` that makes the lab, as (id, start time)."""

    process: tuple[int, int]
    needs: Mapping[str, int]

    @classmethod
    def of_this_process(cls, needs: Mapping[str, int]) -> Claim:
        """The claim of a lab that this process makes."""
        return cls((os.getpid(), start_of(os.getpid()) or 0), needs)


@dataclass(frozen=True, slots=True)
class RaisedKey:
    """A sysctl that Heddle has raised. ours: the values that Heddle has set; the user has set any other value."""

    before: int
    ours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """The contents of the record. boot: the boot ID. After another boot there is no lab and no raised sysctl."""

    boot: str
    labs: Mapping[str, Claim] = field(default_factory=dict)
    raised: Mapping[str, RaisedKey] = field(default_factory=dict)

    def claimed(self, key: str, but: str) -> int:
        """The need of all labs except one."""
        return sum(each.needs.get(key, 0) for name, each in self.labs.items() if name != but)

    def without(self, lab: str) -> LimitRecord:
        """The record after that lab is down."""
        return replace(self, labs={name: each for name, each in self.labs.items() if name != lab})

    def without_dead(self, here: Callable[[str], bool]) -> LimitRecord:
        """The record without labs whose `up` has ended or was killed and that have no part on this machine (`here`)."""
        alive = {
            name: each for name, each in self.labs.items() if start_of(each.process[0]) == each.process[1] or here(name)
        }
        return replace(self, labs=alive)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Where the record is, and the boot of this machine."""

    run: Path
    boot: str

    @property
    def path(self) -> Path:
        """The record; it exists as long as a lab does."""
        return self.run / "heddle-limits.json"

    def load(self) -> LimitRecord:
        """The record; an empty one when there is no file. MachineError when it cannot be read."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return _parsed(data) if data["boot"] == self.boot else LimitRecord(self.boot)
        except FileNotFoundError:
            return LimitRecord(self.boot)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            hint = f"remove it (rm {self.path}), then check the limits that ./inv doctor shows"
            raise MachineError(Problem("", str(self.path), f"cannot be read: {error}", hint)) from None

    def save(self, record: LimitRecord) -> None:
        """Write the record, atomically; remove the file when no lab is left. Call it with the lock held."""
        with machine_errors(str(self.path)):
            if not record.labs and not record.raised:
                self.path.unlink(missing_ok=True)
                return
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
            new.chmod(0o644)  # doctor reads it as any user
            new.replace(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the record. The lock file is removed while it is held: a waiting process notices, and tries again."""
        path = self.path.with_suffix(".lock")
        with ExitStack() as stack:
            with machine_errors(str(path)):
                stack.enter_context(held(path, late(path, _LOCK_S), seconds=_LOCK_S))
            yield


def _parsed(data: Mapping[str, Any]) -> LimitRecord:
    labs = {
        str(name): Claim((int(each["process"][0]), int(each["process"][1])), _numbers(each["needs"]))
        for name, each in data["labs"].items()
    }
    raised = {
        str(key): RaisedKey(int(each["before"]), tuple(int(value) for value in each["ours"]))
        for key, each in data["raised"].items()
    }
    return LimitRecord(str(data["boot"]), labs, raised)


def _numbers(data: Mapping[str, Any]) -> dict[str, int]:
    return {str(key): int(value) for key, value in data.items()}
