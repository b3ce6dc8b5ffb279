"""Build the BPF objects that are committed in heddle/switch/bpf: `python -m tests.objects.bpf`.

In:  its .c files, and clang with llvm-objcopy.
Out: a .o for each (no DWARF; BTF kept, since libbpf reads the maps from it), and `clang.txt`: the compiler's version.
The bytes depend only on the sources and the clang version: no system headers, and no path of the machine.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from heddle.base.process import run
from heddle.spec.impairments import PROGRAM_KINDS
from tests.objects.shared import HEADERS, ROOT, clang_version

HERE: Final = ROOT / "heddle/switch/bpf"
PROGRAMS: Final = ("hash", "count", "nic", "queue", "verbs", "edge")
VERSION_FILE: Final = HERE / "clang.txt"
# bpfel: for x86-64 and arm64. -nostdinc: only our headers. The prefix map keeps build paths out of the BTF.
_FLAGS: Final = ("-target", "bpfel", "-O2", "-g", "-Wall", "-Werror", "-nostdinc", "-fno-ident", "-gno-column-info")
# v2: every kernel since 4.14. v3 has additions that return the old value: since 5.12, on arm64 since 5.18.
_CPU: Final = {"queue": "v3"}
FAULT_FIELDS: Final = {  # of struct fault in queue.h
    "FAULT_CHANCES": "".join(f"__u32 {kind.key};" for kind in PROGRAM_KINDS),
    "FAULT_COUNTS": "".join(f"__u64 {kind.word};" for kind in PROGRAM_KINDS),
}


def build(name: str, out: Path) -> bytes:
    """Compile one program to `out` and return the object's bytes. MachineError with clang's message.

    Without llvm-objcopy the object keeps its DWARF: it works the same, but must not be committed.
    """
    paths = (f"-ffile-prefix-map={HERE}=.", "-fdebug-compilation-dir=.", "-I", str(HERE), "-I", str(HEADERS))
    flags = [
        *_FLAGS,
        f"-mcpu={_CPU.get(name, 'v2')}",
        *(f"-D{word}={text}" for word, text in FAULT_FIELDS.items()),
        *paths,
    ]
    run(["clang", *flags, "-c", str(HERE / f"{name}.c"), "-o", str(out)])
    if strip := objcopy():
        run([strip, "--strip-debug", str(out)])
    return out.read_bytes()


def objcopy() -> str | None:
    """The path of llvm-objcopy, or of the one named with clang's major version, which Debian installs with clang."""
    return shutil.which("llvm-objcopy") or shutil.which(f"llvm-objcopy-{clang_version().partition('.')[0]}")


def main(argv: Sequence[str]) -> int:
    """Build all programs, or the named ones."""
    if objcopy() is None:
        raise SystemExit("llvm-objcopy is not installed: apt-get install llvm")
    for name in argv or PROGRAMS:
        size = len(build(name, HERE / f"{name}.o"))
        print(f"{name}.o  {size} bytes")
    VERSION_FILE.write_text(f"clang {clang_version()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
