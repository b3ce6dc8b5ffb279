"""Namespaces in which an image is made: their processes and mounts end with the process that makes the image.

mmdebstrap alone makes its namespaces itself, and continues in them when its caller is killed. Here the kernel ends it:
`setpriv --pdeathsig` ends unshare(1) with its caller, and unshare's `--kill-child` ends process 1 of the PID namespace,
and so all others in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from heddle.base import mounts
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, run

_ENDS: Final = ("setpriv", "--pdeathsig", "KILL")
_OWN: Final = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_IDS: Final = ("--map-root-user", "--map-auto")  # all ids of /etc/subuid and /etc/subgid
_REMOVE_S: Final = 120.0
_PROBE_S: Final = 20.0


def with_all_ids() -> Sequence[str]:
    """The words before a command that runs as root, or as root of a user namespace with this user's range of ids."""
    return (*_ENDS, "unshare", *(() if os.geteuid() == 0 else _IDS), *_OWN)


def with_own_id() -> Sequence[str]:
    """The words before a command that runs as this user."""
    return (*_ENDS, "unshare", *(() if os.geteuid() == 0 else ("--map-current-user",)), *_OWN)


def problem() -> Problem | None:
    """Why this user has no such namespaces; None when one could be made."""
    # Where the kernel refuses, unshare of util-linux 2.38 does not end if it is to map ids; so first without them.
    for argv in (["unshare", "--user", "true"], [*with_all_ids(), "true"]):
        done = run(argv, timeout=_PROBE_S, check=False)
        if done.code != 0:
            return _refused(done)
    return None


def _refused(done: Done) -> Problem:
    said = ((done.err or done.out).strip().splitlines() or [f"unshare ended with exit code {done.code}"])[-1]
    why = f"cannot be used to make an image without root: {said}"
    hint = (
        "make the image once as root: sudo ./inv vm build; or allow them: sysctl user.max_user_namespaces, on Ubuntu "
        "kernel.apparmor_restrict_unprivileged_userns"
    )
    return Problem("kernel", "user namespaces", why, hint)


def remove(path: Path) -> None:
    """Remove a directory in which such a command worked, also what belongs to an id of the user's range."""
    try:
        mounts.remove(path)
    except MachineError:
        if os.geteuid() == 0 or any(each.is_relative_to(path.resolve()) for each in mounts.mount_points()):
            raise
        argv = [*with_all_ids(), "rm", "-rf", "--one-file-system", "--", str(path)]
        run(argv, timeout=_REMOVE_S)
