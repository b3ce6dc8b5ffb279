"""Remove a lab: from this machine, and its record.

Each part is found by its name and removed also without the others, so a removal that was killed is repeated.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from heddle.base import owners, state
from heddle.base.events import Observer
from heddle.base.extras import KUBERNETES
from heddle.base.problems import InputError, MachineError, Problem, machine_errors
from heddle.base.userfiles import as_root
from heddle.host import limits
from heddle.runtimes.registry import HERE, RUNTIMES, Runtime, get_runtime, on_machine
from heddle.switch import install as switch
from heddle.switch.pfc import control as pfc


def engines_of(name: str, cluster: Mapping[str, str] | None) -> list[Runtime]:
    """All runtimes. cluster: see `lifecycle.down`; with it, InputError for a lab that is recorded on this machine."""
    if cluster is not None:
        with suppress(MachineError):
            if (record := state.read_record(name)) is not None and record.runtime in HERE:
                hint = f"./inv down {name} removes it"
                raise InputError(Problem("", f"lab {name}", f"is on this machine (runtime {record.runtime})", hint))
    return [get_runtime(each, cluster if each == KUBERNETES else None) for each in RUNTIMES]


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
