"""Remove a lab: from this machine, and its record.

Each part is found by its name and removed also without the others, so a removal that was killed is repeated.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from heddle.base import owners, state
from heddle.base.events import Observer
from heddle.base.problems import machine_errors
from heddle.base.userfiles import as_root
from heddle.host import limits
from heddle.runtimes.registry import Runtime, on_machine
from heddle.switch import install as switch
from heddle.switch.pfc import control as pfc


def remove(name: str, observer: Observer, *engines: Runtime, keep_runs: bool = False) -> bool:
    """Remove everything of a lab, but with `keep_runs` not its stored runs; False when there was nothing.

    The record is removed last, so that what is left after a kill is still known as a lab.
    """
    with _uninterrupted(), machine_errors():
        count = _remove_from_machine(name, observer, *engines)
        owners.disown_lab(name)
        return state.remove_record(name, keep_runs=keep_runs) or count > 0


def remove_others(name: str, observer: Observer, *engines: Runtime) -> None:
    """Remove a lab of another state directory from this machine. Its record and its runs stay there."""
    with _uninterrupted(), machine_errors():
        _remove_from_machine(name, observer, *engines)
        owners.disown_lab(name)


def _remove_from_machine(name: str, observer: Observer, *engines: Runtime) -> int:
    """Remove everything of a lab but its record. Returns the number of objects."""
    from heddle.kernel import rdma

    as_root()
    pfc.stop(name)
    rdma.remove_links(rdma.prefix_of(name))  # of a run that was killed; in a namespace, it goes with that
    count = sum(engine.destroy(name, observer) for engine in engines)
    switch.remove(name)
    limits.HERE.release(name, on_machine, observer)
    return count


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C: a removal takes about a second and should not be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
