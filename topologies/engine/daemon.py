"""A docker engine by hand, where no service manager runs one; and the end of exactly that engine.

It is one process group of this machine, so what is known of it is the machine's too, not one user's: /run/heddle-engine
has its record (pid, and start time, as a pid alone may be another's by now), its log and its run directory. That
directory stands in the arguments of containerd and of every shim below it: what is left of a dockerd that was killed is
found by it.
The firewall, the machine's forwarding and the default bridge are not touched: labs bring networks of their own, reach
nothing beyond them, and images are built on the machine's network. So it also runs on kernels without ip_tables.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from topologies.engine import docker as engine
from topologies.events import Observer, Silent
from topologies.problems import CheckError, MachineError, Problem, machine_errors
from topologies.process import run

PLACE: Final = Path("/run/heddle-engine")
_FLAGS: Final = (
    "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none",
)  # fmt: skip
_START_S: Final = 60.0
_STOP_S: Final = 60.0  # it gives its containers 10 s each, all at once
_STEP_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Record:
    """The engine that Heddle started. began: start time in clock ticks since boot (proc(5), field 22).

    temporary: started for a test run, so ended when the last of those that use it leaves.
    """

    pid: int
    began: int
    temporary: bool


def start(observer: Observer | None = None, *, temporary: bool = False) -> None:
    """Start dockerd, away from this terminal, and return when it answers. MachineError with the end of its log if not.

    Nothing happens when an engine answers already.
    """
    observer = observer or Silent()
    wrong = engine.trouble()
    if wrong is None:
        return
    if os.geteuid() != 0:
        raise MachineError(Problem("", "dockerd", "needs root", "sudo " + engine.SETUP))
    dockerd = shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if dockerd is None or "DOCKER_HOST" in os.environ or not wrong.why.startswith("is not running"):
        raise MachineError(wrong)
    observer.begin("engine")
    with machine_errors(str(PLACE)), _starting():
        if engine.answers():  # somebody else was quicker
            observer.end("engine", "answers")
            return
        _clear()
        pid = _spawn(dockerd, temporary=temporary)
        _wait(pid)
    observer.end("engine", f"dockerd {pid} answers; its log is {PLACE}/dockerd.log")


def record() -> Record | None:
    """What Heddle started and what still runs, else None."""
    try:
        known = Record(**json.loads(_file("engine.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return known if _began(known.pid) == known.began else None


def stop(*, force: bool = False) -> bool:
    """End the engine that Heddle started, with all that it started; False when there is none.

    CheckError when containers run in it, unless `force`. MachineError when it does not end.
    """
    known = record()
    if known is None:
        left = _leavings()
        _clear()
        return left
    if not force and (names := _running()):
        hint = "take the labs down first: ./inv down --all"
        raise CheckError(Problem("docker", ", ".join(names[:5]), "runs in that engine", hint))
    _signal(known, signal.SIGTERM)
    if not _gone(known, _STOP_S):
        _signal(known, signal.SIGKILL)
        if not _gone(known, _STOP_S):
            raise MachineError(Problem("", f"dockerd {known.pid}", "does not end", f"see {PLACE}/dockerd.log"))
    _clear()
    return True


@contextmanager
def engine_running(observer: Observer | None = None) -> Iterator[None]:
    """An engine for the length of a with block: the one that answers, else one of our own, ended afterwards.

    Several may overlap: whoever leaves last ends it. An engine that was there before is left as it is.
    """
    with machine_errors(str(PLACE)):
        PLACE.mkdir(mode=0o755, exist_ok=True)
        fd = os.open(_file("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            start(observer, temporary=True)
            yield
        finally:
            with suppress(BlockingIOError):  # others are in there, and the last of them ends it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = record()
                if known is None or known.temporary:
                    stop(force=True)
    finally:
        os.close(fd)
        _remove_place()


def _file(name: str) -> Path:
    return PLACE / name


@contextmanager
def _starting() -> Iterator[None]:
    """One start at a time."""
    PLACE.mkdir(mode=0o755, exist_ok=True)
    fd = os.open(_file("starting"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _spawn(dockerd: str, *, temporary: bool) -> int:
    argv = [dockerd, *_FLAGS, f"--host=unix://{engine.SOCKET}"]
    argv += [f"--exec-root={_file('exec')}", f"--pidfile={_file('dockerd.pid')}"]
    # What sudo and a test suite set is not for a daemon that outlives them.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SUDO_", "HEDDLE_", "PYTEST_", "DOCKER_"))}
    env["PATH"] = env.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
    with _file("dockerd.log").open("wb") as log:
        proc = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", env=env
        )
    began = _began(proc.pid)
    known = Record(proc.pid, began or 0, temporary)
    _file("engine.json").write_text(json.dumps(asdict(known)), encoding="utf-8")
    _children[proc.pid] = proc
    return proc.pid


# Started by this very process, which then has to wait for them, or they stay as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


def _wait(pid: int) -> None:
    """Until it answers. MachineError with the end of its log when it ends before, or takes too long."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if _children[pid].poll() is not None:
            break
        if engine.SOCKET.exists() and engine.answers():
            return
        time.sleep(_STEP_S)
    lines = _file("dockerd.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = next((x for x in reversed(lines) if "level=fatal" in x or "failed to start" in x), "".join(lines[-1:]))
    known = record()
    if known is not None:
        _signal(known, signal.SIGTERM)
        if not _gone(known, _STOP_S):
            _signal(known, signal.SIGKILL)
    keep = _file("dockerd.log").rename("/var/log/heddle-dockerd.log")
    _clear()
    why = f"did not come up: {said}" if said else f"did not answer within {_START_S:g} s"
    raise MachineError(Problem("docker", "dockerd", why, f"its log is {keep}"))


def _began(pid: int) -> int | None:
    """The process's start time; None when it is gone, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a name may have blanks and brackets in it
    return None if fields[0] in "ZX" else int(fields[19])


def _signal(known: Record, number: signal.Signals) -> None:
    """To that process and to no other that got its number meanwhile."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(known.pid)
        try:
            if _began(known.pid) == known.began:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _gone(known: Record, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (child := _children.get(known.pid)) is not None and child.poll() is not None:
            del _children[known.pid]
        if _began(known.pid) != known.began:
            return True
        time.sleep(_STEP_S)
    return False


def _running() -> list[str]:
    if not engine.answers():
        return []
    return engine.docker(["ps", "--format", "{{.Names}}"], check=False).out.split()


def _below() -> list[Record]:
    """containerd and its shims that have our run directory among their words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        ours = f"{_file('exec')}/".encode()
        if b"containerd" in words[0] and any(word.startswith(ours) for word in words[1:]):
            pid = int(path.parent.name)
            if (began := _began(pid)) is not None:
                found.append(Record(pid, began, temporary=True))
    return found


def _leavings() -> bool:
    return bool(_below()) or _file("exec").exists()


def _clear() -> None:
    """Remove what an engine of ours left that is no more: processes, mounts, sockets, its run directory."""
    if record() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _below()
        for each in left:
            _signal(each, number)
        if all(_gone(each, 10.0) for each in left):
            break
    mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    for line in reversed(mounts):  # the inner ones first
        target = line.split()[1].encode().decode("unicode_escape")
        if target.startswith(f"{PLACE}/"):
            run(["umount", "--lazy", target], check=False)
    shutil.rmtree(_file("exec"), ignore_errors=True)
    for name in ("engine.json", "dockerd.pid", "dockerd.log"):
        _file(name).unlink(missing_ok=True)
    if not _listens(engine.SOCKET):
        engine.SOCKET.unlink(missing_ok=True)


def _listens(path: Path) -> bool:
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.split()[-1] in (str(path), str(path.resolve())) for line in lines[1:])


def _remove_place() -> None:
    """The directory itself, when nobody else is in it."""
    if record() is None and not _leavings():
        shutil.rmtree(PLACE, ignore_errors=True)
