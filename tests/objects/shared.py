"""Build the shared objects that are committed: `python -m tests.objects.shared`.

In:  C sources, clang and lld.
Out: NAME-MACHINE.so beside the sources, for every kind of processor, and `clang.txt`: the compiler's version.
The bytes depend only on the sources and the clang version: the only headers are our own and clang's. Objects call only
the libc functions that system.h declares, which every libc has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run

ROOT: Final = Path(__file__).resolve().parents[2]
HEADERS: Final = ROOT / "heddle/kernel/native"
MACHINES: Final = ("x86_64", "aarch64")
_FLAGS: Final = (
    "-std=c11", "-O2", "-fPIC", "-shared", "-ffreestanding", "-nostdlib", "-nostdinc", "-fuse-ld=lld", "-fno-ident",
    "-fvisibility=hidden", "-ffp-contract=off", "-fstack-protector-strong", "-Wall", "-Wextra", "-Werror",
    "-Wl,--build-id=none,-z,relro,-z,now,-z,noexecstack,-s",
)  # fmt: skip


def clang_version() -> str:
    """`14.0.6`; MachineError when there is no clang."""
    said = run(["clang", "--version"]).out
    match = re.search(r"clang version ([0-9]+\.[0-9]+\.[0-9]+)", said)
    if match is None:
        raise MachineError(Problem("clang", said.partition("\n")[0], "contains no version"))
    return match.group(1)


def target(machine: str) -> tuple[str, ...]:
    """The options of clang that choose the processor, and the headers of clang and of HEADERS."""
    headers = run(["clang", "-print-resource-dir"]).out.strip()
    return (f"--target={machine}-linux-gnu", "-isystem", f"{headers}/include", "-I", str(HEADERS))


def build(sources: Sequence[Path], machine: str, out: Path) -> bytes:
    """Compile sources and the headers beside them for one of MACHINES to `out`; return the object's bytes.

    MachineError with clang's message.
    """
    run(["clang", *target(machine), *_FLAGS, "-I", str(sources[0].parent), *map(str, sources), "-o", str(out)])
    return out.read_bytes()


@dataclass(frozen=True, slots=True)
class SharedObject:
    """An object that is committed in the directory of its sources. folder: in heddle/."""

    name: str
    folder: str
    sources: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """Where sources and objects are."""
        return ROOT / "heddle" / self.folder

    @property
    def made_by(self) -> Path:
        """The file with the compiler that made the committed objects."""
        return self.directory / "clang.txt"

    def path(self, machine: str) -> Path:
        """The committed object for one of MACHINES."""
        return self.directory / f"{self.name}-{machine}.so"

    def build(self, machine: str, out: Path) -> bytes:
        """Compile for one machine to `out`; return the object's bytes. MachineError with clang's message."""
        return build([self.directory / name for name in self.sources], machine, out)


FASTPATH: Final = SharedObject("fastpath", "endpoints/fastpath", ("fastpath.c",))
SWITCH: Final = SharedObject("switch", "switch/compiled", ("pfcloop.c", "switch.c"))


def main() -> int:
    """Build all objects for all machines."""
    for each in (FASTPATH, SWITCH):
        for machine in MACHINES:
            print(f"{each.path(machine).name}  {len(each.build(machine, each.path(machine)))} bytes")
        each.made_by.write_text(f"clang {clang_version()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
