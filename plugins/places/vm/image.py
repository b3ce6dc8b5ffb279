"""Images of guests in the cache: make one once for all processes of this user, find it, remove what is not used.

    CACHE/vm/backports-0123456789ab/   disk.img, vmlinuz, initramfs.gz, image.json
    CACHE/vm/.making-*/                an image that is being made; it gets its name when it is complete
    CACHE/vm/.lock                     held while an image is made

CACHE is $HEDDLE_CACHE_DIR, else $XDG_CACHE_HOME/heddle, else ~/.cache/heddle. The name of an image is its kernel and a
hash of all its inputs (recipe.py).
Images are made of Python packages by pip, of Debian packages by mmdebstrap, and their disk by mke2fs. These programs
run in namespaces that end with the process that makes the image, whatever ends it. There they are root, or the root of
a user namespace with this user's range of ids; so files have their owners on the disk without root, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from heddle.base import mounts
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import Done, follow, run
from heddle.base.state import cache_dir, write_json
from heddle.base.userfiles import check_owner, give_to_caller, make_dir
from heddle.host import packages
from heddle.host.engine.images import in_own_namespaces, last_lines
from heddle.host.engine.lockfile import locked
from heddle_plugins.places.vm import recipe
from heddle_plugins.places.vm.initramfs import image_archive
from heddle_plugins.places.vm.recipe import IMAGE_FORMAT, Kernel, image_name, inputs

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


ABOUT: Final = "image.json"
_FILES: Final = (DISK, KERNEL_FILE, INITRAMFS)
Builder = Callable[[Kernel, Path, Observer], str]  # writes the files of an image to a directory; the kernel's release
_MAKING: Final = ".making-"
_LOCK: Final = ".lock"
_WAIT: Final = "image of the VM"
_UNUSED_S: Final = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class VmImage:
    """An image in the cache. release: of its kernel, as uname prints it; seconds: how long it took to make.

    files: name -> size, time of the last change in ns, and SHA-256, when it was made.
    """

    path: Path
    kernel: str
    release: str
    seconds: float
    files: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`backports-0123456789ab`."""
        return self.path.name

    @property
    def bytes_used(self) -> int:
        """Its space on the disk; its file `disk.img` has holes."""
        return sum(file.stat().st_blocks * 512 for file in self.path.iterdir())

    @property
    def used(self) -> float:
        """When a guest last started from it, seconds of the epoch."""
        return (self.path / ABOUT).stat().st_mtime

    def mark_used(self) -> None:
        """Record that a guest starts from it now. A cache that this user cannot write keeps the old time."""
        with suppress(OSError):
            (self.path / ABOUT).touch()

    def check(self) -> None:
        """MachineError when the image belongs to another user, or a file is not what was made."""
        check_owner(self.path)
        for name, (size, changed, digest) in self.files.items():
            file = self.path / name
            with machine_errors(str(file)):
                check_owner(file)
                now = file.stat()
                same = (now.st_size, now.st_mtime_ns) == (size, changed) or _digest(file) == digest
            if not same:
                raise MachineError(
                    Problem("", str(file), "has changed since it was made", "run ./inv vm build --rebuild")
                )

    def to_json(self) -> dict[str, Any]:
        """`name`, `path`, `kernel`, `release`, `seconds`, `bytes`, `used`."""
        shown = {key: value for key, value in asdict(self).items() if key != "files"}
        shown |= {"path": str(self.path), "name": self.name, "bytes": self.bytes_used}
        return {**shown, "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.used))}


def images_dir() -> Path:
    """The directory of all images; it need not exist."""
    return cache_dir() / "vm"


def find_image(kernel: Kernel) -> VmImage | None:
    """The image for a kernel, if it is in the cache."""
    return _image_in(images_dir() / image_name(kernel))


def images() -> list[VmImage]:
    """All complete images of the cache, also those of other versions of Heddle."""
    found = (_image_in(path) for path in sorted(images_dir().glob("[!.]*")))
    return [image for image in found if image is not None]


def ensure_image(kernel: Kernel, observer: Observer, *, fresh: bool = False, builder: Builder = build) -> VmImage:
    """The image for a kernel; it is made if the cache does not have it, or with `fresh`.

    Then images that no guest has used for 14 days are removed; a guest that runs keeps its open files. MachineError
    names the obstacle. An incomplete image is always removed; if the process was killed, by the next call.
    """
    if not fresh and (found := find_image(kernel)) is not None:
        return found
    directory = images_dir()
    with machine_errors(str(directory)):
        make_dir(directory)
    observer.begin(_WAIT)
    waits = partial(observer.waiting, _WAIT, "another process makes an image of the VM")
    with locked(directory / _LOCK, fcntl.LOCK_EX, waits):
        observer.drop(_WAIT)
        give_to_caller(directory / _LOCK)
        _remove_parts(directory)
        if not fresh and (found := find_image(kernel)) is not None:
            return found  # another process made it while this one waited
        target, part = directory / image_name(kernel), directory / f"{_MAKING}{kernel.name}"
        try:
            with machine_errors(str(part)):
                part.mkdir(mode=0o755)
                began = time.monotonic()
                about = {"kernel": kernel.name, "release": builder(kernel, part, observer), "inputs": inputs(kernel)}
                about["files"] = {name: _described(part / name) for name in _FILES}
                seconds = round(time.monotonic() - began, 1)
                write_json(part / ABOUT, {"format": IMAGE_FORMAT, **about, "seconds": seconds}, indent=2)
                (part / ABOUT).chmod(0o644)  # others may read an image in a directory that they may read
                if target.exists():
                    shutil.rmtree(target)
                part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        give_to_caller(target, deep=True)
        for old in images():
            with suppress(OSError):
                if old.path != target and time.time() - old.used > _UNUSED_S:
                    shutil.rmtree(old.path)
    made = _image_in(target)
    if made is None:
        raise MachineError(Problem("", str(target), "was made and cannot be read", "run ./inv vm build --rebuild"))
    return made


def remove_images() -> Iterator[str]:
    """Remove all images of the cache; yields the name of each image that is removed."""
    directory = images_dir()
    if not directory.is_dir():
        return
    with locked(directory / _LOCK, fcntl.LOCK_EX):
        _remove_parts(directory)
        for image in images():
            with machine_errors(str(image.path)):
                shutil.rmtree(image.path)
            yield image.name


def sweep() -> None:
    """Remove what killed builds of this user left: incomplete images, and scratch directories.

    Both have a lock while a process uses them, which the kernel removes when that process ends. What has one is never
    touched.
    """
    directory = images_dir()
    if any(directory.glob(f"{_MAKING}*")):
        with suppress(MachineError), locked(directory / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove_parts(directory)
    mounts.sweep(SCRATCH, remove)


def _image_in(path: Path) -> VmImage | None:
    """The image in this directory; None when there is none, or when it is damaged."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        if not all((path / name).is_file() for name in _FILES):
            return None
        files = {
            name: (int(size), int(changed), str(digest)) for name, (size, changed, digest) in about["files"].items()
        }
        return VmImage(path, str(about["kernel"]), str(about["release"]), float(about["seconds"]), files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _described(file: Path) -> tuple[int, int, str]:
    now = file.stat()
    return now.st_size, now.st_mtime_ns, _digest(file)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_parts(directory: Path) -> None:
    for left in directory.glob(f"{_MAKING}*"):
        with suppress(OSError):
            shutil.rmtree(left)
