"""Run one command in several nodes at the same time.

In:  a lab, names of nodes, an argument list. Out: a NodeOutput for each, in the order of the names, as soon as it and
all nodes before it have ended. The commands have no terminal, and their standard input is empty.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from heddle.base.problems import trouble
from heddle.lab.lab import Lab

_AT_ONCE: Final = 16
_PATIENCE_S: Final = 2.0  # between two signals to a command that must end
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_NOT_STARTED: Final = 130  # a shell's exit code for a command that Ctrl-C ended


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """What a command did in one node. code: its exit code, 128 + n after signal n."""

    node: str
    code: int
    out: str
    err: str


def run_on(lab: Lab, nodes: Sequence[str], argv: Sequence[str], show: Callable[[NodeOutput], None]) -> list[NodeOutput]:
    """Run argv in each node. show: gets each result. MachineError before anything runs when a node is stopped.

    Ctrl-C ends all commands; their output so far is shown first. In containers only the engine's client ends: it does
    not forward signals to the command.
    """
    fan = _Fan({node: lab.command(node, argv) for node in nodes})
    done: list[NodeOutput] = []

    def take(futures: Iterable[Future[NodeOutput]]) -> None:
        for future in futures:
            done.append(future.result())
            show(done[-1])

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="exec") as pool:
        futures = [pool.submit(fan.work, node) for node in nodes]
        try:
            take(futures)
        except BaseException as error:
            fan.end(futures)
            if isinstance(error, KeyboardInterrupt):
                take(futures[len(done) :])
            raise
    return done


class _Fan:
    """The running commands. After `end` no further command starts."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self._commands = commands
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ending = False

    def work(self, node: str) -> NodeOutput:
        """Run the command of one node to its end."""
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with self._lock:
            if self._ending:
                return NodeOutput(node, _NOT_STARTED, "", "")
            try:
                process = subprocess.Popen(
                    self._commands[node], stdin=nothing, stdout=pipe, stderr=pipe, text=True, errors="replace"
                )
            except OSError as error:
                raise trouble(error, node) from None
            self._running.add(process)
        out, err = process.communicate()
        with self._lock:
            self._running.discard(process)
        return NodeOutput(node, 128 - process.returncode if process.returncode < 0 else process.returncode, out, err)

    def end(self, futures: Iterable[Future[NodeOutput]]) -> None:
        """Send signals of increasing strength until all commands have ended."""
        with self._lock:
            self._ending = True
        for number in _ENDS:
            with self._lock:
                running = list(self._running)
            for process in running:
                process.send_signal(number)
            if not wait(futures, timeout=_PATIENCE_S).not_done:
                return
