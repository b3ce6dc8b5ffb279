"""What a guest gets, and the command line of QEMU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError
from heddle.base.process import find_program
from heddle.host import packages
from heddle.places.vm.image import VmImage
from heddle.places.vm.imagebuild import DISK, KERNEL_FILE

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
