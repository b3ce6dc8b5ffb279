"""What a guest gets, and the command line of QEMU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problems
from heddle.base.process import find_program
from heddle.host import packages
from heddle.places.vm.bootkeys import HOST
from heddle.places.vm.image import DISK, KERNEL_FILE, VmImage

QEMU: Final = "qemu-system-x86_64"
KVM: Final = "kvm"
TCG: Final = "tcg"
CONSOLE: Final = "console.log"
BOOT_ARCHIVE: Final = "initramfs"
MONITOR: Final = "monitor"
SEED: Final = 1
_MOST_SEED: Final = (1 << 64) - 1
LONGEST_INSTRUCTION_NS: Final = 1024  # QEMU's shift is at most 10
GUEST_ADDRESS: Final = "10.0.2.15"  # the first address that QEMU's user network gives
DEVICE: Final = Path("/dev/kvm")
_MIB: Final = 1 << 20
# When the processor halts, QEMU's main thread sets the clock to the next timer. It may see the halt before the last
# instructions are counted, and the clock is then ahead by these, about 20 ns (rr_cpu_thread_fn in
# accel/tcg/tcg-accel-ops-rr.c counts them without the lock). While QEMU records, a second lock, which it takes for
# recording only, lets the main thread and the processor run in turns. The record itself is not needed.
_ONE_AT_A_TIME: Final = ",rr=record,rrfile=/dev/null"
# Without AVX2: with it, numpy's argsort of 64-bit integers gives a wrong order or crashes (QEMU 7.2, numpy 2.4).
_EMULATED: Final = "max,avx2=off"
_SPARE_MIB: Final = 1024  # of addresses: each NVDIMM begins at an aligned one
# no_timer_check: the kernel's test of the timer needs interrupts in time, and a busy machine delivers them late.
_KERNEL_WORDS: Final = "console=ttyS0 earlyprintk=serial,ttyS0,115200 quiet panic=-1 mitigations=off no_timer_check rw"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a guest gets. memory: MiB; idle_seconds: after which it ends without a verb, 0: never.

    instruction_ns: 0, or the nanoseconds of the guest's clock that each of its instructions takes (a power of 2).
    seed: of random numbers, for a clock that counts instructions.
    """

    cpus: int
    memory: int
    idle_seconds: int
    instruction_ns: int = 0
    seed: int = SEED

    @property
    def steps_of_time(self) -> bool:
        """Whether the guest's clock counts instructions."""
        return self.instruction_ns > 0


def check_instruction(nanoseconds: int, problems: Problems) -> None:
    """Add a problem when QEMU's clock cannot give each instruction so many nanoseconds."""
    if nanoseconds & (nanoseconds - 1) or not 0 < nanoseconds <= LONGEST_INSTRUCTION_NS:
        why = f"is not a power of 2 from 1 to {LONGEST_INSTRUCTION_NS}"
        problems.add(where="", what=f"--instruction-ns {nanoseconds}", why=why, hint="use 1")


def check_seed(seed: int, problems: Problems) -> None:
    """Add a problem when QEMU does not take this seed."""
    if not 0 <= seed <= _MOST_SEED:
        problems.add(where="", what=f"--seed {seed}", why=f"is not between 0 and {_MOST_SEED}", hint="use 1")


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


def qemu_command(
    image: VmImage, files: Mapping[str, Path], hardware: Hardware, accelerator: str, port: int
) -> list[str]:
    """The command line of QEMU, for a working directory with BOOT_ARCHIVE, in which CONSOLE and MONITOR are made.

    files: by the names under which the guest finds them. port: of HOST, forwarded to the guest's sshd. The guest has no
    other network. It writes to a temporary file that has no name (snapshot=on), never to the image.
    """
    words = [*_processor(hardware, accelerator), "-machine", "q35", "-m", f"{hardware.memory}M"]
    words += [*_kernel(image), "-qmp", f"unix:{MONITOR},server=on,wait=off"]
    words += ["-drive", f"file={_doubled(image.path / DISK)},if=virtio,format=raw,snapshot=on"]
    words += ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:{HOST}:{port}-{GUEST_ADDRESS}:22"]
    words += ["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]
    for name, file in files.items():
        words += ["-fw_cfg", f"name=opt/heddle/{name},file={_doubled(file)}"]
    return words


def replay_command(image: VmImage, hardware: Hardware, results: Path) -> list[str]:
    """The command line of QEMU for a replay, for a working directory as above: nothing comes in from outside.

    Disks are memory of the guest (NVDIMMs), so reading one takes instructions of the guest and no time of this machine:
    the image's disk, of which the guest changes a private copy, and the file `results`, to which it writes. There is no
    network, no monitor, and no source of random numbers but the seed.
    """
    disks = {"disk": (image.path / DISK, "share=off,reserve=off"), "results": (results, "share=on")}
    sizes = {name: file.stat().st_size for name, (file, _) in disks.items()}
    most = hardware.memory + sum(sizes.values()) // _MIB + _SPARE_MIB
    words = [*_processor(hardware, TCG, _ONE_AT_A_TIME), "-machine", "q35,nvdimm=on"]
    words += ["-m", f"{hardware.memory}M,slots={len(disks)},maxmem={most}M", *_kernel(image)]
    for name, (file, how) in disks.items():
        words += ["-object", f"memory-backend-file,id={name},mem-path={_doubled(file)},size={sizes[name]},{how}"]
        words += ["-device", f"nvdimm,id=dimm-{name},memdev={name}"]
    return words


def _processor(hardware: Hardware, accelerator: str, order: str = "") -> list[str]:
    """QEMU without devices, its processors, and its clock."""
    tcg, threads = accelerator == TCG, "single" if hardware.steps_of_time else "multi"
    words = [find_qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    words += ["-accel", f"tcg,thread={threads}" if tcg else "kvm", "-cpu", _EMULATED if tcg else "host"]
    words += ["-smp", str(hardware.cpus)]
    return words + (_by_instructions(hardware, order) if hardware.steps_of_time else [])


def _kernel(image: VmImage) -> list[str]:
    """What the guest starts with, and where it writes its messages."""
    words = ["-kernel", str(image.path / KERNEL_FILE), "-initrd", BOOT_ARCHIVE, "-append", _KERNEL_WORDS]
    return [*words, "-serial", f"file:{CONSOLE}"]


def _by_instructions(hardware: Hardware, order: str) -> list[str]:
    """The clock counts instructions, and begins at a fixed date; random numbers follow from the seed."""
    shift = hardware.instruction_ns.bit_length() - 1
    words = ["-icount", f"shift={shift},sleep=off{order}", "-seed", str(hardware.seed)]
    return [*words, "-rtc", "base=2026-01-01T00:00:00,clock=vm"]


def _doubled(path: Path) -> str:
    """A path inside an option of QEMU, which reads two commas as one."""
    return str(path).replace(",", ",,")
