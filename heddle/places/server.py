"""The agent on a lab server. Its text is in the command line of both channels, and the server's python3 runs it.

So it uses the standard library only, and the syntax of Python 3.9: `./inv` itself reports that it needs a newer one.
What both sides must know of the project (its manifest) is here too.

Without an argument it is the control: lines of JSON on stdin and stdout. It compares the project with the caller's,
unpacks what the caller has copied, and runs the verb in a process group of its own. Its stdin, its end, or its silence
tell that the caller sends a signal, or has gone. With a session's directory it lends the channel's stdin, stdout and
stderr to the control, and ends with the verb's exit code.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

HELLO = b"\0heddle agent 2\0"  # the output of a login (`echo` in .bashrc) comes before it
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


def unpack(bundle: Path, root: Path) -> None:
    """Unpack a tar, with its links."""
    with tarfile.open(bundle) as tar:
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


class Caller:
    """Lines of JSON from and to the caller."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.rest = b""

    def ask(self) -> Any:
        """The next message; Gone after the end, or after SILENCE."""
        while True:
            while not self.lines:
                if not select.select([0], [], [], SILENCE)[0] or not (data := os.read(0, 1 << 16)):
                    raise Gone
                *self.lines, self.rest = (self.rest + data).split(b"\n")
            if line := self.lines.pop(0):  # an empty line is a sign of life
                return json.loads(line)

    def say(self, **message: Any) -> None:
        """Write a message."""
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def control(caller: Caller) -> None:
    """Serve one call: bring the project and the verb's files up to date, then run the verb."""
    os.write(1, HELLO)
    request = caller.ask()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    base = root / "heddle/place" / request["id"]
    for directory in (root / "heddle", base.parent, base, base / "project"):
        make_private(directory)
    session = base / f"s{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with (base / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for old in base.glob("s[0-9]*-*"):  # left by a killed agent
                if not Path("/proc", old.name[1:].partition("-")[0]).exists():
                    shutil.rmtree(old, ignore_errors=True)
            (session / "here").mkdir(mode=0o700, parents=True)  # the verb's working directory
            have = manifest_there(base)
            caller.say(session=str(session), have=None if digest_of(have) == request["hash"] else have)
            message = caller.ask()
            if "size" in message:
                with (session / "bundle").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, message["size"])  # SFTP has no error for a full disk
                caller.say()
                order = caller.ask()
                remove(base / "project", message["remove"])
                unpack(session / "bundle", base)
            else:
                order = message
            now = digest_of(manifest_there(base)) if "size" in message else request["hash"]
        for name in order["directories"]:
            (session / name).mkdir(parents=True, exist_ok=True)
        (session / "order").write_text(json.dumps(order))
        os.chdir(session)  # the name of a socket must be short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            listener.listen()
            caller.say(hash=now)
            if order["typed"]:  # the verb has the other channel, and its terminal's SIGHUP
                while True:
                    caller.ask()
            if not select.select([listener], [], [], SILENCE)[0]:
                raise Gone
            runner, _ = listener.accept()
        run(caller, session, order, runner)
    finally:
        shutil.rmtree(session, ignore_errors=True)


def run(caller: Caller, session: Path, order: dict[str, Any], runner: socket.socket) -> None:
    """Run the verb with the runner's stdin, stdout and stderr. Only lasting verbs outlive the connection."""
    _, streams, _, _ = socket.recv_fds(runner, 1, 3)
    child = subprocess.Popen(
        order["argv"], executable=str(session.parent / "project/inv"), cwd=session / "here",
        env={**os.environ, **order["env"]}, stdin=streams[0] if order["input"] else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    os.close(streams[0])
    gone, ended = threading.Event(), threading.Event()

    def follow() -> None:
        try:
            while True:
                send_signal(child, signal.SIGINT if caller.ask() == "interrupt" else signal.SIGHUP)
        except (Gone, OSError, ValueError):
            gone.set()
            if not order["lasting"]:
                send_signal(child, signal.SIGHUP)

    threading.Thread(target=follow, daemon=True).start()
    pumps = [
        threading.Thread(target=pump, args=(source.fileno(), target, gone, ended), daemon=True)
        for source, target in ((child.stdout, streams[1]), (child.stderr, streams[2]))
        if source
    ]
    for thread in pumps:
        thread.start()
    code = child.wait()
    ended.set()
    for thread in pumps:
        thread.join()
    runner.sendall(b"%d" % (code if code >= 0 else 128 - code))
    gone.wait()  # the caller takes the verb's files


def send_signal(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the verb and its children. After SIGINT or SIGHUP a verb undoes unfinished work."""
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # it is sudo, which passes the signal on to the verb that runs as root
        subprocess.run(["sudo", "-n", "kill", f"-{number:d}", str(child.pid)], stdin=subprocess.DEVNULL, check=False)


def pump(source: int, target: int, gone: threading.Event, ended: threading.Event) -> None:
    """Pass on the verb's output. What it writes after the caller has gone is dropped, so that it can end its work."""
    while True:
        if not select.select([source], [], [], 0.1)[0]:
            if ended.is_set():  # processes that the verb left running may hold its stdout open
                return
            continue
        data = os.read(source, 1 << 15)
        if not data:
            return
        while data and not gone.is_set():
            try:
                if select.select([], [target], [], 1.0)[1]:
                    data = data[os.write(target, data[:4096]) :]
            except OSError:
                gone.set()


def lend(session: Path) -> int:
    """Lend the streams of this channel to the control, or at a terminal become the verb; the verb's exit code."""
    os.chdir(session)
    order = json.loads(Path("order").read_text())
    os.write(1, HELLO)
    if order["typed"]:
        os.chdir("here")
        env = {**os.environ, **order["env"]}
        os.execve(session.parent / "project/inv", order["argv"], env)  # noqa: S606  (no shell is wanted)
    os.write(2, HELLO)
    with socket.socket(socket.AF_UNIX) as control:
        control.connect("socket")
        socket.send_fds(control, [b"-"], [0, 1, 2])
        return int(control.recv(8) or 70)


def main() -> None:
    """What a channel runs."""
    if len(sys.argv) > 1:
        sys.exit(lend(Path(sys.argv[1])))
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # not ignored: the verb would inherit that
    caller = Caller()
    try:
        control(caller)
    except Gone:
        pass
    except (OSError, ValueError, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or str(error)
        caller.say(problem=[str(getattr(error, "filename", None) or ""), why, getattr(error, "errno", 0)])


if __name__ == "__main__":
    main()
