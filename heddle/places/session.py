"""Run one verb on a lab server: copy the project there, run the verb, show its output, copy its files back.

In:  a Call, and the Console that called.
Out: the verb's exit code. MachineError when the server cannot be used, or the connection breaks.
A call is one SSH channel of the agent (server.py): lines of JSON, then the verb's stdout, stderr and exit code. A verb
that reads stdin has a second channel for its streams, which can be a terminal.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import select
import shlex
import shutil
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TextIO

import paramiko

from heddle.base import progname
from heddle.base.files import PLACE, VARIABLE
from heddle.base.problems import MachineError, Problem, trouble
from heddle.base.tables import written
from heddle.places import server, sync
from heddle.places.address import Address
from heddle.places.call import Call, Output
from heddle.places.server import HELLO, SILENCE
from heddle.places.signals import EndSignals, end_signals, raw_terminal, terminal_size
from heddle.places.ssh import FAILURES, Target, connection
from heddle.places.sync import fetch_outputs, input_files, output_paths, printable

PASSED: Final = ("CI", "HEDDLE_DEBUG", "HEDDLE_KEEP_BYTES", "HEDDLE_KEEP_RUNS", "NO_COLOR", "TERM")  # variables
_BEAT: Final = 5.0  # seconds between signs of life
_STEP: Final = 300.0  # seconds to wait for an answer: another verb may be copying the project
_END: Final = 10.0  # seconds for the exit code that follows the end of the output, on a busy server
_NOISE: Final = 1 << 20  # bytes that a login may print before the agent
_ANSWER: Final = 16 << 20  # largest answer, bytes: a manifest of all files there
_OLD: Final = 65  # the exit code when Python is too old
_NOT_FOUND: Final = 127  # a shell's exit code when there is no such command


def command() -> str:
    """What the server's shell runs: always the same text, without a character of the user's."""
    text = base64.b64encode(zlib.compress(Path(server.__file__).read_bytes(), 9)).decode()
    load = f"sys.version_info<(3,9) and sys.exit({_OLD});exec(zlib.decompress(base64.b64decode('{text}')))"
    return f"exec python3 -c {shlex.quote(f'import base64,sys,zlib;{load}')}"


class Broken(Exception):  # noqa: N818  (the caller, which knows the current step, reports it to the user)
    """The connection ended before the verb did."""


@contextmanager
def breaks() -> Iterator[None]:
    """Turn paramiko's exceptions into Broken."""
    try:
        yield
    except FAILURES as error:
        raise Broken from error


class Control:
    """A channel of the agent, for one of its tasks; none: a call. `what` names the place in messages.

    terminal: type, columns and rows of the terminal that the channel has.
    """

    def __init__(
        self, transport: paramiko.Transport, what: str, *task: str, terminal: tuple[str, int, int] | None = None
    ) -> None:
        self.what, self.rest, self.heard, self._lock = what, b"", time.monotonic(), threading.Lock()
        try:
            self.channel = transport.open_session(timeout=15)
            self.channel.settimeout(_STEP)
            if terminal:
                self.channel.get_pty(*terminal)
            self.channel.exec_command(" ".join([command(), *map(shlex.quote, task)]))
        except FAILURES as error:
            why = f"does not run commands: {_reason(error)}"
            hint = "allow the account to run commands: see ForceCommand and MaxSessions in the server's sshd_config"
            raise MachineError(Problem("", what, why, hint)) from None
        if not self._read_until(HELLO, _NOISE):
            raise self._start_failure()
        if not task:
            threading.Thread(target=self._live, args=(transport,), daemon=True).start()

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a message; MachineError when it is a problem."""
        self.send(message)
        return self.answer()

    def send(self, message: Any) -> None:
        """Send a message."""
        with breaks(), self._lock:
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next message of the agent; MachineError when it is a problem."""
        with breaks():
            try:
                answer = json.loads(self._read_until(b"\n", _ANSWER))
            except (ValueError, RecursionError):
                raise Broken from None
        if not isinstance(answer, dict):
            raise Broken
        if "problem" in answer:
            raise self._problem(answer["problem"])
        return answer

    def read(self, size: int) -> Iterator[bytes]:
        """The next bytes, in pieces."""
        while size > 0:
            with breaks():
                data = self.rest[:size] or self.channel.recv(min(size, 1 << 15))
            if not data:
                raise Broken
            self.rest = self.rest[size:]
            size -= len(data)
            yield data

    def end(self) -> None:
        """End the call, and wait until the agent has removed its files."""
        with suppress(*FAILURES):
            self.channel.shutdown_write()
            self.channel.status_event.wait(_END)

    def _live(self, transport: paramiko.Transport) -> None:
        with suppress(*FAILURES):
            while not self.channel.status_event.wait(_BEAT):
                with self._lock:
                    self.channel.sendall(b"\n")
                transport.global_request("keepalive@openssh.com")  # waits for sshd's answer
                self.heard = time.monotonic()

    def _read_until(self, mark: bytes, most: int) -> bytes:
        """The bytes before the mark and the mark; none when the channel ends first, or `most` bytes have no mark."""
        while mark not in self.rest and len(self.rest) <= most:
            data = self.channel.recv(1 << 16)
            if not data:
                return b""
            self.rest += data
        found, mark, self.rest = self.rest.partition(mark) if mark in self.rest else (b"", b"", self.rest)
        return found + mark

    def _start_failure(self) -> MachineError:
        """Why the agent did not start: no Python, an old one, or a login that runs no commands."""
        code = self.channel.exit_status if self.channel.status_event.wait(_END) else -1
        if len(self.rest) > _NOISE:
            why = f"does not run commands: its login printed more than {_NOISE >> 20} MiB first"
            hint = "see the output of ssh HOST true"
        elif code < 0:
            why, hint = "closed the connection at once", "see the log of its sshd"
        elif code == _NOT_FOUND:
            why, hint = "has no python3", "install it on the server: apt-get install python3 python3-venv"
        elif code == _OLD:
            why = "has a python3 that is too old: Heddle needs 3.11"
            hint = "install python3.11 on the server, or use a newer system"
        else:
            output = self.rest + (self.channel.recv_stderr(4096) if self.channel.recv_stderr_ready() else b"")
            lines = [line.strip() for line in output.decode(errors="replace").split("\n") if line.strip()]
            last = printable(lines[-1]) if lines else "it printed nothing"
            why = f"does not run commands: python3 ended with exit code {code}: {last}"
            hint = "see the output of ssh HOST python3 -V"
        return MachineError(Problem("", self.what, why, hint))

    def _problem(self, fields: Any) -> MachineError:
        """A problem of the agent as an error with a hint."""
        if not isinstance(fields, list) or len(fields) != 3:
            raise Broken
        what, why, number = printable(str(fields[0])) or "the project", printable(str(fields[1])), fields[2]
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT):
            error = trouble(OSError(number, why), what, "run df -h and ls -ld on the server")
            return MachineError(*[Problem(self.what, p.what, p.why, p.hint) for p in error.problems])
        return MachineError(Problem(self.what, what, f"could not be copied to the server: {why}", "try again"))


def _reason(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)


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
            session = Session(self.address, call, out, transport)
            session.copy(manifest, files)
            return session.run()


class Session:
    """One verb on a server."""

    def __init__(self, address: Address, call: Call, out: Output, transport: paramiko.Transport) -> None:
        self.address, self.call, self.out, self.transport = address, call, out, transport
        self.control = Control(transport, str(address))
        self.directory, self.ending = "", False  # directory: of this call, on the server
        self.at_terminal = call.typed_in and not out.json and sys.stdin.isatty() and sys.stdout.isatty()
        self.fetches = bool(call.files_out or call.endings_here)

    def copy(self, manifest: server.Manifest, files: Mapping[str, Path]) -> None:
        """Bring the project on the server up to date, and copy the verb's files."""
        try:
            self._copy(manifest, files)
        except Broken:
            hint = "run the same line again: files already copied are not sent again"
            why = "lost the connection while the project was copied there"
            raise MachineError(Problem("", str(self.address), why, hint)) from None

    def _copy(self, manifest: server.Manifest, files: Mapping[str, Path]) -> None:
        wanted = server.digest_of(manifest)
        answer = self.control.ask({"id": sync.checkout_id(sync.project()), "hash": wanted})
        have, self.directory = answer.get("have"), answer.get("session", "")
        if not isinstance(have, dict | None) or not isinstance(self.directory, str):
            raise Broken
        # Only names of the manifest are sent, whatever the server has answered.
        changed = [] if have is None else [n for n, entry in manifest.items() if have.get(n) != entry]
        gone = [] if have is None else [n for n in have if n not in manifest]
        if changed or gone or files:
            with tempfile.TemporaryFile() as bundle:
                with tarfile.open(fileobj=bundle, mode="w:gz") as tar:
                    sync.pack(sync.project(), changed, tar)
                    copied = tar.offset
                    for path in dict.fromkeys(files.values()):
                        sync.add(tar, path, f"{Path(self.directory).name}/in{path}")
                size = bundle.tell()
                self.control.ask({"size": size, "remove": gone + changed})
                bundle.seek(0)
                self._send(bundle)
            if changed:
                count = f"{len(changed)} file{'' if len(changed) == 1 else 's'}"
                self.out.say(f"{self.address}: {count} copied ({copied / 1000:.0f} kB)")
        if self.control.ask(self._order(files)).get("hash") != wanted:
            self.out.say(f"{self.address}: files changed while they were copied")

    def _send(self, bundle: IO[bytes]) -> None:
        try:
            sftp = self.transport.open_sftp_client()
        except FAILURES as error:
            hint = "add the line Subsystem sftp internal-sftp to its sshd_config"
            raise MachineError(Problem("", str(self.address), f"has no SFTP: {_reason(error)}", hint)) from None
        with breaks(), sftp:
            sftp.get_channel().settimeout(_STEP)
            sftp.putfo(bundle, f"{self.directory}/bundle")

    def _order(self, files: Mapping[str, Path]) -> dict[str, Any]:
        outs = output_paths(self.call)
        names = {name: f"{self.directory}/in{path}" for name, path in files.items()}
        names |= {name: f"{self.directory}/{path}" for name, path in outs.items()}
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
            "fetch": self.fetches,
        }

    def run(self) -> int:
        """Run the verb, and copy back what it wrote; its exit code."""
        self.out.close()
        where = progname.as_started(f"./inv status --place {self.address}")
        left = f"left; {self.call.verb} may still be running there: {where} shows the labs"
        try:
            with end_signals(left) as signals, raw_terminal() if self.at_terminal else nullcontext():
                code = self._follow(signals)
            if self.fetches:
                files = Control(self.transport, str(self.address), "give", self.directory)
                for name in fetch_outputs(self.call, files):
                    print(f"{name}: written there and not copied back: no --out names it", file=sys.stderr)
                files.end()
        except Broken:
            after = "continues there" if self.call.lasting else "was ended there"
            why = f"lost the connection during {self.call.verb}"
            hint = f"{self.call.verb} {after}; ./inv status --place {self.address} shows what is there"
            raise MachineError(Problem("", str(self.address), why, hint)) from None
        self.control.end()
        return 128 + signals.ending if signals.ending else code

    def _follow(self, signals: EndSignals) -> int:
        """Show the verb's output until it ends; send it stdin, and the signals of this process."""
        verb, stdin, typed, active = self.control, self.call.typed_in, b"", time.monotonic()
        if stdin:
            terminal = (os.environ.get("TERM", "vt100"), *terminal_size()) if self.at_terminal else None
            verb = Control(self.transport, str(self.address), "become", self.directory, terminal=terminal)
        channel, results, remarks = (
            verb.channel,
            _Stream(sys.stdout, whole=self.out.json),
            _Stream(sys.stderr, noisy=True),
        )
        results.take(verb.rest)
        while not self._is_over(channel, time.monotonic() - active):
            self._pass_on(channel, signals)
            sources = [channel, 0] if stdin and not typed else [channel]
            ready = select.select(sources, [], [], 0.02 if typed else 0.2)[0]
            if 0 in ready:
                typed = os.read(0, 1 << 15)
                stdin = bool(typed)
                if not stdin:
                    channel.shutdown_write()
            if typed and channel.send_ready():
                with breaks():
                    typed = typed[channel.send(typed) :]
            if channel.recv_ready() or channel.recv_stderr_ready():
                active = time.monotonic()
                results.take(channel.recv(1 << 15) if channel.recv_ready() else b"")
                remarks.take(channel.recv_stderr(1 << 15) if channel.recv_stderr_ready() else b"")
            elif channel.eof_received:  # select returns at once
                channel.status_event.wait(0.2)
        if self.out.json and results.kept:
            written(results.kept.decode(errors="replace"), verbatim=True)
        return int(channel.exit_status)

    def _is_over(self, channel: paramiko.Channel, idle_s: float) -> bool:
        """Whether the verb has ended and all its output is here; Broken when the connection has ended before."""
        if channel.recv_ready() or channel.recv_stderr_ready():
            return False
        # Processes that the verb left running may hold its stdout open.
        if channel.exit_status >= 0 and (channel.closed or channel.eof_received or idle_s > 2):
            return True
        # The server may be silent behind a jump host, whose connection is alive.
        if channel.closed or not self.transport.is_active() or time.monotonic() - self.control.heard > SILENCE:
            raise Broken
        return False

    def _pass_on(self, channel: paramiko.Channel, signals: EndSignals) -> None:
        """Send the server what has happened to this process and to its terminal."""
        if (signals.interrupts or signals.ending) and not self.ending:
            self.ending = True
            self.control.send("hang up" if signals.ending else "interrupt")
            print(f"ending {self.call.verb} there; press Ctrl-C again to leave at once", file=sys.stderr)
        if signals.resized and self.at_terminal:
            signals.resized = False
            with breaks():
                channel.resize_pty(*terminal_size())


class _Stream:
    """A stream of the verb. noisy: a login prints to it before HELLO. whole: it is kept (a JSON document)."""

    def __init__(self, stream: TextIO, *, noisy: bool = False, whole: bool = False) -> None:
        self.stream, self.noisy, self.whole, self.kept = stream, noisy, whole, b""

    def take(self, data: bytes) -> None:
        if self.noisy:
            before, mark, data = (self.kept + data).partition(HELLO)
            self.noisy, self.kept = not mark, b"" if mark else before[-_NOISE:]
        if self.whole:
            self.kept += data
        elif data:
            try:
                self.stream.buffer.write(data)
                self.stream.buffer.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
                hint = "check that the disk of the output file is not full"
                name = self.stream.name.strip("<>")
                raise MachineError(Problem("", name, f"cannot be written: {error.strerror}", hint)) from None
