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

from heddle.base.problems import InputError, Problem
from heddle.base.resources import HERE, TOPOLOGIES, TRAFFIC

_ABSENT: Final = "does not exist"
_SHOWN: Final = 80  # characters of a name in an error
FILE_BYTES: Final = 64 << 20  # the largest file of a user that travels to another machine
VARIABLE: Final = "HEDDLE_FILES"
ONLY: Final = "HEDDLE_FILES_ONLY"  # set for a verb of an assistant: it opens those of HEDDLE_FILES, and Heddle's own
PLACE: Final = "HEDDLE_PLACE"  # the place where the verb runs, in the user's words; not set on the user's machine


def real(typed: str) -> Path:
    """The path to open for a typed name: the name itself, unless the verb was sent here from another machine.

    InputError where only Heddle's own files may be named: an assistant calls the verb, and a server may run as root.
    """
    found = _sent_files().get(typed)
    if isinstance(found, str):
        return Path(found)
    path = expanded(typed)
    own = (HERE.content(each).resolve() for each in (TOPOLOGIES, TRAFFIC))
    if ONLY in os.environ and not any(map(path.resolve().is_relative_to, own)):
        hint = "name one of traffic/, or write words, as ring,qps=4; files are for ./inv on the command line"
        raise InputError(Problem("", typed[:_SHOWN], "names no file of Heddle, and an assistant names no others", hint))
    return path


def expanded(name: str) -> Path:
    """A path with its `~` replaced; unchanged for a user who does not exist, where Path.expanduser raises."""
    return Path(os.path.expanduser(name))  # noqa: PTH111


def absent(path: Path) -> str:
    """Why nothing can be used at a path, also through links: `does not exist`, or a reason. Empty where there is.

    Path.exists and the like raise where a directory may not be entered, and for a name that is too long.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, or half a character
        return _ABSENT
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return ""


def is_file(path: Path, shown: str) -> bool:
    """Whether a regular file is at a path. InputError with the reason where that cannot be seen. shown: as typed."""
    return _is_there(path, shown) and path.is_file()


def is_dir(path: Path, shown: str) -> bool:
    """Whether a directory is at a path, as `is_file`."""
    return _is_there(path, shown) and path.is_dir()


def _is_there(path: Path, shown: str) -> bool:
    if (why := absent(path)) not in ("", _ABSENT):
        raise InputError(Problem("", shown[:_SHOWN], why, "name another file, or let this user read it"))
    return not why


def beside(file: str, name: str) -> str:
    """A file that another one names: relative to that one's folder."""
    return name if name.startswith(("/", "~")) else str(Path(file).parent / name)


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
    """` --on ssh:lab`, for commands that the user types on another machine; empty if the user is on this one."""
    place = os.environ.get(PLACE)
    return f" --on {shlex.quote(place)}" if place else ""


def _sent_files() -> dict[str, Any]:
    try:
        files = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return files if isinstance(files, dict) else {}
