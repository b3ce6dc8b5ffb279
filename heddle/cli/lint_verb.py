"""The verb `lint`: the linters of requirements-dev.lock over the whole tree."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from heddle.base import resources
from heddle.base.problems import CheckError, Problem
from heddle.cli.console import Console
from heddle.cli.lockedtools import ensure_tools
from heddle.cli.verbs import verb

_LINTERS: Final = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
)


@verb(checkout=True)
def lint(out: Console) -> None:
    """Run ruff and mypy --strict over the whole tree; install them from requirements-dev.lock when needed."""
    run_linters(out)


def run_linters(out: Console) -> None:
    """Run ruff and mypy over the whole tree; CheckError names those that failed."""
    root = resources.HERE.checkout("./inv lint")
    ensure_tools(out, root / "requirements-dev.lock", ("mypy", "ruff", "types-PyYAML"), "the linters")
    out.close()
    complained = []
    for tool in _LINTERS:
        argv = [sys.executable, "-m", *tool]
        print("$ " + " ".join(tool), file=sys.stderr, flush=True)
        if subprocess.run(argv, cwd=root, stdout=sys.stderr if out.json else None, check=False).returncode:
            complained.append(" ".join(tool))
    if complained:
        raise CheckError(*[Problem("", name, "failed", "see its output above") for name in complained])
    out.result({"ok": True, "linters": [" ".join(t) for t in _LINTERS]}, "all linters passed")
