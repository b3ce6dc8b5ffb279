"""pytest-xdist: each worker is a session with a pool of its own; the controller has none, and reports for all.

In:  the configuration of a controller or of a worker, and xdist's nodes. Out: the workers' notes in the controller's
summary, and time for them to take their labs down when the session is interrupted.
Nothing here imports xdist: without it, a session is neither.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import pytest

_NOTES: Final = "heddle_notes"
_END_S: Final = 60  # for a worker to take its labs down; xdist allows 10 s


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Whether this process starts workers of pytest-xdist, and runs no test itself."""
    return config.pluginmanager.hasplugin("dsession")


def send_notes(config: pytest.Config, notes: Iterable[str]) -> None:
    """Have a worker send its lines of the summary with its last message."""
    if is_worker(config):
        config.workeroutput[_NOTES] = list(notes)  # type: ignore[attr-defined]


def notes_of(node: Any) -> list[str]:
    """The notes of a worker that has ended; none when it crashed."""
    return list(getattr(node, "workeroutput", {}).get(_NOTES, ()))


def end_workers(config: pytest.Config) -> None:
    """Interrupt the workers of an interrupted controller now: a signal may have reached the controller alone.

    Else xdist interrupts them after 5 s and kills them after 10 s, with their labs up.
    """
    manager = getattr(config.pluginmanager.getplugin("dsession"), "nodemanager", None)
    if manager is None:
        return
    manager.EXIT_TIMEOUT = _END_S
    for gateway in manager.group:
        # Workers on other machines have no process here.
        popen = getattr(getattr(gateway, "_io", None), "popen", None)
        if popen is not None and popen.poll() is None:
            with suppress(OSError):
                os.kill(popen.pid, signal.SIGINT)


def end_undisturbed(config: pytest.Config) -> None:
    """Ignore further signals in an interrupted worker: Ctrl-C reaches it directly, by its controller, and by xdist.

    The controller kills a worker that does not end.
    """
    if is_worker(config):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
