"""Removing a lab from this machine, whatever made it and wherever that was killed.

What belongs to a lab is found by what it *is*, never by a process's name: namespaces called heddle-LAB-*, and the
processes that stand in one of them. Lab names have no dash, so no lab's prefix is another's.
"""

from __future__ import annotations

import glob
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from topologies.events import Observer
from topologies.namespace import NETNS_DIR
from topologies.problems import MachineError, Problem
from topologies.process import run

BPF_DIR: Final = Path("/sys/fs/bpf/heddle")
_PATIENCE_S: Final = 1.0  # between SIGTERM and SIGKILL: time for a capture to write its last packets
_ROUNDS: Final = 20  # a process may fork while it is looked for; look until nothing is found


def namespaces_of(lab: str) -> list[Path]:
    """The lab's namespaces, by name; half-made ones too."""
    return sorted(NETNS_DIR.glob(f"heddle-{glob.escape(lab)}-*"))


def remove_lab(lab: str, run_dir: Path, observer: Observer) -> int:
    """End the lab's processes, then remove its namespaces, pins and run directory; how many objects that were."""
    if not lab.isalnum():  # whatever called: a path or an empty name would remove what is no lab's
        raise ValueError(f"{lab!r} is no lab's name")
    spaces = namespaces_of(lab)
    observer.begin("remove", len(spaces))
    count = _end_processes(spaces)
    if spaces:
        text = "".join(f"netns del {path.name}\n" for path in spaces)
        run(["ip", "-force", "-batch", "-"], stdin=text, check=False, timeout=60 + len(spaces))
        left = namespaces_of(lab)
        if left:
            names = ", ".join(path.name for path in left[:3])
            raise MachineError(Problem(lab, names, "cannot be removed", f"ip netns del {left[0].name} says why"))
        count += len(spaces)
    for directory in (run_dir, BPF_DIR / lab):
        if directory.exists():
            shutil.rmtree(directory)
            count += 1
    for parent in (run_dir.parent, BPF_DIR):
        with suppress(OSError):  # another lab's are in it, or it is not there
            parent.rmdir()
    observer.end("remove", f"{len(spaces)} namespaces")
    return count


def _end_processes(spaces: list[Path]) -> int:
    """SIGTERM to whoever stands in the namespaces, SIGKILL to who stays; how many there were."""
    wanted = {identity for path in spaces if (identity := _identity(path)) is not None}
    if not wanted:
        return 0
    ended = 0
    for _ in range(_ROUNDS):
        found = _inside(wanted)
        if not found:
            return ended
        ended += len(found)
        _end(found)
    raise MachineError(Problem("", "processes", "of the lab keep starting others", "./inv down again"))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _inside(wanted: set[tuple[int, int]]) -> list[int]:
    """pidfds of all processes whose network namespace is wanted; never this process."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        space = Path(entry.path, "ns/net")
        if _identity(space) not in wanted:
            continue
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(int(entry.name))
            # Between the look and the pidfd the number may have gone to another process.
            if _identity(space) in wanted:
                found.append(fd)
            else:
                os.close(fd)
    return found


def _end(pidfds: list[int]) -> None:
    """End these processes and wait until they are gone; closes the pidfds."""
    for sent, patience in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, 10.0)):
        for fd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, sent)
        pidfds = _wait(pidfds, patience)
    for fd in pidfds:
        os.close(fd)


def _wait(pidfds: list[int], seconds: float) -> list[int]:
    """Wait for these to end, at most so long; returns, still open, who has not."""
    poll = select.poll()
    left = set(pidfds)
    for fd in left:
        poll.register(fd, select.POLLIN)
    end = time.monotonic() + seconds
    while left and (rest := end - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            left.discard(fd)
            os.close(fd)
    return sorted(left)
