"""The kernels that a guest can boot: Debian's packages, by pocket of the archive.

A kernel's name is also the guest's name: `--place vm:stable` and `--place vm` are two guests.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.host.engine.images import SUITE

PYTHON: Final = "3.13"  # of SUITE; the guest's Python packages are for this version


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. pocket: the part of Debian's archive that has it; about: its purpose, in a few words."""

    name: str
    pocket: str
    about: str

    @property
    def package(self) -> str:
        """`linux-image-amd64/trixie-backports`, as apt takes it."""
        package = f"linux-image-{debian_machine()}"
        return package if self.pocket == SUITE else f"{package}/{self.pocket}"


KERNELS: Final[Mapping[str, Kernel]] = {
    each.name: each
    for each in (
        Kernel("backports", f"{SUITE}-backports", "Debian's newest kernel: soft-RoCE works in namespaces"),
        Kernel("stable", SUITE, "the kernel of Debian's stable release"),
        Kernel("oldstable", "bookworm", "Linux 6.1, the kernel of the release before"),
    )
}
DEFAULT: Final = "backports"
_MACHINES: Final = {"x86_64": "amd64"}


def kernel_named(name: str, where: str = "", what: str = "--kernel") -> Kernel:
    """The kernel with this name; InputError lists the kernels that exist."""
    if name in KERNELS:
        return KERNELS[name]
    shown = f"{what} {name[:60]}" if not what.endswith(":") else f"{what}{name[:60]}"
    raise InputError(Problem(where, shown, "is not a kernel of the VM", did_you_mean(name, KERNELS)))


def place_name(kernel: str) -> str:
    """`vm`, or `vm:stable`: the guest of a kernel as `--place` takes it."""
    return "vm" if kernel == DEFAULT else f"vm:{kernel}"


def debian_machine() -> str:
    """`amd64`; MachineError on processors for which there is no guest."""
    machine = platform.machine()
    if machine not in _MACHINES:
        why = f"runs on {', '.join(_MACHINES)} only, and this machine is {machine}"
        raise MachineError(Problem("", "the VM", why, "use a lab server: --place ssh:user@host"))
    return _MACHINES[machine]
