"""Run one verb on a lab server: copy the project there, run the verb, show its output, copy its files back.

In:  a Call, and the Console that called.
Out: the verb's exit code. MachineError when the server cannot be used, or the connection breaks.
A call is one SSH channel of the agent (server.py), with messages in both directions.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import os
import select
import shlex
import shutil
import signal
import sys
import tarfile
import termios
import threading
import time
import tty
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import paramiko

from heddle.base import progname
from heddle.base.files import PLACE, VARIABLE
from heddle.base.problems import MachineError, Problem, shown, trouble
from heddle.base.tables import written
from heddle.places.choice import Call, Output, foreign
from heddle_plugins.places import server, sync
from heddle_plugins.places.address import Address
from heddle_plugins.places.server import HELLO, SILENCE
from heddle_plugins.places.ssh import FAILURES, Target, connection
from heddle_plugins.places.sync import fetch_outputs, input_files, output_paths

PASSED: Final = ("CI", "HEDDLE_DEBUG", "HEDDLE_KEEP_BYTES", "HEDDLE_KEEP_RUNS", "NO_COLOR", "TERM")  # variables
_BEAT: Final = 5.0  # seconds between signs of life
_STEP: Final = 300.0  # seconds to wait for an answer: another verb may be copying the project
_END: Final = 10.0  # seconds for the exit code that follows the end of the output, on a busy server
_NOISE: Final = 1 << 20  # bytes that a login may print before the agent
_ANSWER: Final = 16 << 20  # largest message, bytes: a manifest of all files there
_TYPED: Final = 1 << 20  # bytes of stdin on the way to the verb


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
        self.what, self.frames, self._lock, self.taken = what, server.Frames(_ANSWER), threading.Lock(), False
        output = b""
        try:
            self.channel = transport.open_session(timeout=15)
            self.channel.settimeout(_STEP)
            self.channel.exec_command(command())
            while HELLO not in output and len(output) <= _NOISE and (data := self.channel.recv(1 << 16)):
                output += data
        except FAILURES as error:
            raise self._start_failure(-1, str(error) or type(error).__name__) from None
        _, hello, rest = output.partition(HELLO)
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

    def is_ready(self) -> bool:
        """Whether the agent has sent something, or has ended. What a login printed to stderr is dropped."""
        if self.channel.recv_stderr_ready():
            self.channel.recv_stderr(1 << 16)
        return bool(self.channel.recv_ready() or self.channel.eof_received or self.channel.closed)

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
            why, hint = foreign(str(message["problem"])), "free some space there, or let this user write there"
            raise MachineError(Problem("", self.what, f"cannot be used: {why}", hint))
        return message, data

    def files(self) -> Iterator[dict[str, Any]]:
        """What the agent says of each file that the verb wrote."""
        while "file" in (entry := self.answer()[0]):
            self.taken = False
            yield entry
            if not self.taken:
                self.send({"take": False})

    def take(self, size: int) -> Iterator[bytes]:
        """The content of the last file, in pieces."""
        self.taken = True
        self.send({"take": True})
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
        why = f"does not run python3: exit code {code}, {foreign(last)}"
        hint = "install python3 (3.11 or newer) and python3-venv there, and see the output of ssh HOST python3 -V;\n"
        hint += "the account must be allowed to run commands: ForceCommand and MaxSessions in the server's sshd_config"
        return MachineError(Problem("", self.what, why, hint))


@dataclass(frozen=True, slots=True)
class SshPlace:
    """A lab server on which verbs run."""

    address: Address
    target: Target | None = None  # where ~/.ssh/config does not say it

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there."""
        files = input_files(call.files_in)
        manifest = sync.manifest_of(sync.project())
        with connection(self.address, self.target) as transport:
            why, hint = "while the project was copied there", "run the same line again: it continues with the copy"
            try:
                session = Session(self.address, call, out, transport)
                session.copy(manifest, files)
                after = "continues there" if call.lasting else "was ended there"
                why, hint = f"during {call.verb}", f"{call.verb} {after}; ./inv status --on {self.address} shows it"
                return session.run()
            except Broken:
                raise MachineError(Problem("", str(self.address), f"lost the connection {why}", hint)) from None


class Session:
    """One verb on a server. Broken when the connection ends before the verb."""

    def __init__(self, address: Address, call: Call, out: Output, transport: paramiko.Transport) -> None:
        self.address, self.call, self.out = address, call, out
        self.agent, self.ending = AgentChannel(transport, str(address)), False
        self.at_terminal = call.typed_in and not out.json and sys.stdin.isatty() and sys.stdout.isatty()
        self._texts = {number: codecs.getincrementaldecoder("utf-8")("replace") for number in (1, 2)}

    def copy(self, manifest: server.Manifest, files: Mapping[str, Path]) -> None:
        """Bring the project on the server up to date, and copy the verb's files; the verb begins then."""
        self.agent.send({"id": sync.checkout_id(sync.project()), "hash": server.digest_of(manifest)})
        answer, _ = self.agent.answer()
        have, directory = answer.get("have"), answer.get("session")
        if not isinstance(have, dict | None) or not isinstance(directory, str):
            raise Broken
        # Only names of the manifest are sent, whatever the server has answered.
        changed = [] if have is None else [n for n, entry in manifest.items() if have.get(n) != entry]
        gone = [n for n in have or () if n not in manifest]
        bundle = io.BytesIO()
        with tarfile.open(fileobj=bundle, mode="w:gz") as tar:
            sync.pack(sync.project(), changed, tar)
            copied = tar.offset
            for path in dict.fromkeys(files.values()):
                sync.add(tar, path.resolve(), f"{Path(directory).name}/in{path}")
        self.agent.send({**self._order(directory, files), "remove": gone + changed}, bundle.getvalue())
        self.agent.answer()
        if changed:
            count = f"{len(changed)} file{'' if len(changed) == 1 else 's'}"
            self.out.observer.say(f"{self.address}: {count} copied ({copied / 1000:.0f} kB)")

    def _order(self, directory: str, files: Mapping[str, Path]) -> dict[str, Any]:
        outs = output_paths(self.call)
        names = {name: f"{directory}/in{path}" for name, path in files.items()}
        names |= {name: f"{directory}/{path}" for name, path in outs.items()}
        env = {name: os.environ[name] for name in PASSED if name in os.environ}
        if sys.stdout.isatty() or sys.stderr.isatty():
            env["COLUMNS"] = str(shutil.get_terminal_size().columns)
        env |= {PLACE: str(self.address), progname.VARIABLE: progname.program(), VARIABLE: json.dumps(names)}
        return {
            "argv": ["./inv", *self.call.words],
            "env": env,
            "directories": [str(Path(path).parent) for path in outs.values()],
            "lasting": self.call.lasting,
            "input": self.call.typed_in,
            "terminal": _terminal_size() if self.at_terminal else None,
        }

    def run(self) -> int:
        """Show the verb's output, and copy back what it wrote; its exit code."""
        self.out.close()
        where = progname.as_started(f"./inv status --on {self.address}")
        left = f"left; {self.call.verb} may still be running there: {where} shows the labs"
        with noted_signals(left) as signals, _raw_terminal() if self.at_terminal else nullcontext():
            code = self._follow(signals)
        for name in fetch_outputs(self.call, self.agent.files(), self.agent.take):
            print(f"{name}: written there and not copied back: no --out names it", file=sys.stderr)
        ends = [number for number in signals if number in (signal.SIGTERM, signal.SIGHUP)]
        return 128 + ends[-1] if ends else code

    def _follow(self, signals: list[int]) -> int:
        """Show the verb's output until it ends; send it stdin, and the signals of this process."""
        agent, stdin, waiting, document = self.agent, self.call.typed_in, 0, bytearray()
        passed = 0  # signals that the server knows of
        while True:
            for number in signals[passed:]:
                passed += 1
                self._pass_on(number)
            while agent.frames.messages:
                message, data = agent.answer()
                if self.out.json and message.get("stream") == 1:
                    document += data
                elif "stream" in message:
                    self._show(1 if message["stream"] == 1 else 2, data)
                elif isinstance(taken := message.get("taken"), int):
                    waiting -= taken
                elif isinstance(code := message.get("code"), int) and 0 <= code < 256:
                    if document:
                        written(document.decode(errors="replace"), verbatim=True)
                    return code
                else:
                    raise Broken
            sources = [agent.channel, 0] if stdin and waiting < _TYPED else [agent.channel]
            ready = select.select(sources, [], [], 0.2)[0]
            if 0 in ready:
                typed = os.read(0, 1 << 16)
                stdin, waiting = bool(typed), waiting + len(typed)
                agent.send({"typed": True}, typed)
            if agent.is_ready():
                agent.receive()
            elif time.monotonic() - agent.heard > SILENCE:
                raise Broken

    def _show(self, number: int, data: bytes) -> None:
        """Show what the verb wrote on stdout (1) or stderr (2). Without a terminal of its own it draws nothing, so that
        a server's escape sequences are no part of it.
        """
        stream = sys.stdout if number == 1 else sys.stderr
        if stream.isatty() and not self.at_terminal:
            data = shown(self._texts[number].decode(data)).encode()
        _write(stream, data)

    def _pass_on(self, number: int) -> None:
        """Tell the server of a signal to this process."""
        if number == signal.SIGWINCH:
            if self.at_terminal:
                self.agent.send({"terminal": _terminal_size()})
        elif not self.ending:
            self.ending = True
            self.agent.send({"signal": signal.SIGINT if number == signal.SIGINT else signal.SIGHUP})
            print(f"ending {self.call.verb} there; press Ctrl-C again to leave at once", file=sys.stderr)


def _write(stream: TextIO, data: bytes) -> None:
    """Write what the verb wrote; MachineError when that is not possible."""
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python writes the rest at its end
        raise trouble(error, stream.name.strip("<>")) from None


@contextmanager
def noted_signals(left: str) -> Iterator[list[int]]:
    """Note the numbers of signals. The second Ctrl-C leaves at once, and `left` is printed on stderr."""
    seen: list[int] = []

    def come(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in seen:
            raise KeyboardInterrupt
        seen.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
    before = {number: signal.signal(number, come) for number in numbers}
    try:
        yield seen
    except KeyboardInterrupt:
        # Not in the handler: it may interrupt a write to stderr, whose buffer refuses another one meanwhile.
        print(left, file=sys.stderr)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """The terminal on stdin passes every key unchanged, Ctrl-C too."""
    modes = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _terminal_size() -> tuple[int, int]:
    """Columns and rows of the terminal on stdin; not LINES and COLUMNS, which any program sets for its children."""
    size = os.get_terminal_size(0)
    return size.columns, size.lines
