"""How long a learner waits for a workshop unit: its start, and a check of its solution."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.resources import HERE
from heddle_plugins.workshop.catalogue import unit_ids

from . import Figure, at_most

START_S: Final = 15.0
CHECK_S: Final = 30.0
_FLAGS: Final = ("--name=benchlab", "--yes")


def figures(observer: Observer) -> Iterator[Figure]:
    """Each unit once, in a directory and with a state of its own. A check passes: the unit is solved before."""
    for unit in unit_ids():
        observer.say(f"unit {unit}")
        number = unit[:2]
        with tempfile.TemporaryDirectory(prefix="heddle-bench-") as scratch:
            try:
                yield at_most(f"lab start {unit}", _seconds(scratch, "start", number, *_FLAGS), "s", START_S)
                _seconds(scratch, "solve", number, "--yes")
                yield at_most(f"lab check {unit}", _seconds(scratch, "check", number), "s", CHECK_S)
            finally:
                _seconds(scratch, "stop", number)


def _seconds(scratch: str, *words: str) -> float:
    """Wall time of `./inv workshop WORDS`. CalledProcessError, with what it printed on stderr, when it fails."""
    argv = [*HERE.command(), "lab", *words]
    start = time.perf_counter()
    done = subprocess.run(
        argv, cwd=scratch, env={**os.environ, "HEDDLE_STATE_DIR": str(Path(scratch, "state"))},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, argv)
    return seconds
