"""Build shared objects for every kind of processor, the same everywhere.

In:  C sources, clang and lld.
Out: shared objects. Their bytes depend only on the sources and the clang version: the only headers are our own and
clang's. They call only the libc functions that system.h declares, which every libc has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run

HEADERS: Final = Path(__file__).parent.resolve()
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
    """The options of clang that choose the processor, and the headers of clang and of this directory."""
    headers = run(["clang", "-print-resource-dir"]).out.strip()
    return (f"--target={machine}-linux-gnu", "-isystem", f"{headers}/include", "-I", str(HEADERS))


def build(sources: Sequence[Path], machine: str, out: Path) -> bytes:
    """Compile sources and the headers beside them for one of MACHINES to `out`; return the object's bytes.

    MachineError with clang's message.
    """
    run(["clang", *target(machine), *_FLAGS, "-I", str(sources[0].parent), *map(str, sources), "-o", str(out)])
    return out.read_bytes()
