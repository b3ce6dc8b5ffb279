"""The agent on a lab server. Its text is in the command line of each channel, and the server's python3 runs it.

So it uses the standard library only, and the syntax of Python 3.9: `./inv` itself reports that it needs a newer one.
What both sides must know of the project (its manifest) is here too.

    (no word)      one call: lines of JSON on stdin and stdout. It compares the project with the caller's, unpacks what
                   the caller has copied, runs the verb on its own stdout and stderr, and ends with its exit code. Its
                   stdin sends signals; the end of stdin, or silence, means that the caller has gone.
    become DIR     become a verb that reads stdin; the call of DIR has the signals
    give DIR       send the files that a verb wrote, those that the caller takes
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
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

HELLO = b"\0heddle agent 3\0"  # the output of a login (`echo` in .bashrc) comes before it
ABANDONED = 600.0  # seconds after which the files of a call that has ended are removed, if the caller has not
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
    """Lines of JSON from and to the caller. last: when it has sent something."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.rest, self.last = b"", time.monotonic()

    def hear(self) -> list[Any]:
        """The messages in what stdin has now (an empty line is only a sign of life); Gone at its end."""
        data = os.read(0, 1 << 16)
        if not data:
            raise Gone
        *lines, self.rest = (self.rest + data).split(b"\n")
        self.last = time.monotonic()
        return [json.loads(line) for line in lines if line]

    def ask(self) -> Any:
        """Wait for the next message; Gone after the end, or after SILENCE."""
        while not self.messages:
            if not select.select([0], [], [], SILENCE)[0]:
                raise Gone
            self.messages += self.hear()
        return self.messages.pop(0)

    def say(self, **message: Any) -> None:
        """Write a message."""
        sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()


def serve(caller: Caller) -> int:
    """Serve one call: bring the project and the verb's files up to date, then run the verb; its exit code."""
    request = caller.ask()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    base = root / "heddle/place" / request["id"]
    for directory in (root / "heddle", base.parent, base, base / "project"):
        make_private(directory)
    session, order = base / f"s{os.getpid()}-{secrets.token_hex(4)}", {}
    try:
        with (base / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for old in base.glob("s[0-9]*-*"):
                running = Path("/proc", old.name[1:].partition("-")[0]).exists()
                if not running and time.time() - old.stat().st_mtime > ABANDONED:
                    shutil.rmtree(old, ignore_errors=True)
            (session / "here").mkdir(mode=0o700, parents=True)  # the verb's working directory
            have = manifest_there(base)
            caller.say(session=str(session), have=None if digest_of(have) == request["hash"] else have)
            order, now = caller.ask(), request["hash"]
            if "size" in order:
                with (session / "bundle").open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, order["size"])  # SFTP has no error for a full disk
                caller.say()
                gone, order = order["remove"], caller.ask()
                remove(base / "project", gone)
                unpack(session / "bundle", base)
                now = digest_of(manifest_there(base))
        for name in order["directories"]:
            (session / name).mkdir(parents=True, exist_ok=True)
        (session / "order").write_text(json.dumps(order))
        caller.say(hash=now)
        return wait(caller, session) if order["input"] else run(caller, session, order)
    finally:
        if not order.get("fetch"):
            shutil.rmtree(session, ignore_errors=True)


def wait(caller: Caller, session: Path) -> int:
    """Send the caller's signals to a verb that has a channel of its own, until the caller has gone."""
    try:
        while True:
            send_signal(session, caller.ask())
    finally:
        send_signal(session, "hang up")


def run(caller: Caller, session: Path, order: dict[str, Any]) -> int:
    """Run the verb in a process group of its own; its exit code. It gets the caller's signals.

    After the caller has gone, a lasting verb continues, and its output is dropped. Any other verb gets SIGHUP.
    """
    os.write(2, HELLO)
    child = subprocess.Popen(
        order["argv"], executable=str(session.parent / "project/inv"), cwd=session / "here",
        env={**os.environ, **order["env"]}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    (session / "group").write_text(str(child.pid))
    targets = {pipe.fileno(): target for target, pipe in ((1, child.stdout), (2, child.stderr)) if pipe}
    pending, gone, ready = {1: b"", 2: b""}, False, [0]
    for target in pending:
        os.set_blocking(target, False)
    # Processes that the verb left running may hold its stdout open.
    while ready or any(pending.values()) or child.poll() is None:
        reading = [pipe for pipe, target in targets.items() if not pending[target]]
        writing = [target for target, data in pending.items() if data]
        ready, writable, _ = select.select(reading + [0] * (not gone), writing, [], 0.1 if targets else 0.01)
        try:
            for message in caller.hear() if 0 in ready else ():
                send_signal(session, message)
            for target in writable:
                pending[target] = pending[target][os.write(target, pending[target]) :]
            if not gone and time.monotonic() - caller.last > SILENCE:
                raise Gone
        except (Gone, OSError, ValueError):
            gone, pending, order["fetch"] = True, {1: b"", 2: b""}, False
            if not order["lasting"]:
                send_signal(session, "hang up")
        for pipe in set(ready).intersection(reading):
            data = os.read(pipe, 1 << 15)
            pending[targets[pipe]] = b"" if gone else data
            if not data:
                del targets[pipe]
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def send_signal(session: Path, message: str) -> None:
    """Send a signal to the verb and its children. After SIGINT or SIGHUP a verb undoes unfinished work."""
    number = signal.SIGINT if message == "interrupt" else signal.SIGHUP
    try:
        group = int((session / "group").read_text())
        os.killpg(group, number)
    except (FileNotFoundError, ProcessLookupError):  # not started, or ended
        pass
    except PermissionError:  # it is sudo, which passes the signal on to the verb that runs as root
        subprocess.run(["sudo", "-n", "kill", f"-{number:d}", str(group)], stdin=subprocess.DEVNULL, check=False)


def become(session: Path) -> None:
    """Become the verb: it has this channel's stdin, stdout, stderr, and its terminal if there is one."""
    order = json.loads((session / "order").read_text())
    (session / "group").write_text(str(os.getpgrp()))
    if not os.isatty(2):
        os.write(2, HELLO)
    os.chdir(session / "here")
    os.execve(session.parent / "project/inv", order["argv"], {**os.environ, **order["env"]})  # noqa: S606


def give(caller: Caller, session: Path) -> None:
    """Name each file that the verb wrote, and send those that the caller takes; then remove them."""
    try:
        for name in [f"{top}/{name}" for top in ("out", "here") for name in walk(session / top)]:
            path = session / name
            status = os.lstat(path)
            readable = os.access(path, os.R_OK)
            caller.say(file=name, size=status.st_size, regular=stat.S_ISREG(status.st_mode), readable=readable)
            if caller.ask():
                with path.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
        caller.say()
    finally:
        shutil.rmtree(session, ignore_errors=True)


def main() -> None:
    """What a channel runs."""
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # not ignored: the verb would inherit that
    caller, (task, *words) = Caller(), sys.argv[1:] or ["serve"]
    os.write(1, HELLO)
    try:
        if task == "become":
            become(Path(words[0]))
        elif task == "give":
            give(caller, Path(words[0]))
        else:
            sys.exit(serve(caller))
    except Gone:
        pass
    except (OSError, ValueError, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or str(error)
        caller.say(problem=[str(getattr(error, "filename", None) or ""), why, getattr(error, "errno", 0)])


if __name__ == "__main__":
    main()
