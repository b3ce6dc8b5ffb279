"""Control groups: `up` with too little memory, and the kernel's memory of one soak alone."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from os import getpid
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import Final

from heddle.lab.status import status
from tests.machine import children_of, commands, until
from tests.soak.victim import FABRIC, PATIENT, Blow, Victim, finished

_PLACE: Final = Path("/sys/fs/cgroup")
# MiB: too little for a start, and enough. The kernel ends the largest process of a group, which is `up` itself.
_LIMITS: Final[Mapping[str, tuple[int, int]]] = {"up": (24, 200), "daemons": (8, 90)}
_LONGEST_S: Final = 60.0  # a process that needs just what it may have reads its program again and again
_STEADY_S: Final = 1.0  # without a smaller reading
_LONGEST_REMOVAL_S: Final = 10.0
_TIMEOUT: Final = "15"  # for routes that do not come


def memory(victim: Victim, dice: random.Random) -> Blow:
    """Then there is memory again: `up` makes a whole lab of what was left."""
    which, again = dice.choice([*_LIMITS]), dice.random() < 0.7
    limit = dice.randint(*_LIMITS[which])
    with hierarchy() as top, _group(top, limit << 20) as group:
        members = group / "cgroup.procs"
        enter = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(members)) if which == "up" else ()
        process = victim.start("up", FABRIC, "--name", "NAME", "--timeout", _TIMEOUT, before=enter)
        if which == "daemons":
            until(lambda: process.poll() is not None or _moved(process.pid, members), 120, every=0.001)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LONGEST_S)
        kills = _kills(group)
    if process.poll() is None:
        process.kill()
    said = finished(process, may_be_killed=True)
    code = process.returncode
    what = f"up with {limit} MiB for {which} ended with exit code {code}, and {kills} processes were killed"
    victim.run("status")
    with victim.here():
        found = [each for each in status() if each.lab == victim.name]
    # Exit 1 leaves a lab to look at, and a process that is killed cannot remove anything.
    assert len(found) == 1 if code == 0 else not found or code in (1, -SIGKILL), f"{what}: {found}: {said}"
    if found and again:
        victim.run("up", FABRIC, "--name", "NAME", "--repair", "--timeout", PATIENT, ends=0)
        what += f"; the lab was {found[0].state}, and up went on"
    return Blow(what, victim.name, hit=kills > 0 or code != 0)


@contextmanager
def hierarchy() -> Iterator[Path]:
    """Where groups with a limit of memory can be made, for a with block. OSError where they cannot."""
    there = _PLACE / "memory" if (_PLACE / "memory/memory.limit_in_bytes").exists() else None
    if (control := _PLACE / "cgroup.subtree_control").exists():  # version 2
        with suppress(OSError):
            control.write_text("+memory")
            there = _PLACE
    if there is not None:
        yield there
        return
    with TemporaryDirectory(prefix="memory-") as place:
        argv = ["mount", "-t", "cgroup", "-o", "memory", "none", place]
        if (done := subprocess.run(argv, capture_output=True, text=True, check=False)).returncode:
            raise OSError(f"no control group can limit memory here: {done.stderr.strip()}")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def _moved(up: int, members: Path) -> bool:
    """Move the process that starts the nodes' programs to a group."""
    running = commands()
    for pid in children_of(up):
        if "many" in running.get(pid, ()):
            members.write_text(str(pid))
            return True
    return False


def trouble() -> str:
    """Why this machine has no such groups; empty if it has."""
    try:
        with hierarchy():
            return ""
    except OSError as error:
        return str(error)


@contextmanager
def own_group() -> Iterator[Path | None]:
    """A group with this process and those that it starts, for a with block; None where there can be none."""
    with ExitStack() as stack:
        try:
            top = stack.enter_context(hierarchy())
            group = stack.enter_context(_group(top, None))
            (group / "cgroup.procs").write_text("0")
        except OSError:
            yield None
        else:
            yield group


def kernel_mb_of(group: Path) -> float:
    """Memory of the kernel that is charged to a group and cannot be reclaimed, in MiB.

    Namespaces, ports, routes, qdiscs and BPF maps are charged (GFP_KERNEL_ACCOUNT); what interrupts allocate is not.
    The kernel removes namespaces after their last process has ended: the smallest of some readings is taken.
    """
    found, since, ends = math.inf, time.monotonic(), time.monotonic() + _LONGEST_REMOVAL_S
    while since + _STEADY_S > time.monotonic() < ends:
        if (now := _charged(group) / 2**20) < found:
            found, since = now, time.monotonic()
        time.sleep(0.1)
    return found


def _charged(group: Path) -> int:
    with suppress(OSError):  # EBUSY, EAGAIN: it could not reclaim all
        if (group / "memory.reclaim").exists():
            (group / "memory.reclaim").write_text("1G")
        else:
            (group / "memory.force_empty").write_text("0")
    if (used := group / "memory.kmem.usage_in_bytes").exists():
        return int(used.read_text())
    return int(dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["kernel"])


@contextmanager
def _group(top: Path, limit: int | None) -> Iterator[Path]:
    group = top / f"heddle-soak-{getpid()}-{limit or 'all'}"
    group.mkdir()
    try:
        if limit is not None:
            name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
            (group / name).write_text(str(limit))
        yield group
    finally:
        until(lambda: _removed(group, top), 120)


def _removed(group: Path, top: Path) -> bool:
    """Whether it could be removed: its processes, and those that they start meanwhile, go back."""
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (top / "cgroup.procs").write_text(pid)
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _kills(group: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        with suppress(FileNotFoundError):
            return int(dict(line.split() for line in (group / name).read_text().splitlines())["oom_kill"])
    raise AssertionError(f"{group} counts no processes that were killed")
