"""Frames between this machine and the agent on a lab server: see server.py, whose source text is sent first.

One channel and one command for the server's shell. The command contains no user input: that is sent in frames.
"""

from __future__ import annotations

import json
import queue
import shlex
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import paramiko

from heddle.base.problems import MachineError, Problem
from heddle.places.server import HELLO, SILENCE

Frame = tuple[bytes, bytes]
KEEPALIVE_EVERY: Final = 5.0  # seconds between signs of life; both sides give up after SILENCE without one
STEP_TIMEOUT: Final = 300.0  # seconds to wait for the answer to one step: another verb may be copying the project
_NOISE: Final = 1 << 20  # bytes that a login may print before the agent speaks
_LARGEST: Final = 1 << 24  # bytes of a frame; the agent's frames are much smaller
_OLD: Final = 65  # the loader's exit code when Python is too old
_END_TIMEOUT: Final = 10.0  # seconds for an exit code that follows the end of the output, on a busy server
_NOT_FOUND: Final = 127  # a shell's exit code when there is no such command
_LOADER: Final = """\
import sys, types
if sys.version_info < (3, 9):
    sys.exit({old})
for name, text in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules["heddle.places.server"].run()
"""
# The agent must use the same buffered reader: it may have read ahead.
_BOOT: Final = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
COMMAND: Final = f"exec python3 -c {shlex.quote(_BOOT)}"


def program() -> bytes:
    """The first bytes to send: the length of the agent's source text, and the text."""
    here = Path(__file__).resolve().parent
    sources = [(f"heddle.places.{name}", (here / f"{name}.py").read_text()) for name in ("store", "server")]
    text = _LOADER.format(old=_OLD, sources=sources).encode()
    return b"%d\n" % len(text) + text


# Exceptions of paramiko when the connection has ended.
_ENDED: Final = (OSError, EOFError, paramiko.SSHException)


def _size(rest: bytes) -> int:
    """The length of the next frame's content; EOFError when it does not come from an agent."""
    size: int = struct.unpack(">I", rest[1:5])[0]
    if size > _LARGEST:
        raise EOFError
    return size


class Broken(Exception):  # noqa: N818  (the caller, which knows the current step, reports it to the user)
    """The connection ended before the agent did."""


def open_link(transport: paramiko.Transport, what: str) -> AgentConnection:
    """Start the agent on the server; MachineError when the server runs no commands."""
    try:
        return AgentConnection(transport.open_session(timeout=15), what)
    except _ENDED as error:
        said = str(error) or type(error).__name__
        hint = "allow the account to run commands: see ForceCommand and MaxSessions in the server's sshd_config"
        raise MachineError(Problem("", what, f"does not run commands: {said}", hint)) from None
    except Broken:
        raise MachineError(Problem("", what, "closed the connection at once", "see the log of its sshd")) from None


class AgentConnection:
    """This machine's end of the connection. `what` names the place in messages."""

    def __init__(self, channel: paramiko.Channel, what: str) -> None:
        self.channel, self.what = channel, what
        self.frames: queue.Queue[Frame | None] = queue.Queue(64)
        self.said = b""  # output of the server before the agent started, and its stderr
        self.greeted = self.noisy = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._heard = time.monotonic()
        channel.exec_command(COMMAND)
        for work in (self._receive, self._listen, self._live):
            threading.Thread(target=work, daemon=True).start()
        self._put(program())

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send one frame; Broken when the connection has ended."""
        self._put(kind + struct.pack(">I", len(data)) + data)

    def say(self, kind: bytes, data: Any) -> None:
        """Send one frame of JSON."""
        self.send(kind, json.dumps(data).encode())

    def expect(self, kind: bytes) -> Any:
        """The content of the next frame, which must be of this kind; MachineError when the agent reports a problem."""
        try:
            frame = self.frames.get(timeout=STEP_TIMEOUT)
        except queue.Empty:
            raise Broken from None
        if frame is None:
            raise self._start_failure() if not self.greeted else Broken
        if frame[0] == b"p":
            raise self.problem(json.loads(frame[1]))
        if frame[0] != kind:
            raise Broken
        return json.loads(frame[1])

    def reported_problem(self) -> MachineError | None:
        """The problem that the agent reported before the connection ended, while this end was still sending."""
        self._over.wait(_END_TIMEOUT)
        with suppress(queue.Empty):
            while (frame := self.frames.get_nowait()) is not None:
                if frame[0] == b"p":
                    return self.problem(json.loads(frame[1]))
        return None

    def close(self) -> None:
        """End the channel; the agent sees it."""
        self._over.set()
        self.channel.close()

    def _put(self, data: bytes) -> None:
        with self._lock:  # frames of threads must not mix
            try:
                self.channel.sendall(data)
            except _ENDED:
                if self.greeted:
                    raise Broken from None
                # When no agent started, the server may close before all is sent: its output gives the reason.
                self._over.wait(_END_TIMEOUT)
                raise self._start_failure() from None

    def _receive(self) -> None:
        rest = b""
        try:
            while data := self.channel.recv(1 << 16):
                rest += data
                self._heard = time.monotonic()
                if not self.greeted:
                    if len(rest) > _NOISE:
                        self.noisy = True
                        break
                    noise, hello, after = rest.partition(HELLO)
                    if not hello:
                        continue
                    # Output of the login (`echo` in .bashrc) comes first.
                    self.greeted, self.said, rest = True, noise, after
                while len(rest) >= 5 and len(rest) >= 5 + (size := _size(rest)):
                    if rest[:1] != b"k":
                        self.frames.put((rest[:1], rest[5 : 5 + size]))
                    rest = rest[5 + size :]
        except _ENDED:
            pass
        if not self.greeted:
            self.said = rest[-4096:] + self.said
        self._over.set()
        self.frames.put(None)

    def _listen(self) -> None:
        try:
            while data := self.channel.recv_stderr(1 << 12):
                self.said = (self.said + data)[-4096:]
        except _ENDED:
            pass

    def _live(self) -> None:
        while not self._over.wait(KEEPALIVE_EVERY):
            try:
                self.send(b"K")
            except Broken:
                return
            # Not when the queue is full: then this side is the slow one.
            if time.monotonic() - self._heard > SILENCE and not self.frames.full():
                self.channel.close()
                return

    def _start_failure(self) -> MachineError | Broken:
        """Why the agent did not start: no Python, an old one, or a login that runs no commands."""
        if self.noisy:
            why = f"does not run commands: its login printed more than {_NOISE >> 20} MiB first"
            return MachineError(Problem("", self.what, why, "see the output of ssh HOST true"))
        if not self.channel.status_event.wait(_END_TIMEOUT) or (code := self.channel.exit_status) < 0:
            return Broken()
        if code == _NOT_FOUND:
            hint = "install it on the server: apt-get install python3 python3-venv"
            return MachineError(Problem("", self.what, "has no python3", hint))
        if code == _OLD:
            hint = "install python3.11 on the server, or use a newer system"
            return MachineError(Problem("", self.what, "has a python3 that is too old: Heddle needs 3.11", hint))
        lines = [line.strip() for line in self.said.decode(errors="replace").splitlines() if line.strip()]
        said = "".join(c for c in lines[-1] if c.isprintable())[:200] if lines else "it printed nothing"
        why = f"does not run commands: python3 ended with exit code {code}: {said}"
        return MachineError(Problem("", self.what, why, "see the output of ssh HOST python3 -V"))

    def problem(self, told: dict[str, Any]) -> MachineError:
        """A problem of the agent as an error with a hint."""
        import errno

        from heddle.base.problems import trouble

        if told.get("errno") in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT):
            error = trouble(
                OSError(told["errno"], told["why"]), told["what"] or "the project", "run df -h and ls -ld on the server"
            )
            return MachineError(*[Problem(self.what, p.what, p.why, p.hint) for p in error.problems])
        what = told["what"] or "the project"
        return MachineError(Problem(self.what, what, f"could not be copied to the server: {told['why']}", "try again"))
