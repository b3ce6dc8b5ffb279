"""The agent on a server (server.py), and the messages to it and from it in an SSH channel."""

from __future__ import annotations

import base64
import shlex
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import paramiko

from heddle.base.problems import MachineError, Problem
from heddle.places import server
from heddle.places.call import printable
from heddle.places.ssh import FAILURES

_BEAT: Final = 5.0  # seconds between signs of life
_STEP: Final = 300.0  # seconds to wait for an answer: another verb may be copying the project
_END: Final = 10.0  # seconds for the exit code that follows the end of the output, on a busy server
_NOISE: Final = 1 << 20  # bytes that a login may print before the agent
_ANSWER: Final = 16 << 20  # largest message, bytes: a manifest of all files there


def command() -> str:
    """What the server's shell runs: always the same text, without a character of the user's."""
    text = base64.b64encode(zlib.compress(Path(server.__file__).read_bytes(), 9)).decode()
    load = f"sys.version_info<(3,9) and sys.exit(sys.version);exec(zlib.decompress(base64.b64decode('{text}')))"
    return f"exec python3 -c {shlex.quote(f'import base64,sys,zlib;{load}')}"


class Broken(Exception):  # noqa: N818  (the caller, which knows the current step, reports it to the user)
    """The connection ended before the verb did, or the server sent something else than messages."""


@contextmanager
def _breaks() -> Iterator[None]:
    """Turn exceptions of paramiko, and those of a message that cannot be read, into Broken."""
    try:
        yield
    except (*FAILURES, ValueError, RecursionError) as error:
        raise Broken from error


class AgentChannel:
    """The agent on a server, and its channel. `what` names the place in errors. heard: when it sent something."""

    def __init__(self, transport: paramiko.Transport, what: str) -> None:
        self.what, self.frames, self._lock = what, server.Frames(_ANSWER), threading.Lock()
        output = b""
        try:
            self.channel = transport.open_session(timeout=15)
            self.channel.settimeout(_STEP)
            self.channel.exec_command(command())
            while server.HELLO not in output and len(output) <= _NOISE and (data := self.channel.recv(1 << 16)):
                output += data
        except FAILURES as error:
            raise self._start_failure(-1, str(error) or type(error).__name__) from None
        _, hello, rest = output.partition(server.HELLO)
        if not hello:
            ended = len(output) <= _NOISE and self.channel.status_event.wait(_END)
            output += self.channel.recv_stderr(4096) if self.channel.recv_stderr_ready() else b""
            last = output.decode(errors="replace").strip().rpartition("\n")[2]
            raise self._start_failure(self.channel.exit_status if ended else -1, last or "it printed nothing")
        self.heard = time.monotonic()
        with _breaks():
            self.frames.feed(rest)
        threading.Thread(target=self._live, daemon=True).start()

    def send(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        """Send a message and its bytes."""
        text = server.frame({**message}, data)
        with _breaks(), self._lock:
            for at in range(0, len(text), 1 << 20):  # sendall copies the rest for each packet
                self.channel.sendall(text[at : at + (1 << 20)])

    def receive(self) -> None:
        """Wait for the agent to send something; `frames` has its messages then."""
        with _breaks():
            if not (data := self.channel.recv(1 << 16)):
                raise Broken
            self.heard = time.monotonic()
            self.frames.feed(data)

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The next message, and its bytes; MachineError when it is a problem."""
        while not self.frames.messages:
            self.receive()
        message, data = self.frames.messages.pop(0)
        if "problem" in message:
            why, hint = printable(str(message["problem"])), "free some space there, or let this user write there"
            raise MachineError(Problem("", self.what, f"cannot be used: {why}", hint))
        return message, data

    def read(self, size: int) -> Iterator[bytes]:
        """The bytes of the next messages, which are `size` together."""
        while size > 0:
            _, data = self.answer()
            size -= len(data)
            if not data or size < 0:
                raise Broken
            yield data

    def _live(self) -> None:
        with suppress(*FAILURES):
            while not self.channel.status_event.wait(_BEAT):
                with self._lock:
                    self.channel.sendall(b"\n")

    def _start_failure(self, code: int, last: str) -> MachineError:
        """The agent did not start: there is no Python, or an old one, or the login runs no commands."""
        why = f"does not run python3: exit code {code}, {printable(last)}"
        hint = "install python3 (3.11 or newer) and python3-venv there, and see the output of ssh HOST python3 -V;\n"
        hint += "the account must be allowed to run commands: ForceCommand and MaxSessions in the server's sshd_config"
        return MachineError(Problem("", self.what, why, hint))
