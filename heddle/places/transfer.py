"""The files of a verb: those that it reads, and those that it wrote.

The server is not trusted. The client names every file that it sends, and decides where a file of the server is written:
at a name of the user's --out, or, where the verb chooses a name itself, as one new file in the working directory.
"""

from __future__ import annotations

import filecmp
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, MachineError, Problem, machine_errors
from heddle.places.call import Call

if TYPE_CHECKING:
    from paramiko import SFTPClient

FILE_BYTES: Final = 64 << 20  # largest input file
INPUT_BYTES: Final = 256 << 20  # all input files of a verb
OUTPUT_BYTES: Final = 1 << 30  # all files that a verb wrote
OUTPUT_FILES: Final = 10_000


def input_files(names: Sequence[str]) -> dict[str, Path]:
    """Name as typed -> absolute path of a regular file. The name of a preset is not a file, and is sent unchanged."""
    from heddle.spec.load import find_fabric, presets

    found: dict[str, Path] = {}
    left = INPUT_BYTES
    for name in names:
        if name in presets():
            continue
        path, _ = find_fabric(name)
        with machine_errors(name):
            status = path.stat()
        if path.is_dir():
            raise InputError(Problem("", name, "is a directory", "name the .yml file in it"))
        if not stat.S_ISREG(status.st_mode):
            raise InputError(Problem("", name, "is not a regular file", "copy its content to a file"))
        if status.st_size > FILE_BYTES:
            raise InputError(Problem("", name, f"is larger than {FILE_BYTES >> 20} MiB", "check the name"))
        left -= status.st_size
        if left < 0:
            why = f"and the files before it are larger than {INPUT_BYTES >> 20} MiB together"
            raise InputError(Problem("", name, why, "bind fewer or smaller files"))
        found[name] = Path(os.path.abspath(path))  # noqa: PTH100  (not through links: relative paths stay valid)
    return found


def output_paths(call: Call) -> dict[str, str]:
    """Name of an output as typed -> its path below the session's directory. Verbs read its suffix (`.svg`)."""
    lasts = {name: os.path.basename(os.path.normpath(f"/{name}")) for name in call.files_out}  # noqa: PTH119
    return {name: f"out/{i}/{last or 'out'}" for i, (name, last) in enumerate(lasts.items())}


class Outputs:
    """Copy the files that a verb wrote from `session` on the server. MachineError for anything else."""

    def __init__(self, sftp: SFTPClient, session: str) -> None:
        self.sftp, self.session = sftp, session
        self.bytes_left, self.files_left = OUTPUT_BYTES, OUTPUT_FILES

    def fetch(self, call: Call) -> list[str]:
        """Copy the files of this call to their names here. Returns the names of other files, which stay there."""
        for name, path in output_paths(call).items():
            self._named(f"{self.session}/{path}", Path(name).expanduser(), name, call.directory_out)
        other, new = [], ""
        for name in self._names(f"{self.session}/here", "the working directory"):
            if new or name.startswith(".") or Path(name).suffix not in call.endings_here:
                other.append(printable(name))
            else:
                new = name
                self._new(f"{self.session}/here/{name}", Path(name))
        return other

    def _new(self, there: str, target: Path) -> None:
        """A file that the verb has named itself. It never replaces another one."""
        with self._copy(there, target.parent, target.name) as copy:
            try:
                os.link(copy, target)
            except FileExistsError:
                if target.is_symlink() or not target.is_file() or not filecmp.cmp(copy, target, shallow=False):
                    why = "was written there, but another file has this name here, and no --out names it"
                    hint = f"use --out {target}, or move the file away"
                    raise MachineError(Problem("", printable(target.name), why, hint)) from None

    def _named(self, there: str, target: Path, shown: str, directory: bool, inner: bool = False) -> None:
        """A file, or a directory with its content, at a name of the user's or below it."""
        try:
            mode = self.sftp.lstat(there).st_mode or 0
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode) or not directory:
            if directory and not inner:
                raise refused(shown, "is not a directory there")
            if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
                raise refused(shown, "is not a regular file here")
            with machine_errors(shown):
                target.parent.mkdir(parents=True, exist_ok=True)
            with self._copy(there, target.parent, shown) as copy:
                copy.replace(target)
            return
        if inner and target.is_symlink():
            raise refused(shown, "is a link here")
        with machine_errors(shown):
            target.mkdir(parents=True, exist_ok=True)
        for name in self._names(there, shown):
            if name.startswith("."):
                raise refused(f"{shown}/{printable(name)}", "has a hidden name")
            self._named(f"{there}/{name}", target / name, f"{shown}/{printable(name)}", directory, inner=True)

    def _names(self, there: str, shown: str) -> list[str]:
        """The names in a directory there, each checked to be one."""
        found = []  # complete: paramiko reads no other answer meanwhile
        for entry in self.sftp.listdir_iter(there):
            self.files_left -= 1
            if self.files_left < 0:
                raise refused(shown, f"has more than {OUTPUT_FILES} files there")
            if entry.filename in ("", ".", "..") or "/" in entry.filename or "\0" in entry.filename:
                raise refused(shown, f"has a file there whose name is {printable(entry.filename)!r}")
            found.append(entry.filename)
        return sorted(found)

    @contextmanager
    def _copy(self, there: str, directory: Path, shown: str) -> Iterator[Path]:
        """A complete copy of a regular file, which is removed at the end; not executable, whatever it is there."""
        status = self.sftp.lstat(there)
        if not stat.S_ISREG(status.st_mode or 0):
            raise refused(shown, "is not a regular file there")
        with machine_errors(shown):
            number, name = tempfile.mkstemp(prefix=".heddle-", dir=directory)
        try:
            with os.fdopen(number, "wb") as file, self.sftp.open(there, "rb") as source:
                if 0 < (status.st_size or 0) <= self.bytes_left:
                    source.prefetch(status.st_size, 64)
                while data := source.read(1 << 15):
                    self.bytes_left -= len(data)
                    if self.bytes_left < 0:
                        raise refused(shown, f"is too large: the limit is {OUTPUT_BYTES >> 20} MiB")
                    with machine_errors(shown):
                        file.write(data)
                os.fchmod(number, 0o644)
            yield Path(name)
        except PermissionError:
            raise refused(shown, "cannot be read there") from None
        finally:
            Path(name).unlink(missing_ok=True)


def printable(text: str) -> str:
    """A text of the server, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def refused(name: str, why: str) -> MachineError:
    """The error for a file that is not written here."""
    hint = "run the same line again; if it is refused again, do not trust the server"
    return MachineError(Problem("", name, f"was not copied back: it {why}", hint))
