"""The guest of one kernel: start it, find it, end it. All verbs share it.

STATE/vm/backports/guest.json   the record; beside it keys, console.log, qemu.log, qemu.json, and the monitor's socket
STATE/vm/backports.lock         held while it is started or ended
STATE/vm/kvm.json               written when KVM failed: it is not tried again until this machine boots again

/dev/kvm may exist and then hang the guest before its first instruction, or end QEMU. So only a guest that reports
`ready` counts as booted.

A guest with several processors under TCG can panic with `Oops: int3` (one boot of 120, QEMU 7.2; the same was reported
of 8.0 on the kernel's list in July 2023). The kernel changes its code while it runs, by way of an int3 instruction. The
likely cause is that QEMU translates the int3 while it is replaced, and runs it ever after; newer versions lock the page
("accel/tcg: Always lock pages before translation"), which was not tried. Such a guest is started again; one that panics
for another reason is not.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.events import Observer
from heddle.base.extras import EXTRAS, SSH
from heddle.base.plugins import folder
from heddle.base.problems import InputError, MachineError, Problem, machine_errors
from heddle.base.state import state_dir, write_json
from heddle.base.userfiles import give_to_caller, make_dir
from heddle.host import packages
from heddle.host.doctor import Check
from heddle.host.engine.lockfile import locked
from heddle_plugins.places.vm import qemu
from heddle_plugins.places.vm.image import INITRAMFS, VmImage, ensure_image, find_image
from heddle_plugins.places.vm.initramfs import boot_archive
from heddle_plugins.places.vm.qemu import (
    BOOT_ARCHIVE,
    CONSOLE,
    HOST,
    KVM,
    TCG,
    Hardware,
    QemuProcess,
    process_in,
    qemu_command,
    start_qemu,
    tail_of,
)
from heddle_plugins.places.vm.recipe import DEFAULT, KERNELS, Kernel, image_name

if TYPE_CHECKING:
    import paramiko


@dataclass(frozen=True, slots=True)
class BootKeys:
    """Files of the keys: for the guest, for the user, and the known_hosts with the guest's key."""

    host_key: Path
    authorized: Path
    user_key: Path
    known_hosts: Path


def key_files(directory: Path) -> BootKeys:
    """The files of a guest's keys; they need not exist."""
    return BootKeys(*(directory / name for name in ("host_key", "authorized_key", "user_key", "known_hosts")))


def make_keys(directory: Path) -> BootKeys:
    """Make both keys in this directory."""
    files = key_files(directory)
    _write(files.authorized, f"{_public(_make(files.user_key))} heddle\n")
    _make(files.host_key)
    return files


def know_host(files: BootKeys, port: int) -> None:
    """Write the guest's key to known_hosts, for the port of this boot."""
    import paramiko

    key = paramiko.ECDSAKey.from_private_key_file(str(files.host_key))
    _write(files.known_hosts, f"[{HOST}]:{port} {_public(key)}\n")


def _make(path: Path) -> paramiko.PKey:
    import paramiko

    # Curve P-256: paramiko makes no ed25519 keys.
    key, text = paramiko.ECDSAKey.generate(bits=256), io.StringIO()
    key.write_private_key(text)
    _write(path, text.getvalue())
    return key


def _public(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _write(path: Path, content: str) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(content)


MEMORY: Final = 2048  # MiB
IDLE_MINUTES: Final = 60
LEAST_MEMORY: Final = 1024
READY: Final = "heddle: ready"
# A guest with KVM is ready within seconds; with TCG within 10 s on an idle machine.
PATIENCE_S: Final = {KVM: 20.0, TCG: 240.0}
_MOST_CPUS: Final = 4
_BOOTS: Final = 3  # of guests that meet the race of QEMU
_LEAST_DISK: Final = 256 << 20  # bytes: what small labs and their runs write
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
    idle_seconds: int
    seconds: float  # until it was ready
    since: float  # seconds of the epoch
    slow_because: str = ""  # why KVM is not used

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return QemuProcess(self.pid, self.started).alive

    @property
    def keys(self) -> BootKeys:
        """The files of its keys."""
        return key_files(guest_dir(self.kernel))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "directory": str(guest_dir(self.kernel))}


def guest_dir(kernel: str) -> Path:
    """The directory of a guest; it need not exist."""
    return state_dir() / "vm" / kernel


def default_hardware(memory: int = MEMORY, cpus: int = 0, idle_minutes: int = IDLE_MINUTES) -> Hardware:
    """Hardware with as many processors as this machine has, four at most, if cpus is 0."""
    here = len(os.sched_getaffinity(0))
    return Hardware(cpus or min(here, _MOST_CPUS), memory, idle_minutes * 60)


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


def needed_packages(kernel: Kernel, *, fresh: bool = False) -> tuple[str, ...]:
    """The parts (packages.py) that start a guest: QEMU, and the tools that make its image, if the cache has none.

    fresh: the image is made again.
    """
    if not fresh and find_image(kernel) is not None:
        return packages.VM
    return (*packages.VM, *(packages.VM_BUILD if os.geteuid() == 0 else packages.VM_BUILD_USER))


def ensure_guest(kernel: Kernel, observer: Observer, wanted: Hardware | None = None) -> Guest:
    """The guest of a kernel; it is started when it does not run, and its image is made when there is none.

    MachineError says what failed, with the end of the guest's console. Nothing is left of a guest that failed.
    """
    if (found := find_guest(kernel.name)) is not None:
        return _usable(found, kernel)
    qemu.find_qemu()
    image = ensure_image(kernel, observer)
    directory = guest_dir(kernel.name)
    make_dir(directory.parent)
    lock = directory.parent / f"{kernel.name}.lock"
    with locked(lock, fcntl.LOCK_EX):
        give_to_caller(lock)
        if (found := find_guest(kernel.name)) is not None:
            return _usable(found, kernel)  # another verb started it while this one waited
        _remove(directory)
        return _start(kernel, image, directory, wanted or default_hardware(), observer)


def end_guest(kernel: str) -> Guest | None:
    """End the guest of a kernel, and remove its keys and its files; returns the guest that ran, if one did."""
    directory = guest_dir(kernel)
    if not directory.exists():
        return None
    with locked(directory.parent / f"{kernel}.lock", fcntl.LOCK_EX):
        found = find_guest(kernel)
        _remove(directory)
    return found


def _usable(guest: Guest, kernel: Kernel) -> Guest:
    """The guest, resumed if it was paused; InputError when its image is not the one that this Heddle needs."""
    if guest.image != image_name(kernel):
        why = f"runs image {guest.image}, and this version of Heddle needs {image_name(kernel)}"
        raise InputError(Problem("", f"VM {kernel.name}", why, f"run ./inv vm down --kernel {kernel.name} first"))
    if qemu.status(guest_dir(kernel.name)) == qemu.IO_ERROR:
        _check_disk(guest_dir(kernel.name))
        qemu.resume(guest_dir(kernel.name))
    return guest


def _check_disk(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < _LEAST_DISK:
        why = f"has {free / 1e6:.0f} MB free, and the disk of the VM needs at least {_LEAST_DISK / 1e6:.0f} MB there"
        hint = "free some space there (df -h), or set another directory: HEDDLE_STATE_DIR=/var/tmp/heddle"
        raise MachineError(Problem("", str(directory), why, hint))


def _remove(directory: Path) -> None:
    """End the process in this directory, also one that never was ready, and remove the directory."""
    if (process := process_in(directory)) is not None:
        process.end()
    with machine_errors(str(directory)):
        if directory.exists():
            shutil.rmtree(directory)


def _start(kernel: Kernel, image: VmImage, directory: Path, wanted: Hardware, observer: Observer) -> Guest:
    observer.begin(_STEP)
    try:
        with machine_errors(str(directory)):
            directory.mkdir(mode=0o700)
            _check_disk(directory)
            keys = make_keys(directory)
        image.check()
        image.mark_used()
        booted, slow = _boot_somehow(image, directory, keys, wanted, lambda line: observer.waiting(_STEP, line))
        guest = Guest(
            kernel=kernel.name,
            release=image.release,
            image=image.name,
            **asdict(booted.process),
            port=booted.port,
            accelerator=booted.accelerator,
            **asdict(wanted),
            seconds=round(booted.seconds, 1),
            since=time.time(),
            slow_because=slow,
        )
        know_host(keys, booted.port)
        write_json(directory / "guest.json", asdict(guest), indent=1)
        give_to_caller(directory, deep=True)
    except BaseException:
        _remove(directory)
        raise
    note = f"Linux {guest.release} under {guest.accelerator.upper()}, ready in {guest.seconds:.1f} s"
    observer.end(_STEP, f"{note} ({slow})" if slow else note)
    return guest


def _boot_somehow(
    image: VmImage, directory: Path, keys: BootKeys, wanted: Hardware, tell: Callable[[str], None]
) -> tuple[Booted, str]:
    """Boot with KVM, else with TCG: the guest, and why KVM is not used."""
    slow = qemu.kvm_problem() or kvm_failure()
    if not slow:
        try:
            return boot(image, directory, keys, wanted, KVM, tell), ""
        except BootFailed as failed:
            slow = f"KVM failed: the guest {failed.why}"
            write_json(state_dir() / "vm" / "kvm.json", {"boot": _boot_id(), "why": slow})
    try:
        return boot(image, directory, keys, wanted, TCG, tell), slow
    except BootFailed as failed:
        hint = "the end of its console:\n" + (failed.tail or "(it printed nothing)")
        raise MachineError(Problem("", "the VM", f"could not be started: the guest {failed.why}", hint)) from None


@dataclass(frozen=True, slots=True)
class Booted:
    """A process of QEMU whose guest is ready. port: of this machine, forwarded to the guest's sshd."""

    process: QemuProcess
    port: int
    accelerator: str
    seconds: float


class BootFailed(Exception):  # noqa: N818  (a result: the next accelerator may succeed)
    """A guest was not ready in time, or QEMU ended. why: the predicate of a sentence; tail: of its console."""

    def __init__(self, why: str, tail: str) -> None:
        super().__init__(why)
        self.why, self.tail = why, tail


def boot(
    image: VmImage, directory: Path, keys: BootKeys, wanted: Hardware, accelerator: str, tell: Callable[[str], None]
) -> Booted:
    """Start QEMU and wait until the guest is ready. directory: for its log, console and socket. BootFailed if it fails.

    tell: gets the last line of the console while the guest boots.
    """
    idle = directory / "idle-seconds"
    given = {"authorized-key": keys.authorized, "host-key": keys.host_key, "idle-seconds": idle}
    templates = folder("places") / "templates" / "vm"
    scripts = {"init": "initramfs-init", "guest-init": "guest-init", "sshd_config": "sshd_config"}
    with machine_errors(str(directory)):
        idle.write_text(f"{wanted.idle_seconds}\n", encoding="ascii")
        contents = {name: (templates / file).read_bytes() for name, file in scripts.items()}
        (directory / BOOT_ARCHIVE).write_bytes(boot_archive((image.path / INITRAMFS).read_bytes(), contents))
    argv, boots = qemu_command(image, given, wanted, accelerator), _BOOTS
    while True:
        began, boots = time.monotonic(), boots - 1
        child, process = start_qemu(argv, directory)
        try:
            port = _wait(child, directory, PATIENCE_S[accelerator], began, tell)
        except BootFailed:
            process.end()
            if not boots or not qemu.ran_old_code(directory):
                raise
            tell("the guest met a race of QEMU and is started again")
        except BaseException:
            process.end()
            raise
        else:
            return Booted(process, port, accelerator, time.monotonic() - began)


def _wait(
    child: subprocess.Popen[bytes], directory: Path, patience: float, began: float, tell: Callable[[str], None]
) -> int:
    """Wait until the guest is ready; the port of its sshd. BootFailed when it ends, or is not ready in time."""
    shown = ""
    while True:
        ended = child.poll() is not None  # before the console is read, which then has its last words
        with machine_errors(str(directory)):
            console = (directory / CONSOLE).read_bytes()
        if READY.encode() in console and (port := qemu.forwarded_port(directory)):
            return port
        passed = time.monotonic() - began
        if ended:
            how = "panicked" if qemu.PANIC.encode() in console else f"ended (QEMU's exit code is {child.returncode})"
            raise BootFailed(f"{how} after {passed:.1f} s", tail_of(directory))
        if passed > patience:
            state = f"QEMU reports {qemu.status(directory) or 'nothing'}\n{qemu.registers(directory)}"
            raise BootFailed(f"was not ready within {patience:g} s", f"{tail_of(directory)}\n{state}".strip())
        if (last := tail_of(directory).rpartition("\n")[2]) != shown:
            shown = last
            tell(last)
        time.sleep(0.1)


def kvm_failure() -> str:
    """Why KVM failed since this machine booted; empty when it did not fail, or was not tried."""
    try:
        found = json.loads((state_dir() / "vm" / "kvm.json").read_text(encoding="utf-8"))
        return str(found["why"]) if found["boot"] == _boot_id() else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def vm_check() -> Check:
    """The row `vm` of doctor: QEMU and the SSH extra decide; KVM and the image are details. No VM is started."""
    if packages.missing(packages.VM):
        return Check("vm", False, "no QEMU for --on vm", "./inv vm up --yes", required=False)
    if not EXTRAS[SSH].present:
        return Check("vm", False, f"no {EXTRAS[SSH].package} for --on vm", EXTRAS[SSH].hint, required=False)
    found = find_image(KERNELS[DEFAULT])
    image = f"Linux {found.release}" if found else "its image is not made yet: a few minutes, 1 GB"
    slow = qemu.kvm_problem() or kvm_failure()
    speed = f"slow, because {slow}" if slow else "with KVM, if it boots a guest here"
    return Check("vm", True, f"a full kernel with --on vm ({image}; {speed})", required=False)
