"""The VM of --on vm: how soon it is ready, how long an unchanged project takes to sync, memory, and its image.

The limits are those of the accelerator with which the guest boots here: KVM where it works, else TCG.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from heddle.base import mounts
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.cli.console import Console
from heddle.places.choice import Call
from heddle_plugins.places import sync
from heddle_plugins.places.session import Session
from heddle_plugins.places.ssh import connection
from heddle_plugins.places.vm import guest as guests
from heddle_plugins.places.vm.place import ssh_place
from heddle_plugins.places.vm.qemu import KVM, TCG
from heddle_plugins.places.vm.recipe import DEFAULT

from . import Figure, at_least, at_most

_ROOT: Final = Path(__file__).resolve().parents[2]
_READY_S: Final = {KVM: 5.0, TCG: 15.0}
_SYNC_S: Final = 1.0
_BUILD_S: Final = 300.0
_SYNCS: Final = 3
_LEFT_MIB: Final = 512  # with zone up: what a run of it needs, and some more


def figures(observer: Observer) -> Iterator[Figure]:
    """One VM with the default hardware, from its start to zone. Its image is in the cache, or is made first."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as spot:
        env = {"HEDDLE_STATE_DIR": spot}
        with _state(spot):
            _took(env, "vm", "build")
            try:
                yield from _ready(env)
                yield _unchanged()
                yield from _memory(env, observer)
            finally:
                guests.end_guest(DEFAULT)


def build_figures(observer: Observer) -> Iterator[Figure]:
    """One build of an image, in a cache directory of its own."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-", dir=mounts.TEMPORARY) as spot:
        observer.say("making an image in a directory of its own, which is removed then")
        yield at_most("image of the VM: build", _took({"HEDDLE_CACHE_DIR": spot}, "vm", "build"), "s", _BUILD_S)


def _ready(env: dict[str, str]) -> Iterator[Figure]:
    """A state directory does not know yet whether KVM works here; where it hangs the guest, finding out takes 20 s."""
    yield Figure("vm up, which finds out whether KVM works here", _took(env, "vm", "up"), "s")
    _took(env, "vm", "down")
    up = _took(env, "vm", "up")
    guest = _guest()
    first = _took(env, "status", "--on", "vm")
    second = _took(env, "status", "--on", "vm")
    how, limit = guest.accelerator.upper(), _READY_S[guest.accelerator]
    yield at_most(f"vm up until ready for a verb, {how}", up, "s", limit)
    yield Figure("of that: the guest boots", guest.seconds, "s")
    yield Figure("the first verb (status): the whole project is copied", first, "s")
    yield Figure("status in the VM, project unchanged", second, "s")


def _unchanged() -> Figure:
    """The best of some: to hash the files here, and to hear that they are the same there. The connection is open."""
    place, best = ssh_place(_guest()), float("inf")
    for _ in range(_SYNCS):
        with connection(place.address, place.target) as transport:
            session = Session(place.address, Call(("status",)), Console("text"), transport)
            began = time.perf_counter()
            session.copy(sync.manifest_of(sync.project()), {})
            best = min(best, time.perf_counter() - began)
    return at_most("sync of an unchanged project", best, "s", _SYNC_S)


def _memory(env: dict[str, str], observer: Observer) -> Iterator[Figure]:
    observer.say("bringing zone up in the VM; this takes minutes under TCG")
    yield Figure("up zone in the VM", _took(env, "up", "zone", "--on", "vm"), "s")
    lines = _inv(env, "vm", "ssh", "--", "cat", "/proc/meminfo").splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    yield Figure("zone is up: memory in use in the VM", (kib["MemTotal"] - kib["MemAvailable"]) / 1024, "MiB")
    yield at_least("zone is up: memory left in the VM", kib["MemAvailable"] / 1024, "MiB", _LEFT_MIB)


def _guest() -> guests.Guest:
    found = guests.find_guest(DEFAULT)
    if found is None:
        raise MachineError(Problem("", "the VM", "ended while it was measured"))
    return found


@contextmanager
def _state(spot: str) -> Iterator[None]:
    """The state directory of this process, too, for a while."""
    before = os.environ.get("HEDDLE_STATE_DIR")
    os.environ["HEDDLE_STATE_DIR"] = spot
    try:
        yield
    finally:
        if before is None:
            del os.environ["HEDDLE_STATE_DIR"]
        else:
            os.environ["HEDDLE_STATE_DIR"] = before


def _took(env: dict[str, str], *typed: str) -> float:
    start = time.perf_counter()
    _inv(env, *typed)
    return time.perf_counter() - start


def _inv(env: dict[str, str], *typed: str) -> str:
    """The output of a verb; MachineError with its last line when it fails."""
    done = subprocess.run(
        [sys.executable, str(_ROOT / "tasks.py"), *typed], env={**os.environ, **env}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise MachineError(Problem("", " ".join(typed), f"failed with exit code {done.returncode}: {said}"))
    return done.stdout
