"""The files of an image, from the tar of its system: run as root, or under fakeroot, so that owners are kept.

python -m heddle.places.vm.pack DIRECTORY   # with root.tar; prints the kernel's release
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError
from heddle.base.process import run
from heddle.places.vm.image import DISK, INITRAMFS, KERNEL_FILE
from heddle.places.vm.initramfs import image_archive

_DISK_BYTES: Final = 8 << 30  # with holes: what the guest writes goes to another file
_MKFS_S: Final = 240.0


def pack(part: Path) -> str:
    """Make disk.img, vmlinuz and initramfs.gz; the kernel's release."""
    root = part / "root"
    with tarfile.open(part / "root.tar") as tar:
        members = (each for each in tar if not each.isdev())
        # mmdebstrap made the tar. Python 3.11.2, which Debian 12 has, does not accept the filter as an argument.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        tar.errorlevel = 2  # an owner, a mode or a time that cannot be set is an error, too
        tar.extractall(root, members, numeric_owner=True)  # noqa: S202
    for name in ("usr/lib/heddle", "sys/fs", "dev", "proc", "run", "tmp"):
        (root / name).mkdir(mode=0o755, parents=True, exist_ok=True)
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    release = kernel.name.removeprefix("vmlinuz-")
    shutil.copyfile(kernel, part / KERNEL_FILE)
    (part / INITRAMFS).write_bytes(image_archive(root, release))
    for made in (root / "boot").iterdir():
        made.unlink()  # QEMU starts the kernel itself
    disk = part / DISK
    with disk.open("wb") as file:
        file.truncate(_DISK_BYTES)
    run(
        ["/sbin/mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", str(root), str(disk)],
        timeout=_MKFS_S,
    )
    shutil.rmtree(root)
    return release


if __name__ == "__main__":
    try:
        print(pack(Path(sys.argv[1])))
    except (HeddleError, OSError, tarfile.TarError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
