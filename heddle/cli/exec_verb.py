"""The verb `exec`: a command in a node, with its own output and exit code."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.lab.opening import open_lab


def run_inside(out: Console, lab: str | None, node: str, cmd: Sequence[str]) -> None:
    """Run a command in a node; the verb leaves with its exit code."""
    where = open_lab(lab)
    where.handle(node)
    if not cmd or not cmd[0]:
        hint = f"./inv exec {node} ip route, or ./inv exec {node} bash"
        raise InputError(Problem("", f"exec {node}", "has no command", hint))
    if cmd[0].startswith("-"):
        hint = f"flags of Heddle stand before the node: ./inv exec {cmd[0]} ... {node} COMMAND"
        raise InputError(Problem("", cmd[0], "is not a command", hint))
    if out.json:
        with tempfile.TemporaryFile() as file:
            with _stdout_to(file.fileno()):
                out.exit_code = where.exec(node, cmd)
            file.seek(0)
            printed = file.read().decode(errors="replace")
        data = {"lab": where.name, "node": node, "command": shlex.join(cmd), "exit_code": out.exit_code}
        return out.result({**data, "stdout": printed})
    out.close()
    out.exit_code = where.exec(node, cmd)
    return None


@contextmanager
def _stdout_to(fd: int) -> Iterator[None]:
    """Let children of this process write to `fd` instead of stdout, which is for one JSON document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
