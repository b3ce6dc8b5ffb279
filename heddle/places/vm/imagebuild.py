"""Make the files of an image: Python packages by pip, Debian packages by mmdebstrap, the disk by mke2fs.

In:  a Kernel, and an empty directory.
Out: disk.img, vmlinuz and initramfs.gz in it, and the kernel's release.
These programs run in namespaces that end with the process that makes the image, whatever ends it. There they are root,
or the root of a user namespace with this user's range of ids; so files have their owners on the disk without root, too.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from heddle.base import mounts
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, follow, run
from heddle.host import packages
from heddle.host.engine.images import in_own_namespaces, last_lines
from heddle.places.vm import recipe
from heddle.places.vm.initramfs import image_archive
from heddle.places.vm.recipe import Kernel

DISK: Final = "disk.img"
KERNEL_FILE: Final = "vmlinuz"
INITRAMFS: Final = "initramfs.gz"
SCRATCH: Final = "heddle-vm-"
_PROBE_S: Final = 20.0
_DOWNLOAD_S: Final = 900.0
_BOOTSTRAP_S: Final = 1800.0
_DISK_S: Final = 300.0
_REMOVE_S: Final = 120.0
_FULL: Final = "no space left on device"
_LEFT_BYTES: Final = 8 << 20  # a disk with less is the one that was full
_LEFT_FILES: Final = 64
_WIDEST: Final = 200  # of a line that an error shows; those of mmdebstrap may have all its words
_DISK_BYTES: Final = 2 << 30
_SCRATCH_BYTES: Final = 2 << 30  # the system, and Debian's and Python's packages
_AS_ROOT: Final = "make the image once as root: sudo ./inv vm build"


def build(kernel: Kernel, part: Path, observer: Observer) -> str:
    """Make the files of an image in `part`; return the kernel's release. MachineError names the obstacle."""
    _check_tools()
    _check_space(part.parent, _DISK_BYTES, ", or set another directory: HEDDLE_CACHE_DIR=/var/tmp/heddle")
    _check_space(mounts.TEMPORARY, _SCRATCH_BYTES)
    observer.say(f"making the image of the VM ({kernel.package}): a few minutes, only once")
    with mounts.scratch(SCRATCH, remove) as work:
        work.chmod(0o755)  # apt reads there as its own user
        lock, wheels, root = work / recipe.LOCK, work / "wheels", work / "root"
        lock.write_bytes(recipe.lock_file())

        def step(name: str, argv: Sequence[str], timeout: float, program: str, why: str, hint: str) -> None:
            observer.begin(name)
            done = _follow(argv, name, observer, timeout, work, part)
            if done.code != 0:
                raise MachineError(Problem("", program, f"{why}: {last_lines(done, _WIDEST)}", hint))

        name, argv = "Python packages of the VM", [sys.executable, "-m", "pip", *recipe.download(lock, wheels)]
        hint = "check the network connection, and the package index that pip is configured for"
        step(name, argv, _DOWNLOAD_S, "pip", "could not download the guest's packages", hint)
        observer.end(name, f"{len(list(wheels.iterdir()))} files")
        name, argv = "Debian packages of the VM", recipe.bootstrap(kernel, lock, wheels, root)
        hint = "check the network connection: it downloads from a mirror of Debian"
        step(name, argv, _BOOTSTRAP_S, "mmdebstrap", "could not make the VM's system", hint)
        observer.end(name, "")
        name, release = "disk of the VM", _take_kernel(root, part)
        argv, hint = recipe.make_disk(root, part / DISK), "run ./inv vm build again"
        step(name, argv, _DISK_S, str(part / DISK), "could not be made", hint)
        observer.end(name, f"Linux {release}")
    return release


def remove(path: Path) -> None:
    """Remove a directory in which a build worked, also what belongs to an id of the user's range."""
    try:
        mounts.remove(path)
    except MachineError:
        if os.geteuid() == 0 or any(each.is_relative_to(path.resolve()) for each in mounts.mount_points()):
            raise
        run([*_namespaces(), "rm", "-rf", "--one-file-system", "--", str(path)], timeout=_REMOVE_S)


def _take_kernel(root: Path, part: Path) -> str:
    """Move the kernel from the system to the image, and make the initramfs; the kernel's release."""
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    release = kernel.name.removeprefix("vmlinuz-")
    shutil.copyfile(kernel, part / KERNEL_FILE)
    (part / INITRAMFS).write_bytes(image_archive(root, release))
    for file in (root / "boot").iterdir():
        file.unlink()  # QEMU starts the kernel itself
    return release


def _namespaces() -> Sequence[str]:
    """The words before a command that runs as root, or as root of a user namespace with this user's range of ids."""
    return in_own_namespaces(*(() if os.geteuid() == 0 else ("--map-root-user", "--map-auto")))


def _check_tools() -> None:
    """MachineError with everything that is missing to make an image, if something is."""
    root = os.geteuid() == 0
    absent = packages.missing(packages.VM_BUILD if root else packages.VM_BUILD_USER)
    found = [packages.absence(part.name, "./inv vm build --yes") for part in absent]
    if not found and not root:
        # Where the kernel refuses, unshare of util-linux 2.38 does not end if it is to map ids; so first without them.
        probes = (["unshare", "--user", "true"], [*_namespaces(), "true"])
        tried = (run(argv, timeout=_PROBE_S, check=False) for argv in probes)
        if refused := next((done for done in tried if done.code != 0), None):
            found.append(_refused(refused))
    if find_spec("pip") is None:
        found.append(Problem("", "pip", f"is missing in {sys.prefix}", f"run {sys.executable} -m ensurepip"))
    if found:
        raise MachineError(*found)


def _refused(done: Done) -> Problem:
    """Why this user has no user namespace with a range of ids."""
    why = ((done.err or done.out).strip().splitlines() or [f"unshare ended with exit code {done.code}"])[-1]
    if match := re.search(r'user "(.*)" in (/etc/sub.id)', why):
        user, file = match.groups()
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        why = f"has no range of ids for user {user}, and without root mmdebstrap needs one"
        return Problem("", file, why, f"run sudo usermod {ranges} {user}, or {_AS_ROOT}")
    hint = "sysctl user.max_user_namespaces, on Ubuntu kernel.apparmor_restrict_unprivileged_userns"
    why = f"cannot be used to make an image without root: {why}"
    return Problem("kernel", "user namespaces", why, f"{_AS_ROOT}; or allow them: {hint}")


def _check_space(directory: Path, needed: int, other: str = "") -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        why = f"has {free / 1e9:.1f} GB free, and an image of the VM needs {needed / 1e9:.1f} GB there while it is made"
        raise MachineError(Problem("", str(directory), why, f"free some space there (df -h){other}"))


def _follow(argv: Sequence[str], step: str, observer: Observer, timeout: float, work: Path, part: Path) -> Done:
    """Run a command to its end, and count its lines. MachineError when it fails because a disk is full.

    A message about that may come long before its end, and may name a path inside of a chroot.
    """
    count, full = 0, list[Path]()

    def line(text: str) -> None:
        nonlocal count
        count += 1
        observer.advance(step, count)
        if _FULL in text.lower():
            full.append(next((place for place in (part, work) if _is_full(place)), work))

    # Its temporary files are in the scratch directory, which is always removed.
    done = follow([*_namespaces(), "env", f"TMPDIR={work}", *argv], line, timeout=timeout)
    if done.code != 0 and full:
        scratch = full[0] == work
        other = "" if scratch else ", or set another directory: HEDDLE_CACHE_DIR=/var/tmp/heddle"
        hint = f"free some space there (df -h, and df -i for inodes){other}"
        where = str(mounts.TEMPORARY if scratch else part)
        raise MachineError(Problem("", where, "is full: the image needs 4 GB while it is made", hint))
    return done


def _is_full(place: Path) -> bool:
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize < _LEFT_BYTES or 0 <= state.f_favail < _LEFT_FILES < state.f_files
