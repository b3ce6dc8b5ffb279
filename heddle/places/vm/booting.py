"""Start QEMU once, with one accelerator, and wait until the guest is ready.

/dev/kvm may exist and then hang the guest before its first instruction, or end QEMU. So only a guest that reports
`ready` counts as booted.

A guest with several processors under TCG can panic with `Oops: int3` (one boot of 120, QEMU 7.2; the same was reported
of 8.0 on the kernel's list in July 2023). The kernel changes its code while it runs, by way of an int3 instruction. The
likely cause is that QEMU translates the int3 while it is replaced, and runs it ever after; newer versions lock the page
("accel/tcg: Always lock pages before translation"), which was not tried. Such a guest is started again; one that panics
for another reason is not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem, machine_errors
from heddle.base.process import start_of
from heddle.base.state import write_json
from heddle.places.vm import monitor
from heddle.places.vm.bootkeys import HOST, BootKeys
from heddle.places.vm.hardware import BOOT_ARCHIVE, CONSOLE, KVM, TCG, Hardware, qemu_command
from heddle.places.vm.image import INITRAMFS, VmImage, script
from heddle.places.vm.initramfs import boot_archive

READY: Final = "heddle: ready"
# A guest with KVM is ready within seconds; with TCG within 10 s on an idle machine.
PATIENCE_S: Final = {KVM: 20.0, TCG: 240.0}
MESSAGES: Final = "qemu.log"
_PROCESS: Final = "qemu.json"
_TAKEN: Final = re.compile(r"Could not set up host forwarding rule")
_PORTS_TRIED: Final = 5
_TAIL: Final = 12  # lines of a console that are shown
PANIC: Final = "Kernel panic"
OLD_CODE: Final = "Oops: int3"  # the race of QEMU, above
_BOOTS: Final = 3  # of guests that meet it
_CAUSES: Final = re.compile(r"Oops: |BUG: |kernel BUG at |general protection fault")  # before a panic
_CAUSE_LINES: Final = 4  # with the function in which it happened
_END_S: Final = 5.0


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


@dataclass(frozen=True, slots=True)
class Booted:
    """A process of QEMU whose guest is ready."""

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
    image: VmImage, directory: Path, keys: BootKeys, hardware: Hardware, accelerator: str, tell: Callable[[str], None]
) -> Booted:
    """Start QEMU and wait until the guest is ready. directory: for its log, console and socket. BootFailed if it fails.

    tell: gets the last line of the console while the guest boots.
    """
    given = {"authorized-key": keys.authorized, "host-key": keys.host_key, "idle-seconds": directory / "idle-seconds"}
    with machine_errors(str(directory)):
        (directory / "idle-seconds").write_text(f"{hardware.idle_seconds}\n", encoding="ascii")
        scripts = {name: script(name) for name in ("guest-init", "sshd_config")} | {"init": script("initramfs-init")}
        (directory / BOOT_ARCHIVE).write_bytes(boot_archive((image.path / INITRAMFS).read_bytes(), scripts))
    ports, boots = _PORTS_TRIED, _BOOTS
    while ports:
        port = free_port()
        argv = qemu_command(image, given, hardware, accelerator, port)
        began = time.monotonic()
        child, process = start_qemu(argv, directory)
        try:
            _wait(child, directory, PATIENCE_S[accelerator], began, tell)
        except BootFailed as failed:
            process.end()
            if _TAKEN.search(failed.tail):
                ports -= 1  # another process has taken the port since
            elif boots > 1 and ran_old_code(directory):
                boots -= 1
                tell("the guest met a race of QEMU and is started again")
            else:
                raise
        except BaseException:
            process.end()
            raise
        else:
            return Booted(process, port, accelerator, time.monotonic() - began)
    raise BootFailed("found no free port on the loopback address", tail_of(directory))


def process_in(directory: Path) -> QemuProcess | None:
    """The process of QEMU that was last started in this directory, if it runs; also one whose guest never was ready."""
    try:
        said = json.loads((directory / _PROCESS).read_text(encoding="utf-8"))
        found = QemuProcess(int(said["pid"]), int(said["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.alive else None


def ran_old_code(directory: Path) -> bool:
    """Whether the guest's console shows the race of QEMU (above)."""
    try:
        return OLD_CODE.encode() in (directory / CONSOLE).read_bytes()
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
    return "\n".join("".join(c if c.isprintable() else "?" for c in line)[:200] for line in lines)


def free_port() -> int:
    """A port of the loopback address that no process uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


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


def _wait(
    child: subprocess.Popen[bytes], directory: Path, patience: float, began: float, tell: Callable[[str], None]
) -> None:
    seen = list[str]()
    while True:
        with machine_errors(str(directory)):
            console = (directory / CONSOLE).read_bytes()
        if READY.encode() in console:
            return
        passed = time.monotonic() - began
        if child.poll() is not None:
            how = "panicked" if PANIC.encode() in console else f"ended (QEMU's exit code is {child.returncode})"
            raise BootFailed(f"{how} after {passed:.1f} s", tail_of(directory))
        if passed > patience:
            said = f"QEMU reports {monitor.status(directory) or 'nothing'}\n{monitor.registers(directory)}"
            raise BootFailed(f"was not ready within {patience:g} s", f"{tail_of(directory)}\n{said}".strip())
        if (last := tail_of(directory).splitlines()[-1:]) != seen:
            seen = last
            tell(last[0] if last else "")
        time.sleep(0.1)
