"""Files as content hashes: what a project is, what of it has changed, and how it is written down whole.

Used on both sides: here to say what the project is, and on the lab server, where this file is sent along with
agent.py, to see what is missing. So: the standard library only, and what Python 3.9 knows.
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
from pathlib import Path
from typing import IO, Protocol, cast

# What tools keep in a checkout for themselves; it is neither brought over nor removed there.
KEPT = frozenset({".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
Manifest = dict[str, list[str]]  # path -> ["f" or "x", SHA-256] or ["l", target]


class Source(Protocol):
    """What a tar is read from."""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""


class Sink(Protocol):
    """What a tar is written to."""

    def write(self, data: bytes) -> int:
        """Take a piece."""


def inside(root: Path, name: str) -> Path:
    """A path below `root`; ValueError for one that leads out of it."""
    parts = name.split("/")
    if not name or name.startswith("/") or any(p in ("", ".", "..") for p in parts):
        raise ValueError(f"{name} leads out of {root}")
    return root.joinpath(*parts)


def look(path: Path) -> list[str]:
    """What a manifest says of a file."""
    if path.is_symlink():
        return ["l", str(path.readlink())]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return ["x" if path.stat().st_mode & stat.S_IXUSR else "f", digest]


def is_kept(name: str) -> bool:
    """True for what tools keep in a checkout, by any part of its relative path."""
    parts = name.split("/")
    return name.endswith(".pyc") or any(part in KEPT or part.endswith(".egg-info") for part in parts)


def walk(root: Path) -> list[str]:
    """All files and links below `root` but for what tools keep there, relative, sorted."""
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
    """Size, time and mode of every file: if none has changed, the files have not changed."""
    return {n: [s.st_size, s.st_mtime_ns, s.st_mode] for n in names for s in [os.lstat(project / n)]}


class Store:
    """The project on this machine, and the record of what was brought last."""

    def __init__(self, base: Path) -> None:
        self.base, self.project, self.record = base, base / "project", base / "record.json"
        for directory in (base, self.project):
            own(directory)

    def is_at(self, wanted: str) -> bool:
        """True when the project is what this hash says, as far as sizes and times tell."""
        try:
            said = json.loads(self.record.read_text())
            known = said["stamps"]
            return bool(said["hash"] == wanted and stamps(self.project, list(known)) == known)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def needs(self, manifest: Manifest) -> list[str]:
        """Make room for the manifest: remove what is not in it, and name what is to be sent.

        The record is removed first: after an interruption every file is checked again next time.
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
        return sorted(n for n, what in manifest.items() if n not in there or look(inside(self.project, n)) != what)

    def finish(self, manifest: Manifest) -> bool:
        """Note that the project is complete; False when it is not what the manifest says."""
        names = walk(self.project)
        now = {n: look(self.project / n) for n in names}
        data = {"hash": digest_of(now), "stamps": stamps(self.project, names)}
        fresh = self.record.with_suffix(".new")
        fresh.write_text(json.dumps(data))
        fresh.replace(self.record)
        return now == manifest


def own(directory: Path) -> None:
    """Make a directory that only this user may write to, whatever the umask is: what stands in it will run as root.

    PermissionError when it is another user's, or a link.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    status = os.lstat(directory)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(errno.EACCES, "is another user's, or a link", str(directory))
    if status.st_mode & 0o022:
        directory.chmod(0o700)


def pack(files: list[tuple[Path, str]], sink: Sink, runnable: str = "") -> None:
    """Write files (where they stand, their names in there) as a compressed tar; directories with all in them.

    runnable: the name of one that is a program, whatever its mode is here.
    """

    def marked(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode |= stat.S_IXUSR if member.name == runnable else 0
        return member

    with tarfile.open(fileobj=cast("IO[bytes]", sink), mode="w|gz") as tar:
        for path, name in files:
            if os.path.lexists(path):
                tar.add(path, name, filter=marked)


def unpack(source: Source, root: Path, *, links: bool = True) -> list[str]:
    """Write every file and link of a tar below `root`, and name them: each is there whole, or not at all.

    ValueError for a member that leads out of `root`, and for a link where there are to be none.
    """
    written = []
    with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|gz") as tar:
        for member in tar:
            if not (member.isfile() or member.issym()):
                continue
            path = inside(root, member.name)
            if member.issym() and not links:
                raise ValueError(f"{member.name} is a link")
            written.append(member.name)
            clear(root, path)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_name(f".heddle-{secrets.token_hex(4)}")
            try:
                if member.issym():
                    fresh.symlink_to(member.linkname)
                else:
                    content = tar.extractfile(member)
                    assert content is not None  # noqa: S101  (it is a file)
                    with fresh.open("wb") as file:
                        shutil.copyfileobj(content, file)
                    fresh.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
                fresh.replace(path)
            finally:
                if os.path.lexists(fresh):
                    fresh.unlink()
    while source.read(1 << 16):  # skip the rest of the stream
        pass
    return written


def clear(root: Path, path: Path) -> None:
    """Take away what stands where a file, or a directory on the way to it, is to be."""
    for parent in reversed(path.relative_to(root).parents[:-1]):
        if (root / parent).is_symlink() or (root / parent).is_file():
            (root / parent).unlink()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
