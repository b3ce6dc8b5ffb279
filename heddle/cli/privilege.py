"""Run a verb that needs root again through sudo."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import Final

from heddle.base import progname, resources
from heddle.base.problems import MachineError, Problem

# sudo clears the environment, and -E is often forbidden. These variables change the behaviour of verbs.
KEPT: Final = (
    progname.VARIABLE, "CI", "HEDDLE_DEBUG", "NO_COLOR", "TERM", "COLUMNS", "HEDDLE_FILES", "HEDDLE_FILES_ONLY",
    "HEDDLE_PLACE", "HEDDLE_KEEP_RUNS", "HEDDLE_KEEP_BYTES",
    "HEDDLE_CONTAINERLAB", "DOCKER_HOST", "KUBECONFIG", "GOPROXY", "GOTOOLCHAIN",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def become_root(verb: str) -> None:
    """Return as root; else replace this process by itself under sudo. MachineError when that is not possible."""
    if os.geteuid() == 0:
        return
    # By its path when it is installed: root has another PATH.
    named = progname.CHECKOUT if progname.program() == progname.CHECKOUT else progname.path()
    typed = f"{named} {shlex.join(sys.argv[1:])}"
    sudo = shutil.which("sudo")
    if sudo is None:
        hint = f"run it as root: su -c {shlex.quote(typed)}"
        raise MachineError(Problem("", f"./inv {verb}", "needs root, but sudo is not installed", hint))
    if not sys.stdin.isatty() and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode:
        hint = f"run it as root, or in a terminal: sudo {typed}"
        raise MachineError(Problem("", f"./inv {verb}", "needs root, and sudo needs a password", hint))
    from heddle.base.state import state_dir
    from heddle.places.choice import VARIABLE

    print(f"{verb} needs root: running it again through sudo", file=sys.stderr, flush=True)
    kept = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
    if not resources.HERE.is_checkout:  # the user could not remove compiled files of root with the package
        kept.append("PYTHONDONTWRITEBYTECODE=1")
    # The place is already chosen: root's config file must not change it.
    kept.append(f"{VARIABLE}=")
    again = ["env", f"HEDDLE_STATE_DIR={state_dir()}", *kept, *resources.HERE.command(), *sys.argv[1:]]
    os.execv(sudo, [sudo, "--", *again])  # noqa: S606  (no shell is wanted)
