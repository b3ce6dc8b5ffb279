"""Whether this process runs in a chroot, where a docker engine cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run

_NAMESPACE: Final = "/proc/self/ns/mnt"


def in_chroot() -> bool:
    """Whether `/` is not the root of this mount namespace; False where that cannot be found out, as without root.

    setns(2) into a mount namespace changes the root directory to the root of that namespace.
    """
    done = run(["nsenter", f"--mount={_NAMESPACE}", "stat", "--format=%d:%i", "/"], check=False)
    here = Path("/").stat()
    return done.code == 0 and done.out.strip() != f"{here.st_dev}:{here.st_ino}"


def check_engine_possible() -> None:
    """MachineError in a chroot.

    An engine that runs in one starts containers, but pivot_root(2) then leaves the old root as the root of the mount
    namespace: `docker exec` enters that one, and not the root of the container.
    """
    if in_chroot():
        why = "cannot start a docker engine: `docker exec` would enter the root of the machine, not of the container"
        raise MachineError(Problem("", "a chroot", why, "use a container, a virtual machine or pivot_root instead"))
