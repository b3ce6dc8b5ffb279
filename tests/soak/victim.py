"""The lab that is killed: its verbs as processes, a kill at an instant of their work, and what is left after `down`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from heddle.base import owners
from heddle.host import limits
from heddle.host.limits import HERE
from tests.leftovers import leftovers_of
from tests.machine import patience, until
from tests.typed import ROOT, typed

FABRIC: Final = "tiny"
PATIENT: Final = "120"  # seconds for routes, on a machine that other work keeps busy
_LONGEST_S: Final = 120.0  # of a verb
_ENOUGH_S: Final = 8.0  # of a verb to be killed: `te watch` has no end
_SENTENCES: Final = range(4)  # exit codes that come with a sentence; 70 is a defect, and a signal is negative
_KEYS: Final = [key for limit in limits.LIMITS if limit is not limits.BURSTS for key in limit.factors]
_NET: Final = Path("/proc/sys/net")
_OF_PORTS: Final = ("conf", "neigh")  # directories of interfaces, which come and go


class BadEndError(Exception):
    """A verb ended with a defect, or in another way that no user should see."""


@dataclass(frozen=True, slots=True)
class Blow:
    """What a round did. lab: the lab that `down` must remove. hit: whether it was in time, so that it counts."""

    text: str
    lab: str
    hit: bool = True


@dataclass
class Victim:
    """A state directory and a directory for temporary files of its own, and the name of the present round's lab."""

    scratch: Path
    name: str = ""
    usual: dict[str, float] = field(default_factory=dict)  # command -> seconds from its lock to its end
    _begun: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.scratch / "state"

    @property
    def temporary(self) -> Path:
        return self.scratch / "tmp"

    @contextmanager
    def here(self, state: str = "state") -> Iterator[None]:
        """The environment of this process is that of the lab, for a with block."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEDDLE_STATE_DIR", str(self.scratch / state))
            patch.setenv("TMPDIR", str(self.temporary))
            yield

    def start(
        self, *words: str, state: str = "state", script: str = "", before: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """A verb as a process of its own, or a program. The word NAME is the lab. before: a command that starts it."""
        words = self._named(words)
        argv = [sys.executable, "-c", script, *words] if script else [sys.executable, str(ROOT / "tasks.py"), *words]
        env = {**os.environ, "HEDDLE_STATE_DIR": str(self.scratch / state), "TMPDIR": str(self.temporary)}
        pipe = subprocess.PIPE
        argv = [*before, *argv]
        process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        self._begun.append(process)
        return process

    def end(self) -> None:
        """End the verbs that still run: those of a round that failed."""
        for process in self._begun:
            process.kill()
            process.wait()
        self._begun.clear()

    def run(self, *words: str, ends: int | None = None, state: str = "state") -> str:
        """A verb in this process. ends: its exit code; by default any that comes with a sentence."""
        words = self._named(words)
        with self.here(state):
            done = typed(*words)
        return _judged(words, done.returncode, done.stdout + done.stderr, ends)

    def up(self) -> None:
        """The lab, in its usual state."""
        self.run("up", FABRIC, "--name", self.name, "--timeout", PATIENT, ends=0)

    def killed(self, dice: random.Random, *words: str, what: str = "", lab: Callable[[int], str] | None = None) -> Blow:
        """Kill a verb at a random instant of its work, which begins when it has the lab's lock.

        what: the lock of that part. lab: the lab of the process, where that is not the round's. The first time the verb
        ends by itself, which shows how long it takes, or is killed late.
        """
        key, part = " ".join(words), dice.random()
        process = self.start(*words)
        name = self.name if lab is None else lab(process.pid)

        def working() -> bool:
            holder = owners.working_on(name, what)
            return process.poll() is not None or (holder is not None and holder.pid == process.pid)

        until(working, _LONGEST_S, every=0.001)
        began = time.monotonic()
        if (usual := self.usual.get(key)) is None:
            with suppress(subprocess.TimeoutExpired):
                said = finished(process, _ENOUGH_S)
                self.usual[key] = time.monotonic() - began
                return Blow(f"./inv {key} ended by itself: {said.strip()[-200:]}", name, hit=False)
            part, usual = 1.0, _ENOUGH_S
            self.usual[key] = usual
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, began + part * usual - time.monotonic()))
        after = time.monotonic() - began
        process.kill()
        said, _ = process.communicate(timeout=patience(_LONGEST_S))
        hit = process.returncode == -signal.SIGKILL
        if not hit:
            _judged(self._named(words), process.returncode, said, None)
        return Blow(f"./inv {key} killed {after:.3f} s after its lock ({part:.3f} of {usual:.3f} s)", name, hit)

    def _named(self, words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(word.replace("NAME", self.name) for word in words)

    def left(self, lab: str) -> list[str]:
        """What a lab of which `down` has ended has left: in the machine, and in its own directories."""
        with self.here():
            found = leftovers_of(lab)
        found += [f"temporary file {path.name}" for path in self.temporary.iterdir()]
        for each in ("labs/*", "crash-*.log"):
            found += map(str, self.scratch.glob(f"state*/{each}"))
        mine = f"HEDDLE_STATE_DIR={self.scratch}/".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mine in path.read_bytes() and int(path.parent.name) != os.getpid():
                    command = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"process {path.parent.name}: {command}")
        return found


def finished(process: subprocess.Popen[str], seconds: float = _LONGEST_S, *, may_be_killed: bool = False) -> str:
    """The output of a verb that ends by itself. TimeoutExpired when it does not."""
    said, _ = process.communicate(timeout=patience(seconds))
    if may_be_killed and process.returncode == -signal.SIGKILL:
        return said
    words = process.args[2:] if isinstance(process.args, list) else ()
    return _judged(tuple(map(str, words)), process.returncode, said, None)


def _judged(words: tuple[str, ...], code: int, said: str, ends: int | None) -> str:
    right = code in _SENTENCES if ends is None else code == ends
    if not right or (code and not said.strip()) or "Traceback (most recent call last)" in said:
        raise BadEndError(f"./inv {' '.join(words)} ended with exit code {code}: {said.strip()[-600:]}")
    return said


def sysctls() -> dict[str, str]:
    """Every sysctl of this network namespace, and those that Heddle raises, as they are without labs."""
    _, raised = HERE.state()
    found = {key: str(raised.get(key, HERE.value(key))) for key in _KEYS}
    for path in _NET.rglob("*"):
        words = path.relative_to(_NET).parts
        key = ".".join(("net", *words))
        if key in found or "count" in path.name or (set(_OF_PORTS) & {*words} and not {"all", "default"} & {*words}):
            continue
        with suppress(OSError):  # a directory, or one that is only written
            found[key] = path.read_text(encoding="ascii", errors="replace")
    return found
