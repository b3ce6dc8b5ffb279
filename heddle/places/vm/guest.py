"""The guest of one kernel: start it, find it, end it. Any number of verbs share it.

STATE/vm/backports/guest.json   the record; beside it keys, console.log, qemu.log, disk.qcow2
STATE/vm/backports.lock         held while it is started or ended
STATE/vm/kvm.json               after KVM failed: until the next boot of this machine it is not tried again
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.processes import start_of
from heddle.base.state import give_to_caller, make_dir, state_dir, write_json
from heddle.host.engine.lockfile import locked
from heddle.places.vm import qemu
from heddle.places.vm.image import VmImage, ensure_image
from heddle.places.vm.kernels import KERNELS, Kernel
from heddle.places.vm.keys import BootKeys, key_files, know_host, make_keys
from heddle.places.vm.qemu import Booted, BootFailed, Hardware

MEMORY: Final = 2048  # MiB
IDLE_MINUTES: Final = 60
_MOST_CPUS: Final = 4
_LEAST_MEMORY: Final = 1024
_END_S: Final = 5.0
_STEP: Final = "VM"


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest that runs. started: of its process, in clock ticks since boot; release: of its kernel."""

    kernel: str
    release: str
    image: str
    pid: int
    started: int
    port: int
    accelerator: str
    cpus: int
    memory: int
    idle_minutes: int
    seconds: float  # until it was ready
    since: float  # seconds of the epoch
    slow_because: str = ""  # why KVM is not used

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return start_of(self.pid) == self.started

    @property
    def keys(self) -> BootKeys:
        """The files of its keys."""
        return key_files(guest_dir(self.kernel))

    def to_json(self) -> dict[str, Any]:
        """All of it, and `directory`."""
        return {**asdict(self), "directory": str(guest_dir(self.kernel))}


def guest_dir(kernel: str) -> Path:
    """The directory of a guest; it need not exist."""
    return state_dir() / "vm" / kernel


def default_hardware(memory: int = MEMORY, cpus: int = 0, idle_minutes: int = IDLE_MINUTES) -> Hardware:
    """Hardware with this machine's processors, four at most, where cpus is 0."""
    here = len(os.sched_getaffinity(0))
    return Hardware(cpus or min(here, _MOST_CPUS), max(memory, _LEAST_MEMORY), idle_minutes)


def find_guest(kernel: str) -> Guest | None:
    """The guest of a kernel, if it runs."""
    try:
        found = Guest(**json.loads((guest_dir(kernel) / "guest.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.alive else None


def guests() -> list[Guest]:
    """All guests of this user that run."""
    found = map(find_guest, KERNELS)
    return [guest for guest in found if guest is not None]


def ensure_guest(kernel: Kernel, observer: Observer, hardware: Hardware | None = None) -> Guest:
    """The guest of a kernel; it is started when it does not run, and its image is made when there is none.

    MachineError says what failed, with the end of the guest's console. Nothing is left of a guest that failed.
    """
    if (found := find_guest(kernel.name)) is not None:
        return found
    qemu.find_qemu()
    image = ensure_image(kernel, observer)
    directory = guest_dir(kernel.name)
    make_dir(directory.parent)
    with locked(directory.parent / f"{kernel.name}.lock", fcntl.LOCK_EX):
        if (found := find_guest(kernel.name)) is not None:
            return found  # another verb started it while this one waited
        return _start(kernel, image, directory, hardware or default_hardware(), observer)


def end_guest(kernel: str) -> Guest | None:
    """End the guest of a kernel, and remove its keys and its disk; the guest that ran, if one did."""
    directory = guest_dir(kernel)
    if not directory.parent.is_dir():
        return None
    with locked(directory.parent / f"{kernel}.lock", fcntl.LOCK_EX):
        found = find_guest(kernel)
        if found is not None:
            _kill(found)
        with machine_errors(str(directory)):
            if directory.exists():
                shutil.rmtree(directory)
    return found


def console_of(kernel: str) -> str:
    """The end of a guest's console, for problems."""
    return qemu.tail_of(guest_dir(kernel))


def _start(kernel: Kernel, image: VmImage, directory: Path, hardware: Hardware, observer: Observer) -> Guest:
    observer.begin(_STEP)
    try:
        with machine_errors(str(directory)):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o700)
            keys = make_keys(directory)
        booted, slow = _boot(image, directory, keys, hardware, lambda line: observer.waiting(_STEP, line))
        guest = Guest(
            kernel.name,
            image.release,
            image.name,
            booted.pid,
            booted.started,
            booted.port,
            booted.accelerator,
            hardware.cpus,
            hardware.memory,
            hardware.idle_minutes,
            round(booted.seconds, 1),
            time.time(),
            slow,
        )
        try:
            know_host(keys, booted.port)
            write_json(directory / "guest.json", asdict(guest), indent=1)
        except BaseException:
            _kill(guest)
            raise
        give_to_caller(directory, deep=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    note = f"Linux {guest.release} under {guest.accelerator.upper()}, ready in {guest.seconds:.1f} s"
    observer.end(_STEP, f"{note} ({slow})" if slow else note)
    return guest


def _boot(
    image: VmImage, directory: Path, keys: BootKeys, hardware: Hardware, tell: Callable[[str], None]
) -> tuple[Booted, str]:
    """Boot with KVM, else with TCG: the guest, and why it is not KVM."""
    slow = qemu.kvm_problem() or _kvm_failed_before()
    if not slow:
        try:
            return qemu.boot(image, directory, keys, hardware, qemu.KVM, tell), ""
        except BootFailed as failed:
            slow = f"KVM failed: the guest {failed.why}"
            write_json(state_dir() / "vm" / "kvm.json", {"boot": _boot_id(), "why": slow})
    try:
        return qemu.boot(image, directory, keys, hardware, qemu.TCG, tell), slow
    except BootFailed as failed:
        hint = "the end of its console:\n" + (failed.tail or "(it printed nothing)")
        raise MachineError(Problem("", "the VM", f"could not be started: the guest {failed.why}", hint)) from None


def _kvm_failed_before() -> str:
    try:
        found = json.loads((state_dir() / "vm" / "kvm.json").read_text(encoding="utf-8"))
        return str(found["why"]) if found["boot"] == _boot_id() else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _kill(guest: Guest) -> None:
    """End the process of a guest: SIGTERM, which ends QEMU at once, then SIGKILL. Only that process, by its start."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + _END_S
        with suppress(ProcessLookupError):
            if guest.alive:
                os.kill(guest.pid, number)
        while time.monotonic() < end:
            with suppress(ChildProcessError):
                os.waitpid(guest.pid, os.WNOHANG)  # where this process started it
            if not guest.alive:
                return
            time.sleep(0.02)
    raise MachineError(Problem("", f"process {guest.pid}", "does not end, and the VM runs in it", "see dmesg"))
