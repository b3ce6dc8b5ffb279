"""The state that Heddle keeps between commands: one directory and one lock per lab.

    STATE/labs/zone/lab.json     the record: name, runtime, phase, the whole fabric file
    STATE/labs/zone/topology/    the rendered topology
    STATE/labs/zone.lock         exists while a command changes the lab; zone.changes.lock: while it changes
                                 hashing, thresholds or link faults

STATE is $HEDDLE_STATE_DIR, else $XDG_STATE_HOME/heddle, else ~/.local/state/heddle. Under sudo it is the calling
user's, and the files there belong to that user.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from heddle.base import mounts as trees
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, machine_errors
from heddle.base.version import VERSION

_ELSEWHERE: Final = "set another directory, as in HEDDLE_STATE_DIR=/var/tmp/heddle"
CHANGES: Final = "changes"
_PARKED: Final = "parked.json"  # the record of a lab that waits in a pool (heddle/testing/pool.py)
_ORPHANS_S: Final = 2.0  # time for the children of a killed lock holder to release the lock
_FORMAT: Final = 2  # of lab.json; records of other formats are refused
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,11}")  # as in a fabric file (heddle/spec/schema.py)


@dataclass(frozen=True, slots=True)
class Record:
    """One lab, as in lab.json. A lab in phase `starting` whose lock is free was interrupted while it started."""

    name: str
    runtime: str
    phase: Literal["starting", "running"]
    spec: Mapping[str, Any]  # the whole fabric file; empty if there is none
    source: str = ""  # the preset or file it came from
    seconds: Mapping[str, float] = field(default_factory=dict)  # duration of each step of `up`
    options: Mapping[str, str] = field(default_factory=dict)  # dialect and mgmt, as the topology was rendered
    imported: Mapping[str, Any] = field(default_factory=dict)  # of an imported topology: see lab/imported
    hashing: Mapping[str, Any] = field(default_factory=dict)  # switches that were changed live: see lab/rehash.py
    queues: Mapping[str, Any] = field(default_factory=dict)  # nodes whose queues were changed live: lab/thresholds.py
    version: str = ""  # of the Heddle that started the lab; empty in records of older versions
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
    caller = _caller()
    return Path(caller.pw_dir) if caller else Path.home()


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
    with machine_errors():
        (lab_dir(lab) / "lab.json").rename(lab_dir(lab) / _PARKED)


def unpark(lab: str) -> bool:
    """Undo `park`; False when the lab was removed meanwhile, or was not parked."""
    try:
        (lab_dir(lab) / _PARKED).rename(lab_dir(lab) / "lab.json")
    except FileNotFoundError:
        return False
    return True


def write_record(record: Record) -> None:
    """Write lab.json."""
    write_json(lab_dir(record.name) / "lab.json", asdict(record), indent=1)


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
    with machine_errors(str(path), _ELSEWHERE):
        _replace(path, data, indent)


def _replace(path: Path, data: Mapping[str, Any], indent: int | None) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=indent)
            file.flush()
            os.fsync(file.fileno())
        give_to_caller(Path(name))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_record(lab: str) -> bool:
    """Remove the lab's directory; False when there was none."""
    directory = lab_dir(lab)
    if not directory.exists():
        return False
    with machine_errors():
        # The record is removed last: an interrupted removal is still known as a lab.
        for entry in directory.iterdir():
            if entry.name != "lab.json":
                trees.remove(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        trees.remove(directory)
    return True


@contextmanager
def lock(lab: str, what: str = "") -> Iterator[None]:
    """Lock the lab for a with block; InputError when another command has the lock.

    what: lock only this part, as CHANGES, which may change while a run has the lab's lock. `down` takes both locks.
    """
    path = lab_dir(lab).with_name(f"{lab}.{what}.lock" if what else f"{lab}.lock")
    make_dir(path.parent)
    with machine_errors(str(path), _ELSEWHERE):
        fd = _locked(path, lab)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # still locked: a process that opened the file meanwhile compares inodes and tries again
        os.close(fd)


def _locked(path: Path, lab: str) -> int:
    """The locked file. For a moment, it waits for the children of a killed holder, see _is_alive."""
    end = time.monotonic() + _ORPHANS_S
    while (fd := try_lock(path)) is None:
        try:
            holder = path.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            continue  # removed by its holder
        if _is_alive(holder) or time.monotonic() > end:
            process = f" (process {holder})" if holder else ""
            why = f"is being worked on by another Heddle{process}"
            raise InputError(Problem("", f"lab {lab}", why, "wait until it ends, or end it, then try again"))
        time.sleep(0.01)
    with suppress(OSError):  # on a full disk the lock works too; only the holder's number is missing
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def try_lock(path: Path, mode: int = 0o644) -> int | None:
    """Lock a file that its holder removes; None while another process holds it, or has removed it just now."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _is_alive(holder: str) -> bool:
    """Whether the lock's holder is still running.

    If it was killed just as it started a command, its child has a copy of the lock until that command begins.
    """
    return not holder.isdigit() or Path("/proc", holder).exists()


def make_dir(path: Path) -> None:
    """Make a directory and its parents, all owned by the calling user."""
    check_owner(path)
    with machine_errors(str(path), _ELSEWHERE):
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for each in reversed(missing):
            each.mkdir(mode=0o755, exist_ok=True)  # not writable for others, whatever the umask is
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    for made in missing:
        give_to_caller(made)
    check_owner(path)  # again: another user may have made it in between


def check_owner(path: Path) -> None:
    """MachineError when a path of the state or the cache belongs to another user: its content runs as root.

    Every user can write to a directory like /var/tmp, so another user could put a directory there first.
    """
    caller = _caller()
    ours = {0, os.geteuid(), caller.pw_uid if caller else 0}
    for each in (path, *path.parents):
        if not any(each.is_relative_to(root) for root in (state_dir(), cache_dir())):
            return
        for found in (os.lstat, os.stat):  # a link's owner chooses where it leads
            try:
                status = found(each)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if status.st_uid not in ours or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IWOTH):
                why = "belongs to another user" if status.st_uid not in ours else "is writable for every user"
                raise MachineError(Problem("", str(each), f"{why}, but Heddle runs its content as root", _ELSEWHERE))


def give_to_caller(path: Path, *, deep: bool = False) -> None:
    """Under sudo, make the calling user the owner (`deep`: of all files below, too). Sudo is then not needed later."""
    caller = _caller()
    if caller is None:
        return
    for each in (path, *path.rglob("*")) if deep else (path,):
        with suppress(OSError):
            os.chown(each, caller.pw_uid, caller.pw_gid, follow_symlinks=False)


def _caller() -> pwd.struct_passwd | None:
    """The user who called sudo, if this process runs under sudo."""
    name = os.environ.get("SUDO_USER", "")
    if os.geteuid() != 0 or name in {"", "root"}:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
