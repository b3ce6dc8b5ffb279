"""Python tools that only work on Heddle itself needs: each group of pyproject.toml has a lock file of its own.

`./inv` installs requirements.lock. Linters and the browser's driver are installed when a verb asks for them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heddle.base.problems import MachineError, Problem
from heddle.cli.console import Console

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def ensure_tools(out: Console, lock: Path, tools: Sequence[str], what: str) -> None:
    """Return when the environment has these tools as the lock file pins them; install the file where it does not.

    tools: names of packages in the file. what: what the file has, for a sentence ("the linters").
    MachineError when pip fails.
    """
    pins = _PINNED.findall(lock.read_text(encoding="utf-8"))
    if all(_installed(tool) in {pin for name, pin in pins if name.lower() == tool.lower()} for tool in tools):
        return
    out.say(f"installing {what} of {lock.name}")
    # The file has all that is needed, and leaves out what a tool asks for and does not use: see pyproject.toml.
    argv = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--no-deps"]
    argv += ["--only-binary", ":all:", "--require-hashes", "-r", str(lock)]
    if subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        hint = "this needs the network once; run the same line again"
        raise MachineError(Problem("", lock.name, "could not be installed", hint))


def _installed(tool: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(tool)
    except PackageNotFoundError:
        return None
