"""Make the image of a kernel once, for all processes of this user; remove images that nothing uses any more."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.state import give_to_caller, make_dir, write_json
from heddle.host.engine.lockfile import locked
from heddle.places.vm.image import (
    ABOUT,
    IMAGE_FORMAT,
    VmImage,
    find_image,
    image_name,
    images,
    images_dir,
    inputs,
    read_image,
)
from heddle.places.vm.imagebuild import build
from heddle.places.vm.kernels import Kernel

Builder = Callable[[Kernel, Path, Observer], str]  # writes the files of an image to a directory; the kernel's release
_MAKING: Final = ".making-"
_LOCK: Final = ".lock"
_WAIT: Final = "image of the VM"
_NEEDED: Final = 4 << 30  # bytes: the archive of the system, its files, and the disk
_UNUSED_S: Final = 14 * 86400.0


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
        _sweep(directory)
        if not fresh and (found := find_image(kernel)) is not None:
            return found  # another process made it while this one waited
        _check_space(directory)
        target, part = directory / image_name(kernel), directory / f"{_MAKING}{kernel.name}"
        try:
            with machine_errors(str(part)):
                part.mkdir(mode=0o755)
                began = time.monotonic()
                release = builder(kernel, part, observer)
                about = {
                    "format": IMAGE_FORMAT,
                    "kernel": kernel.name,
                    "release": release,
                    "inputs": dict(inputs(kernel)),
                }
                write_json(part / ABOUT, {**about, "seconds": round(time.monotonic() - began, 1)}, indent=2)
                (part / ABOUT).chmod(0o644)  # others may read an image in a directory that they may read
                if target.exists():
                    shutil.rmtree(target)
                part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        give_to_caller(target, deep=True)
        _remove_unused(target)
    made = read_image(target)
    if made is None:
        raise MachineError(Problem("", str(target), "was made and cannot be read", "run ./inv vm build --rebuild"))
    return made


def remove_images() -> Iterator[str]:
    """Remove all images of the cache; yields the name of each image that is removed."""
    directory = images_dir()
    if not directory.is_dir():
        return
    with locked(directory / _LOCK, fcntl.LOCK_EX):
        _sweep(directory)
        for image in images():
            with machine_errors(str(image.path)):
                shutil.rmtree(image.path)
            yield image.name


def sweep_parts() -> None:
    """Remove incomplete images of killed processes; nothing while another process makes an image."""
    directory = images_dir()
    if not any(directory.glob(f"{_MAKING}*")):
        return
    with suppress(MachineError), locked(directory / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB):
        _sweep(directory)


def _check_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < _NEEDED:
        why = f"has {free / 1e9:.1f} GB free, and an image of the VM needs {_NEEDED / 1e9:.1f} GB while it is made"
        hint = "free some space there (df -h), or set another directory: HEDDLE_CACHE_DIR=/var/tmp/heddle"
        raise MachineError(Problem("", str(directory), why, hint))


def _remove_unused(kept: Path) -> None:
    for old in images():
        with suppress(OSError):
            if old.path != kept and time.time() - old.used > _UNUSED_S:
                shutil.rmtree(old.path)


def _sweep(directory: Path) -> None:
    for left in directory.glob(f"{_MAKING}*"):
        with suppress(OSError):
            shutil.rmtree(left)
