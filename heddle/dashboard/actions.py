"""What the buttons of the live page do: run a collective, take a link down, set it up again, set and clear faults.

In:  a lab's name and what was chosen, from the browser: nothing in it is trusted.
Out: an Action that ends with an outcome in words. A run is the verb `run` in a process of its own; links go through
heddle/lab/outages.py. Both take the lab's lock, so that they are refused while another command works on the lab.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from heddle.base import resources
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.base.process import dying_with_us, follow
from heddle.base.progname import as_started
from heddle.endpoints.runoptions import run_options
from heddle.lab import outages
from heddle.lab.faults import orders
from heddle.lab.faults.registry import KINDS
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab

MOST_S: Final = 3600.0  # of a run
# A script starts `./inv dashboard &` with SIGINT ignored. Its runs would inherit that, and `stop` would have no effect.
_INTERRUPTIBLE: Final = ("env", "--default-signal=INT")
_LINES: Final = 200
State = Literal["running", "done", "failed"]
# What a browser may choose of a run, and of which type it is.
RUN_KEYS: Final[Mapping[str, type]] = {"collective": str, "size": str, "qps": int, "iters": int, "ranks": int}


@dataclass
class Action:
    """One press of a button. text: its outcome, in a sentence. lines: what the verb has printed so far."""

    number: int
    kind: str  # run, link, fault
    what: str
    state: State = "running"
    text: str = ""
    lines: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Actions:
    """The actions of one lab, one at a time. tell: called at each change, by the thread of the action."""

    def __init__(self, lab: str, tell: Callable[[Action], None]) -> None:
        self._lab, self._tell = lab, tell
        self._lock = threading.Lock()
        self._current: Action | None = None
        self._thread: threading.Thread | None = None
        self._group: int | None = None  # process group of the run
        self._count = 0

    def run(self, asked: Mapping[str, object]) -> Action:
        """Start a run. InputError for options that are not possible, and while another action goes on."""
        argv = [*_INTERRUPTIBLE, *resources.HERE.command(), "run", f"--lab={self._lab}", *_run_flags(asked)]
        return self._start("run", " ".join(["run", *_run_flags(asked)]), lambda action: self._run(action, argv))

    def link(self, port: object, state: object) -> Action:
        """Take a link down or up. port: `rtsw1:eth3`, either end. InputError for anything else."""
        if not isinstance(port, str) or state not in ("down", "up"):
            raise InputError(Problem("", "port and state", "are needed", 'send {"port": "NODE:PORT", "state": "down"}'))
        do = _down if state == "down" else _up
        return self._start("link", f"{port} {state}", lambda action: do(action, open_lab(self._lab), port))

    def fault(self, asked: Mapping[str, object]) -> Action:
        """Set a fault: kind, where, and `values` as `KEY=VALUE,...`. InputError for anything else."""
        kind, where, values = (asked.get(key, "") for key in ("kind", "where", "values"))
        if not all(isinstance(each, str) for each in (kind, where, values)) or kind not in KINDS:
            hint = f"kinds: {', '.join(KINDS)}"
            raise InputError(Problem("", "kind, where and values", "are needed as texts", hint))
        given = dict(each.strip().partition("=")[::2] for each in str(values).split(",") if each.strip())
        found = KINDS[str(kind)].read(given, lambda key: f"{key}=")
        return self._start("fault", f"{kind} {where}", lambda action: self._fault(action, str(kind), str(where), found))

    def clear(self, where: object) -> Action:
        """End the faults of a place, or all. InputError for anything but a text."""
        if not isinstance(where, str):
            raise InputError(Problem("", "where", "is needed", 'send {"where": "NODE:PORT"}, or "" for all'))
        return self._start("fault", f"clear {where}".strip(), lambda action: self._clear(action, where))

    def _fault(self, action: Action, kind: str, where: str, values: Mapping[str, Any]) -> None:
        lab = open_lab(self._lab)
        done = orders.set_kind(lab, kind, KINDS[kind].places(lab.fabric, [where]), values)
        action.text = "; ".join(f"{each.where}: {orders.text_of(each)}: {evidence}" for each, evidence in done)

    def _clear(self, action: Action, where: str) -> None:
        done = orders.clear(open_lab(self._lab), [where] if where else [])
        action.text = f"ended: {'; '.join(done)}" if done else "no fault was set there"

    def stop(self) -> bool:
        """Interrupt the run that goes on, as Ctrl-C does; False when there is none."""
        with self._lock:
            if self._group is None:
                return False
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGINT)
            return True

    def close(self) -> None:
        """Stop a run, and wait for what goes on: a link that is half changed is worse than a second of waiting."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _start(self, kind: str, what: str, do: Callable[[Action], None]) -> Action:
        with self._lock:
            if self._current is not None and self._current.state == "running":
                why = f"is busy: {self._current.what} has not ended"
                raise InputError(Problem("", f"lab {self._lab}", why, "wait until it ends, or stop it"))
            self._count += 1
            action = self._current = Action(self._count, kind, what)
            self._thread = threading.Thread(target=self._work, args=(action, do), name=f"action-{self._lab}")
            self._thread.start()
        self._tell(action)
        return action

    def _work(self, action: Action, do: Callable[[Action], None]) -> None:
        try:
            do(action)
        except HeddleError as error:
            action.text, action.state = f"{action.what}: {as_started(str(error))}", "failed"
        if action.state == "running":
            action.state = "done"
        self._tell(action)

    def _run(self, action: Action, argv: list[str]) -> None:
        def line(text: str) -> None:
            action.lines = [*action.lines, text][-_LINES:]
            self._tell(action)

        def started(group: int) -> None:
            with self._lock:
                self._group = group

        try:
            # As by Ctrl-C also when this server is killed: nothing else would end the run, and `down` waits for it.
            done = follow(dying_with_us(argv, "INT"), line, timeout=MOST_S, started=started)
        finally:
            with self._lock:
                self._group = None
        if done.code == 0:
            action.text = f"{action.what}: done in {done.seconds:.1f} s"
        else:
            action.text = f"{action.what}: exit code {done.code} after {done.seconds:.1f} s"
            action.state = "failed"


def _run_flags(asked: Mapping[str, object]) -> list[str]:
    """The flags of a run. Each is one word with its value in it, so that no value can become a flag."""
    values: dict[str, Any] = {}
    for name, value in asked.items():
        kind = RUN_KEYS.get(name)
        if kind is None or not isinstance(value, kind) or isinstance(value, bool):
            why = "cannot be chosen here" if kind is None else f"is not {'a whole number' if kind is int else 'a text'}"
            raise InputError(Problem("", name, why, f"choose {', '.join(RUN_KEYS)}"))
        values[name] = value
    run_options(**values)
    return [f"--{name}={value}" for name, value in values.items()]


def _down(action: Action, lab: Lab, port: str) -> None:
    began = time.monotonic()
    outages.link_down(lab, port)
    action.text = f"{port} is down; BGP and all kernels followed in {time.monotonic() - began:.1f} s"


def _up(action: Action, lab: Lab, port: str) -> None:
    began = time.monotonic()
    outages.link_up(lab, port)
    action.text = f"{port} is up; BGP and all kernels followed in {time.monotonic() - began:.1f} s"
