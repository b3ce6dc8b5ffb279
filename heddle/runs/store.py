"""The runs of a lab: one directory each, below the lab's own directory; found by what a user typed.

    LABDIR/runs/0001/run.json, evidence.json, series.npz     one run
    LABDIR/runs/last -> 0002                                 a link to the newest that was not interrupted

A run is written to a temporary directory, which is renamed when the run is complete. So a reader sees all of it or
nothing, and a killed run changes nothing. An interrupted run keeps its measured sizes, and `last` does not change. An
ID is the number of the run in its lab: it sorts, it is short, and `3` means 0003. Numbers are not used again. When
there are too many runs, or too many bytes, old runs are removed, but never the newest run nor `last`.
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
from typing import TYPE_CHECKING, Final

from heddle.base import mounts as trees
from heddle.base import state
from heddle.base.files import absent, expanded, is_file
from heddle.base.owners import held, late
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, did_you_mean, machine_errors
from heddle.base.units import parse_size
from heddle.base.userfiles import as_caller, give_to_caller, make_dir
from heddle.runs.files import UnreadableError
from heddle.runs.runrecord import ID, RECORD, RunRecord, read_record, write_record
from heddle.runs.stored import StoredRun, bytes_of

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.proof.verdict import PathsResult

LAST: Final = "last"
KEEP_RUNS: Final = "HEDDLE_KEEP_RUNS"
KEEP_BYTES: Final = "HEDDLE_KEEP_BYTES"
_RUNS: Final = 50
_BYTES: Final = "200MB"
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_NEW: Final = ".new-"  # directories that are being written
_OLD: Final = ".old-"  # directories that are being removed
_NEXT: Final = ".next.json"
_CHANGING: Final = ".lock"
_LOCK_S: Final = 30.0  # a holder needs milliseconds, and seconds to remove many runs
_SHOWN: Final = 6  # IDs in a hint


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one lab is kept: number of runs, and bytes of all runs together."""

    runs: int
    bytes: int


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


class History:
    """The runs of one lab. Reading needs no lock and no root."""

    def __init__(self, lab: str, directory: Path) -> None:
        self.lab = lab
        self.directory = directory

    @classmethod
    def of(cls, lab: Lab) -> History:
        """The runs of an opened lab."""
        return cls(lab.name, lab.dir / state.RUNS)

    @classmethod
    def named(cls, lab: str) -> History:
        """The runs of a lab by its name; the lab need not be running."""
        return cls(lab, state.lab_dir(lab) / state.RUNS)

    def ids(self) -> list[str]:
        """The IDs of all runs, oldest first."""
        try:
            with os.scandir(self.directory) as found:
                names = [each.name for each in found if ID.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
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

    def runs(self) -> list[StoredRun]:
        """All runs with their records, oldest first; damaged ones included, with the reason."""
        return [self.read(each) for each in self.ids()]

    def newest(self, count: int) -> list[StoredRun]:
        """The latest runs, oldest first."""
        return [self.read(each) for each in self.ids()[-count:]]

    def changed_ns(self) -> int:
        """When a run was added or removed, in ns since the epoch; 0 without any. A run that is measured counts too."""
        try:
            return self.directory.stat().st_mtime_ns
        except OSError:
            return 0

    def writing(self) -> bool:
        """Whether a run is being measured now: its directory is locked by the process that writes it."""
        for path in self.directory.glob(f"{_NEW}*"):
            with suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                finally:
                    os.close(fd)
        return False

    def read(self, run_id: str) -> StoredRun:
        """One run by its whole ID."""
        return StoredRun(run_id, self.lab, self.directory / run_id)

    def find(self, word: str | None = None) -> str:
        """The ID for a word: `last` (also None), a number (`3`), or the start of exactly one ID.

        InputError with the existing IDs.
        """
        ids = self.ids()
        if word is None or word == LAST:
            last = self.last()
            if last is None:
                was = "was" if len(ids) == 1 else "were"
                why = f"has no finished run: {_some(ids)} {was} interrupted" if ids else "has no run yet"
                hint = f"./inv run --lab {self.lab} --collective all-reduce"
                raise InputError(Problem("", f"lab {self.lab}", why, hint))
            return last
        if _WHOLE.fullmatch(word):
            same = [each for each in ids if int(each) == int(word)]
            found = same or [each for each in ids if each.startswith(word)]
            if len(found) == 1:
                return found[0]
            if found:
                raise InputError(Problem("", f"run {word}", "matches several runs", f"use one of {_some(found)}"))
        hint = f"use {LAST}, or one of {_some(ids)}" if ids else f"lab {self.lab} has no run yet"
        raise InputError(Problem("", f"run {word}", f"is not a run of lab {self.lab}", hint))

    def open(self, word: str | None = None) -> StoredRun:
        """The run for a word. InputError when there is none, or its record cannot be read."""
        found = self.read(self.find(word))
        if found.damage:
            raise found.unusable(found.damage)
        return found

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """A directory to write a run to, for a with block. Without `keep` it is removed.

        The caller holds the lab's lock. InputError when the limits in the environment are wrong.
        """
        limits()
        with self._held():
            self._sweep()
            path = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.directory))
            give_to_caller(path)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)  # held until this process ends; then _sweep may remove the directory
        try:
            yield path
        finally:
            try:
                with as_caller(path):
                    trees.remove(path)
            finally:
                os.close(fd)

    def keep(self, written: Path, record: RunRecord) -> RunRecord:
        """Complete a draft: assign its ID, rename its directory, remove old runs. Returns the record with its ID."""
        with self._held():
            number = self._next()
            state.write_json(self.directory / _NEXT, {"next": number + 1})
            done = replace(record, id=f"{number:04}")
            write_record(written, done)
            written.rename(self.directory / done.id)
            self._point()
            with suppress(HeddleError, OSError):  # the next run tries again; this run is already kept
                self._prune(limits())
        return done

    def remove(self, words: Sequence[str]) -> list[str]:
        """Remove runs; returns their IDs. InputError, and nothing removed, when a word matches no run."""
        ids = list(dict.fromkeys(self.find(word) for word in words))
        with self._held():
            for each in ids:
                self._remove(each)
            self._point()
        return ids

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Have the lock of the directory, so that only one process changes the set of runs. Creates the directory.

        MachineError when another process has it for more than _LOCK_S.
        """
        make_dir(self.directory)
        path = self.directory / _CHANGING
        with machine_errors(str(self.directory)), as_caller(path), held(path, late(path, _LOCK_S), seconds=_LOCK_S):
            yield

    def _next(self) -> int:
        """The number of the next run: above all existing and all removed runs."""
        highest = max((int(each) for each in self.ids()), default=0)
        try:
            stored = json.loads((self.directory / _NEXT).read_text())["next"]
        except (OSError, ValueError, LookupError, TypeError):
            return highest + 1
        return max(highest + 1, stored) if isinstance(stored, int) else highest + 1

    def _point(self) -> None:
        """Link `last` to the newest run that was not interrupted, if there is one. The link is replaced atomically."""
        last, link = self.last(), self.directory / LAST
        if last is None:
            link.unlink(missing_ok=True)
            return
        beside = self.directory / f".{LAST}"
        beside.unlink(missing_ok=True)
        beside.symlink_to(last)
        give_to_caller(beside)
        beside.replace(link)

    def _prune(self, keep: Limits) -> None:
        """Remove the oldest runs until the limits are met, but never the newest run nor `last`."""
        sizes = {each: bytes_of(self.directory / each) for each in self.ids()}
        last = self.last()
        for each in [run for run in list(sizes)[:-1] if run != last]:
            if len(sizes) <= keep.runs and sum(sizes.values()) <= keep.bytes:
                return
            self._remove(each)
            del sizes[each]

    def _remove(self, run_id: str) -> None:
        """Rename first, so that an interrupted removal leaves no incomplete run."""
        going = Path(tempfile.mkdtemp(prefix=_OLD, dir=self.directory))
        with suppress(FileNotFoundError):  # another process has removed it already
            (self.directory / run_id).rename(going)
        trees.remove(going)

    def _sweep(self) -> None:
        """Remove incomplete directories of killed processes."""
        for path in (*self.directory.glob(f"{_NEW}*"), *self.directory.glob(f"{_OLD}*")):
            with suppress(OSError, HeddleError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    trees.remove(path)
                finally:
                    os.close(fd)


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[-_SHOWN:])
    return shown if len(ids) <= _SHOWN else f"..., {shown} (./inv runs lists all {len(ids)})"


def has_run(lab: Lab) -> bool:
    """True when the lab has a run that was not interrupted."""
    return History.of(lab).last() is not None


def load(lab: Lab, run: str | None = None) -> StoredRun:
    """A finished run with its evidence. run: as typed after --run; None is the last one."""
    from heddle.proof.evidence import misfit

    history = History.of(lab)
    found = history.open(run)
    if not found.record.done:
        how = "was interrupted" if found.interrupted else "failed"
        why = f"{how}, so it has no paths: {found.record.why_not_done}"
        raise InputError(Problem("", found.what, why, _other(history)))
    if why := misfit(lab.fabric, found.evidence):
        raise found.unusable(f"it ran on another fabric: {why}")
    return found


def paths_of(lab: Lab, run: str | None = None) -> PathsResult:
    """The path of every QP of a run, from three sources."""
    found = load(lab, run)
    return replace(found.needed(found.proof), wrong=found.record.wrong)


def _other(history: History) -> str:
    for run in reversed(history.runs()):
        if not run.damage and run.record.done:
            return f"use --run {run.id}, the newest finished run"
    return f"start another run: ./inv run --lab {history.lab} --collective all-reduce"


def open_runs(words: Sequence[str], lab: str | None = None) -> list[StoredRun]:
    """The runs that some words mean, each once, in the order typed; without a word the last one."""
    found = [_opened(word, lab) for word in (*words,) or (None,)]
    return list({run.path: run for run in found}.values())


def _opened(word: str | None, lab: str | None) -> StoredRun:
    if word is not None and ("/" in word or not absent(Path(word, RECORD))):
        return _from_directory(expanded(word), word)
    name, colon, rest = (word or "").partition(":")
    if colon:
        lab, word = name, rest
    return History.named(_lab_of(lab)).open(word)


def _from_directory(path: Path, typed: str) -> StoredRun:
    if not is_file(path / RECORD, typed):
        why = f"is not the directory of a run: it has no {RECORD}"
        raise InputError(Problem("", typed, why, "./inv runs --format json has the path of every run"))
    try:
        record = read_record(path)
    except UnreadableError as error:
        run = StoredRun(path.name, "of that directory", path)
        raise run.unusable(str(error)) from None
    return StoredRun(record.id, record.lab, path.resolve())


def _lab_of(name: str | None) -> str:
    """The lab whose runs are meant; it need not be up."""
    known = state.labs()
    if name is not None:
        if name in known:
            return name
        hint = did_you_mean(name, known) if known else "no lab exists; ./inv up zone starts one"
        raise InputError(Problem("", f"lab {name}", "does not exist, and runs are removed with their lab", hint))
    having = [each for each in known if History.named(each).ids()]
    if len(having) == 1:
        return having[0]
    if known and not having:
        hint = f"./inv run --lab {known[0]} makes one; or name the directory of a run that was copied"
        raise InputError(Problem("", "no run", f"was made yet in {', '.join(known)}", hint))
    if not having:
        hint = "./inv up zone starts a lab, and ./inv run makes a run; or name the directory of a run that was copied"
        raise InputError(Problem("", "no lab", "exists, and runs are removed with their lab", hint))
    hint = f"use --lab, or {having[0]}:last; labs: {', '.join(having)}"
    raise InputError(Problem("", "--lab", "is needed, since several labs have runs", hint))
