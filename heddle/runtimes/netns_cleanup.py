"""Remove a lab from this machine, also after a kill at any point.

A lab's objects are found by their identity, never by a process's name: namespaces called heddle-LAB-*, the processes in
them, and processes in a namespace whose name was removed, with a directory of the lab mounted over FRR's. Lab names
have no dash, so the prefix of one lab never matches another.
"""

from __future__ import annotations

import glob
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from heddle.base import mounts as trees
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import end_all, run
from heddle.host.packages import FRR_DIRS
from heddle.kernel.namespace import NETNS_DIR
from heddle.runtimes.netns_space import PROVIDED, RUN_DIR, files_dir, remove_views

BPF_DIR: Final = Path("/sys/fs/bpf/heddle")
_PATIENCE_S: Final = 1.0  # between SIGTERM and SIGKILL: time for a capture to write its last packets
_ROUNDS: Final = 20  # a process may fork during the search, so the search repeats until it finds nothing
_VISIT_S: Final = 0.05  # for a verb that only reads in a namespace, as `status`, to leave it: it is not the lab's
_AT_ONCE: Final = 400  # processes that are ended together: each needs an open file, and 1,024 are the usual limit


def namespaces_of(lab: str) -> list[Path]:
    """The lab's namespaces, by name, also of an interrupted `up`."""
    return sorted(NETNS_DIR.glob(f"heddle-{glob.escape(lab)}-*"))


def remove_lab(lab: str, run_dir: Path, observer: Observer) -> int:
    """End the lab's processes, then remove its namespaces, pins and run directory. Returns the number of objects."""
    if not lab.isalnum():  # a path or an empty name would remove files that belong to no lab
        raise ValueError(f"{lab!r} is not a lab's name")
    spaces = namespaces_of(lab)
    if spaces:
        observer.begin("remove", len(spaces))
    count = end_processes(lab, spaces)
    if spaces:
        text = "".join(f"netns del {path.name}\n" for path in spaces)
        run(["ip", "-force", "-batch", "-"], stdin=text, check=False, timeout=60 + len(spaces))
        left = namespaces_of(lab)
        if left:
            names = ", ".join(path.name for path in left[:3])
            raise MachineError(
                Problem(lab, names, "cannot be removed", f"run ip netns del {left[0].name} to see the reason")
            )
        count += len(spaces)
    remove_views(lab)
    count += remove_directories(run_dir, BPF_DIR / lab)
    if spaces:
        observer.end("remove", f"{len(spaces)} namespaces")
    return count


def remove_directories(*directories: Path) -> int:
    """Remove a lab's directories, and their parents if no other lab has files there. Returns the number of them."""
    count = 0
    for directory in directories:
        if directory.exists() and not directory.parent.is_symlink():
            trees.remove(directory)
            count += 1
        with suppress(OSError):  # it has files of another lab, or does not exist
            directory.parent.rmdir()
    return count


def end_processes(lab: str, spaces: list[Path], *, of_containers: bool = True) -> int:
    """Send SIGTERM to all processes in the namespaces, then SIGKILL to the remaining ones. Returns their number.

    of_containers: also processes with their own PID namespace; otherwise the engine ends these.
    """
    wanted = {identity for path in spaces if (identity := _identity(path)) is not None}
    ended = rounds = 0
    while rounds < _ROUNDS:
        found = _inside(lab, wanted, of_containers)
        if not found:
            return ended
        rounds += len(found) < _AT_ONCE
        ended += len(found)
        # Routing daemons at once: one that ends in order withdraws its routes, and all others compute new ones.
        for routing, seconds in ((True, 0.0), (False, _PATIENCE_S)):
            end_all([fd for fd, each in found if each == routing], seconds)
    raise MachineError(Problem("", "processes", "of the lab keep starting others", "run ./inv down again"))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _inside(lab: str, wanted: set[tuple[int, int]], of_containers: bool) -> list[tuple[int, bool]]:
    """pidfds of the lab's processes, and whether each is a program of FRR; _AT_ONCE of them, never this process."""
    ours = _identity(Path("/proc/self/ns/pid"))
    named = (*NETNS_DIR.glob("*"), Path("/proc/self/ns/net"))
    others = {identity for path in named if (identity := _identity(path)) is not None} - wanted
    home = trees.origin(RUN_DIR / lab)
    inside: list[Path] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if not _belongs(Path(entry.path), lab, home, wanted, others):
            continue
        if not of_containers and _identity(Path(entry.path, "ns/pid")) != ours:
            continue
        inside.append(Path(entry.path))
        if len(inside) == _AT_ONCE:
            break
    if not all(map(_is_routing, inside)):
        time.sleep(_VISIT_S)
    found: list[tuple[int, bool]] = []
    for process in inside:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(int(process.name))
            # The number may belong to another process since the first check.
            if _belongs(process, lab, home, wanted, others):
                found.append((fd, _is_routing(process)))
            else:
                os.close(fd)
    return found


def _belongs(
    process: Path, lab: str, home: tuple[str, Path], wanted: set[tuple[int, int]], others: set[tuple[int, int]]
) -> bool:
    """Whether a process is in a namespace of the lab; or in one without a name, but with the lab's directories.

    home: the directory of these, see mounts.origin.
    """
    space = _identity(process / "ns/net")
    if space is None or space in others:
        return False
    if space in wanted:
        return True
    try:
        mounts = (process / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    # Any user can mount something with such a name in a user namespace of their own.
    device, directory = home
    upper = f"upperdir={files_dir(lab)}/"
    fields = (line.split(" ", 5) for line in mounts)
    return any(
        (its_device == device and root.startswith(f"{directory}/") and target in PROVIDED)
        or (target == "/" and upper in rest)
        for _, _, its_device, root, target, rest in fields
    ) and same_users(process)


def _is_routing(process: Path) -> bool:
    try:
        return (process / "exe").readlink().parent in FRR_DIRS
    except OSError:
        return False


def same_users(process: Path) -> bool:
    """Whether a process of /proc is in this process's user namespace."""
    return _identity(process / "ns/user") == _identity(Path("/proc/self/ns/user"))
