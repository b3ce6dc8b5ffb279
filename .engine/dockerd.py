"""Start a docker engine where no service manager runs one, and stop exactly that engine.

All users of the machine share it: /run/heddle-engine has its record (pid, and start time, as a pid can be reused), its
log and its run directory. That directory is in the arguments of dockerd, of containerd and of every shim below it. So
the processes that a killed engine leaves are found by it. Its mounts are in a mount namespace of its own, which ends
with its last process. The settings of /etc/docker/daemon.json (mirrors, directory of images) apply here, too.
The firewall, the machine's forwarding and the default bridge are not changed: labs have their own networks without
external access, and images are built on the machine's network. So it also runs on kernels without ip_tables.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base import mounts as trees
from heddle.base.events import Observer, Silent
from heddle.base.problems import CheckError, MachineError, Problem, machine_errors
from heddle.base.process import find_program, search_path, start_of
from heddle.host.engine import docker as engine
from heddle.host.engine.docker import check_engine_possible
from heddle.host.engine.lockfile import locked

PLACE: Final = engine.RUN_DIR
CONFIG: Final = Path("/etc/docker/daemon.json")
# The settings here, and keys that dockerd refuses together with them.
_SETTINGS: Final[Mapping[str, Any]] = {"iptables": False, "ip6tables": False, "ip-forward": False, "bridge": "none"}
_AGAINST: Final = (
    "bip", "fixed-cidr", "fixed-cidr-v6", "default-gateway", "default-gateway-v6", "ipv6", "live-restore",
)  # fmt: skip
_START_S: Final = 60.0
_STOP_S: Final = 60.0  # it gives its containers 10 s each, all at once
_STEP_S: Final = 0.1
_PLUGINS: Final = (Path("/run/docker/plugins"), Path("/run/docker"))  # dockerd creates them in any configuration


@dataclass(frozen=True, slots=True)
class DockerdRecord:
    """The engine that Heddle started. began: start time in clock ticks since boot (proc(5), field 22).

    temporary: started for a test run, and stopped after the last test run that uses it.
    """

    pid: int
    began: int
    temporary: bool


def start(observer: Observer | None = None, *, temporary: bool = False) -> None:
    """Start dockerd in the background, and return when it answers. MachineError with the end of its log if not.

    If an engine answers already: one that was started for a test run becomes permanent, and nothing else happens.
    """
    observer = observer or Silent()
    wrong = engine.trouble()
    if wrong is None:
        known = record()
        if known is not None and known.temporary and not temporary:
            _write(DockerdRecord(known.pid, known.began, temporary=False))
        return
    if os.geteuid() != 0:
        raise MachineError(Problem("", "dockerd", "needs root", "sudo " + engine.SETUP))
    dockerd = find_program("dockerd", *engine.PLACES)
    if dockerd is None or "DOCKER_HOST" in os.environ or not engine.down():
        raise MachineError(wrong)
    check_engine_possible()
    observer.begin("engine")
    with locked(_file("starting"), fcntl.LOCK_EX):
        if engine.down():  # else another process has started it
            _clear()
            with machine_errors(str(PLACE)):
                _wait(_spawn(dockerd, temporary=temporary))
    known = record()
    observer.end("engine", f"dockerd {known.pid}, its log is {_file('dockerd.log')}" if known else "answers")


def record() -> DockerdRecord | None:
    """The engine that Heddle started, if it still runs, else None."""
    try:
        known = DockerdRecord(**json.loads(_file("engine.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return known if start_of(known.pid) == known.began else None


def stop(*, force: bool = False) -> bool:
    """Stop the engine that Heddle started, with all its processes; False when there is none.

    CheckError when containers run in it, unless `force`. MachineError when it does not end.
    """
    with locked(_file("starting"), fcntl.LOCK_EX):
        known = record()
        if known is None:
            left = bool(_leftovers()) or _file("exec").exists()
            _clear()
            return left
        if not force and (names := _running()):
            hint = "take the labs down first: ./inv down --all"
            raise CheckError(Problem("docker", ", ".join(names[:5]), "runs in that engine", hint))
        if not _end(known):
            raise MachineError(Problem("", f"dockerd {known.pid}", "does not end", f"see {_file('dockerd.log')}"))
        _clear()
    return True


@contextmanager
def engine_running(observer: Observer | None = None) -> Iterator[None]:
    """An engine for a with block: the running one, else one that is started, and stopped afterwards.

    Several blocks may overlap: the last one stops it. An engine that ran before is not changed.
    """
    with locked(_file("users"), fcntl.LOCK_SH) as fd:
        try:
            start(observer, temporary=True)
            yield
        finally:
            with suppress(BlockingIOError):  # other blocks use it, and the last of them stops it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = record()
                if known is not None and known.temporary:
                    stop(force=True)
                if known is None or known.temporary:
                    trees.remove(PLACE)


def _file(name: str) -> Path:
    return PLACE / name


def _spawn(dockerd: str, *, temporary: bool) -> int:
    config = _file("daemon.json")
    config.write_text(json.dumps(_settings()), encoding="utf-8")
    # Mounts of the machine are visible in there, but not the other way round.
    argv = ["unshare", "--mount", "--propagation", "slave", dockerd, f"--config-file={config}"]
    # Variables of sudo and of a test suite are not for a daemon that outlives them.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SUDO_", "HEDDLE_", "PYTEST_", "DOCKER_"))}
    env["PATH"] = os.pathsep.join(search_path(*engine.PLACES, "/usr/bin", "/bin"))
    with _file("dockerd.log").open("wb") as log:
        proc = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", env=env
        )
    _children[proc.pid] = proc
    _write(DockerdRecord(proc.pid, start_of(proc.pid) or 0, temporary))
    return proc.pid


def _settings() -> dict[str, Any]:
    """The machine's daemon.json with our settings: dockerd refuses a key that is both in the file and a flag."""
    theirs: Any = {}
    if CONFIG.exists():
        try:
            theirs = json.loads(CONFIG.read_text(encoding="utf-8"))
            if not isinstance(theirs, dict):
                raise ValueError("it is not an object")  # noqa: TRY004 - it is a value in a file
        except ValueError as error:
            raise MachineError(Problem("docker", str(CONFIG), f"cannot be read: {error}", "fix the file")) from None
    kept = {key: value for key, value in theirs.items() if key not in _AGAINST}
    places = {"exec-root": str(_file("exec")), "pidfile": str(_file("dockerd.pid"))}
    return {**kept, **_SETTINGS, **places, "hosts": [f"unix://{engine.SOCKET}"]}


def _write(known: DockerdRecord) -> None:
    beside = _file(".engine.json")
    beside.write_text(json.dumps(asdict(known)), encoding="utf-8")
    beside.replace(_file("engine.json"))


# Started by this process, which must wait for them: otherwise they stay as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}


def _wait(pid: int) -> None:
    """Wait until it answers. MachineError with the end of its log when it ends before, or takes too long."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if _children[pid].poll() is not None:
            break
        if engine.SOCKET.exists() and engine.answers():
            return
        time.sleep(_STEP_S)
    lines = _file("dockerd.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = next((x for x in reversed(lines) if "failed to start" in x or "fatal" in x), "".join(lines[-1:]))
    known = record()
    if known is not None:
        _end(known)
    kept = shutil.move(_file("dockerd.log"), "/var/log/heddle-dockerd.log")
    _clear()
    why = f"did not come up: {said}" if said else f"did not answer within {_START_S:g} s"
    raise MachineError(Problem("docker", "dockerd", why, f"its log is {kept}"))


def _end(known: DockerdRecord) -> bool:
    """Send SIGTERM, then SIGKILL if it still runs; True when it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(known, number)
        if _gone(known, _STOP_S):
            return True
    return False


def _signal(known: DockerdRecord, number: signal.Signals) -> None:
    """Send a signal to that process, and not to another that has its pid now."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(known.pid)
        try:
            if start_of(known.pid) == known.began:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _gone(known: DockerdRecord, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (child := _children.get(known.pid)) is not None and child.poll() is not None:
            del _children[known.pid]
        if start_of(known.pid) != known.began:
            return True
        time.sleep(_STEP_S)
    return False


def _running() -> list[str]:
    if not engine.answers():
        return []
    return engine.docker(["ps", "--format", "{{.Names}}"], check=False).out.split()


def _leftovers() -> list[DockerdRecord]:
    """dockerd, containerd and its shims with our directory in their arguments, and the processes in those shims."""
    found: dict[int, DockerdRecord] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            program, *words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            stat = (path / "stat").read_text(encoding="utf-8", errors="replace")
            parents[pid] = int(stat.rpartition(")")[2].split()[1])  # the name may have blanks and brackets
        except OSError:
            continue
        named = Path(program).name.startswith(("dockerd", "containerd")) and _same_run_dir(path)
        if named and any(f"{PLACE}/" in word for word in words) and (began := start_of(pid)) is not None:
            found[pid] = DockerdRecord(pid, began, temporary=True)
    # A container's first process is a child of its shim; when it ends, all processes of the container end.
    for pid, parent in parents.items():
        if parent in found and (began := start_of(pid)) is not None:
            found[pid] = DockerdRecord(pid, began, temporary=True)
    return list(found.values())


def _same_run_dir(process: Path) -> bool:
    """Whether it sees the same directory: a chroot on this machine may have its own engine."""
    try:
        theirs, ours = (process / "root" / str(PLACE).lstrip("/")).stat(), PLACE.stat()
    except OSError:
        return False
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _clear() -> None:
    """Remove what our ended engine left: processes, sockets, its run directory."""
    if record() is not None:
        return
    left: list[DockerdRecord] = []
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
        left += _leftovers()  # the first ones stay on the list: a process without its shim is not found again
        for each in left:
            _signal(each, number)
        if all(_gone(each, patience) for each in left):
            break
    trees.remove(_file("exec"))
    for name in ("engine.json", "daemon.json", "dockerd.pid", "dockerd.log"):
        _file(name).unlink(missing_ok=True)
    if not _listens(engine.SOCKET):
        engine.SOCKET.unlink(missing_ok=True)
        for directory in _PLUGINS:
            with suppress(OSError):  # missing, or with plugins of the user
                directory.rmdir()


def _listens(path: Path) -> bool:
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.split()[-1] in (str(path), str(path.resolve())) for line in lines[1:])
