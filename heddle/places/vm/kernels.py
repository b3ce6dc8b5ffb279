"""The kernels that a guest can boot: Debian's packages, by pocket of the release.

A kernel's name is the guest's name, too: `--place vm:stable` and `--place vm` are two guests.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.base.problems import InputError, MachineError, Problem, nearest

SUITE: Final = "trixie"  # Debian's stable release: the guest's userland
PYTHON: Final = "3.13"  # of that release; the guest's Python packages are for this version


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. pocket: the part of Debian's archive that has it; about: what it is for, in a few words."""

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
    )
}
DEFAULT: Final = "backports"
_MACHINES: Final = {"x86_64": "amd64"}


def kernel_named(name: str, where: str = "", what: str = "--kernel") -> Kernel:
    """The kernel with this name; InputError names the ones that exist."""
    if name in KERNELS:
        return KERNELS[name]
    near = nearest(name, KERNELS)
    hint = f"did you mean {near}?" if near else f"kernels: {', '.join(KERNELS)}"
    raise InputError(Problem(where, f"{what} {name[:60]!r}", "is not a kernel of the VM", hint))


def debian_machine() -> str:
    """`amd64`; MachineError on processors for which there is no guest."""
    machine = platform.machine()
    if machine not in _MACHINES:
        why = f"runs on {', '.join(_MACHINES)} only, and this machine is {machine}"
        raise MachineError(Problem("", "the VM", why, "use a lab server: --place ssh:user@host"))
    return _MACHINES[machine]
