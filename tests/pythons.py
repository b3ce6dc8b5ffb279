"""The Python of this machine that has a package which Heddle does not need: for programs that tests start."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache


@cache
def python_with(*modules: str) -> str | None:
    """The path of a Python that can import all of them; None if there is none."""
    for path in dict.fromkeys(filter(None, (sys.executable, shutil.which("python3"), "/usr/bin/python3"))):
        words = [path, "-c", f"import {', '.join(modules)}"]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return path
    return None
