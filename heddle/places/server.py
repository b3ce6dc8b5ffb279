"""The agent on the lab server: it reads the project and a verb from its stdin, and returns the verb's output.

This file and store.py are sent with every call and run by the server's python3. So they use the standard library only,
and the syntax of Python 3.9: `./inv` itself reports that it needs a newer one.

Frames go both ways: a letter, four bytes of length, and the content.
    to here:    R request, M manifest, T tar of changed files, F tar of the verb's files, G go,
                I input, Z end of input, C interrupt, H hang up, W terminal's size, K alive
    from here:  q answer, n needed paths, o stdout, e stderr, a input taken, t tar of written files, x end, p problem,
                k alive

The verb has its own process group, in the foreground of a terminal that this process made and leads. So Ctrl-C works
as at a keyboard: the kernel sends SIGINT to the verb and all its children. This includes children that run as root
through sudo, which this process may not signal. When this process is killed, the kernel sends SIGHUP to all of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import queue
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.places.store import Manifest, Store, inside, make_private, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO = b"\0heddle agent 1\n"
SILENCE = 30.0  # seconds without a frame after which the connection counts as ended
GRACE = 60.0  # seconds that a verb has to undo its work after SIGHUP


class Gone(Exception):  # noqa: N818  (not an error: the caller has disconnected)
    """The caller has disconnected."""


class Wire:
    """Frames to and from the caller."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.heard = time.monotonic()
        self.steps: queue.Queue[tuple[bytes, bytes] | None] = queue.Queue(16)
        self._live: Callable[[bytes, bytes], None] | None = None
        self._early: list[tuple[bytes, bytes]] = []
        self._lock, self._begun = threading.Lock(), threading.Lock()

    def listen(self) -> None:
        """Read frames until the end: frames for a running verb are passed on at once, the others are queued."""
        try:
            while True:
                head = sys.stdin.buffer.read(5)
                if len(head) < 5:
                    break
                kind, (size,) = head[:1], struct.unpack(">I", head[1:])
                data = sys.stdin.buffer.read(size)
                self.heard = time.monotonic()
                if kind == b"K":
                    self.send(b"k")
                    continue
                if kind in b"RMTFG":
                    self.steps.put((kind, data))
                else:
                    self._pass_on(kind, data)
        except (OSError, ValueError):
            pass
        self.gone.set()
        self.steps.put(None)

    def _pass_on(self, kind: bytes, data: bytes) -> None:
        with self._begun:
            if self._live is None:
                self._early.append((kind, data))
            else:
                self._live(kind, data)

    def go_live(self, live: Callable[[bytes, bytes], None]) -> None:
        """Pass frames to a running verb from now on, first those that came before it ran."""
        with self._begun:
            for kind, data in self._early:
                live(kind, data)
            self._live = live

    def take(self, kind: bytes) -> bytes:
        """The next frame, which must be of this kind."""
        try:
            frame = self.steps.get(timeout=SILENCE * 2)
        except queue.Empty:
            raise Gone from None
        if frame is None or frame[0] != kind:
            raise Gone
        return frame[1]

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Write one frame; do nothing when the caller has disconnected."""
        with self._lock:
            self._write(kind + struct.pack(">I", len(data)) + data)

    def say(self, kind: bytes, data: Any) -> None:
        """Write a frame of JSON."""
        self.send(kind, json.dumps(data).encode())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone.is_set():
            try:
                # Wait for a slow reader. A reader that is gone is detected by SILENCE.
                if select.select([], [1], [], 1.0)[1]:
                    view = view[os.write(1, view[:4096]) :]
            except OSError:
                self.gone.set()


class Chunks:
    """Frames of one kind as a file that tarfile reads or writes. An empty frame is the end."""

    def __init__(self, wire: Wire, kind: bytes) -> None:
        self.wire, self.kind, self.rest, self.ended = wire, kind, b"", False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        while not self.rest and not self.ended:
            self.rest = self.wire.take(self.kind)
            # The caller's signs of life wait behind frames of a tar, so a slow disk must not look like silence.
            self.wire.send(b"k")
            self.ended = not self.rest
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def write(self, data: bytes) -> int:
        """Send a piece."""
        self.wire.send(self.kind, data)
        return len(data)


class Terminal:
    """A terminal that this process leads, with the verb in its foreground."""

    def __init__(self, size: list[int] | None) -> None:
        self.master, self.slave = pty.openpty()
        modes = termios.tcgetattr(self.slave)
        if size is None:  # no user types at this terminal: input must not be echoed
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        else:
            self.resize(size)
        if os.getsid(0) != os.getpid():
            os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def resize(self, size: list[int]) -> None:
        """Set rows and columns."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size[:2], 0, 0))

    def enter(self) -> None:
        """In the child: make a process group and put it in the foreground."""
        os.setpgid(0, 0)
        os.tcsetpgrp(self.slave, os.getpid())
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)

    def interrupt(self) -> None:
        """Send Ctrl-C."""
        os.write(self.master, b"\x03")

    def leave(self) -> None:
        """Return to the foreground: then processes that a verb left running get no SIGHUP when this process ends."""
        os.tcsetpgrp(self.slave, os.getpgrp())


class RunningVerb:
    """A running verb."""

    def __init__(self, wire: Wire, store: Store, session: Path, order: dict[str, Any]) -> None:
        self.wire, self.order = wire, order
        typed: bool = order["terminal"] is not None
        self.terminal = Terminal(order["terminal"])
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(
            order["argv"],
            executable=str(store.project / "inv"),
            cwd=session / "here",
            env={**os.environ, **order["env"]},
            stdin=self.terminal.slave if typed else pipe if order["input"] else subprocess.DEVNULL,
            stdout=self.terminal.slave if typed else pipe,
            stderr=self.terminal.slave if typed else pipe,
            preexec_fn=self.terminal.enter,  # noqa: PLW1509  (it takes no lock that a thread could hold)
        )
        self.ended = threading.Event()
        self.input: queue.Queue[bytes] = queue.Queue()
        wire.go_live(self.take)
        sources = [(self.terminal.master, b"o" if typed else b"")]
        for stream, kind in ((self.child.stdout, b"o"), (self.child.stderr, b"e")):
            if stream is not None:
                sources.append((stream.fileno(), kind))
        self.pumps = [threading.Thread(target=self.pump, args=source, daemon=True) for source in sources]
        for thread in (*self.pumps, threading.Thread(target=self.feed, daemon=True)):
            thread.start()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """Wait for its end."""
        self.child.wait()
        self.ended.set()

    def pump(self, source: int, kind: bytes) -> None:
        """Send the verb's output to the caller. It does not block when the caller has disconnected."""
        try:
            while True:
                if not select.select([source], [], [], 0.1)[0]:
                    if self.ended.is_set():  # processes that the verb left running may hold its stdout open
                        return
                    continue
                data = os.read(source, 1 << 15)
                if not data:
                    return
                if kind:
                    self.wire.send(kind, data)
        except OSError:  # EIO: no process uses the terminal any more
            return

    def feed(self) -> None:
        """Write input to the verb, and report how much it has read."""
        typed = self.order["terminal"] is not None
        into = self.terminal.master if typed else self.child.stdin.fileno() if self.child.stdin else -1
        while data := self.input.get():
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(into, view) :]
            except OSError:
                pass  # the verb has closed its stdin
            self.wire.say(b"a", len(data))
        if self.child.stdin:
            self.child.stdin.close()

    def take(self, kind: bytes, data: bytes) -> None:
        """Handle one frame for the running verb."""
        try:
            if kind in (b"I", b"Z"):
                self.input.put(data if kind == b"I" else b"")
            elif kind == b"C":
                self.terminal.interrupt()
            elif kind == b"H":
                self.hang_up()
            elif kind == b"W" and self.order["terminal"] is not None:
                self.terminal.resize(json.loads(data))
        except (OSError, ValueError):
            pass  # it has just ended

    def hang_up(self) -> None:
        """Send SIGHUP, as when a terminal is closed: a verb then undoes unfinished work."""
        try:
            os.killpg(self.child.pid, signal.SIGHUP)
        except PermissionError:  # it runs as root through sudo; only the terminal can signal it
            self.terminal.interrupt()

    def wait(self) -> int:
        """The verb's exit code, as a shell reports it. Only lasting verbs outlive the connection."""
        until = float("inf")
        while not self.ended.wait(0.5) and time.monotonic() < until:
            if time.monotonic() - self.wire.heard > SILENCE:
                self.wire.gone.set()
            if self.wire.gone.is_set() and not self.order["lasting"] and until == float("inf"):
                until = time.monotonic() + GRACE
                self.hang_up()
        for thread in self.pumps:
            thread.join()
        self.terminal.leave()
        code = self.child.returncode
        return 70 if code is None else code if code >= 0 else 128 - code


def main(wire: Wire) -> None:
    """Serve one call, from its first frame to its last."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTOU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    wire._write(HELLO)
    request = json.loads(wire.take(b"R"))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    root.mkdir(parents=True, exist_ok=True)
    base = root / "heddle/place" / request["id"]
    for directory in (root / "heddle", base.parent):
        make_private(directory)
    store = Store(base)
    with (base / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        same = store.is_at(request["hash"])
        wire.say(b"q", {"same": same})
        if not same:
            manifest: Manifest = json.loads(wire.take(b"M"))
            needed = store.needs(manifest)
            wire.say(b"n", needed)
            if needed:
                unpack(Chunks(wire, b"T"), store.project)
            wire.say(b"q", {"whole": store.finish(manifest)})
    session = base / f"s{os.getpid()}-{secrets.token_hex(4)}"
    for old in base.glob("s[0-9]*-*"):  # left by a killed agent
        if not Path("/proc", old.name[1:].partition("-")[0]).exists():
            shutil.rmtree(old, ignore_errors=True)
    session.mkdir(mode=0o700)
    try:
        serve(wire, store, session, request)
    finally:
        shutil.rmtree(session, ignore_errors=True)


def serve(wire: Wire, store: Store, session: Path, request: dict[str, Any]) -> None:
    """Run the verb with its files, and send back those that it wrote."""
    if request["files"]:
        unpack(Chunks(wire, b"F"), session)
    order = json.loads(wire.take(b"G"))
    here = session / "here"  # the verb's working directory: files without a path of the user's go here
    here.mkdir()
    outs = [here, *[inside(session, name) for name in order["outs"].values()]]
    for path in outs:
        path.parent.mkdir(parents=True, exist_ok=True)
    names = {typed: str(inside(session, name)) for typed, name in {**order["ins"], **order["outs"]}.items()}
    order["env"]["HEDDLE_FILES"] = json.dumps(names)
    code = RunningVerb(wire, store, session, order).wait()
    if os.listdir(here) or any(os.path.lexists(path) for path in outs[1:]):  # noqa: PTH208
        pack([(path, str(path.relative_to(session))) for path in outs], Chunks(wire, b"t"))
        wire.send(b"t")
    wire.say(b"x", code)


def run() -> None:
    """The loader calls this when the source text has arrived."""
    wire = Wire()
    threading.Thread(target=wire.listen, daemon=True).start()
    try:
        main(wire)
    except Gone:
        pass
    except (OSError, ValueError, tarfile.TarError) as error:
        about = getattr(error, "filename", None)
        reason = getattr(error, "strerror", None) or str(error)
        wire.say(b"p", {"what": str(about or ""), "why": reason, "errno": getattr(error, "errno", None)})
