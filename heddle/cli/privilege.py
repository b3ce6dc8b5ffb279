"""Verbs that need root run themselves again through sudo, and say so."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import Final

from heddle.base import progname, resources
from heddle.base.problems import MachineError, Problem

# sudo clears the environment; -E is often forbidden. These make a difference to what a verb does.
KEPT: Final = (
    progname.VARIABLE, "CI", "HEDDLE_DEBUG", "NO_COLOR", "TERM", "COLUMNS", "HEDDLE_FILES", "HEDDLE_PLACE",
    "HEDDLE_KEEP_RUNS", "HEDDLE_KEEP_BYTES",
    "HEDDLE_CONTAINERLAB", "DOCKER_HOST", "GOPROXY", "GOTOOLCHAIN", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def become_root(verb: str) -> None:
    """Return when this is root; else replace this process by itself under sudo. MachineError when that cannot be."""
    if os.geteuid() == 0:
        return
    # By its path where it is installed: root's PATH is another one.
    named = progname.CHECKOUT if progname.program() == progname.CHECKOUT else progname.path()
    typed = f"{named} {shlex.join(sys.argv[1:])}"
    sudo = shutil.which("sudo")
    if sudo is None:
        hint = f"run it as root: su -c {shlex.quote(typed)}"
        raise MachineError(Problem("", f"./inv {verb}", "needs root, and there is no sudo here", hint))
    if not sys.stdin.isatty() and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode:
        hint = f"run it as root, or on a terminal: sudo {typed}"
        raise MachineError(Problem("", f"./inv {verb}", "needs root, and sudo wants a password here", hint))
    from heddle.base.state import state_dir
    from heddle.places.config import VARIABLE

    print(f"{verb} needs root: running it again through sudo", file=sys.stderr, flush=True)
    kept = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
    if not resources.HERE.is_checkout:  # root's compiled files would be in the way when the user removes the package
        kept.append("PYTHONDONTWRITEBYTECODE=1")
    # Where to run was decided here: root's own settings have no say in it.
    kept.append(f"{VARIABLE}=")
    again = ["env", f"HEDDLE_STATE_DIR={state_dir()}", *kept, *resources.HERE.command(), *sys.argv[1:]]
    os.execv(sudo, [sudo, "--", *again])  # noqa: S606  (no shell is wanted)
