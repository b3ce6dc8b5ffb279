"""A process of QEMU: its command line, start and end, how it is found again, its console and its monitor (QMP).

In:  the directory of a guest, in which QEMU works.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import MachineError, Problem, machine_errors, printable
from heddle.base.process import find_program, start_of
from heddle.base.state import write_json
from heddle.host import packages
from heddle_plugins.places.vm.image import DISK, KERNEL_FILE, VmImage

QEMU: Final = "qemu-system-x86_64"
KVM: Final = "kvm"
TCG: Final = "tcg"
CONSOLE: Final = "console.log"
BOOT_ARCHIVE: Final = "initramfs"
MONITOR: Final = "monitor"
HOST: Final = "127.0.0.1"  # QEMU listens at this address only: no other machine can reach the guest
GUEST_ADDRESS: Final = "10.0.2.15"  # the first address that QEMU's user network gives
DEVICE: Final = Path("/dev/kvm")
# Without AVX2: with it, numpy's argsort of 64-bit integers gives a wrong order or crashes (QEMU 7.2, numpy 2.4).
_EMULATED: Final = "max,avx2=off"
# no_timer_check: the kernel's test of the timer needs interrupts in time, and a busy machine delivers them late.
_KERNEL_WORDS: Final = "console=ttyS0 earlyprintk=serial,ttyS0,115200 quiet panic=-1 mitigations=off no_timer_check rw"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a guest gets. memory: MiB; idle_seconds: after which it ends without a verb, 0: never."""

    cpus: int
    memory: int
    idle_seconds: int


def find_qemu() -> str:
    """The path of QEMU; MachineError when it is not installed."""
    found = find_program(QEMU)
    if found is None:
        raise MachineError(packages.absence("qemu", "./inv vm up --yes"))
    return found


def kvm_problem() -> str:
    """Why KVM cannot be used, as far as this is known without a guest; empty when it may work."""
    if not DEVICE.exists():
        return f"{DEVICE} does not exist"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"this user may not open {DEVICE} (group kvm)"
    return ""


def qemu_command(image: VmImage, files: Mapping[str, Path], hardware: Hardware, accelerator: str) -> list[str]:
    """The command line of QEMU, for a working directory with BOOT_ARCHIVE, in which CONSOLE and MONITOR are made.

    files: by the names under which the guest finds them. QEMU forwards a free port of HOST to the guest's sshd. The
    guest has no other network. It writes to a temporary file that has no name (snapshot=on), never to the image.
    """
    tcg = accelerator == TCG
    words = [find_qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35"]
    words += ["-accel", "tcg,thread=multi" if tcg else "kvm", "-cpu", _EMULATED if tcg else "host"]
    words += ["-smp", str(hardware.cpus), "-m", f"{hardware.memory}M"]
    words += ["-kernel", str(image.path / KERNEL_FILE), "-initrd", BOOT_ARCHIVE, "-append", _KERNEL_WORDS]
    words += ["-serial", f"file:{CONSOLE}", "-qmp", f"unix:{MONITOR},server=on,wait=off"]
    words += ["-drive", f"file={_doubled(image.path / DISK)},if=virtio,format=raw,snapshot=on"]
    words += ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:{HOST}:0-{GUEST_ADDRESS}:22"]
    words += ["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]
    for name, file in files.items():
        words += ["-fw_cfg", f"name=opt/heddle/{name},file={_doubled(file)}"]
    return words


def _doubled(path: Path) -> str:
    """A path inside an option of QEMU, which reads two commas as one."""
    return str(path).replace(",", ",,")


MESSAGES: Final = "qemu.log"
IO_ERROR: Final = "io-error"  # a status: the guest is paused, because this machine's disk is full
PANIC: Final = "Kernel panic"
_PROCESS: Final = "qemu.json"
_OLD_CODE: Final = "Oops: int3"
_END_S: Final = 5.0
_ANSWER_S: Final = 3.0
_TAIL: Final = 12  # lines of a console that are shown
_CAUSES: Final = re.compile(r"Oops: |BUG: |kernel BUG at |general protection fault")  # before a panic
_CAUSE_LINES: Final = 4  # with the function in which it happened
_FORWARDED: Final = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)")


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """A process of QEMU. started: in clock ticks since this machine's boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return start_of(self.pid) == self.started

    @property
    def _gone(self) -> bool:
        """Whether all its threads have ended; the first one may end earlier, while others still hold files."""
        if self.alive:
            return False
        try:
            return len(list(Path("/proc", str(self.pid), "task").iterdir())) < 2
        except OSError:
            return True

    def end(self) -> None:
        """End it: SIGTERM, which ends QEMU at once, then SIGKILL. Another process with its pid is never signalled."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + _END_S
            with suppress(ProcessLookupError):
                if self.alive:
                    os.kill(self.pid, number)
            while time.monotonic() < until:
                with suppress(ChildProcessError):
                    os.waitpid(self.pid, os.WNOHANG)  # if this process started it
                if self._gone:
                    return
                time.sleep(0.02)
        raise MachineError(Problem("", f"process {self.pid}", "does not end, and the VM runs in it", "see dmesg"))


def start_qemu(argv: list[str], directory: Path) -> tuple[subprocess.Popen[bytes], QemuProcess]:
    """Start QEMU in a directory: the child, and the record of its process, which is also written there."""
    with machine_errors(str(directory)):
        (directory / CONSOLE).write_bytes(b"")
        with (directory / MESSAGES).open("wb") as log:
            # A session of its own: Ctrl-C at the terminal that started it does not end it.
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=directory,
                env={**os.environ, "TMPDIR": str(directory)},  # the guest's disk
            )
    process = QemuProcess(child.pid, start_of(child.pid) or 0)
    try:
        # If this process is killed now, the next one finds QEMU by this file.
        write_json(directory / _PROCESS, asdict(process))
    except BaseException:
        child.kill()
        child.wait()
        raise
    return child, process


def process_in(directory: Path) -> QemuProcess | None:
    """The process of QEMU that was last started in this directory, if it runs; also one whose guest never was ready."""
    try:
        record = json.loads((directory / _PROCESS).read_text(encoding="utf-8"))
        found = QemuProcess(int(record["pid"]), int(record["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.alive else None


def ran_old_code(directory: Path) -> bool:
    """Whether the guest's console shows the race of QEMU that guest.py tells of."""
    try:
        return _OLD_CODE.encode() in (directory / CONSOLE).read_bytes()
    except OSError:
        return False


def tail_of(directory: Path) -> str:
    """The last lines of the guest's console, and those of QEMU's messages; of a panic, its cause and first lines."""
    lines = []
    for name in (CONSOLE, MESSAGES):
        try:
            text = (directory / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        plain = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|c)", "", text)
        found = [line.rstrip() for line in plain.splitlines() if line.strip()]
        panic = next((at for at, line in enumerate(found) if PANIC in line), None)
        if panic is None:
            lines += found[-_TAIL:]
            continue
        cause = next((at for at, line in enumerate(found[:panic]) if _CAUSES.search(line)), panic)
        before = found[cause : min(cause + _CAUSE_LINES, panic)]
        lines += before + found[panic : panic + _TAIL - len(before)]
    return "\n".join(printable(line, 200) for line in lines)


def status(directory: Path) -> str | None:
    """`running`, `paused`, IO_ERROR and so on; None when the monitor does not answer."""
    answer = _ask(directory, "query-status")
    return str(answer["status"]) if isinstance(answer, dict) and "status" in answer else None


def resume(directory: Path) -> None:
    """Let a paused guest go on."""
    _ask(directory, "cont")


def registers(directory: Path) -> str:
    """Instruction pointer, stack pointer and flags of each processor, one a line; empty without an answer."""
    lines = _text(directory, "info registers -a").splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith(("RIP=", "EIP=", "CPU#")))


def forwarded_port(directory: Path) -> int:
    """The port that QEMU forwards to the guest; 0 when the monitor does not answer."""
    found = _FORWARDED.search(_text(directory, "info usernet"))
    return int(found[1]) if found else 0


def _text(directory: Path, line: str) -> str:
    return str(_ask(directory, "human-monitor-command", {"command-line": line}) or "")


def _ask(directory: Path, command: str, arguments: Mapping[str, str] | None = None) -> Any:
    """The answer to one command; None when QEMU does not answer in time."""
    try:
        # The path of a socket has at most 107 characters; through a descriptor it always fits.
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(_ANSWER_S)
                link.connect(f"/proc/self/fd/{place}/{MONITOR}")
                with link.makefile("rw", encoding="utf-8", newline="\n") as lines:
                    lines.readline()  # its greeting
                    _command(lines, "qmp_capabilities", {})
                    return _command(lines, command, arguments or {})
        finally:
            os.close(place)
    except (OSError, ValueError):
        return None


def _command(lines: Any, name: str, arguments: Mapping[str, str]) -> Any:
    lines.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
    lines.flush()
    while line := lines.readline():
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
        if "error" in answer:
            raise ValueError(answer["error"])
    return None
