"""A date that stands still for QEMU while it replays (stilldate.c says why): an object that is loaded before libc."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Final

from heddle.base import resources

_NAME: Final = "stilldate.so"


def command(argv: list[str], directory: Path) -> list[str]:
    """The command line that runs another one with this date, in `directory`, to which the object is copied.

    MachineError when there is no object for this machine.
    """
    shutil.copyfile(resources.HERE.still_date(platform.machine()), directory / _NAME)
    # ld.so takes spaces and colons for the ends of paths, and a checkout's path may have some.
    return ["env", f"LD_PRELOAD=./{_NAME}", *argv]


def stands_still(pid: int) -> bool | None:
    """Whether a process has loaded the object; None when this cannot be read, as of one that has ended."""
    try:
        maps = Path("/proc", str(pid), "maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return f"/{_NAME}" in maps if maps else None
