"""Files in directories of the user who called sudo: root works there with that user's rights only.

The owner of a directory chooses where its links lead. So root follows no path there with its own rights: for the length
of a with block the kernel checks each access of this thread as one of the caller (setfsuid(2)). A link to a file that
the caller may not write leads to an error, whenever it was made; and each new file belongs to the caller.
"""

from __future__ import annotations

import codecs
import errno
import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from heddle.base.problems import InputError, MachineError, Problem, machine_errors, trouble

ELSEWHERE: Final = "set another directory, as in HEDDLE_STATE_DIR=/var/tmp/heddle"
_NOT_A_USER: Final = 0xFFFFFFFF  # setfsuid with it changes nothing, and returns the present one
_ITSELF: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def caller() -> pwd.struct_passwd | None:
    """The user who called sudo, if this process runs under sudo."""
    name, number = os.environ.get("SUDO_USER", ""), os.environ.get("SUDO_UID", "")
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam(name) if name else pwd.getpwuid(int(number))
    except (KeyError, ValueError):
        return None
    return found if found.pw_uid != 0 else None


@contextmanager
def as_caller(path: Path) -> Iterator[None]:
    """Access files as the user who called sudo for a with block, unless root owns `path` and all directories above it.

    Only this thread is concerned, and no command that it starts. Without sudo nothing changes. Import and read what
    belongs to Heddle before the block: the caller may not read root's Python. MachineError when the kernel does not
    allow it.
    """
    user = caller()
    # Files of root alone need no other rights.
    if user is None or not any(owner for each in (path, *path.parents) for owner in _owners(each)):
        yield
        return
    before = _fs_ids()
    codecs.lookup("ascii")  # Python imports a codec when it is used first
    try:
        with suppress(OSError):  # for good: root needs no group's rights
            os.setgroups([])
        _set_fs_ids(user.pw_uid, user.pw_gid)
        yield
    finally:
        _set_fs_ids(*before)


def as_root() -> None:
    """End a block of as_caller that a signal broke off in the moment of its end."""
    if os.geteuid() == 0 and _fs_ids() != (0, 0):
        _set_fs_ids(0, 0)


def _owners(path: Path) -> Iterator[int]:
    for found in (os.lstat, os.stat):  # a link's owner chooses where it leads
        with suppress(OSError):
            yield found(path).st_uid


def _fs_ids() -> tuple[int, int]:
    return _libc("setfsuid", _NOT_A_USER), _libc("setfsgid", _NOT_A_USER)


def _set_fs_ids(uid: int, gid: int) -> None:
    _libc("setfsgid", gid)
    _libc("setfsuid", uid)
    if _fs_ids() != (uid, gid):
        why = f"cannot take the rights of user {uid}, who owns the files"
        raise MachineError(Problem("", "this process", why, ELSEWHERE))


def _libc(name: str, number: int) -> int:
    import ctypes

    return int(getattr(ctypes.CDLL(None), name)(ctypes.c_uint32(number))) & 0xFFFFFFFF


def make_dir(path: Path) -> None:
    """Make a directory and its parents, all owned by the calling user."""
    check_owner(path)
    with machine_errors(str(path), ELSEWHERE), as_caller(path):
        for each in reversed([p for p in (path, *path.parents) if not p.exists()]):
            try:
                each.mkdir(mode=0o755)  # not writable for others, whatever the umask is
            except FileExistsError:
                continue
            give_to_caller(each)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    check_owner(path)  # again: another user may have made it in between


def check_owner(path: Path) -> None:
    """MachineError when another user can change a path of the state or the cache: its content runs as root.

    The same holds for the directories above it. Every user can write to a directory like /var/tmp, so another user
    could put a directory there first; in a sticky one, what belongs to this user cannot be replaced.
    """
    user = caller()
    ours = {0, os.geteuid(), user.pw_uid if user else 0}
    for each in (path, *path.parents):
        for found in (os.lstat, os.stat):
            try:
                status = found(each)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise MachineError(Problem("", str(each), f"cannot be used: {error.strerror}", ELSEWHERE)) from None
            why = "belongs to another user" if status.st_uid not in ours else _writable(status, sticky=each != path)
            if why:
                raise MachineError(Problem("", str(each), f"{why}, but Heddle runs its content as root", ELSEWHERE))


def _writable(status: os.stat_result, *, sticky: bool) -> str:
    """For whom a directory is writable besides its owner; empty for none. sticky: a sticky one is only above ours."""
    if not stat.S_ISDIR(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "is writable for every user"
    return "is writable for its group" if status.st_mode & stat.S_IWGRP and not _private(status) else ""


def _private(status: os.stat_result) -> bool:
    """Whether the group is the owner's own: it has the owner's name, as distributions make it, and no other members."""
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_gid == owner.pw_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def give_to_caller(path: Path, *, deep: bool = False) -> None:
    """Under sudo, make the calling user the owner (`deep`: of all files below, too). Sudo is then not needed later.

    By descriptors and without following links: what replaces the path meanwhile is not given away.
    """
    user = caller()
    if user is None:
        return
    with suppress(OSError):
        with as_caller(path.parent):
            fd = os.open(path, _ITSELF)
        _give(fd, user, deep=deep)


def _give(fd: int, user: pwd.struct_passwd, *, deep: bool) -> None:
    """Give away what a descriptor refers to, and close it."""
    try:
        there, found = f"/proc/self/fd/{fd}", os.fstat(fd)
        whole = stat.S_ISDIR(found.st_mode)
        if found.st_uid != user.pw_uid and (whole or found.st_nlink == 1):  # a hard link may be to a file of root
            os.chown(there, user.pw_uid, user.pw_gid)
        for each in Path(there).iterdir() if deep and whole else ():
            _give(os.open(each.name, _ITSELF, dir_fd=fd), user, deep=True)
    finally:
        os.close(fd)


def write_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Write files of a user's directory, which is made if it does not exist. texts: name -> text."""
    output_directory(directory, str(directory))
    with machine_errors(str(directory), "name another directory"), as_caller(directory):
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")


def output_directory(path: Path, what: str) -> None:
    """Make a user's directory for results, before the work that gives them. InputError when no file can be made there.

    what: the flag and the name, as typed.
    """
    try:
        with as_caller(path):
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        why = f"cannot be written: {error.strerror}" if path.is_dir() else f"is not a directory: {error.strerror}"
        raise InputError(Problem("", what, why, "name another directory")) from None
    except OSError as error:
        raise trouble(error, what) from None


def new_directory(path: Path) -> Path:
    """Make a directory that does not exist yet, with its parents: of this name, or with a number behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made, number = path, 1
    while True:
        try:
            made.mkdir()
        except FileExistsError:
            number += 1
            made = path.with_name(f"{path.name}-{number}")
        else:
            return made
