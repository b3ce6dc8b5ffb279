"""Images of guests in the cache: make one once for all processes of this user, find it, remove what is not used.

    CACHE/vm/backports-0123456789ab/   disk.img, vmlinuz, initramfs.gz, image.json
    CACHE/vm/.making-*/                an image that is being made; it gets its name when it is complete
    CACHE/vm/.lock                     held while an image is made

CACHE is $HEDDLE_CACHE_DIR, else $XDG_CACHE_HOME/heddle, else ~/.cache/heddle. The name of an image is its kernel and a
hash of all its inputs (recipe.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from heddle.base import mounts
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.state import cache_dir, write_json
from heddle.base.userfiles import check_owner, give_to_caller, make_dir
from heddle.host.engine.lockfile import locked
from heddle.places.vm import imagebuild
from heddle.places.vm.imagebuild import DISK, INITRAMFS, KERNEL_FILE, SCRATCH, build
from heddle.places.vm.recipe import IMAGE_FORMAT, Kernel, image_name, inputs

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
    mounts.sweep(SCRATCH, imagebuild.remove)


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
    """See VmImage.files."""
    now = file.stat()
    return now.st_size, now.st_mtime_ns, _digest(file)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_parts(directory: Path) -> None:
    for left in directory.glob(f"{_MAKING}*"):
        with suppress(OSError):
            shutil.rmtree(left)
