"""The state that Heddle keeps between commands: one directory per lab.

    STATE/labs/zone/lab.json     the record: name, runtime, phase, the whole fabric file
    STATE/labs/zone/topology/    the rendered topology
    STATE/labs/zone/runs/        its runs (heddle/runs/store.py)

STATE is $HEDDLE_STATE_DIR, else $XDG_STATE_HOME/heddle, else ~/.local/state/heddle. Under sudo it is the calling
user's, and the files there belong to that user. Locks, and which STATE a lab belongs to, are of the whole machine: see
owners.py.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from heddle.base import mounts as trees
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, machine_errors
from heddle.base.userfiles import ELSEWHERE, as_caller, caller, check_owner, give_to_caller, make_dir
from heddle.base.version import VERSION

RUNS: Final = "runs"
_PARKED: Final = "parked.json"  # the record of a lab that waits in a pool (plugins/testing/pool.py)
_FORMAT: Final = 2  # of lab.json; records of other formats are refused
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,11}")  # as in a fabric file (heddle/spec/schema.py)


@dataclass(frozen=True, slots=True)
class Record:
    """One lab, as in lab.json. A lab in phase `starting` or `ending` whose lock is free was interrupted there."""

    name: str
    runtime: str
    phase: Literal["starting", "running", "ending"]
    spec: Mapping[str, Any]  # the whole fabric file; empty if there is none
    source: str = ""  # the preset or file it came from
    seconds: Mapping[str, float] = field(default_factory=dict)  # duration of each step of `up`
    options: Mapping[str, str] = field(default_factory=dict)  # dialect and mgmt, as the topology was rendered
    imported: Mapping[str, Any] = field(default_factory=dict)  # of an imported topology: see lab/imported
    hashing: Mapping[str, Any] = field(default_factory=dict)  # switches that were changed live: see lab/rehash.py
    engineering: Mapping[str, Any] = field(default_factory=dict)  # installed entries of `te`: see lab/rehash.py
    queues: Mapping[str, Any] = field(default_factory=dict)  # nodes whose queues were changed live: lab/thresholds.py
    numbers: Mapping[str, Any] = field(default_factory=dict)  # of a lab that was changed: fabric/keptnumbers.py
    before_run: Mapping[str, Any] = field(default_factory=dict)  # ECN curves that a run has changed: lab/thresholds.py
    shard: Sequence[str] = field(default_factory=list)  # the nodes of this kernel, where others have the rest
    version: str = "of unknown version"  # of the Heddle that started the lab
    format: int = _FORMAT


def state_dir() -> Path:
    """The directory of the state; it need not exist."""
    if chosen := os.environ.get("HEDDLE_STATE_DIR"):
        return Path(chosen).absolute()
    if chosen := os.environ.get("XDG_STATE_HOME"):
        return Path(chosen).absolute() / "heddle"
    return caller_home() / ".local/state/heddle"


def cache_dir() -> Path:
    """The directory of what can be made again, such as images of virtual machines; it need not exist."""
    if chosen := os.environ.get("HEDDLE_CACHE_DIR"):
        return Path(chosen).absolute()
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen).absolute() / "heddle"
    return caller_home() / ".cache/heddle"


def caller_home() -> Path:
    """The home directory of the calling user; under sudo that is not root's."""
    user = caller()
    return Path(user.pw_dir) if user else Path.home()


def lab_dir(lab: str) -> Path:
    """The directory of one lab; it need not exist. InputError for an invalid name."""
    return state_dir() / "labs" / check_name(lab)


def check_name(lab: str) -> str:
    """The name itself if it is a valid lab name; else InputError.

    `down` builds paths of directories to remove, and patterns, from it: `/home` or `*` must not get there.
    """
    if _NAME.fullmatch(lab) is None:
        hint = "use 1 to 12 lowercase letters and digits, a letter first; ./inv status lists the labs"
        raise InputError(Problem("", f"lab {lab!r}", "is not a valid lab name", hint))
    return lab


def labs() -> list[str]:
    """Names of all labs with a record, sorted."""
    check_owner(state_dir() / "labs")
    found = (path.parent.name for path in (state_dir() / "labs").glob("*/lab.json"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def read_record(lab: str) -> Record | None:
    """The lab's record, or None when there is none. MachineError when it cannot be read or trusted."""
    path = lab_dir(lab) / "lab.json"
    check_owner(path.parent)
    try:
        with as_caller(path):
            data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != _FORMAT:
            by = f" of Heddle {data['version']}" if data.get("version") else ""
            raise ValueError(f"its format is {data.get('format')}{by}, and Heddle {VERSION} reads {_FORMAT}")
        record = Record(**data)
        words = (record.runtime, record.phase, record.source)
        named = (
            isinstance(record.spec, dict)
            and isinstance(record.imported, dict)
            and record.name == lab
            and bool(record.imported or record.spec.get("name") == lab)
        )
        if not named or not all(isinstance(word, str) for word in words):
            raise ValueError(f"it is not a record of {lab}")
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        hint = f"run ./inv down {lab} to remove it"
        raise MachineError(Problem("", str(path), f"cannot be read: {error}", hint)) from None


def park(lab: str) -> None:
    """Hide a running lab from every verb: it has no record until `unpark`. Its removal needs none."""
    with machine_errors(), as_caller(lab_dir(lab)):
        (lab_dir(lab) / "lab.json").rename(lab_dir(lab) / _PARKED)


def unpark(lab: str) -> bool:
    """Undo `park`; False when the lab was removed meanwhile, or was not parked."""
    try:
        with as_caller(lab_dir(lab)):
            (lab_dir(lab) / _PARKED).rename(lab_dir(lab) / "lab.json")
    except FileNotFoundError:
        return False
    return True


def write_record(record: Record) -> None:
    """Write lab.json."""
    write_json(lab_dir(record.name) / "lab.json", {each.name: getattr(record, each.name) for each in fields(record)})


@contextmanager
def recorded(lab: str, again: Callable[[], object], **values: Any) -> Iterator[None]:
    """Record values of a lab that a with block is about to set, so that after a kill `up --repair` can set them.

    If the block fails, the record is restored, and `again` sets what it says. The caller holds CHANGES.
    """
    before = read_record(lab)
    if before is not None:
        write_record(replace(before, **values))
    try:
        yield
    except BaseException:
        if before is not None:
            with suppress(HeddleError):  # the first error is the one to report; the rest is left to `up --repair`
                write_record(before)
                again()
        raise


def write_json(path: Path, data: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a file atomically: a reader, or a crash, finds the whole old file or the whole new one."""
    make_dir(path.parent)
    write_file(path, json.dumps(data, indent=indent))


def write_file(path: Path, text: str) -> None:
    """The same for a text. Only its user may read the file; its directory exists."""
    with machine_errors(str(path), ELSEWHERE), as_caller(path):
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            give_to_caller(Path(name))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def remove_record(lab: str, *, keep_runs: bool = False) -> bool:
    """Remove the lab's directory, but with `keep_runs` not its runs; False when there was nothing to remove."""
    directory = lab_dir(lab)
    check_owner(directory)
    with machine_errors(), as_caller(directory):
        if directory.is_symlink():  # no part of Heddle made it; it may lead anywhere
            directory.unlink()
            return True
        if not directory.exists():
            return False
        kept = {RUNS} if keep_runs and stored_runs(lab) else set()
        entries = [entry for entry in directory.iterdir() if entry.name not in kept]
        # The record is removed last: an interrupted removal is still known as a lab.
        for entry in sorted(entries, key=lambda each: each.name == "lab.json"):
            trees.remove(entry) if not entry.is_symlink() and entry.is_dir() else entry.unlink()
        if not kept:
            trees.remove(directory)
    return bool(entries) or not kept


def stored_runs(lab: str) -> int:
    """The number of runs that the lab's directory has (heddle/runs/store.py); the lab need not be up."""
    with suppress(OSError):
        return sum(each.name.isdigit() for each in (lab_dir(lab) / RUNS).iterdir())
    return 0
