"""The container engine, through the `docker` command. Commands are argument lists, and each error has a hint.

In:  words after `docker`. Out: process.Done, or MachineError, which names the fault of the engine.
The engine must run on this kernel: Heddle puts queues, programs and counters into its containers' namespaces.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, Journal, find_program, follow, run
from heddle.base.resources import HERE

SOCKET: Final = Path("/var/run/docker.sock")
SETUP: Final = "./inv setup containerlab"
RUN_DIR: Final = Path("/run/heddle-engine")  # locks and logs of an engine, for all users of this machine
SYSTEMD: Final = Path("/run/systemd/system")  # exists where systemd is process 1; sd_booted(3)
PLACES: Final = ("/usr/sbin", "/sbin")  # of dockerd; often not in a user's PATH
_ANSWER_S: Final = 20.0  # a busy engine takes seconds; one that hangs never answers
# Facts about an engine, one value a line.
_ASK: Final = "{{.ServerVersion}}\n{{.KernelVersion}}\n{{.SecurityOptions}}\n{{.ServerErrors}}"


def docker(argv: Sequence[str], *, check: bool = True, timeout: float = 60.0, journal: Journal | None = None) -> Done:
    """Run `docker ARGV` to its end. timeout: seconds.

    MachineError when there is no client, when it takes too long, and, with `check`, when it fails: with the fault of
    the engine if there is one, else with the last lines of docker's output.
    """
    done = run([*client(), *argv], check=False, timeout=timeout, journal=journal)
    if check and done.code != 0:
        raise MachineError(trouble() or failure(done))
    return done


def stream(argv: Sequence[str], line: Callable[[str], None], *, timeout: float, journal: Journal | None = None) -> Done:
    """Like docker() without `check`; `line` gets each line when it arrives."""
    return follow([*client(), *argv], line, timeout=timeout, journal=journal)


def client() -> list[str]:
    """`docker` for this machine's engine. MachineError when it is missing, or DOCKER_HOST names another engine."""
    if (wrong := _remote_engine() or _no_client()) is not None:
        raise MachineError(wrong)
    # containerlab reads DOCKER_HOST and no context: the client must use the same engine.
    return ["docker", "--host", _host()]


def trouble() -> Problem | None:
    """The reason why this machine's engine cannot be used, or None when it answers."""
    wrong = _remote_engine() or _no_client() or _connect_problem()
    if wrong is not None:
        return wrong
    try:
        done = run([*client(), "info", "--format", _ASK], check=False, timeout=_ANSWER_S)
    except MachineError:
        return Problem("docker", "the engine", f"did not answer within {_ANSWER_S:g} s", _RESTART)
    said = done.out.split("\n")
    if done.code != 0 or not said[0].strip():
        return failure(done)
    if said[1] != os.uname().release:
        why = f"runs on another kernel ({said[1]}): its containers' namespaces are not on this machine"
        return Problem("docker", f"the engine at {_socket()}", why, "use a docker engine of this machine itself")
    if "rootless" in said[2]:
        why = "runs without root: containerlab cannot put links into its containers"
        return Problem("docker", f"the engine at {_socket()}", why, "unset DOCKER_HOST; " + start_hint())
    return None


def down() -> bool:
    """True when nothing listens on the socket of this machine's engine, so that starting one helps."""
    return _remote_engine() is None and isinstance(_connect_error(), FileNotFoundError | ConnectionRefusedError)


def answers() -> bool:
    """True when an engine of this machine can be used right now."""
    return trouble() is None


def start_hint() -> str:
    """The command that starts the engine here."""
    if SYSTEMD.is_dir():
        return "systemctl start docker"
    return SETUP if HERE.engine_by_hand is not None else "start it as this system does: service docker start"


def failure(done: Done) -> Problem:
    """A failed docker command, with the last lines of its output, and a hint if the disk is full."""
    said = "; ".join((done.err or done.out).strip().splitlines()[-3:]) or "it printed nothing"
    words = [word for word in done.argv[1:] if not word.startswith(("-", "unix:"))]
    hint = ""
    if "no space left on device" in said.lower():
        hint = "free some space there: docker system df and df -h show the use; ./inv image --prune removes old images"
    return Problem("docker", " ".join(["docker", *words[:1]]), f"failed with exit code {done.code}: {said}", hint)


_RESTART: Final = "restart it, and read its log"


def _host() -> str:
    return os.environ.get("DOCKER_HOST", "") or f"unix://{SOCKET}"


def _socket() -> Path:
    return Path(_host().removeprefix("unix://"))


def _remote_engine() -> Problem | None:
    if _host().startswith("unix://"):
        return None
    why = "names an engine elsewhere: its containers' namespaces are not on this machine"
    return Problem("", f"DOCKER_HOST={_host()}", why, "unset DOCKER_HOST, and run Heddle where that engine is")


def _no_client() -> Problem | None:
    if find_program("docker") is not None:
        return None
    return Problem("", "docker", "is not installed", f"{SETUP} installs it (Debian and Ubuntu: docker.io)")


def _connect_problem() -> Problem | None:
    """Try the socket itself: the client's messages change with each version."""
    error = _connect_error()
    if error is None:
        return None
    if isinstance(error, PermissionError):
        why = "is not accessible: you are not in group docker"
        hint = "verbs that need it use sudo; for your own docker commands: sudo usermod -aG docker $USER"
        return Problem("docker", str(_socket()), why, hint)
    if "DOCKER_HOST" in os.environ and _socket() != SOCKET:
        return Problem("", f"DOCKER_HOST={_host()}", f"does not answer: {error.strerror}", "unset DOCKER_HOST")
    if find_program("dockerd", *PLACES) is None:
        why = "is not installed, only its client is"
        return Problem("docker", "the engine", why, f"{SETUP} installs it (Debian and Ubuntu: docker.io)")
    return Problem("docker", "the engine", f"is not running ({_socket()}: {error.strerror})", start_hint())


def _connect_error() -> OSError | None:
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(_ANSWER_S)
            door.connect(str(_socket()))
    except OSError as error:
        return error
    return None


def in_chroot() -> bool:
    """Whether `/` is not the root of this mount namespace; False where that cannot be found out, as without root.

    setns(2) into a mount namespace changes the root directory to the root of that namespace.
    """
    done = run(["nsenter", "--mount=/proc/self/ns/mnt", "stat", "--format=%d:%i", "/"], check=False)
    here = Path("/").stat()
    return done.code == 0 and done.out.strip() != f"{here.st_dev}:{here.st_ino}"


def check_engine_possible() -> None:
    """MachineError in a chroot.

    An engine that runs in one starts containers, but pivot_root(2) then leaves the old root as the root of the mount
    namespace: `docker exec` enters that one, and not the root of the container.
    """
    if in_chroot():
        why = "cannot start a docker engine: `docker exec` would enter the root of the machine, not of the container"
        raise MachineError(Problem("", "a chroot", why, "use a container, a virtual machine or pivot_root instead"))
