"""Run a command in a pod with these streams: `python -m heddle_plugins.kubernetes.podexec OPTIONS POD -- COMMAND`.

In:  standard input until its end, and signals. Out: both outputs, unchanged, and the command's exit code.
127: the command does not exist there. 255: the pod or the connection is lost, with the reason on standard error.
A signal is passed on by a second command in the pod, and this process ends when the command has ended by it. A second
signal ends this process at once.
The official client's own loop copies all data through strings, and cannot end standard input. The frames here (RFC
6455, 5.2) are as large as what is there, and v5.channel.k8s.io has a message that closes a channel (Kubernetes 1.30).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import IO, Any, Final
from urllib.parse import urlencode

from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.base.process import first_lines
from heddle.base.resources import HERE
from heddle.base.untrusted import LINE_BYTES
from heddle_plugins.kubernetes.api import KubeApi, client
from heddle_plugins.kubernetes.manifests import PYTHON
from heddle_plugins.kubernetes.podsignal import TOKEN
from heddle_plugins.kubernetes.target import KubeTarget

PROTOCOL: Final = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
_CLOSE_CHANNEL: Final = 255
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_FINAL: Final = 0x80
_READ: Final = 1 << 18
_MOST_UNREAD: Final = 1 << 24  # bytes: far more than a caller queues, so they are answers to pings
WouldBlock: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ChannelSocket:
    """One connection. The caller polls `fileno` for reading, and for writing while `unsent` is not 0."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._in, self._out = bytearray(), bytearray()
        self._message = bytearray()  # of a message in several frames
        self.closed = False

    def fileno(self) -> int:
        """For poll(2)."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the network."""
        return len(self._out)

    def send(self, channel: int, data: bytes) -> None:
        """Queue data for a channel; `flush` sends it."""
        self._frame(_BINARY, bytes((channel,)) + data)

    def close_channel(self, channel: int) -> None:
        """End a channel: the process reads the end of its standard input."""
        self._frame(_BINARY, bytes((_CLOSE_CHANNEL, channel)))

    def ping(self) -> None:
        """Ask for an answer, which also keeps proxies between from closing an idle connection."""
        self._frame(_PING, b"")

    def flush(self) -> None:
        """Send what the network takes now. OSError when the connection is broken."""
        while self._out:
            try:
                sent = self._socket.send(memoryview(self._out)[:_READ])
            except WouldBlock:
                return
            del self._out[:sent]

    def receive(self, end: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """What has come: all that can be read without waiting. OSError when the connection is broken.

        end: TimeoutError from then on (time.monotonic), also while data come.
        """
        while not self.closed:
            if time.monotonic() >= end:
                raise TimeoutError("timed out")
            try:
                data = self._socket.recv(_READ)
            except WouldBlock:
                return
            self.closed = not data
            self._in += data
            yield from self._messages()
            if len(self._in) + len(self._message) > LINE_BYTES or len(self._out) > _MOST_UNREAD:
                raise ConnectionError("the other end sends more than fits, and does not read")

    def until_closed(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """All that comes until the other end closes the connection. TimeoutError after some seconds."""
        end = time.monotonic() + seconds
        while not self.closed:
            self.flush()
            left = max(0.0, end - time.monotonic())
            if select.select([self], [], [], min(left, _PING_S))[0]:
                yield from self.receive(end)
            elif left <= _PING_S:
                raise TimeoutError("timed out")
            else:
                self.ping()

    def shut(self) -> None:
        """End the connection, in both directions: who waits for it goes on."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        while (frame := self._next()) is not None:
            code, final, payload = frame
            if code == _PING:
                self._frame(_PONG, payload)
            elif code == _CLOSE:
                self.closed = True
            elif code in (_CONTINUATION, 0x1, _BINARY):
                self._message += payload
                if final:
                    message, self._message = bytes(self._message), bytearray()
                    if len(message) > 1:  # the first message of each channel is empty
                        yield message[0], message[1:]

    def _next(self) -> tuple[int, bool, bytes] | None:
        """The next whole frame: opcode, whether it ends its message, payload."""
        data = self._in
        if len(data) < 2:
            return None
        size, head = data[1] & 0x7F, 2
        if size >= 126:
            form = ">H" if size == 126 else ">Q"
            head += struct.calcsize(form)
            if len(data) < head:
                return None
            (size,) = struct.unpack_from(form, data, 2)
        if len(data) < head + size:
            return None
        frame = data[0] & 0x0F, bool(data[0] & _FINAL), bytes(memoryview(data)[head : head + size])
        del data[: head + size]
        return frame

    def _frame(self, code: int, payload: bytes) -> None:
        from websocket import ABNF

        self._out += ABNF.create_frame(payload, code).format()


MODULE: Final = "heddle_plugins.kubernetes.podexec"
LOST: Final = 255
_PIECE: Final = 1 << 18
_MOST_UNSENT: Final = 1 << 20  # bytes: more is not read from standard input
_PING_S: Final = 15.0
_SILENT_S: Final = 45.0  # three pings without an answer
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


_CONNECT_S: Final = 20.0
_SHORT_S: Final = 15.0  # for a short command
_MOST_SAID: Final = 500  # characters of a failed command's errors
# The status of a refused handshake -> why, and the hint.
_REFUSED: Final = {
    400: (f"speaks no {PROTOCOL}", "use Kubernetes 1.30 or newer"),
    401: ("accepts no commands with these credentials", "log in to the cluster again"),
    403: ("accepts no commands of this user", "run ./inv setup kubernetes: it prints the rights that are needed"),
    404: ("does not exist", "./inv status shows why"),
    500: ("is on a node that does not answer", "kubectl get nodes shows their states"),
}


def connect(api: KubeApi, pod: str, argv: Sequence[str], *, tty: bool = False) -> ChannelSocket:
    """Start a command in a pod. MachineError when the API, or the cluster, refuses."""
    import websocket

    settings = api.settings
    flags = {"stdin": "true", "stdout": "true", "stderr": "false" if tty else "true", "tty": "true" if tty else "false"}
    query = [*flags.items(), *(("command", word) for word in argv)]
    base = str(settings.host).replace("http", "ws", 1)
    url = f"{base}/api/v1/namespaces/{api.target.namespace}/pods/{pod}/exec?{urlencode(query)}"
    websocket.setdefaulttimeout(_CONNECT_S)
    with api.errors(f"exec in pod {pod}"):
        headers = {"sec-websocket-protocol": PROTOCOL, **api.bearer()}
        try:
            return ChannelSocket(client().websocket(settings, url, headers).sock)
        except websocket.WebSocketBadStatusException as error:
            raise MachineError(_refusal(error, pod)) from None


def _refusal(error: Any, pod: str) -> Problem:
    """Why a handshake was refused. error: has the status and the body of the answer."""
    why, hint = _REFUSED.get(error.status_code, (f"refuses commands (status {error.status_code})", ""))
    with suppress(ValueError, TypeError, AttributeError):
        said = str(json.loads(error.resp_body)["message"])
        if error.status_code == 500 or error.status_code not in _REFUSED:
            why = f"refuses commands: {' '.join(said.split())}"
    return Problem("kubernetes", f"pod {pod}", why, hint)


def answer(api: KubeApi, pod: str, argv: Sequence[str], seconds: float = _SHORT_S) -> str:
    """What a command in a pod prints. MachineError when it cannot run, fails, prints too much or takes too long."""
    said: defaultdict[int, bytearray] = defaultdict(bytearray)
    with api.errors(f"exec in pod {pod}"), closing(connect(api, pod, argv)) as channels:
        try:
            for channel, data in channels.until_closed(seconds):
                said[channel] += data
                if len(said[channel]) > LINE_BYTES:
                    raise MachineError(Problem("kubernetes", f"pod {pod}", f"prints more than {LINE_BYTES >> 20} MiB"))
        except TimeoutError:
            why = f"has not ended a command within {seconds:g} s"
            raise MachineError(Problem("kubernetes", f"pod {pod}", why)) from None
    if _ended(pod, said.get(ERROR)) != 0:
        why = first_lines(said.get(STDERR, b"").decode(errors="replace"))[:_MOST_SAID]
        raise MachineError(Problem("kubernetes", f"pod {pod}", why))
    return said.get(STDOUT, b"").decode(errors="replace").strip()


def _ended(pod: str, status: bytes | bytearray | None) -> int:
    """The exit code in the last message of an exec; None: there was none. MachineError when the command did not run."""
    if status is None:
        raise MachineError(Problem("kubernetes", f"pod {pod}", "has closed the connection: it may be gone"))
    found = json.loads(status)
    if found.get("status") == "Success":
        return 0
    for cause in (found.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    said = " ".join(str(found.get("message") or "").split())
    raise MachineError(Problem("kubernetes", f"pod {pod}", f"has ended the command: {said}"))


class PodCommand:
    """A command in a pod, joined to three streams: standard input, output and errors; by default this process's."""

    def __init__(
        self, api: KubeApi, pod: str, argv: Sequence[str], *, tty: bool, streams: Sequence[int] = (0, 1, 2)
    ) -> None:
        self._input, *self._outputs = streams
        self._api, self._pod, self._token = api, pod, secrets.token_hex(8)
        self._channels = connect(api, pod, ["env", f"{TOKEN}={self._token}", *argv], tty=tty)
        self._wake, self._waking = os.pipe()  # a signal may come while poll(2) waits
        self._status: bytes | None = None
        self._tty, self._unread = tty, False

    def run(self) -> int:
        """Pass everything until the command ends; its exit code."""
        with ExitStack() as stack:
            if self._tty:
                stack.enter_context(_raw_terminal())
                signal.signal(signal.SIGWINCH, lambda *_: self._resize())
                self._resize()
            else:
                for number in _SIGNALS:
                    signal.signal(number, lambda number, _: self._signalled(number))
            os.set_blocking(self._waking, False)
            signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
            return self.pump()

    def shut(self) -> None:
        """End the connection, and so the command's input: `pump`, in another thread, ends."""
        self._channels.shut()

    def close(self) -> None:
        """Close all that it has opened."""
        self._channels.close()
        os.close(self._wake)
        os.close(self._waking)

    def pump(self) -> int:
        """Pass the streams until the command ends; its exit code."""
        poll, channels = select.poll(), self._channels
        poll.register(self._wake, select.POLLIN)
        reading = True
        heard, pinged = time.monotonic(), time.monotonic()
        while True:
            poll.register(channels, select.POLLIN | (select.POLLOUT if channels.unsent else 0))
            if reading and channels.unsent < _MOST_UNSENT:
                poll.register(self._input, select.POLLIN)
            else:
                with suppress(KeyError):
                    poll.unregister(self._input)
            ready = dict(poll.poll(_PING_S * 1000))
            now = time.monotonic()
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._input in ready and reading:
                reading = self._send_input()
            if channels.fileno() in ready:
                heard = now
                self._receive()
            channels.flush()
            if channels.closed:
                return _ended(self._pod, self._status)
            if now - pinged >= _PING_S:
                pinged = now
                channels.ping()
                if now - heard >= _SILENT_S:
                    raise MachineError(Problem("kubernetes", self._api.server, f"has been silent for {_SILENT_S:g} s"))

    def _send_input(self) -> bool:
        """Pass on what standard input has; False at its end."""
        try:
            data = os.read(self._input, _PIECE)
        except OSError:  # closed, or a terminal that is gone
            data = b""
        if data:
            self._channels.send(STDIN, data)
        else:
            self._channels.close_channel(STDIN)
        return bool(data)

    def _receive(self) -> None:
        for channel, data in self._channels.receive():
            if channel in (STDOUT, STDERR) and not self._unread:
                try:
                    _write(self._outputs[channel - STDOUT], data)
                except OSError:  # our reader is gone, as `head` after its lines
                    self._unread = True
                    self._pass(signal.SIGPIPE)
            elif channel == ERROR:
                self._status = data

    def _signalled(self, number: int) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._pass(number)

    def _pass(self, number: int) -> None:
        """Send a signal to the command, by another command beside it. In a thread: the streams go on meanwhile."""
        threading.Thread(target=self._signal, args=(number,), daemon=True).start()

    def _signal(self, number: int) -> None:
        with suppress(HeddleError, OSError):
            answer(
                self._api, self._pod, [*PYTHON, "heddle_plugins.kubernetes.podsignal", self._token, str(int(number))]
            )

    def _resize(self) -> None:
        with suppress(OSError):
            size = os.get_terminal_size(0)
            self._channels.send(RESIZE, json.dumps({"Width": size.columns, "Height": size.lines}).encode())


class PodProcess:
    """A command in a pod with pipes to this process, which a thread passes. It is used as subprocess.Popen is."""

    def __init__(self, api: KubeApi, pod: str, argv: Sequence[str], errors: IO[bytes]) -> None:
        (far_in, near_in), (near_out, far_out) = os.pipe(), os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(near_in, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(near_out, "rb")
        self._command: PodCommand | None = None
        self._code = LOST
        self._pod, self._streams = pod, (far_in, far_out, os.dup(errors.fileno()))
        self._thread = threading.Thread(target=self._work, args=(api, argv), name=f"exec {pod}", daemon=True)
        self._thread.start()

    def _work(self, api: KubeApi, argv: Sequence[str]) -> None:
        try:
            self._command = PodCommand(api, self._pod, argv, tty=False, streams=self._streams)
            self._code = self._command.pump()
        except (HeddleError, OSError) as error:
            with suppress(OSError):
                _write(self._streams[-1], f"{_said(error, self._pod)}\n".encode())
        finally:
            if self._command is not None:
                self._command.close()
            for each in self._streams:
                os.close(each)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._thread.is_alive() else self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. subprocess.TimeoutExpired after `timeout` seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired(self._pod, timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """End the connection."""
        if self._command is not None:
            self._command.shut()


def _said(error: Exception, pod: str) -> object:
    return (
        error
        if isinstance(error, HeddleError)
        else Problem("kubernetes", f"pod {pod}", f"the connection is lost: {error}")
    )


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """All keys, also Ctrl-C, go to the command."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def argv_of(target: KubeTarget, pod: str, argv: Sequence[str], *, tty: bool) -> list[str]:
    """The command of this machine that runs argv in a pod."""
    flags = ["--context", target.context, "--namespace", target.namespace, *(["--tty"] if tty else [])]
    python = ["env", f"PYTHONPATH={HERE.python_path}", sys.executable, "-P", "-m", MODULE]
    return [*python, *flags, pod, "--", *argv]


def main(words: Sequence[str]) -> int:
    """Parse the words of `argv_of`, and run."""
    parser = argparse.ArgumentParser(prog="podexec")
    parser.add_argument("--context", default="")
    parser.add_argument("--namespace", default="")
    parser.add_argument("--tty", action="store_true")
    parser.add_argument("pod")
    parser.add_argument("command", nargs="+")
    typed = parser.parse_args(words)
    try:
        api = KubeApi(KubeTarget(typed.context, typed.namespace))
        return PodCommand(api, typed.pod, typed.command, tty=typed.tty).run()
    except (HeddleError, OSError) as error:
        print(_said(error, typed.pod), file=sys.stderr)
        return LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
