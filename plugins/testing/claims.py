"""Which labs of this machine belong to a pytest that is running, and which to one that was killed.

In:  nothing; this process. Out: names for labs, claims below /run/heddle-pytest, and orphans.
A lab's name carries the process ID and the start time of its pytest: t, five digits, four digits, two digits, base 36.
The claim is a file of the same name. It is written before the lab and removed after it, so a later session finds what
a killed one left, also where that used another state directory. A lab without a claim is never touched.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Final

from heddle.base.owners import held, late
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import start_of

CLAIMS_DIR: Final = Path("/run/heddle-pytest")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ATTEMPTS: Final = 10
_SWEEP_S: Final = 120.0  # a lab is removed in a second or two, a large one in ten
_numbers = count()  # of this process, for all of its pools


@dataclass(frozen=True, slots=True)
class LabClaim:
    """A lab of a pytest. started: the process's start in clock ticks since boot. state_dir: where its record is."""

    lab: str
    pid: int
    started: int
    state_dir: str

    @property
    def alive(self) -> bool:
        """Whether the pytest that made the lab still runs; process IDs are used again, with another start."""
        return start_of(self.pid) == self.started


def new_name() -> str:
    """A name that no lab of another process has, and none of the last 1,295 of this one."""
    pid = os.getpid()
    return f"t{_base36(pid, 5)}{_base36(start_of(pid) or 0, 4)}{_base36(next(_numbers), 2)}"


def claim(lab: str, state_dir: Path) -> None:
    """Write the claim of this process to a lab that is about to be made. MachineError when it cannot be written."""
    own = LabClaim(lab, os.getpid(), start_of(os.getpid()) or 0, str(state_dir))
    with machine_errors(str(CLAIMS_DIR)):
        for attempt in range(_ATTEMPTS):
            try:
                CLAIMS_DIR.mkdir(mode=0o755, exist_ok=True)
                _check_owner()
                fd, beside = tempfile.mkstemp(prefix=".", dir=CLAIMS_DIR)
                break
            except FileNotFoundError:  # another session removed the empty directory meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(asdict(own), file)
        Path(beside).replace(CLAIMS_DIR / lab)


def unclaim(lab: str) -> None:
    """Remove the claim to a lab that is gone, or that stays by the user's wish."""
    with suppress(OSError):
        (CLAIMS_DIR / lab).unlink(missing_ok=True)
    _remove_empty()


def _remove_empty() -> None:
    with suppress(OSError):
        CLAIMS_DIR.rmdir()  # others' claims are in it, or it is not there


def claims() -> list[LabClaim]:
    """All claims that can be read, by name."""
    _check_owner()
    found = []
    for path in sorted(CLAIMS_DIR.glob("[a-z]*")):
        with suppress(OSError, ValueError, TypeError):
            found.append(LabClaim(**json.loads(path.read_text(encoding="utf-8"))))
    return found


@contextmanager
def orphans() -> Iterator[list[LabClaim]]:
    """The claims of processes that have ended; while the block runs, no other session removes the same labs.

    MachineError when another session has not ended its removals in _SWEEP_S.
    """
    _check_owner()
    path = CLAIMS_DIR / ".lock"
    try:
        with ExitStack() as stack:
            with machine_errors(str(path)), suppress(FileNotFoundError):  # there are no claims
                stack.enter_context(held(path, late(path, _SWEEP_S), seconds=_SWEEP_S))
            yield [each for each in claims() if not each.alive]
    finally:
        _remove_empty()


def _check_owner() -> None:
    """MachineError when others can write claims: root removes what a claim names."""
    with suppress(FileNotFoundError):
        status = CLAIMS_DIR.lstat()
        if status.st_uid != 0 or status.st_mode & 0o022 or not CLAIMS_DIR.is_dir() or CLAIMS_DIR.is_symlink():
            why = "is not a directory that only root can write"
            raise MachineError(Problem("", str(CLAIMS_DIR), why, f"run rm -r {CLAIMS_DIR}"))


def _base36(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text
