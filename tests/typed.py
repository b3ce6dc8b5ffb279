"""A verb in this process, as `./inv` runs it: for tests of its words and its exit code that need no process of its own.

    done = typed("hashing", "e-ecmp", "--lab", name, "--format", "json", cwd=tmp_path)

Starting Python and importing Heddle takes most of the time of a short verb. What is about processes, signals and
streams starts `./inv` itself.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def typed(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run one verb to its end. Signal handlers, streams and the working directory are this process's again."""
    import tasks
    from heddle.cli.program import main

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    out, err = StringIO(), StringIO()
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            code = main(vars(tasks), ["./inv", *words])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(list(words), code, out.getvalue(), err.getvalue())
