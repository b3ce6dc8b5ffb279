"""Build the objects that are committed here: `python -m heddle.endpoints.fastpath.makefast`. Users never need this.

In:  the C files in this directory, clang and lld.
Out: fastpath-MACHINE.so for each of MACHINES, and `clang.txt`: the compiler's version.
The bytes depend only on the sources and the clang version: the only headers are our own and clang's. The objects call
only the libc functions that system.h declares, which every libc has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from heddle.base.process import run
from heddle.switch.bpf.build import clang_version

SOURCES: Final = Path(__file__).parent.resolve()
MACHINES: Final = ("x86_64", "aarch64")
MADE_BY: Final = SOURCES / "clang.txt"
_FLAGS: Final = (
    "-std=c11", "-O2", "-fPIC", "-shared", "-ffreestanding", "-nostdlib", "-nostdinc", "-fuse-ld=lld", "-fno-ident",
    "-fvisibility=hidden", "-ffp-contract=off", "-fstack-protector-strong", "-Wall", "-Wextra", "-Werror",
    "-Wl,--build-id=none,-z,relro,-z,now,-z,noexecstack,-s",
)  # fmt: skip


def build(machine: str, out: Path) -> bytes:
    """Compile for one machine to `out`; return the object's bytes. MachineError with clang's message."""
    headers = run(["clang", "-print-resource-dir"]).out.strip()
    target = (f"--target={machine}-linux-gnu", "-isystem", f"{headers}/include")
    run(["clang", *target, *_FLAGS, "-I", str(SOURCES), str(SOURCES / "fastpath.c"), "-o", str(out)])
    return out.read_bytes()


def main(argv: Sequence[str]) -> int:
    """Build for all machines, or the named ones."""
    for machine in argv or MACHINES:
        size = len(build(machine, SOURCES / f"fastpath-{machine}.so"))
        print(f"fastpath-{machine}.so  {size} bytes")
    MADE_BY.write_text(f"clang {clang_version()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
