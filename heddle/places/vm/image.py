"""Images of guests in the cache. The name of an image is its kernel and a hash of all its inputs.

    CACHE/vm/backports-0123456789ab/   disk.img, vmlinuz, initramfs.gz, image.json
    CACHE/vm/.making-*/                an image that is being made; it gets its name when it is complete
    CACHE/vm/.lock                     held while an image is made

CACHE is $HEDDLE_CACHE_DIR, else $XDG_CACHE_HOME/heddle, else ~/.cache/heddle.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.problems import machine_errors
from heddle.base.state import cache_dir, give_to_caller, make_dir, write_json
from heddle.host.engine.lockfile import locked
from heddle.places.vm import kernels, packages
from heddle.places.vm.kernels import Kernel

DISK: Final = "disk.img"
KERNEL_FILE: Final = "vmlinuz"
INITRAMFS: Final = "initramfs.gz"
_ABOUT: Final = "image.json"
_MAKING: Final = ".making-"
_FORMAT: Final = 1  # of the disk; a change makes new images
_SCRIPTS: Final = ("initramfs-init", "guest-init", "sshd_config")


@dataclass(frozen=True, slots=True)
class VmImage:
    """An image in the cache. release: of its kernel, as uname prints it; seconds: how long it took to make."""

    path: Path
    kernel: str
    release: str
    seconds: float

    @property
    def name(self) -> str:
        """`backports-0123456789ab`."""
        return self.path.name

    @property
    def bytes_used(self) -> int:
        """What it takes of the disk; its file `disk.img` has holes."""
        return sum(file.stat().st_blocks * 512 for file in self.path.iterdir())

    def to_json(self) -> dict[str, Any]:
        """`name`, `path`, `kernel`, `release`, `seconds`, `bytes`."""
        return {**asdict(self), "path": str(self.path), "name": self.name, "bytes": self.bytes_used}


def script(name: str) -> bytes:
    """One of the guest's own files, from templates/vm/."""
    return (resources.HERE.content(resources.TEMPLATES) / "vm" / name).read_bytes()


def lock_file() -> bytes:
    """requirements.lock: the guest has these Python packages."""
    return (resources.HERE.root / "requirements.lock").read_bytes()


def inputs(kernel: Kernel) -> Mapping[str, str]:
    """All that decides what is in an image, but for the day on which Debian's packages are fetched."""
    return {
        "format": str(_FORMAT),
        "suite": kernels.SUITE,
        "kernel": kernel.package,
        "packages": " ".join(packages.guest_packages()),
        "python": hashlib.sha256(lock_file()).hexdigest(),
        **{name: hashlib.sha256(script(name)).hexdigest() for name in _SCRIPTS},
    }


def image_name(kernel: Kernel) -> str:
    """The name of the image that this Heddle wants for a kernel."""
    digest = hashlib.sha256(json.dumps(inputs(kernel), sort_keys=True).encode()).hexdigest()
    return f"{kernel.name}-{digest[:12]}"


def find_image(kernel: Kernel) -> VmImage | None:
    """The image for a kernel, if it is in the cache."""
    return _read(_directory() / image_name(kernel))


def images() -> list[VmImage]:
    """All complete images of the cache, also those that no Heddle here wants any more."""
    found = (_read(path) for path in sorted(_directory().glob("[!.]*")))
    return [image for image in found if image is not None]


def ensure_image(kernel: Kernel, observer: Observer, *, fresh: bool = False) -> VmImage:
    """The image for a kernel; it is made if the cache does not have it, or with `fresh`.

    Older images of this kernel are removed after that; a guest that uses one keeps its open file. MachineError names
    the obstacle. Nothing incomplete stays, however this ends; what a killed process left goes with the next call.
    """
    if not fresh and (found := find_image(kernel)) is not None:
        return found
    directory = _directory()
    with machine_errors(str(directory)):
        make_dir(directory)
    with locked(directory / ".lock", fcntl.LOCK_EX):
        _sweep(directory)
        if not fresh and (found := find_image(kernel)) is not None:
            return found  # another process made it while this one waited
        target, part = directory / image_name(kernel), directory / f"{_MAKING}{kernel.name}"
        try:
            with machine_errors(str(part)):
                part.mkdir(mode=0o755)
                _make(kernel, part, observer)
                if target.exists():
                    shutil.rmtree(target)
                part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        give_to_caller(target, deep=True)
        for old in images():
            if old.kernel == kernel.name and old.path != target:
                shutil.rmtree(old.path, ignore_errors=True)
    made = _read(target)
    if made is None:
        raise FileNotFoundError(target)
    return made


def remove_images() -> Iterator[VmImage]:
    """Remove all images of the cache, and what a killed process left; yields those that are gone."""
    directory = _directory()
    if not directory.is_dir():
        return
    with locked(directory / ".lock", fcntl.LOCK_EX):
        _sweep(directory)
        for image in images():
            shutil.rmtree(image.path)
            yield image


def _make(kernel: Kernel, part: Path, observer: Observer) -> None:
    from heddle.places.vm.build import build

    began = time.monotonic()
    release = build(kernel, part, observer)
    about = {"format": _FORMAT, "kernel": kernel.name, "release": release, "inputs": dict(inputs(kernel))}
    write_json(part / _ABOUT, {**about, "seconds": round(time.monotonic() - began, 1)}, indent=2)


def _directory() -> Path:
    return cache_dir() / "vm"


def _read(path: Path) -> VmImage | None:
    try:
        about = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
        return VmImage(path, str(about["kernel"]), str(about["release"]), float(about["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sweep(directory: Path) -> None:
    for left in directory.glob(f"{_MAKING}*"):
        with suppress(OSError):
            shutil.rmtree(left)
