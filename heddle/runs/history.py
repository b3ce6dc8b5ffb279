"""The runs of a lab: one directory each, below the lab's own directory.

    LABDIR/runs/0001/run.json, evidence.json, series.npz     one run
    LABDIR/runs/last -> 0002                                 a link to the newest that was not interrupted

A run is written to a directory beside these and gets its name when it is complete: a reader sees all of it or nothing,
and a killed run changes nothing. Of a run that was interrupted the measured sizes are kept, and `last` stays. An ID is
the number of the run in its lab: it sorts, it is short, and `3` means 0003. Numbers are not used again. Old runs are
removed when there are too many, or too many bytes; the newest stays, and so does `last`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from heddle.base import mounts as trees
from heddle.base import state
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, machine_errors
from heddle.base.units import parse_size
from heddle.runs.readable import UnreadableError
from heddle.runs.runrecord import RunRecord, read_record, write_record

LAST: Final = "last"
KEEP_RUNS: Final = "HEDDLE_KEEP_RUNS"
KEEP_BYTES: Final = "HEDDLE_KEEP_BYTES"
_RUNS: Final = 50
_BYTES: Final = "200MB"
_ID: Final = re.compile(r"[0-9]{4,9}")
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_NEW: Final = ".new-"  # directories that are being written
_OLD: Final = ".old-"  # directories that are being removed
_NEXT: Final = ".next.json"
_SHOWN: Final = 6  # IDs in a hint


class HasRuns(Protocol):
    """The part of a lab that is needed here."""

    @property
    def name(self) -> str:
        """The lab's name."""

    @property
    def dir(self) -> Path:
        """The lab's state directory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is kept of one lab: runs, and bytes of all runs together."""

    runs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One run on disk. record is None when it cannot be read; damage then says why."""

    id: str
    lab: str
    path: Path
    bytes: int
    record: RunRecord | None
    damage: str = ""

    @property
    def what(self) -> str:
        """`run 0003 of lab zone`, for messages."""
        return f"run {self.id} of lab {self.lab}"

    @property
    def interrupted(self) -> bool:
        """Whether it was interrupted, so that it is not the last run that verbs mean."""
        return self.record is not None and self.record.interrupted


def limits() -> Limits:
    """The limits from HEDDLE_KEEP_RUNS and HEDDLE_KEEP_BYTES, or 50 runs and 200 MB. InputError for wrong values."""
    runs, size = os.environ.get(KEEP_RUNS, str(_RUNS)), os.environ.get(KEEP_BYTES, _BYTES)
    if not _WHOLE.fullmatch(runs) or int(runs) < 1:
        why = "is not a whole number of 1 or more"
        raise InputError(Problem("", f"{KEEP_RUNS}={runs}", why, f"set {KEEP_RUNS}={_RUNS}, or unset it"))
    try:
        return Limits(int(runs), parse_size(size))
    except ValueError as error:
        why = str(error).partition("; ")[0]
        hint = f"set {KEEP_BYTES}={_BYTES}, or unset it"
        raise InputError(Problem("", f"{KEEP_BYTES}={size}", why, hint)) from None


class Draft:
    """A run that is being written. Files go to `path`; `finish` makes a run of it."""

    def __init__(self, history: History, path: Path, keep: Limits) -> None:
        self.path = path
        self._history, self._keep = history, keep

    def finish(self, record: RunRecord) -> RunRecord:
        """Keep the run: give it its ID, rename it into place, remove what is too old. The record with its ID."""
        return self._history.kept(self.path, record, self._keep)


class History:
    """The runs of one lab. Reading needs no lock and no root."""

    def __init__(self, lab: str, directory: Path) -> None:
        self.lab = lab
        self.directory = directory

    @classmethod
    def of(cls, lab: HasRuns) -> History:
        """The runs of a lab that was opened."""
        return cls(lab.name, lab.dir / "runs")

    @classmethod
    def named(cls, lab: str) -> History:
        """The runs of a lab by its name; the lab need not be running."""
        return cls(lab, state.lab_dir(lab) / "runs")

    def ids(self) -> list[str]:
        """The IDs of all runs, oldest first."""
        try:
            with os.scandir(self.directory) as found:
                names = [each.name for each in found if _ID.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            hint = f"use the account that made lab {self.lab}, or root"
            raise MachineError(Problem("", str(self.directory), f"cannot be read: {error.strerror}", hint)) from None
        return sorted(names, key=int)

    def last(self) -> str | None:
        """The ID of the newest run that was not interrupted; None when there is none."""
        kept = (self.read(each) for each in reversed(self.ids()))
        return next((run.id for run in kept if not run.interrupted), None)

    def runs(self) -> list[KeptRun]:
        """All runs with their records, oldest first. A damaged one is among them, with the reason."""
        return [self.read(each) for each in self.ids()]

    def read(self, run_id: str) -> KeptRun:
        """One run by its whole ID."""
        path = self.directory / run_id
        size = _bytes_of(path)
        try:
            record = read_record(path)
        except UnreadableError as error:
            return KeptRun(run_id, self.lab, path, size, None, str(error))
        if record.id != run_id:
            damage = f"its record is that of run {record.id or 'no ID'}"
            return KeptRun(run_id, self.lab, path, size, None, damage)
        return KeptRun(run_id, self.lab, path, size, record)

    def find(self, word: str | None = None) -> str:
        """The ID that a word means: `last` (also None), a number (`3`), or the only ID that starts so.

        InputError with the IDs that there are.
        """
        ids = self.ids()
        if word is None or word == LAST:
            last = self.last()
            if last is None:
                why = f"has no finished run: {_some(ids)} {_was(ids)} interrupted" if ids else "has no run yet"
                hint = f"./inv run --lab {self.lab} --collective all-reduce makes one"
                raise InputError(Problem("", f"lab {self.lab}", why, hint))
            return last
        if _WHOLE.fullmatch(word):
            same = [each for each in ids if int(each) == int(word)]
            found = same or [each for each in ids if each.startswith(word)]
            if len(found) == 1:
                return found[0]
            if found:
                raise InputError(Problem("", f"run {word}", "could be several runs", f"use one of {_some(found)}"))
        hint = f"use {LAST}, or one of {_some(ids)}" if ids else f"lab {self.lab} has no run yet"
        raise InputError(Problem("", f"run {word}", f"is not a run of lab {self.lab}", hint))

    def open(self, word: str | None = None) -> tuple[KeptRun, RunRecord]:
        """The run that a word means, and its record. InputError when there is none, or it cannot be read."""
        kept = self.read(self.find(word))
        if kept.record is None:
            raise unreadable(kept, kept.damage)
        return kept, kept.record

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """A directory to write a run to, for a with block. Without `finish` nothing of it is left.

        The caller holds the lab's lock. InputError when the limits in the environment are wrong.
        """
        keep = limits()
        with self._held():
            self._sweep()
            path = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.directory))
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)  # until this process ends, however it ends: then it may be swept
        try:
            yield Draft(self, path, keep)
        finally:
            try:
                trees.remove(path)
            finally:
                os.close(fd)

    def kept(self, written: Path, record: RunRecord, keep: Limits) -> RunRecord:
        """Make a run of a directory that is complete but for its record."""
        with self._held():
            number = self._next()
            state.write_json(self.directory / _NEXT, {"next": number + 1})
            done = replace(record, id=f"{number:04}")
            write_record(written, done)
            state.give_to_caller(written, deep=True)
            written.rename(self.directory / done.id)
            self._point()
            with suppress(HeddleError, OSError):  # the next run tries again; this one is kept in any case
                self._prune(keep)
        return done

    def remove(self, words: Sequence[str]) -> list[str]:
        """Remove runs; their IDs. InputError when one of the words means none: then nothing is removed."""
        ids = list(dict.fromkeys(self.find(word) for word in words))
        with self._held():
            for each in ids:
                self._remove(each)
            self._point()
        return ids

    @contextmanager
    def _held(self) -> Iterator[None]:
        """One process at a time changes which runs there are. Makes the directory."""
        state.make_dir(self.directory)
        with machine_errors(str(self.directory)):
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    def _next(self) -> int:
        """The number of the next run: above all that there are, and above all that were removed."""
        highest = max((int(each) for each in self.ids()), default=0)
        try:
            said = json.loads((self.directory / _NEXT).read_text())["next"]
        except (OSError, ValueError, LookupError, TypeError):
            return highest + 1
        return max(highest + 1, said) if isinstance(said, int) else highest + 1

    def _point(self) -> None:
        """Let `last` lead to the newest run that was not interrupted, if there is one. Replaced atomically."""
        last, link = self.last(), self.directory / LAST
        if last is None:
            link.unlink(missing_ok=True)
            return
        beside = self.directory / f".{LAST}"
        beside.unlink(missing_ok=True)
        beside.symlink_to(last)
        state.give_to_caller(beside)
        beside.replace(link)

    def _prune(self, keep: Limits) -> None:
        """Remove the oldest runs until the limits hold, but never the newest, nor `last`."""
        sizes = {each: _bytes_of(self.directory / each) for each in self.ids()}
        last = self.last()
        for each in [run for run in list(sizes)[:-1] if run != last]:
            if len(sizes) <= keep.runs and sum(sizes.values()) <= keep.bytes:
                return
            self._remove(each)
            del sizes[each]

    def _remove(self, run_id: str) -> None:
        """Rename first: a removal that is cut short leaves nothing that looks like a run."""
        going = Path(tempfile.mkdtemp(prefix=_OLD, dir=self.directory))
        with suppress(FileNotFoundError):  # another process was quicker
            (self.directory / run_id).rename(going)
        trees.remove(going)

    def _sweep(self) -> None:
        """Remove directories that a killed process left, half written or half removed."""
        for path in (*self.directory.glob(f"{_NEW}*"), *self.directory.glob(f"{_OLD}*")):
            with suppress(OSError, HeddleError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    trees.remove(path)
                finally:
                    os.close(fd)


def unreadable(kept: KeptRun, why: str) -> InputError:
    """The error for a run, or a part of it, that cannot be read."""
    hint = f"./inv runs {kept.lab} lists others; ./inv runs {kept.lab} --remove {kept.id} removes this one"
    return InputError(Problem("", kept.what, f"cannot be used: {why}", hint))


def _bytes_of(directory: Path) -> int:
    """Bytes of all files of a run."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def _some(ids: Sequence[str]) -> str:
    """The newest IDs, for a hint."""
    shown = ", ".join(ids[-_SHOWN:])
    return shown if len(ids) <= _SHOWN else f"..., {shown} (./inv runs lists all {len(ids)})"


def _was(ids: Sequence[str]) -> str:
    return "was" if len(ids) == 1 else "were"
