"""Build the object that is committed here: `python -m heddle.places.vm.stilldate.makestill`. Users never need this.

In:  stilldate.c in this directory, clang and lld.
Out: stilldate-x86_64.so, for the only kind of machine that has a VM, and `clang.txt`: the compiler's version.
heddle/kernel/native/objects.py says on what its bytes depend.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from heddle.kernel.native import objects
from heddle.kernel.native.objects import clang_version

SOURCE: Final = Path(__file__).resolve().with_name("stilldate.c")
MACHINE: Final = "x86_64"
COMPILER: Final = SOURCE.with_name("clang.txt")
OBJECT: Final = SOURCE.with_name(f"stilldate-{MACHINE}.so")


def build(out: Path) -> bytes:
    """Compile to `out`; return the object's bytes. MachineError with clang's message."""
    return objects.build([SOURCE], MACHINE, out)


def main() -> int:
    """Build the committed object."""
    print(f"{OBJECT.name}  {len(build(OBJECT))} bytes")
    COMPILER.write_text(f"clang {clang_version()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
