"""Make an image: Debian packages by mmdebstrap, Python packages of the lock file, then disk, kernel and initramfs.

In:  a Kernel, and an empty directory.
Out: disk.img, vmlinuz and initramfs.gz in it, and the kernel's release.
No root is needed where this user may make user namespaces; fakeroot then keeps the owners of files on the disk.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from heddle.base import mounts, resources
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, follow, run
from heddle.host import packages
from heddle.places.vm import buildspace, recipe
from heddle.places.vm.image import DISK, INITRAMFS, KERNEL_FILE, lock_file
from heddle.places.vm.kernels import Kernel

SCRATCH: Final = "heddle-vm-"
_DOWNLOAD_S: Final = 900.0
_BOOTSTRAP_S: Final = 1800.0
_PACK_S: Final = 300.0
_SUBIDS: Final = ("/etc/subuid", "/etc/subgid")
_FULL: Final = "no space left on device"
_LEFT_BYTES: Final = 8 << 20  # a disk with less is the one that was full
_LEFT_FILES: Final = 64
_WIDEST: Final = 200  # of a line that an error shows; those of mmdebstrap may have all its words
_LOCK: Final = "requirements.lock"
_SCRATCH_BYTES: Final = 2 << 30  # the system while mmdebstrap makes it, and Debian's and Python's packages


def build(kernel: Kernel, part: Path, observer: Observer) -> str:
    """Make the files of an image in `part`; return the kernel's release. MachineError names the obstacle."""
    _check_tools()
    _check_space()
    observer.say(f"making the image of the VM ({kernel.package}): a few minutes, only once")
    with mounts.scratch(SCRATCH, buildspace.remove) as work:
        work.chmod(0o755)  # apt reads there as its own user
        wheels = work / "wheels"
        _fetch(wheels, observer)
        tar = part / "root.tar"
        _bootstrap(kernel, wheels, tar, observer)
        observer.begin("disk of the VM")
        said = make_files(part)
        observer.end("disk of the VM", f"Linux {said}")
    return said


def _check_tools() -> None:
    """MachineError with everything that is missing to make an image, if something is."""
    absent = packages.missing(packages.VM_BUILD if os.geteuid() == 0 else packages.VM_BUILD_USER)
    found = [packages.absence(part.name, "./inv vm build --yes") for part in absent]
    if os.geteuid() != 0:
        found += [_no_subids(path) for path in _SUBIDS if not _has_subids(Path(path))]
    if not found and os.geteuid() != 0 and (refused := buildspace.problem()) is not None:
        found.append(refused)
    if find_spec("pip") is None:
        found.append(Problem("", "pip", f"is missing in {sys.prefix}", f"run {sys.executable} -m ensurepip"))
    if found:
        raise MachineError(*found)


def _check_space() -> None:
    free = shutil.disk_usage(mounts.TEMPORARY).free
    if free < _SCRATCH_BYTES:
        why = (
            f"has {free / 1e9:.1f} GB free, and an image of the VM needs {_SCRATCH_BYTES / 1e9:.1f} GB there while it "
        )
        raise MachineError(Problem("", str(mounts.TEMPORARY), f"{why}is made", "free some space there (df -h)"))


def _has_subids(path: Path) -> bool:
    me = (_user(), str(os.getuid()))
    try:
        return any(line.split(":")[0] in me for line in path.read_text(encoding="utf-8").splitlines())
    except OSError:
        return False


def _user() -> str:
    """The name of this user, as /etc/subuid has it; its number for a user without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _no_subids(path: str) -> Problem:
    why = f"has no range of ids for user {_user()}, and without root mmdebstrap needs one"
    ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
    return Problem(
        "", path, why, f"run sudo usermod {ranges} {_user()}, or make the image once as root: sudo ./inv vm build"
    )


def _fetch(wheels: Path, observer: Observer) -> None:
    """Download the packages of the lock file for the guest's Python. pip uses its own settings, and checks hashes."""
    observer.begin("Python packages of the VM")
    lock = wheels.parent / _LOCK
    lock.write_bytes(lock_file())
    argv = [sys.executable, "-m", "pip", *recipe.download(lock, wheels)]
    argv = [*buildspace.with_own_id(), *_temporary(lock.parent), *argv]
    done = _follow(argv, "Python packages of the VM", observer, _DOWNLOAD_S, [lock.parent])
    if done.code != 0:
        hint = "check the network connection, and the package index that pip is configured for"
        raise MachineError(Problem("", "pip", f"could not download the guest's packages: {_last(done)}", hint))
    observer.end("Python packages of the VM", f"{len(list(wheels.iterdir()))} files")


def _bootstrap(kernel: Kernel, wheels: Path, tar: Path, observer: Observer) -> None:
    step = "Debian packages of the VM"
    observer.begin(step)
    words = recipe.bootstrap(kernel, wheels.parent / _LOCK, wheels, tar)
    argv = [*buildspace.with_all_ids(), *_temporary(wheels.parent), "mmdebstrap", "--mode=root", *words]
    done = _follow(argv, step, observer, _BOOTSTRAP_S, [tar.parent, wheels.parent])
    if done.code != 0:
        hint = "check the network connection: it downloads from a mirror of Debian"
        raise MachineError(Problem("", "mmdebstrap", f"could not make the VM's system: {_last(done)}", hint))
    observer.end(step, f"{tar.stat().st_size / 1e6:.0f} MB")


def make_files(part: Path) -> str:
    """Disk, kernel and initramfs of the tar, in a process that is root, or under fakeroot; the kernel's release."""
    argv = [*buildspace.with_own_id(), *([] if os.geteuid() == 0 else ["fakeroot"])]
    path = os.pathsep.join([str(resources.HERE.python_path)])
    argv += ["env", f"PYTHONPATH={path}", sys.executable, "-m", "heddle.places.vm.pack", str(part)]
    done = run(argv, timeout=_PACK_S, check=False)
    if done.code != 0:
        if _FULL in (done.err + done.out).lower():
            raise _full(part)
        raise MachineError(
            Problem("", str(part / DISK), f"could not be made: {_last(done)}", "run ./inv vm build again")
        )
    (part / "root.tar").unlink()
    for name in (DISK, KERNEL_FILE, INITRAMFS):
        if not (part / name).is_file():
            raise MachineError(Problem("", str(part / name), "was not made", "run ./inv vm build again"))
    shutil.rmtree(part / "root", ignore_errors=True)
    return done.out.strip().splitlines()[-1]


def _follow(argv: Sequence[str], step: str, observer: Observer, timeout: float, places: Sequence[Path]) -> Done:
    """Run a command to its end, and count its lines. MachineError when it fails because one of these places is full.

    A message about that may come long before its end, and may name a path inside of a chroot.
    """
    count, full = 0, list[Path]()

    def line(text: str) -> None:
        nonlocal count
        count += 1
        observer.advance(step, count)
        if _FULL in text.lower():
            full.extend([place for place in places if _is_full(place)] or places[-1:])

    done = follow(argv, line, timeout=timeout)
    if done.code != 0 and full:
        raise _full(full[0])
    return done


def _is_full(place: Path) -> bool:
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize < _LEFT_BYTES or 0 <= state.f_favail < _LEFT_FILES < state.f_files


def _temporary(work: Path) -> Sequence[str]:
    """The words before a command that make its temporary files in the scratch directory, which is always removed."""
    return ("env", f"TMPDIR={work}")


def _full(place: Path) -> MachineError:
    """The error about a place without space, or without inodes."""
    scratch = place.is_relative_to(mounts.TEMPORARY)
    other = "" if scratch else ", or set another directory: HEDDLE_CACHE_DIR=/var/tmp/heddle"
    hint = f"free some space there (df -h, and df -i for inodes){other}"
    where = str(mounts.TEMPORARY if scratch else place)
    return MachineError(Problem("", where, "is full: the image needs 4 GB while it is made", hint))


def _last(done: Done) -> str:
    """The last lines with errors, else the last lines."""
    lines: Sequence[str] = [text.strip() for text in (done.err or done.out).splitlines() if text.strip()]
    errors = [text for text in lines if re.match(r"(E:|error|ERROR)", text)]
    return (
        "; ".join(each[:_WIDEST] for each in (errors or lines)[-2:])
        or f"it ended with exit code {done.code} and printed nothing"
    )
