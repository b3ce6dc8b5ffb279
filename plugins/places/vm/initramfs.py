"""The first programs of the guest: they load the modules of the disk, mount it and start the guest. Two cpio archives.

The archive of an image has busybox and modules; the archive of a boot has the scripts of templates/vm/. The kernel
unpacks one after the other (Documentation/driver-api/early-userspace/buffer-format.rst).

Debian's own initramfs is 39 MB, most of it modules and programs for hardware that a guest of QEMU does not have.
Formats: cpio(5) "newc", modules.dep(5).
"""

from __future__ import annotations

import gzip
import lzma
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem

# virtio on PCI is part of Debian's kernel or a module, by release.
MODULES: Final = ("virtio_pci", "virtio_blk", "virtio_net", "ext4", "qemu_fw_cfg")
# ext4 asks for these by the name of an algorithm, which modules.dep does not show. Newer kernels have it built in.
EARLIER: Final = ("crc32c_generic",)
_ALIGNED: Final = 4
_OTHER: Final = "use another kernel: --on vm:NAME; ./inv vm --help lists them"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of the archive. mode: type and permissions, as in stat(2)."""

    path: str
    content: bytes = b""
    mode: int = stat.S_IFREG | 0o644


def image_archive(root: Path, release: str) -> bytes:
    """The archive of an image, compressed. root: the guest's files; release: of its kernel."""
    directory = root / "usr/lib/modules" / release
    modules = _modules(directory)
    script = stat.S_IFREG | 0o755
    entries = [ArchivedFile(name, mode=stat.S_IFDIR | 0o755) for name in ("bin", "dev", "modules", "root")]
    entries += [
        ArchivedFile("bin/busybox", (root / "usr/bin/busybox").read_bytes(), script),
        ArchivedFile("bin/sh", b"busybox", stat.S_IFLNK | 0o777),
        ArchivedFile("modules/order", "".join(f"{name}\n" for name in modules).encode()),
        *(ArchivedFile(f"modules/{name}", content) for name, content in modules.items()),
    ]
    return gzip.compress(archive(entries), 6, mtime=0)


def boot_archive(image: bytes, scripts: Mapping[str, bytes]) -> bytes:
    """The whole initramfs of a boot: the archive of the image, and the scripts, executable, by their paths."""
    return _padded(image) + archive(ArchivedFile(path, text, stat.S_IFREG | 0o755) for path, text in scripts.items())


def archive(entries: Iterable[ArchivedFile]) -> bytes:
    """The entries as cpio in the format "newc", all owned by root, with time 0."""
    records = [_record(entry, number) for number, entry in enumerate(entries, 1)]
    return b"".join((*records, _record(ArchivedFile("TRAILER!!!", mode=0), 0)))


def _record(entry: ArchivedFile, number: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08x" % value for value in fields) + name
    return _padded(head) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNED)


def _modules(directory: Path) -> Mapping[str, bytes]:
    """The files of MODULES and of what they need, in an order in which insmod can load them."""
    needs = {}
    for line in (directory / "modules.dep").read_text(encoding="ascii").splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    names = {_name(path): path for path in needs}
    built_in = {_name(line) for line in (directory / "modules.builtin").read_text(encoding="ascii").splitlines()}
    order = dict[str, None]()
    for module in (*EARLIER, *MODULES):
        if module in names:
            path = names[module]
            order |= dict.fromkeys((*reversed(needs[path]), path))  # all that it needs, also indirectly
        elif module in MODULES and module not in built_in:
            why = f"is missing in kernel {directory.name}, and the guest cannot boot without it"
            raise MachineError(Problem("", module, why, _OTHER))
    return {f"{_name(path)}.ko": _content(directory / path) for path in order}


def _name(path: str) -> str:
    return Path(path).name.partition(".ko")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".ko":
        return path.read_bytes()
    raise MachineError(Problem("", str(path), f"has an unknown compression: {path.suffix}", _OTHER))
