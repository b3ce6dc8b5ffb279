"""The verbs that work on Heddle itself, in a checkout: bench (its speed on this machine), lint (the linters)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from heddle.base import resources
from heddle.base.problems import CheckError, Problem
from heddle.cli.console import Console
from heddle.cli.lockedtools import ensure_tools
from heddle.cli.verbs import verb
from heddle.host import packages

_MORE: Final = {
    "place": ("openssh-server",),
    "vm": (*packages.VM, *packages.VM_BUILD),
    "vm-build": packages.VM_BUILD,
}
_LINTERS: Final = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
)


def _needed(what: str) -> Sequence[str]:
    """The packages of fabrics, and of a group of figures."""
    more = [name for group in ("place", "vm") for name in _MORE[group]] if what == "all" else _MORE.get(what, ())
    return (*packages.FABRIC, *more)


@verb(
    help={
        "what": "cli, up, large, containers, place, all-reduce, budget, steady, demo, dashboard, hashing, admission, "
        "dcqcn, order, packets, steps, predict, queues, marking, rxe, transports, labs, vm, vm-build, or all",
        "runs": "number of runs of `order` (default: 84)",
    },
    positional=["what"],
    packages=lambda typed: _needed(typed["what"]),
    root=True,
    checkout=True,
)
def bench(out: Console, what: str = "all", runs: int | None = None) -> None:
    """Measure the speed of Heddle itself on this machine: ratios and absolute figures."""
    from tests.bench import bench as measure

    result = measure(what, out.observer, runs)
    out.result(result.to_json(), result.text())


@verb(checkout=True)
def lint(out: Console) -> None:
    """Run ruff and mypy --strict over the whole tree; install them from requirements-dev.lock when needed."""
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
