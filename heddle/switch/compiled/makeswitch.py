"""Build the objects that are committed here: `python -m heddle.switch.compiled.makeswitch`. Users never need this.

In:  the C files in this directory, clang and lld.
Out: switch-MACHINE.so for each of MACHINES, and `clang.txt`: the compiler's version.
heddle/kernel/native/objects.py says on what their bytes depend.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from heddle.kernel.native import objects
from heddle.kernel.native.objects import MACHINES, clang_version

HERE: Final = Path(__file__).parent.resolve()
SOURCES: Final = ("pfcloop", "rows", "switch")
MADE_BY: Final = HERE / "clang.txt"


def build(machine: str, out: Path) -> bytes:
    """Compile for one machine to `out`; return the object's bytes. MachineError with clang's message."""
    return objects.build([HERE / f"{name}.c" for name in SOURCES], machine, out)


def main(argv: Sequence[str]) -> int:
    """Build for all machines, or the named ones."""
    for machine in argv or MACHINES:
        size = len(build(machine, HERE / f"switch-{machine}.so"))
        print(f"switch-{machine}.so  {size} bytes")
    MADE_BY.write_text(f"clang {clang_version()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
