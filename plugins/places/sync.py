"""The files that travel: the project and the verb's input to the server, what the verb wrote back.

The project is every file that git tracks or does not ignore; without git: all files except those of tools. The files of
an installed wheel become a checkout there: `./inv`, the lock file, the verbs, the package, the content. So a lab server
is set up in one way only.

The server is not trusted. The client names every file that it sends, and decides where a file of the server is written:
at a name of the user's --out, or, where the verb chooses a name itself, as one new file in the working directory.
"""

from __future__ import annotations

import filecmp
import hashlib
import io
import os
import socket
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.files import FILE_BYTES, expanded, open_regular
from heddle.base.problems import InputError, MachineError, Problem, machine_errors
from heddle.base.untrusted import OUTPUT_BYTES, is_safe_name
from heddle.places.choice import Call, foreign
from heddle_plugins.places.server import Manifest, is_kept, manifest_entry, walk

INPUT_BYTES: Final = 256 << 20  # all input files of a verb
OUTPUT_FILES: Final = 10_000


def project() -> Path:
    """The root of the files to copy: this checkout, or the content of the installed wheel."""
    return resources.HERE.root


def checkout_id(root: Path) -> str:
    """A name for this checkout that is unique on the lab server, also among checkouts of other users and machines."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    told = "\0".join([machine, socket.gethostname(), str(os.getuid()), str(root)])
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:16]


def manifest_of(root: Path) -> Manifest:
    """Every file of the project with its content's hash; MachineError for one that cannot be read."""
    manifest = {}
    for name, path in files_of(root).items():
        if path.is_symlink() or path.is_file():  # git also knows files that were deleted here, and submodules
            with machine_errors(str(path)):
                manifest[name] = manifest_entry(path)
    # An installer of wheels may drop the mode of files.
    return {**manifest, resources.FRONT_DOOR: ["x", manifest[resources.FRONT_DOOR][1]]} if _is_wheel(root) else manifest


def pack(root: Path, names: Sequence[str], tar: tarfile.TarFile) -> None:
    """Add these files of the project."""
    files = files_of(root)
    for name in names:
        add(tar, files[name], f"project/{name}", program=_is_wheel(root) and name == resources.FRONT_DOOR)


def add(tar: tarfile.TarFile, path: Path, name: str, *, program: bool = False) -> None:
    """Add a file, or a link; MachineError when it cannot be read. program: executable, whatever its mode is here."""
    if path.is_symlink():
        tar.add(path, name)
        return
    with machine_errors(str(path)), open_regular(path) as file:
        status = os.fstat(file.fileno())
        content = file.read(status.st_size)
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755 if program or status.st_mode & stat.S_IXUSR else 0o644
    tar.addfile(member, io.BytesIO(content))


def _is_wheel(root: Path) -> bool:
    return not resources.HERE.is_checkout and root == resources.HERE.root


def files_of(root: Path) -> dict[str, Path]:
    """Name in a checkout -> where the file is here."""
    if _is_wheel(root):
        return {name: path for name, path in sorted(resources.HERE.as_checkout().items()) if not is_kept(name)}
    return {name: root / name for name in _names(root)}


def _names(root: Path) -> list[str]:
    """Files that git tracks, and untracked files that it does not ignore; without git, all but those of tools."""
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    known: set[str] = set()
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(argv, capture_output=True, env=env, timeout=30, check=True).stdout
        known = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    # A checkout inside another repository that ignores it: git does not list its files.
    if resources.FRONT_DOOR not in known:
        return [n for n in walk(root) if n.split("/")[0] != "out"]
    return sorted(name for name in known if not is_kept(name))


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
        left -= status.st_size
        if not stat.S_ISREG(status.st_mode):
            why, hint = "is not a regular file", "name a file, or copy its content to one"
        elif status.st_size > FILE_BYTES or left < 0:
            why = f"is too large: the limit is {FILE_BYTES >> 20} MiB, and {INPUT_BYTES >> 20} MiB for all files"
            hint = "check the name; bind fewer or smaller files"
        else:
            found[name] = Path(os.path.abspath(path))  # noqa: PTH100  (not through links: relative paths stay valid)
            continue
        raise InputError(Problem("", name, why, hint))
    return found


def output_paths(call: Call) -> dict[str, str]:
    """Name of an output as typed -> its path below the session's directory. Verbs read its suffix (`.svg`)."""
    lasts = {name: os.path.basename(os.path.normpath(f"/{name}")) for name in call.files_out}  # noqa: PTH119
    return {name: f"out/{i}/{last or 'out'}" for i, (name, last) in enumerate(lasts.items())}


def fetch_outputs(call: Call, files: Iterable[Mapping[str, Any]], take: Callable[[int], Iterator[bytes]]) -> list[str]:
    """Write the files of this call to their names here. Returns the names of other files, which stay there.

    files: what the server says of each. take: the content of the last one, in pieces.
    MachineError for a file that the server must not write.
    """
    named = {path: name for name, path in output_paths(call).items()}
    other, new = [], ""
    files_left, bytes_left = OUTPUT_FILES, OUTPUT_BYTES
    for entry in files:
        path, size = str(entry.get("file")), entry.get("size")
        files_left -= 1
        top, *inner = parts = path.split("/")
        if files_left < 0:
            raise refused(foreign(path), f"is one of more than {OUTPUT_FILES} files there")
        if not {"", ".", ".."}.isdisjoint(parts) or not isinstance(size, int) or size < 0:
            raise refused("a file", f"has the name {foreign(path)!r} and the size {foreign(str(size))} there")
        output = named.get("/".join(parts[:3])) if top == "out" else None
        if output is not None:
            shown = "/".join([output, *map(foreign, inner[2:])])
            target = _named_target(expanded(output), inner[2:], shown, call.directory_out)
        elif not new and len(parts) == 2 and is_safe_name(inner[0]) and Path(path).suffix in call.endings_here:
            new = shown = inner[0]
            target = Path(new)
        else:
            other.append(foreign("/".join(inner)))
            continue
        bytes_left -= size
        for wrong, why in (
            (not entry.get("readable"), "is not a regular file there, or cannot be read"),
            (bytes_left < 0, f"is too large: the limit is {OUTPUT_BYTES >> 20} MiB"),
        ):
            if wrong:
                raise refused(shown, why)
        with machine_errors(shown):
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, take(size), replace=output is not None)
    return other


def _named_target(top: Path, inner: Sequence[str], shown: str, directory: bool) -> Path:
    """A file at a name of the user's, or below it, where the name is a directory's."""
    if directory is not bool(inner):
        raise refused(shown, "is not a directory there" if directory else "is not a regular file there")
    target = top
    for name in inner:
        if target is not top and target.is_symlink():
            raise refused(shown, "is below a link here")
        if not is_safe_name(name):
            raise refused(shown, "has a hidden name, or one that cannot be printed")
        target /= name
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise refused(shown, "is not a regular file here")
    return target


def _write(target: Path, content: Iterator[bytes], *, replace: bool) -> None:
    """Write a whole file, or none; not executable, whatever it is there. replace: the user has named it."""
    number, name = tempfile.mkstemp(prefix=".heddle-", dir=target.parent)
    copy = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.writelines(content)
            os.fchmod(number, 0o644)
        if replace:
            copy.replace(target)
        else:
            os.link(copy, target)
    except FileExistsError:
        if target.is_symlink() or not target.is_file() or not filecmp.cmp(copy, target, shallow=False):
            why = "was written there, but another file has this name here, and no --out names it"
            hint = f"use --out {target}, or move the file away"
            raise MachineError(Problem("", foreign(target.name), why, hint)) from None
    finally:
        copy.unlink(missing_ok=True)


def refused(name: str, why: str) -> MachineError:
    """The error for a file that is not written here."""
    hint = "run the same line again; if it is refused again, do not trust the server"
    return MachineError(Problem("", name, f"was not copied back: it {why}", hint))
