"""An initramfs that loads the modules of the disk, mounts it and starts the guest: a cpio archive of a few files.

Debian's own initramfs is 39 MB, most of it modules and programs for hardware that a guest of QEMU does not have.
Formats: cpio(5) "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of Linux), modules.dep(5).
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
_ALIGNED: Final = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the archive. mode: type and permissions, as in stat(2)."""

    path: str
    content: bytes = b""
    mode: int = stat.S_IFREG | 0o644


def initramfs(root: Path, release: str, init: bytes) -> bytes:
    """The archive, compressed. root: the guest's files; release: of its kernel; init: the script that runs first."""
    modules = _modules(root / "usr/lib/modules" / release)
    order = "".join(f"{name}\n" for name in modules)
    script = stat.S_IFREG | 0o755
    entries = [Entry(name, mode=stat.S_IFDIR | 0o755) for name in ("bin", "dev", "modules", "root")]
    entries += [
        Entry("init", init, script),
        Entry("bin/busybox", (root / "usr/bin/busybox").read_bytes(), script),
        Entry("bin/sh", b"busybox", stat.S_IFLNK | 0o777),
        Entry("modules/order", order.encode()),
        *(Entry(f"modules/{name}", content) for name, content in modules.items()),
    ]
    return gzip.compress(archive(entries), 6, mtime=0)


def archive(entries: Iterable[Entry]) -> bytes:
    """The entries as cpio in the format "newc", all owned by root, with time 0."""
    records = [_record(entry, number) for number, entry in enumerate(entries, 1)]
    return b"".join((*records, _record(Entry("TRAILER!!!", mode=0), 0)))


def _record(entry: Entry, number: int) -> bytes:
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
    order: list[str] = []

    def add(path: str) -> None:
        for other in reversed(needs[path]):
            add(other)
        if path not in order:
            order.append(path)

    for module in MODULES:
        if module in names:
            add(names[module])
        elif module not in built_in:
            why = f"is missing in kernel {directory.name}, and the guest cannot boot without it"
            raise MachineError(Problem("", module, why, "use another kernel: --place vm:stable"))
    return {f"{_name(path)}.ko": _content(directory / path) for path in order}


def _name(path: str) -> str:
    return Path(path).name.partition(".ko")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".ko":
        return path.read_bytes()
    raise MachineError(Problem("", str(path), f"is compressed in a way that is not known: {path.suffix}"))
