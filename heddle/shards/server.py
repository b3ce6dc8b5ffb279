"""The server of a shard: it has imported what agents need, and is copied (fork) for each command.

    python -m heddle.shards.server [PLACE]   as the first process of a shard: start it, again when it has ended

In:  connections of RELAY (relay.py), each with the words of a module of Heddle and the streams of its command.
Out: its exit code. The command ends with its relay, and with the server; other commands do not notice.
So a command starts in milliseconds, and has the memory of the server in common with it. The fabrics of labs that run
here are built before they are needed. Only root of this shard may connect.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import runpy
import select
import shlex
import signal
import socket
import sys
import termios
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError
from heddle.runtimes.enter import die_with

PLACE: Final = Path("/run/heddle-server")
RELAY: Final = str(PLACE / "run")
COMMAND: Final = "heddle-command"  # the name of its processes, as `ps` shows it
_SOCKET: Final = "socket"
_FIRST: Final = ("heddle.shards.agent", "heddle.shards.building", "heddle.lab.snapshot")  # what `up` needs
_LATER: Final = ("heddle.runs.run", "heddle.checks.validate")  # these import all that agents call
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 1.0  # between two starts of a server that ends at once
_GRACE_S: Final = 2.0  # between SIGTERM and SIGKILL
_LONGEST: Final = 1 << 18  # bytes of a command line


@dataclass(slots=True)
class _Command:
    """A command and its relay. pidfd: readable when it has ended. kill_at: when it is killed (time.monotonic)."""

    pid: int
    pidfd: int
    relay: socket.socket
    kill_at: float = 0.0

    def signal(self, number: int) -> None:
        """Signal it and what it has started, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Server:
    """Waits for relays. place: the directory of the socket and of the relay, which is only of this user."""

    def __init__(self, place: Path) -> None:
        self._place, self._poll = place, select.poll()
        self._listener = self._listening()
        self._relays: dict[int, socket.socket] = {}  # connected, without a command
        self._commands: dict[int, _Command] = {}  # by the descriptors of relay and process
        self._later = _preparing()

    def _listening(self) -> socket.socket:
        install(self._place)
        path = self._place / _SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
        self._poll.register(listener, select.POLLIN)
        return listener

    def serve(self) -> list[str]:
        """Serve without an end. It returns only in a copy: the words of its command."""
        while True:
            ready = self._poll.poll(_LOOK_S * 1000)
            for fd, _ in ready:
                if fd == self._listener.fileno():
                    self._accept()
                elif (command := self._commands.get(fd)) is not None:
                    self._look_at(command, ended=fd == command.pidfd)
                elif (relay := self._relays.pop(fd, None)) is not None and (words := self._begin(relay)) is not None:
                    return words
            for command in self._commands.values():
                if 0 < command.kill_at < time.monotonic():
                    command.signal(signal.SIGKILL)
            if not ready:
                self._idle()

    def _accept(self) -> None:
        with suppress(OSError):  # it has gone, or this process has too many files for now
            relay, _ = self._listener.accept()
            self._relays[relay.fileno()] = relay
            self._poll.register(relay, select.POLLIN)

    def _begin(self, relay: socket.socket) -> list[str] | None:
        """Start the command of a relay. In the new process: its words."""
        try:
            data, streams, _, _ = socket.recv_fds(relay, _LONGEST, 3, socket.MSG_DONTWAIT)
        except OSError:
            data, streams = b"", []
        try:
            if not data or len(streams) != 3:
                raise OSError("no command")
            server = os.getpid()
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                self._leave(relay, streams, server)
                return [os.fsdecode(word) for word in data.split(b"\0")]
            command = _Command(pid, os.pidfd_open(pid), relay)
        except OSError:  # its relay says that it did not start
            self._poll.unregister(relay)
            relay.close()
        else:
            self._commands[relay.fileno()] = self._commands[command.pidfd] = command
            self._poll.register(command.pidfd, select.POLLIN)
        finally:
            for each in streams:
                os.close(each)
        return None

    def _leave(self, relay: socket.socket, streams: Sequence[int], server: int) -> None:
        """Become another process: with streams of its own, and nothing of the server's connections."""
        die_with(server)
        os.setsid()
        Path("/proc/self/comm").write_text(COMMAND, encoding="ascii")
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        for each in {command.pidfd: command for command in self._commands.values()}.values():
            os.close(each.pidfd)
            each.relay.close()
        for other in (self._listener, relay, *self._relays.values()):
            other.close()
        if os.isatty(0):  # the relay's session has it: Ctrl-C and a new size must reach the command
            with suppress(OSError):  # only root may take it
                fcntl.ioctl(0, termios.TIOCSCTTY, 1)

    def _look_at(self, command: _Command, *, ended: bool) -> None:
        if ended:
            _, status = os.waitpid(command.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                command.relay.send(bytes((code if code >= 0 else 128 - code,)))
            for fd in (command.relay.fileno(), command.pidfd):
                self._commands.pop(fd)
                if not (fd == command.relay.fileno() and command.kill_at):
                    self._poll.unregister(fd)
            command.relay.close()
            os.close(command.pidfd)
            return
        try:
            numbers = command.relay.recv(64, socket.MSG_DONTWAIT)
        except OSError:
            numbers = b""
        for number in numbers:
            command.signal(number)
        if not numbers:
            self._poll.unregister(command.relay)
            command.kill_at = time.monotonic() + _GRACE_S
            command.signal(signal.SIGTERM)

    def _idle(self) -> None:
        """Nothing has come for a while: see whether the socket is there, and prepare what later commands need."""
        if not (self._place / _SOCKET).exists():
            self._poll.unregister(self._listener)
            self._listener.close()
            self._listener = self._listening()
        try:
            next(self._later, None)
        except Exception:  # a defect: no more is prepared, and commands do it themselves
            traceback.print_exc()


def _preparing() -> Iterator[None]:
    """Import and build, step by step, without an end: what `up` needs is there when this returns."""
    for name in _FIRST:
        import_module(name)
    gc.freeze()  # else a collection in a copy writes to all pages, and has its own of each
    return _later()


def _later() -> Iterator[None]:
    for name in _LATER:
        import_module(name)
        gc.freeze()
        yield
    from heddle.base import state
    from heddle.lab.opening import reopened

    seen: dict[str, state.Record | None] = {}
    while True:
        with suppress(HeddleError):  # a record that cannot be used: the command that needs it says so
            for name in state.labs():
                if (record := state.read_record(name)) is not None and record != seen.get(name):
                    seen[name] = record
                    _ = reopened(record).fabric.expected_next_hops
                    gc.freeze()
        yield


def install(place: Path = PLACE) -> None:
    """Write the relay, so that commands can start, and wait for the server."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = Path(__file__).with_name("relay.py").read_text(encoding="utf-8")
    relay, path = place / "relay.py", place / "run"
    relay.write_text(text, encoding="utf-8")
    # Not with the interpreter in the first line, which a space in its path would end.
    words = shlex.join([sys.executable, "-IS", str(relay)])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    relay.chmod(0o600)
    path.chmod(0o700)


def keep(ends: Mapping[signal.Signals, int], look: Callable[[], int | None] = lambda: None, place: Path = PLACE) -> int:
    """Be the first process of a shard: keep a server running, and wait for all that has lost its parent.

    ends: the signals that end it -> its exit code, which this returns. look: is called every second; or its exit code.
    The signals are blocked, so that none is missed between two waits.
    """
    watched = {signal.SIGCHLD, *ends}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    server, began = 0, 0.0
    while (code := look()) is None:
        if not server and time.monotonic() - began > _AGAIN_S:
            with suppress(OSError):  # no process or memory for now
                server, began = _started(place), time.monotonic()
        found = signal.sigtimedwait(watched, _LOOK_S)
        if found is not None and found.si_signo in ends:
            return ends[signal.Signals(found.si_signo)]
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                server = 0 if pid == server else server
    return code


def _started(place: Path) -> int:
    """The process ID of a new server, which ends with this process."""
    keeper = os.getpid()
    if pid := os.fork():
        return pid
    die_with(keeper)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    code = 1
    try:
        code = _become(Server(place).serve())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(words: Sequence[str]) -> int:
    """Run a module as `python -m` does; its exit code."""
    sys.argv = list(words)
    try:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # it is imported already
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    atexit._run_exitfuncs()  # all else of the interpreter's end takes 0.1 s, and changes nothing
    with suppress(OSError):  # the reader has gone
        sys.stdout.flush()
    return code & 0xFF


if __name__ == "__main__":
    there = Path(*sys.argv[1:2] or [str(PLACE)])
    install(there)
    print("ready", flush=True)
    sys.exit(keep({signal.SIGTERM: 128 + signal.SIGTERM}, place=there))
