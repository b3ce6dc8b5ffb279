"""Run outside commands: logged, timed, replayable. All of Heddle runs them through this module.

Every command is an argument list; nothing passes through a shell. `Journal` records the commands and prints them as a
shell script: `./inv up --dry-run` shows it, also for teaching.
"""

from __future__ import annotations

import logging
import os
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from heddle.base.problems import MachineError, Problem, trouble

log = logging.getLogger("heddle.process")
_SLOW: Final = "uptime shows how busy this machine is: end other work, then try again"
_PATIENCE_S: Final = 30.0  # between SIGTERM and SIGKILL: mmdebstrap unmounts, containerlab removes its objects
_START_FIELD: Final = 19  # starttime of proc(5), counted behind the command's closing parenthesis


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command. `seconds` is wall time."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def reason(self) -> str:
        """Some lines of its errors, else of its output: see first_lines."""
        return first_lines(self.err or self.out)


@dataclass(slots=True)
class Journal:
    """The commands of one piece of work, in order; safe to share between threads."""

    lines: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, argv: Sequence[str], stdin: str | None = None) -> None:
        """Record a command, with its standard input as a here-document."""
        text = shlex.join(argv)
        if stdin is not None:
            text += " <<'EOF'\n" + stdin.rstrip("\n") + "\nEOF"
        with self._lock:
            self.lines.append(text)

    def comment(self, text: str) -> None:
        """Record an action that is not a command (a BPF map written, a file placed)."""
        with self._lock:
            self.lines.extend("# " + line for line in text.splitlines())

    def script(self) -> str:
        """The whole as a shell script."""
        return "#!/bin/sh\nset -e\n" + "\n".join(self.lines) + "\n"


def run(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = 60.0,
    journal: Journal | None = None,
    called: str = "",
) -> Done:
    """Run a command until it exits and return its output.

    timeout: seconds. called: its name in errors, where the command itself would tell a user nothing.
    Raises MachineError when the command is missing, fails (with `check`) or takes too long; its
    first and last error lines are the reason, so that `ip -batch` errors name the line at fault.
    """
    if journal is not None:
        journal.note(argv, stdin)
    start, called = time.monotonic(), called or shlex.join(argv)
    try:
        proc = subprocess.run(
            list(argv), input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )  # fmt: skip
    except FileNotFoundError:
        raise MachineError(Problem("", argv[0], "is not installed", "run ./inv doctor: it names the package")) from None
    except OSError as error:  # no process, memory or file descriptor available
        raise trouble(error, argv[0]) from None
    except subprocess.TimeoutExpired:
        raise MachineError(Problem("", called, f"did not end within {timeout:g} s", _SLOW)) from None
    done = Done(tuple(argv), proc.returncode, proc.stdout, proc.stderr, time.monotonic() - start)
    log.debug("%s -> %d in %.3f s", shlex.join(argv), done.code, done.seconds)
    if check and done.code == -signal.SIGKILL:
        raise MachineError(Problem("", called, "was killed", "the kernel kills when memory is short: dmesg shows it"))
    if check and done.code != 0:
        raise MachineError(Problem("", called, f"failed with exit code {done.code}: {done.reason}"))
    return done


def first_lines(text: str) -> str:
    """Up to three lines of a command's output, for an error: the first two and the last; of a traceback the last."""
    lines = text.strip().splitlines()
    if lines and lines[0].startswith("Traceback "):
        lines = lines[-1:]
    elif len(lines) > 3:
        lines = [*lines[:2], "...", lines[-1]]
    return "; ".join(lines) or "it printed nothing"


def dying_with_us(argv: Sequence[str], number: Literal["INT", "TERM", "KILL"]) -> list[str]:
    """A command that gets this signal when this process ends, whatever ends it.

    It gets the signal only after it has requested it. If this process died before, its number shows that. The thread
    that starts the command must stay: the kernel counts its end as the end of the process (PR_SET_PDEATHSIG).
    """
    alive = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid()))
    return ["setpriv", "--pdeathsig", number, *alive, *argv]


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when there is no such process, or it has ended.

    It tells processes apart whose pid is used again.
    """
    fields = _stat(pid)
    return None if fields[0] in "ZX" else int(fields[_START_FIELD])


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    return _stat(pid)[0] in "Tt"


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; only the state X where there is no such process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ["X"]
    return stat.rpartition(")")[2].split()  # the name before it may contain blanks and brackets


def search_path(*more: str) -> list[str]:
    """The directories of PATH, then these. Empty and relative ones are skipped.

    They would mean the working directory, and any program there would run as root.
    """
    return [place for place in (*os.environ.get("PATH", "").split(os.pathsep), *more) if place.startswith("/")]


def find_program(name: str, *more: str) -> str | None:
    """The path of a program in search_path(), or None."""
    return shutil.which(name, path=os.pathsep.join(search_path(*more)) or os.devnull)


@contextmanager
def left_to_child(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal in this process while a child has the terminal. Works in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def attached(argv: Sequence[str]) -> int:
    """Run a command with this terminal's streams; its exit code, 128 + n after signal n."""
    process = subprocess.Popen(list(argv))
    with left_to_child(signal.SIGINT):  # Ctrl-C belongs to the command: vtysh uses it to clear its line
        code = process.wait()
    return 128 - code if code < 0 else code


def follow(
    argv: Sequence[str],
    line: Callable[[str], None],
    *,
    timeout: float,
    journal: Journal | None = None,
    started: Callable[[int], None] | None = None,
    late: Callable[[], Problem] | None = None,
) -> Done:
    """Run a long command and pass each output line to `line` at once, stderr too. The exit code is not checked.

    timeout: seconds. Ctrl-C and the timeout end the command first. `err` has the last lines. started: gets the ID of
    the command's process group, for a caller that ends it earlier. late: the problem of a command that takes too long.
    MachineError when the command is missing or takes too long.
    """
    if journal is not None:
        journal.note(argv)
    start = time.monotonic()
    said: list[str] = []
    pipe = subprocess.PIPE
    try:
        proc = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its whole process group can be ended
        )
    except FileNotFoundError:
        raise MachineError(Problem("", argv[0], "is not installed", "./inv doctor names the package")) from None
    except OSError as error:
        raise trouble(error, argv[0]) from None
    if started is not None:
        started(proc.pid)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _end(proc)

    clock = threading.Timer(timeout, expire)
    clock.start()
    try:
        for text in proc.stdout or ():
            if text.strip():
                said = [*said[-99:], text.rstrip()]
                line(said[-1])
        proc.wait()
    finally:
        clock.cancel()
        _end(proc)
        if proc.stdout is not None:
            proc.stdout.close()
    if expired.is_set():
        usual = Problem("", shlex.join(argv), f"did not end within {timeout:g} s", _SLOW)
        raise MachineError(usual if late is None else late())
    log.debug("%s -> %d in %.3f s", shlex.join(argv), proc.returncode, time.monotonic() - start)
    return Done(tuple(argv), proc.returncode, "", "\n".join(said), time.monotonic() - start)


def _end(proc: subprocess.Popen[str]) -> None:
    """End a process and its children: SIGTERM first, so that they can clean up, then SIGKILL."""
    if proc.poll() is None:
        _signal(proc, signal.SIGTERM)
        try:
            proc.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            _signal(proc, signal.SIGKILL)
            proc.wait()


def _signal(proc: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the whole process group: mmdebstrap, for example, waits for its apt-get before it handles a signal."""
    with suppress(ProcessLookupError):
        os.killpg(proc.pid, number)


_KILLED_S: Final = 10.0  # to wait for a process that was killed: it may be in a system call


def end_all(pidfds: Iterable[int], patience_s: float) -> None:
    """End processes: SIGTERM, and SIGKILL where one runs `patience_s` later. Waits for them, and closes the pidfds."""
    left = list(pidfds)
    for number, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _KILLED_S)):
        for fd in left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
                signal.pidfd_send_signal(fd, signal.SIGCONT)  # a stopped process handles no other signal
        left = _still_running(left, seconds)
    for fd in left:
        os.close(fd)


def _still_running(pidfds: Iterable[int], seconds: float) -> list[int]:
    """Wait at most `seconds` for these processes to end; the pidfds of the others, still open."""
    left, poll = set(pidfds), select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    end = time.monotonic() + seconds
    while left and (rest := end - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            os.close(fd)
            left.discard(fd)
    return sorted(left)
