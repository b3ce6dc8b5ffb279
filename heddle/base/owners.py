"""Who has a lab of this machine, and the lab's locks: one of each for all users and all state directories.

    /run/heddle/.locks/zone.json           the owner: the state directory that has the lab's record
    /run/heddle/.locks/zone.lock           exists while a process changes the lab or measures in it
    /run/heddle/.locks/zone.te.lock        exists while a controller of traffic engineering runs (lab/rehash.py)
    /run/heddle/.locks/zone.changes.lock   exists while one changes hashing, thresholds or link faults

Namespaces, containers and BPF pins are named after the lab, and every user of a machine shares these names. The
directory is root's, since all that changes a lab runs as root.

A lock file has the mode 0600: no other user can open, and so lock it. It names the process that has it: its ID, its
start and its work. The kernel removes the lock (flock) when the process ends, whatever ended it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, InputError, MachineError, Problem, machine_errors
from heddle.base.process import start_of
from heddle.base.state import check_name, state_dir
from heddle.base.userfiles import caller

_MODE: Final = 0o600
_ORPHANS_S: Final = 2.0  # time for the children of a killed holder to release the lock
_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that has a lock. started: see start_of. work: what it does with the lock, or empty."""

    pid: int
    started: int
    work: str = ""

    @property
    def alive(self) -> bool:
        """Whether that process still runs."""
        return start_of(self.pid) == self.started


Busy = Callable[[LockHolder | None], HeddleError]  # the error when another process, if it is known, has the lock


@contextmanager
def held(path: Path, busy: Busy, *, seconds: float = 0.0, work: str = "") -> Iterator[None]:
    """Have a lock for a with block; its directory exists. `busy` makes the error when it is not free in `seconds`.

    If the holder was killed just as it started a command, its child has a copy of the lock until that command begins.
    So the lock of a process that has ended is waited for in any case. OSError when the file cannot be opened.
    """
    began = time.monotonic()
    while (fd := try_lock(path, work)) is None:
        holder = holder_of(path)
        patience = seconds if holder is None or holder.alive else max(seconds, _ORPHANS_S)
        if path.exists() and time.monotonic() - began > patience:
            raise busy(holder)
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # still locked: a process that opened the file meanwhile compares inodes and tries again
        os.close(fd)


def try_lock(path: Path, work: str = "") -> int | None:
    """Lock a file that its holder removes; None while another process has it, or has removed it just now."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if stat.S_IMODE(found.st_mode) != _MODE:  # of an older Heddle, or of another umask
            os.fchmod(fd, _MODE)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.lstat().st_ino == found.st_ino:
            pid = os.getpid()
            with suppress(OSError):  # on a full disk the lock works too; only the holder's name is missing
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{pid} {start_of(pid) or 0} {work}\n".encode(), 0)
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def holder_of(path: Path) -> LockHolder | None:
    """The process that a lock file names; None when there is no file, or its process has not signed it yet."""
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split(maxsplit=2)
        return LockHolder(int(words[0]), int(words[1]), "".join(words[2:]).strip())
    except (OSError, ValueError, IndexError):
        return None


def late(path: Path, seconds: float) -> Busy:
    """For `held`: a MachineError that names the process which has had the lock for so long."""

    def error(holder: LockHolder | None) -> MachineError:
        who = f"process {holder.pid}" if holder is not None else "another process"
        hint = f"end it if it hangs: kill {holder.pid}" if holder is not None else "try again"
        return MachineError(Problem("", str(path), f"has been locked for {seconds:g} s by {who}", hint))

    return error


CHANGES: Final = "changes"
LOCKS: Final = Path("/run/heddle/.locks")
_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class LabOwner:
    """The owner of a lab. uid: who called `up`. pid, started: the process of `up`. when: in seconds since the epoch."""

    lab: str
    state: str
    uid: int
    pid: int
    started: int
    when: float

    @property
    def ours(self) -> bool:
        """Whether the lab belongs to the state directory of this process."""
        return self.state == _own_state()

    @property
    def starting(self) -> bool:
        """Whether the process of `up` still runs."""
        return start_of(self.pid) == self.started

    @property
    def user(self) -> str:
        """The name of the user who called `up`."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    def text(self) -> str:
        """`belongs to ann (state directory /home/ann/.local/state/heddle)`, and what goes on in it."""
        work = "" if (holder := working_on(self.lab)) is None else f", and {work_text(holder)}"
        return f"belongs to {self.user} (state directory {self.state}){work}"


def _own_state() -> str:
    return str(state_dir().resolve())


def claim_lab(lab: str) -> None:
    """Record that the lab belongs to this state directory. Call it with the lab's lock held."""
    user = caller()
    uid, pid = user.pw_uid if user else os.getuid(), os.getpid()
    own = LabOwner(lab, _own_state(), uid, pid, start_of(pid) or 0, time.time())
    with machine_errors(str(LOCKS)):
        fd, name = tempfile.mkstemp(prefix=f".{lab}.", dir=LOCKS)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(asdict(own), file)
            Path(name).replace(_record(lab))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def disown_lab(lab: str) -> None:
    """Remove the record of a lab that is gone, and files of killed processes. Call it with its lock held."""
    with suppress(OSError):
        for path in (_record(lab), *LOCKS.glob(f".{lab}.*")):  # the others are of claim_lab
            path.unlink(missing_ok=True)
        for path in LOCKS.glob(f"{lab}.*.lock"):
            if (fd := try_lock(path)) is not None:
                path.unlink()
                os.close(fd)


def owner_of(lab: str) -> LabOwner | None:
    """The owner of a lab; None when there is no record, or only root could read it."""
    with suppress(OSError, ValueError, TypeError):
        return LabOwner(**json.loads(_record(check_name(lab)).read_text(encoding="utf-8")))
    return None


def owned_labs() -> list[LabOwner]:
    """All owners of this machine's labs, by the lab's name; empty for all users but root."""
    with suppress(OSError):
        names = sorted(path.stem for path in LOCKS.iterdir() if path.suffix == ".json" and path.name[0] != ".")
        return [found for name in names if (found := owner_of(name)) is not None]
    return []


def working_on(lab: str, what: str = "") -> LockHolder | None:
    """The process that has the lab's lock now, or with `what` the lock of that part."""
    holder = holder_of(_lock(lab, what))
    return holder if holder is not None and holder.alive else None


def work_text(holder: LockHolder) -> str:
    """`its run goes on (process 12)`."""
    return f"{f'its {holder.work} goes on' if holder.work else 'another Heddle works on it'} (process {holder.pid})"


@contextmanager
def lock(lab: str, what: str = "", *, work: str = "", seconds: float = 0.0) -> Iterator[None]:
    """Lock the lab on this machine for a with block; InputError when another command has the lock.

    what: lock only this part, as CHANGES, which may change while a run has the lab's lock. `down` takes both locks.
    work: what the others are told, as `run`. seconds: how long to wait for another command that has the lock.
    """
    path = _lock(check_name(lab), what)

    def busy(holder: LockHolder | None) -> InputError:
        process = f" (process {holder.pid})" if holder is not None else ""
        works = f": its {holder.work} goes on" if holder is not None and holder.work else ""
        owner = owner_of(lab)
        whose = f"; the lab is {owner.user}'s (state directory {owner.state})" if owner and not owner.ours else ""
        why = f"is being worked on by another Heddle{process}{works}{whose}"
        return InputError(Problem("", f"lab {lab}", why, "wait until it ends, or end it, then try again"))

    with ExitStack() as stack:
        stack.callback(_remove_empty)
        with machine_errors(str(path)):
            for attempt in range(_ATTEMPTS):
                try:
                    for each, mode in ((LOCKS.parent, 0o755), (LOCKS, 0o700)):
                        with suppress(FileExistsError):
                            each.mkdir(mode=0o700)
                            each.chmod(mode)  # daemons read below the first, as user frr, whatever the umask is
                    stack.enter_context(held(path, busy, seconds=seconds, work=work))
                    break
                except FileNotFoundError:  # the last one that had a lab removed it just now
                    if attempt == _ATTEMPTS - 1:
                        raise
        yield


def _remove_empty() -> None:
    for each in (LOCKS, LOCKS.parent):
        with suppress(OSError):  # labs have files there
            each.rmdir()


def _record(lab: str) -> Path:
    return LOCKS / f"{lab}.json"


def _lock(lab: str, what: str = "") -> Path:
    return LOCKS / (f"{lab}.{what}.lock" if what else f"{lab}.lock")
