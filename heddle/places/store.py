"""The project as content hashes: its manifest, the files that changed, and tars of files.

Used on both sides: here to make the manifest; on the lab server, where this file is sent with server.py, to find the
missing files. So it uses the standard library only, and the syntax of Python 3.9.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol, cast

# Directories of tools in a checkout. They are neither copied nor removed on the server.
KEPT = frozenset({".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
Manifest = dict[str, list[str]]  # path -> ["f" or "x", SHA-256] or ["l", target]


class Source(Protocol):
    """The source that a tar is read from."""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""


class Sink(Protocol):
    """The target that a tar is written to."""

    def write(self, data: bytes) -> int:
        """Write a piece."""


def inside(root: Path, name: str) -> Path:
    """A path below `root`; ValueError when it is outside `root`."""
    parts = name.split("/")
    if not name or name.startswith("/") or any(p in ("", ".", "..") for p in parts):
        raise ValueError(f"{name} is outside {root}")
    return root.joinpath(*parts)


def manifest_entry(path: Path) -> list[str]:
    """A file's entry in a manifest."""
    if path.is_symlink():
        return ["l", str(path.readlink())]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return ["x" if path.stat().st_mode & stat.S_IXUSR else "f", digest]


def is_kept(name: str) -> bool:
    """Whether a relative path belongs to a tool (see KEPT), by any of its parts."""
    parts = name.split("/")
    return name.endswith(".pyc") or any(part in KEPT or part.endswith(".egg-info") for part in parts)


def walk(root: Path) -> list[str]:
    """All files and links below `root` except those of tools, as relative paths, sorted."""
    found = []
    for here, directories, files in os.walk(root):
        links = [d for d in directories if Path(here, d).is_symlink()]
        found += [os.path.relpath(Path(here, name), root) for name in files + links]
        directories[:] = [d for d in directories if not is_kept(d) and d not in links]
    return sorted(name for name in found if not is_kept(name))


def digest_of(manifest: Manifest) -> str:
    """One hash over a whole manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def stamps(project: Path, names: list[str]) -> dict[str, list[int]]:
    """Size, time and mode of every file: when they are equal, no file has changed."""
    # Text, not Path: on a slow server that is half of the time.
    return {n: [s.st_size, s.st_mtime_ns, s.st_mode] for n in names for s in [os.lstat(f"{project}/{n}")]}


class Store:
    """The project on this machine, and the record of the last copy."""

    def __init__(self, base: Path) -> None:
        self.base, self.project, self.record = base, base / "project", base / "record.json"
        for directory in (base, self.project):
            make_private(directory)

    def is_at(self, wanted: str) -> bool:
        """Whether the project has this hash, judged by the recorded sizes, times and modes."""
        try:
            said = json.loads(self.record.read_text())
            known = said["stamps"]
            return bool(said["hash"] == wanted and stamps(self.project, list(known)) == known)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def needs(self, manifest: Manifest) -> list[str]:
        """Remove files that are not in the manifest, and name the files to send.

        The record is removed first: after an interruption, the next call compares file by file again.
        """
        self.record.unlink() if self.record.exists() else None
        for name in walk(self.project):
            if name not in manifest:
                (self.project / name).unlink()
        for here, _, _ in os.walk(self.project, topdown=False):
            parts = Path(here).relative_to(self.project).parts
            if parts and not KEPT.intersection(parts) and not os.listdir(here):  # noqa: PTH208
                os.rmdir(here)  # noqa: PTH106
        there = set(walk(self.project))
        return sorted(
            n for n, what in manifest.items() if n not in there or manifest_entry(inside(self.project, n)) != what
        )

    def finish(self, manifest: Manifest) -> bool:
        """Record that the project is complete; False when it differs from the manifest."""
        names = walk(self.project)
        now = {n: manifest_entry(self.project / n) for n in names}
        data = {"hash": digest_of(now), "stamps": stamps(self.project, names)}
        fresh = self.record.with_suffix(".new")
        fresh.write_text(json.dumps(data))
        fresh.replace(self.record)
        return now == manifest


def make_private(directory: Path) -> None:
    """Make a directory that only this user can write to, whatever the umask is: its files will run as root.

    PermissionError when it is another user's, or a link.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    status = os.lstat(directory)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(errno.EACCES, "is another user's, or a link", str(directory))
    if status.st_mode & 0o022:
        directory.chmod(0o700)


def pack(files: list[tuple[Path, str]], sink: Sink, runnable: str = "") -> None:
    """Write files (path, name in the tar) as a compressed tar; directories with their content.

    runnable: the name of a file that becomes executable, whatever its mode is here.
    """

    def marked(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode |= stat.S_IXUSR if member.name == runnable else 0
        return member

    with tarfile.open(fileobj=cast("IO[bytes]", sink), mode="w|gz") as tar:
        for path, name in files:
            if os.path.lexists(path):
                tar.add(path, name, filter=marked)


def unpack(source: Source, root: Path, *, links: bool = True) -> list[str]:
    """Write every file and link of a tar below `root`; return their names. Each is written completely or not at all.

    ValueError for a member outside `root`, and for a link when `links` is false.
    """
    written = []
    # Directories that this call has checked: on a slow server the checks take as long as the rest.
    checked: set[str] = set()
    with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|gz") as tar:
        for member in tar:
            if not (member.isfile() or member.issym()):
                continue
            path = inside(root, member.name)
            if member.issym() and not links:
                raise ValueError(f"{member.name} is a link")
            written.append(member.name)
            folder, _, last = str(path).rpartition("/")
            if member.issym() or _is_directory(path):
                checked.clear()  # this member may replace a directory that was checked
            if folder not in checked:
                clear(root, path)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                checked.add(folder)
            _write_member(tar, member, f"{folder}/.heddle-{secrets.token_hex(4)}", f"{folder}/{last}")
    while source.read(1 << 16):  # tarfile stops before the last frames of the tar
        pass
    return written


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, fresh: str, path: str) -> None:
    """Write one file or link under the name `fresh`, and give it its own name when it is complete."""
    try:
        if member.issym():
            os.symlink(member.linkname, fresh)  # noqa: PTH211
        else:
            content = tar.extractfile(member)
            assert content is not None  # noqa: S101  (it is a file)
            with open(fresh, "wb") as file:  # noqa: PTH123
                shutil.copyfileobj(content, file)
                os.fchmod(file.fileno(), 0o755 if member.mode & stat.S_IXUSR else 0o644)
        os.rename(fresh, path)  # noqa: PTH104
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)  # noqa: PTH108
        raise


def clear(root: Path, path: Path) -> None:
    """Remove whatever is in place of a file, or of a directory of its path."""
    for parent in reversed(path.relative_to(root).parents[:-1]):
        if (root / parent).is_symlink() or (root / parent).is_file():
            (root / parent).unlink()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
