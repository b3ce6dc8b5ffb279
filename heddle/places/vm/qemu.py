"""The command line of QEMU, and the start of one guest with one accelerator.

Accelerators: KVM where it works, else TCG, which translates the guest's instructions. /dev/kvm may exist, take the
guest and hang it before its first instruction, or end QEMU; so only a guest that says it is ready counts.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import find_program
from heddle.base.processes import start_of
from heddle.places.vm.image import DISK, INITRAMFS, KERNEL_FILE, VmImage
from heddle.places.vm.keys import HOST, BootKeys

PROGRAM: Final = "qemu-system-x86_64"
KVM: Final = "kvm"
TCG: Final = "tcg"
CONSOLE: Final = "console.log"
MESSAGES: Final = "qemu.log"
OVERLAY: Final = "disk.qcow2"
READY: Final = "heddle: ready"
# A guest under KVM is ready in seconds, one under TCG in 6 to 10 s of a quiet machine.
PATIENCE_S: Final = {KVM: 20.0, TCG: 240.0}
_TAKEN: Final = re.compile(r"Could not set up host forwarding rule")
_PORTS_TRIED: Final = 5
_TAIL: Final = 12  # lines of a console that are shown
_PANIC: Final = "Kernel panic"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a guest is given. memory: MiB; idle_minutes: after which it ends without a verb, 0: never."""

    cpus: int
    memory: int
    idle_minutes: int


@dataclass(frozen=True, slots=True)
class Booted:
    """A process of QEMU whose guest is ready."""

    pid: int
    started: int
    port: int
    accelerator: str
    seconds: float


class BootFailed(Exception):  # noqa: N818  (a result that the next accelerator may better)
    """A guest was not ready in time, or QEMU ended. why: as the predicate of a sentence; tail: of its console."""

    def __init__(self, why: str, tail: str) -> None:
        super().__init__(why)
        self.why, self.tail = why, tail


def kvm_problem() -> str:
    """Why KVM cannot be used, as far as one can see without a guest; empty when it may work."""
    if not Path("/dev/kvm").exists():
        return "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "this user may not open /dev/kvm (group kvm)"
    return ""


def find_qemu() -> str:
    """The path of QEMU; MachineError when it is not installed."""
    found = find_program(PROGRAM)
    if found is None:
        sudo = "" if os.geteuid() == 0 else "sudo "
        hint = f"{sudo}apt-get install --no-install-recommends qemu-system-x86 qemu-utils"
        raise MachineError(Problem("", PROGRAM, "is not installed, and the VM runs in it", hint))
    return found


def boot(
    image: VmImage, directory: Path, keys: BootKeys, hardware: Hardware, accelerator: str, tell: Callable[[str], None]
) -> Booted:
    """Start QEMU and wait until the guest is ready. directory: for its log, console and disk. BootFailed if it fails.

    The guest's network leads nowhere: QEMU forwards one port of this machine's loopback address to its sshd.
    tell: is given the last line of the console while the guest boots.
    """
    for _ in range(_PORTS_TRIED):
        port = _free_port()
        _new_overlay(image, directory)
        began = time.monotonic()
        process = _start(image, directory, keys, hardware, accelerator, port)
        try:
            _wait(process, directory, accelerator, began, tell)
        except BootFailed as failed:
            _end(process)
            if _TAKEN.search(failed.tail):
                continue  # another process has taken the port since
            raise
        except BaseException:
            _end(process)
            raise
        started = start_of(process.pid)
        if started is None:
            raise BootFailed("ended as soon as it was ready", tail_of(directory))
        return Booted(process.pid, started, port, accelerator, time.monotonic() - began)
    raise BootFailed("found no free port on the loopback address", tail_of(directory))


def tail_of(directory: Path) -> str:
    """The last lines of the guest's console, and what QEMU itself said."""
    lines = []
    for name in (CONSOLE, MESSAGES):
        try:
            text = (directory / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        plain = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|c)", "", text)
        lines += [line.rstrip() for line in plain.splitlines() if line.strip()][-_TAIL:]
    return "\n".join("".join(c if c.isprintable() else "?" for c in line)[:200] for line in lines)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _new_overlay(image: VmImage, directory: Path) -> None:
    """The guest writes to this file; the image stays as it is."""
    overlay = directory / OVERLAY
    program = find_program("qemu-img")
    if program is None:
        raise MachineError(Problem("", "qemu-img", "is not installed", "apt-get install qemu-utils"))
    overlay.unlink(missing_ok=True)
    argv = [program, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.path / DISK), str(overlay)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(
            Problem("", str(overlay), f"could not be made: {done.stderr.strip()}", "df -h shows the use")
        )


def command(
    image: VmImage, directory: Path, keys: BootKeys, hardware: Hardware, accelerator: str, port: int
) -> list[str]:
    """The words that start QEMU. A comma in a path is doubled, as QEMU wants it."""

    def path(name: Path) -> str:
        return str(name).replace(",", ",,")

    tcg = accelerator == TCG
    given = {"authorized-key": keys.authorized, "host-key": keys.host_key, "idle-minutes": directory / "idle-minutes"}
    words = [find_qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35"]
    words += ["-accel", "tcg,thread=multi" if tcg else "kvm", "-cpu", "max" if tcg else "host"]
    words += ["-smp", str(hardware.cpus), "-m", f"{hardware.memory}M"]
    words += ["-kernel", str(image.path / KERNEL_FILE), "-initrd", str(image.path / INITRAMFS)]
    words += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off rw"]
    words += ["-serial", f"file:{directory / CONSOLE}"]
    words += ["-drive", f"file={path(directory / OVERLAY)},if=virtio,format=qcow2,cache=unsafe,discard=unmap"]
    words += ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:{HOST}:{port}-10.0.2.15:22"]
    words += ["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]
    for name, file in given.items():
        words += ["-fw_cfg", f"name=opt/heddle/{name},file={path(file)}"]
    return words


def _start(
    image: VmImage, directory: Path, keys: BootKeys, hardware: Hardware, accelerator: str, port: int
) -> subprocess.Popen[bytes]:
    with machine_errors(str(directory)):
        (directory / "idle-minutes").write_text(f"{hardware.idle_minutes}\n", encoding="ascii")
        (directory / CONSOLE).write_bytes(b"")
        log = (directory / MESSAGES).open("wb")
    with log:
        argv = command(image, directory, keys, hardware, accelerator, port)
        # A session of its own: Ctrl-C at the terminal that started it does not end it.
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", close_fds=True
        )


def _wait(
    process: subprocess.Popen[bytes], directory: Path, accelerator: str, began: float, tell: Callable[[str], None]
) -> None:
    limit, seen = PATIENCE_S[accelerator], list[str]()
    while True:
        console = (directory / CONSOLE).read_bytes()
        if READY.encode() in console:
            return
        if process.poll() is not None:
            how = "panicked" if _PANIC.encode() in console else f"ended (QEMU's exit code is {process.returncode})"
            raise BootFailed(f"{how} after {time.monotonic() - began:.1f} s", tail_of(directory))
        if time.monotonic() - began > limit:
            raise BootFailed(f"was not ready within {limit:g} s", tail_of(directory))
        if (last := tail_of(directory).splitlines()[-1:]) != seen:
            seen = last
            tell(last[0] if last else "")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
