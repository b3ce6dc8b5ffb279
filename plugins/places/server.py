"""The agent on a lab server. Its text is in the command line of the channel, and the server's python3 runs it.

So it uses the standard library only, and the syntax of Python 3.9: `./inv` itself reports that it needs a newer one.
It brings the project up to date, runs the verb, and gives the caller the files that it wrote. The end of stdin, or
silence, means that the caller has gone. What both sides must know is here too: the manifest, and the form of messages.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import secrets
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import termios
import time
from pathlib import Path
from typing import Any

HELLO = b"\0heddle agent 4\0"  # the output of a login (`echo` in .bashrc) comes before it
SILENCE = 30.0  # seconds without a sign of life after which the connection counts as ended
# Directories of tools in a checkout. They are neither copied nor removed on the server.
KEPT = frozenset({".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
Manifest = dict[str, list[str]]  # path -> ["f" or "x", SHA-256] or ["l", target]


class Gone(Exception):  # noqa: N818  (not an error: the caller has disconnected)
    """The caller has disconnected."""


def manifest_entry(path: Path) -> list[str]:
    """A file's entry in a manifest."""
    if path.is_symlink():
        return ["l", str(path.readlink())]
    return ["x" if path.stat().st_mode & stat.S_IXUSR else "f", hashlib.sha256(path.read_bytes()).hexdigest()]


def is_kept(name: str) -> bool:
    """Whether a relative path belongs to a tool (see KEPT), by any of its parts."""
    return name.endswith(".pyc") or any(part in KEPT or part.endswith(".egg-info") for part in name.split("/"))


def walk(root: Path) -> list[str]:
    """All files and links below `root` except those of tools, as relative paths, sorted."""
    found = []
    for here, directories, files in os.walk(root):
        links = [d for d in directories if Path(here, d).is_symlink()]
        found += [os.path.relpath(Path(here, name), root) for name in files + links]
        directories[:] = [d for d in directories if not is_kept(d) and d not in links]
    return sorted(name for name in found if not is_kept(name))


def digest_of(manifest: Manifest) -> str:
    """One hash over a whole manifest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def manifest_there(base: Path) -> Manifest:
    """The project below `base`. Only files that have changed since the last call are read."""
    record, project = base / "record.json", base / "project"
    try:
        known = json.loads(record.read_text())
    except (OSError, ValueError):
        known = {}
    found: dict[str, Any] = {}
    for name in walk(project):
        status = os.lstat(f"{project}/{name}")
        stamp = [status.st_size, status.st_ctime_ns, status.st_mode]
        old = known.get(name, [None])
        found[name] = old if old[0] == stamp else [stamp, manifest_entry(project / name)]
    if found != known:
        fresh = record.with_suffix(".new")
        fresh.write_text(json.dumps(found))
        fresh.replace(record)
    return {name: entry for name, (_, entry) in found.items()}


def remove(project: Path, names: list[str]) -> None:
    """Remove files, whatever they are now, and the directories that are empty then."""
    for path in (project / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
        for parent in path.parents:
            if parent == project or not parent.is_dir() or os.listdir(parent):  # noqa: PTH208
                break
            parent.rmdir()


def unpack(bundle: bytes, root: Path) -> None:
    """Unpack a tar, with its links."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as tar:
        # Debian 12's first Python has no filters; the default of Python 3.14 refuses links to other places.
        safe: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        tar.extractall(root, **safe)  # noqa: S202  (it is the user's own)


def make_private(directory: Path) -> None:
    """Make a directory that only this user can write to, whatever the umask is: its files will run as root.

    PermissionError when it is another user's, or a link.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(directory)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(errno.EACCES, "is another user's, or a link", str(directory))
    if status.st_mode & 0o022:
        directory.chmod(0o700)


def frame(message: dict[str, Any], data: bytes = b"") -> bytes:
    """A message as it is sent: a line of JSON, then the bytes that its `bytes` counts."""
    return json.dumps({**message, "bytes": len(data)}).encode() + b"\n" + data


class Frames:
    """Finds the messages in a stream, and their bytes. limit: of a line, and of the bytes after it."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit, self.rest = limit, bytearray()
        self.messages: list[tuple[dict[str, Any], bytes]] = []

    def feed(self, data: bytes) -> None:
        """Add the messages that are complete now; an empty line is none. ValueError for other text."""
        self.rest += data
        while (end := self.rest.find(b"\n")) >= 0:
            message = json.loads(self.rest[:end] or b"{}")
            size = message.get("bytes", 0) if isinstance(message, dict) else -1
            if not isinstance(size, int) or not 0 <= size <= self.limit:
                raise ValueError("not a message")
            if len(self.rest) <= end + size:
                break
            if message:
                self.messages.append((message, bytes(self.rest[end + 1 : end + 1 + size])))
            del self.rest[: end + 1 + size]
        if end < 0 and len(self.rest) > self.limit:
            raise ValueError("not a message")


class Caller(Frames):
    """Messages from and to the caller. last: when it has sent something."""

    last = time.monotonic()

    def hear(self) -> None:
        """Read what stdin has now; Gone at its end."""
        data = os.read(0, 1 << 16)
        if not data:
            raise Gone
        self.last = time.monotonic()
        self.feed(data)

    def ask(self, key: str) -> tuple[dict[str, Any], bytes]:
        """Wait for the message with this key, and drop others; Gone after the end, or after SILENCE."""
        while True:
            while self.messages:
                message, data = self.messages.pop(0)
                if key in message:
                    return message, data
            if not select.select([0], [], [], SILENCE)[0]:
                raise Gone
            self.hear()

    def say(self, data: bytes = b"", **message: Any) -> None:
        """Write a message."""
        sys.stdout.buffer.write(frame(message, data))
        sys.stdout.buffer.flush()


def serve(caller: Caller) -> None:
    """Serve one call: bring the project and the verb's files up to date, run the verb, give what it wrote."""
    request, _ = caller.ask("hash")
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    base = root / "heddle/place" / request["id"]
    for directory in (root / "heddle", base.parent, base, base / "project"):
        make_private(directory)
    session = base / f"s{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with (base / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for old in base.glob("s[0-9]*-*"):
                if not Path("/proc", old.name[1:].partition("-")[0]).exists():  # its agent was killed
                    shutil.rmtree(old, ignore_errors=True)
            (session / "here").mkdir(mode=0o700, parents=True)  # the verb's working directory
            have = manifest_there(base)
            caller.say(session=str(session), have=None if digest_of(have) == request["hash"] else have)
            order, bundle = caller.ask("argv")
            remove(base / "project", order["remove"])
            unpack(bundle, base)
        for name in order["directories"]:
            (session / name).mkdir(parents=True, exist_ok=True)
        caller.say(copied=True)
        caller.say(code=run(caller, RunningVerb(session, order), order["lasting"]))
        give(caller, session)
    finally:
        shutil.rmtree(session, ignore_errors=True)


class RunningVerb:
    """The verb, in a session of its own, with a terminal of the caller's size if the caller has one.

    typed: bytes for its stdin, and `end` when no more will come. out: messages for the caller.
    """

    def __init__(self, session: Path, order: dict[str, Any]) -> None:
        self.typed, self.end, self.out = b"", not order["input"], b""
        self.keys, inner = os.openpty() if order["terminal"] else (-1, subprocess.PIPE)
        if order["terminal"]:
            self.resize(order["terminal"])
        self.child = subprocess.Popen(
            order["argv"], executable=str(session.parent / "project/inv"), cwd=session / "here",
            env={**os.environ, **order["env"]}, stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if order["terminal"] else None,  # noqa: PLW1509
        )  # fmt: skip
        outputs = ((1, self.child.stdout), (2, self.child.stderr))
        self.sources = {pipe.fileno(): stream for stream, pipe in outputs if pipe} or {self.keys: 1}
        if self.child.stdin:
            self.keys = self.child.stdin.fileno()
        else:
            os.close(inner)
        os.set_blocking(self.keys, False)

    def hear(self, message: dict[str, Any], data: bytes) -> None:
        """Do what the caller asks for."""
        if "signal" in message:
            self.signal(message["signal"])
        elif "terminal" in message:
            self.resize(message["terminal"])
        else:
            self.typed, self.end = self.typed + data, not data

    def type(self) -> None:
        """Write to the verb's stdin, which can take some."""
        try:
            taken = os.write(self.keys, self.typed)
        except OSError:  # it does not read
            taken = len(self.typed)
        self.typed = self.typed[taken:]
        self.out += frame({"taken": taken})

    def read(self, source: int) -> None:
        """Read from the verb, which has written some, or has ended."""
        try:
            data = os.read(source, 1 << 15)
        except OSError:  # EIO: no process has the terminal any more
            data = b""
        if data:
            self.out += frame({"stream": self.sources[source]}, data)
        else:
            self.sources.pop(source, None)

    def signal(self, number: int) -> None:
        """Send a signal to the verb and its children. After SIGINT or SIGHUP a verb undoes unfinished work."""
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:  # it has ended
            pass
        except PermissionError:  # it is sudo, which passes the signal on to the verb that runs as root
            argv = ["sudo", "-n", "kill", f"-{number:d}", str(self.child.pid)]
            subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)

    def resize(self, size: list[int]) -> None:
        """Set columns and rows of its terminal; its processes get SIGWINCH."""
        fcntl.ioctl(self.keys, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))


def run(caller: Caller, verb: RunningVerb, lasting: bool) -> int:
    """Pass on what the caller and the verb send until the verb ends; its exit code.

    After the caller has gone, a lasting verb continues, and its output is dropped. Any other verb gets SIGHUP.
    Gone, when the verb has ended then.
    """
    gone = ended = quiet = False
    os.set_blocking(1, False)
    # Until all is read that the verb wrote before its end. Processes that it left running may hold its stdout open.
    while not (ended and quiet):
        ended = verb.child.poll() is not None
        reading = [] if verb.out else list(verb.sources)
        writing = [1] * bool(verb.out) + [verb.keys] * bool(verb.typed)
        wait = 0.1 if verb.sources else 0.01
        ready, writable, _ = select.select(reading + [0] * (not gone), writing, [], wait)
        quiet = not (ready or writing)
        try:
            if 0 in ready:
                caller.hear()
                verb.out += b"\n"  # a sign of life for one
            while caller.messages:
                verb.hear(*caller.messages.pop(0))
            if 1 in writable:
                verb.out = verb.out[os.write(1, verb.out) :]
            if not gone and time.monotonic() - caller.last > SILENCE:
                raise Gone
        except (Gone, OSError, ValueError):
            gone, verb.typed, verb.end = True, b"", True
            if verb.sources.pop(verb.keys, None):
                os.close(verb.keys)  # a terminal hangs up: its foreground job may be in another group
            if not lasting:
                verb.signal(signal.SIGHUP)
        if verb.typed and verb.keys in writable:
            verb.type()
        if verb.end and not verb.typed and verb.child.stdin:
            verb.child.stdin.close()
        for source in set(ready).intersection(reading):
            verb.read(source)
        verb.out = b"" if gone else verb.out
    os.set_blocking(1, True)
    if gone:
        raise Gone
    code = int(verb.child.returncode)
    return code if code >= 0 else 128 - code


def give(caller: Caller, session: Path) -> None:
    """Name each file that the verb wrote, and send those that the caller takes."""
    for name in [f"{top}/{name}" for top in ("out", "here") for name in walk(session / top)]:
        path = session / name
        status = os.lstat(path)
        readable = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
        caller.say(file=name, size=status.st_size, readable=readable)
        if caller.ask("take")[0]["take"]:
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    caller.say(block)
    caller.say(end=True)


def main() -> None:
    """What a channel runs."""
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # not ignored: the verb would inherit that
    os.write(1, HELLO)
    caller = Caller()
    try:
        serve(caller)
    except Gone:
        pass
    except (OSError, ValueError, tarfile.TarError) as error:
        caller.say(problem=str(error))


if __name__ == "__main__":
    main()
