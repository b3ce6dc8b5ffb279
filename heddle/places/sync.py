"""The files of the project that are copied to a lab server: every file that git tracks or does not ignore.

The files of an installed wheel become a checkout there: `./inv`, the lock file, the verbs, the package, the content.
So a lab server is set up in one way only.

In:  the root of this checkout, or of the wheel's content.
Out: its Manifest, and a tar of the files that the server requests. Without git: all files except those of tools.
"""

from __future__ import annotations

import hashlib
import io
import os
import socket
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from heddle.base import resources
from heddle.base.problems import machine_errors
from heddle.places.server import Manifest, is_kept, manifest_entry, walk


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
        add(tar, files[name], f"project/{name}", link=True, program=_is_wheel(root) and name == resources.FRONT_DOOR)


def add(tar: tarfile.TarFile, path: Path, name: str, *, link: bool = False, program: bool = False) -> None:
    """Add a file, or a link; MachineError when it cannot be read. program: executable, whatever its mode is here."""
    if link and path.is_symlink():
        tar.add(path, name)
        return
    with machine_errors(str(path)), path.open("rb") as file:
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
    known = _git(root)
    # A checkout inside another repository that ignores it: git does not list its files.
    if known is None or resources.FRONT_DOOR not in known:
        return [n for n in walk(root) if n.split("/")[0] != "out"]
    return sorted(name for name in known if not is_kept(name))


def _git(root: Path) -> set[str] | None:
    """Files that git tracks, and untracked files that it does not ignore; None without git."""
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(argv, capture_output=True, env=env, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
