"""Files that users name: how they are read, and their paths on the machine that runs the verb.

`open_regular` opens every file that another person may have made: topologies, plans, matrices, captures, stored runs.

For a verb that was sent here from another machine, HEDDLE_FILES has as JSON the local path of each of its files, to
read or to write. Names are kept as typed, so that results and errors name the user's own files.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
from pathlib import Path
from typing import IO, Any, Final

FILE_BYTES: Final = 64 << 20  # the largest file of a user that travels to another machine
VARIABLE: Final = "HEDDLE_FILES"
PLACE: Final = "HEDDLE_PLACE"  # the place where the verb runs, in the user's words; not set on the user's machine


def real(typed: str) -> Path:
    """The path to open for a typed name: the name itself, unless the verb was sent here from another machine."""
    found = _sent_files().get(typed)
    if isinstance(found, str):
        return Path(found)
    try:
        return Path(typed).expanduser()
    except RuntimeError:  # `~name` of no user
        return Path(typed)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read. OSError for anything else: a FIFO may block, and a device may have no end."""
    _check_regular(path.stat().st_mode)  # before it is opened: to open some devices is to use them
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115, PTH123
    try:
        _check_regular(os.fstat(file.fileno()).st_mode)  # again: another file may have replaced it
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file. OSError for another type of file, and for one of more than `most` bytes."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1024} KiB, the limit")
    return data


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def result_name(typed: str) -> str:
    """The name of a file in a result: its absolute path, or as typed if the user is on another machine."""
    if typed in _sent_files():
        return typed
    path = Path(typed).absolute()
    return str(path.resolve() if ".." in path.parts else path)


def short_path(path: Path) -> str:
    """The name of a Heddle file in problems: relative to the working directory if below it, else absolute."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def place_flag() -> str:
    """` --place ssh:lab`, for commands that the user types on another machine; empty if the user is on this one."""
    place = os.environ.get(PLACE)
    return f" --place {shlex.quote(place)}" if place else ""


def _sent_files() -> dict[str, Any]:
    try:
        files = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return files if isinstance(files, dict) else {}
