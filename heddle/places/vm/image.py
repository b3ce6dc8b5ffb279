"""Images of guests in the cache. The name of an image is its kernel and a hash of all its inputs.

    CACHE/vm/backports-0123456789ab/   disk.img, vmlinuz, initramfs.gz, image.json
    CACHE/vm/.making-*/                an image that is being made; it gets its name when it is complete
    CACHE/vm/.lock                     held while an image is made

CACHE is $HEDDLE_CACHE_DIR, else $XDG_CACHE_HOME/heddle, else ~/.cache/heddle.
The guest's own scripts (templates/vm/) are not part of an image: each boot adds them. So a change of a script needs no
new image. A change of the commands and of the code that make an image does.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.state import cache_dir
from heddle.host.engine.images import SUITE
from heddle.places.vm import guestpackages, recipe
from heddle.places.vm.kernels import Kernel

DISK: Final = "disk.img"
KERNEL_FILE: Final = "vmlinuz"
INITRAMFS: Final = "initramfs.gz"
ABOUT: Final = "image.json"
IMAGE_FORMAT: Final = 3  # of the files; a change makes new images
# They make the files of an image from the tar of its system. The commands that make the tar are in recipe.py.
_MAKERS: Final = ("pack.py", "initramfs.py")


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

    def to_json(self) -> dict[str, Any]:
        """`name`, `path`, `kernel`, `release`, `seconds`, `bytes`, `used`."""
        shown = {**asdict(self), "path": str(self.path), "name": self.name, "bytes": self.bytes_used}
        return {**shown, "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.used))}


def script(name: str) -> bytes:
    """One of the guest's own files, from templates/vm/."""
    return (resources.HERE.content(resources.TEMPLATES) / "vm" / name).read_bytes()


def lock_file() -> bytes:
    """requirements.lock: the guest has these Python packages."""
    return (resources.HERE.root / "requirements.lock").read_bytes()


def maker_code() -> bytes:
    """The source of the modules that make the files of an image."""
    return b"".join(Path(__file__).with_name(name).read_bytes() for name in _MAKERS)


def inputs(kernel: Kernel) -> Mapping[str, str]:
    """All inputs of an image, except the day on which Debian's packages are downloaded."""
    lock, wheels, tar = Path("requirements.lock"), Path("wheels"), Path("root.tar")  # without the paths of this machine
    commands = [*recipe.download(lock, wheels), *recipe.bootstrap(kernel, lock, wheels, tar)]
    return {
        "format": str(IMAGE_FORMAT),
        "suite": SUITE,
        "kernel": kernel.package,
        "packages": " ".join(guestpackages.guest_packages()),
        "python": hashlib.sha256(lock_file()).hexdigest(),
        "commands": hashlib.sha256("\0".join(commands).encode()).hexdigest(),
        "code": hashlib.sha256(maker_code()).hexdigest(),
    }


def image_name(kernel: Kernel) -> str:
    """The name of the image that this Heddle needs for a kernel."""
    digest = hashlib.sha256(json.dumps(inputs(kernel), sort_keys=True).encode()).hexdigest()
    return f"{kernel.name}-{digest[:12]}"


def images_dir() -> Path:
    """The directory of all images; it need not exist."""
    return cache_dir() / "vm"


def find_image(kernel: Kernel) -> VmImage | None:
    """The image for a kernel, if it is in the cache."""
    return read_image(images_dir() / image_name(kernel))


def images() -> list[VmImage]:
    """All complete images of the cache, also those of other versions of Heddle."""
    found = (read_image(path) for path in sorted(images_dir().glob("[!.]*")))
    return [image for image in found if image is not None]


def read_image(path: Path) -> VmImage | None:
    """The image in this directory; None when there is none, or when it is damaged."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        if not all((path / name).is_file() for name in (DISK, KERNEL_FILE, INITRAMFS)):
            return None
        return VmImage(path, str(about["kernel"]), str(about["release"]), float(about["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
