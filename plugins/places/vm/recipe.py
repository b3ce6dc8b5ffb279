"""What an image is made of: Debian packages, Python packages, and the commands. Its name is a hash of all these inputs.

The guest's own scripts (templates/vm/) are not part of an image: each boot adds them. So a change of a script needs no
new image; a change of a command here, or of initramfs.py, does.
The kernels that a guest can boot are Debian's, by pocket of the archive. A kernel's name is also the guest's name:
`--on vm:stable` and `--on vm` are two guests.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base import resources
from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.host import packages as parts
from heddle.host.engine.images import SUITE
from heddle_plugins.places.vm import initramfs

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
    """`vm`, or `vm:stable`: the guest of a kernel as `--on` takes it."""
    return "vm" if kernel == DEFAULT else f"vm:{kernel}"


def debian_machine() -> str:
    """`amd64`; MachineError on processors for which there is no guest."""
    machine = platform.machine()
    if machine not in _MACHINES:
        why = f"runs on {', '.join(_MACHINES)} only, and this machine is {machine}"
        raise MachineError(Problem("", "the VM", why, "use a lab server: --on ssh:user@host"))
    return _MACHINES[machine]


IMAGE_FORMAT: Final = 5  # of the files; a change makes new images
LOCK: Final = "packages.lock"
_HOME: Final = "/opt/heddle"  # in the guest
_PLATFORMS: Final = ("manylinux_2_39", "manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
# The guest runs templates/vm/guest-init and has no init system.
_SYSTEM: Final = ("busybox-static", "ca-certificates", "iproute2", "kmod", "openssh-server", "python3", "python3-venv")
_RDMA: Final = ("ibverbs-providers", "ibverbs-utils", "perftest", "python3-pyverbs", "rdma-core", "ucx-utils")
_PARTS: Final = (*parts.FABRIC, *parts.HOST_TOOLS, *parts.TEST_EXTRAS)
# A guest has no readers of these files.
_LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_DISK_SIZE: Final = "8G"  # with holes: what the guest writes goes to another file


def guest_packages() -> Sequence[str]:
    """The Debian packages of the guest except its kernel: a small system, what labs and tests use, soft-RoCE."""
    own = (parts.PARTS[name].packages[0] for name in _PARTS)
    return sorted({*_SYSTEM, *_RDMA, "nftables", *own})


def lock_file() -> bytes:
    """Both lock files as one: the guest has the Python packages of all extras, because it may have no network."""
    names = (resources.CORE_LOCK, resources.EXTRAS_LOCK)
    return b"\n".join(resources.HERE.beside(name).read_bytes() for name in names)


def _stamp() -> str:
    """What ./inv reads in an environment that is ready for this Heddle."""
    return hashlib.sha256(resources.HERE.beside(resources.CORE_LOCK).read_bytes()).hexdigest()


def download(lock: Path, wheels: Path) -> list[str]:
    """The words of pip: download the packages of a lock file for the guest's Python, and check their hashes."""
    machine = {"amd64": "x86_64"}[debian_machine()]
    words = ["download", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    words += ["--only-binary", ":all:", "--python-version", PYTHON, "--implementation", "cp", "--no-deps"]
    words += [word for each in _PLATFORMS for word in ("--platform", f"{each}_{machine}")]
    return [*words, "--dest", str(wheels), "--requirement", str(lock)]


def bootstrap(kernel: Kernel, lock: Path, wheels: Path, root: Path) -> list[str]:
    """mmdebstrap makes the system of a guest, with these Python packages, in the directory `root`."""
    python = f"{_HOME}/venv/bin/python"
    install = f"{python} -m pip install -q --no-index --no-deps --find-links {_HOME}/wheels {_HOME}/wheels/*.whl"
    stamp = f"echo {_stamp()} >{_HOME}/venv/heddle-stamp"
    inside = f"python3 -m venv {_HOME}/venv && {install} && {stamp} && rm -r {_HOME}/wheels {_HOME}/{lock.name}"
    hooks = []
    if kernel.pocket != SUITE:  # the same mirror has it
        change = f"s/ {SUITE} / {kernel.pocket} /p"
        hooks.append(
            f'--setup-hook=sed -n "{change}" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/pocket.list"'
        )
    hooks += [
        f'--customize-hook=mkdir -p "$1{_HOME}" "$1/usr/lib/heddle"',
        f"--customize-hook={shlex.join(['copy-in', str(wheels), str(lock), _HOME])}",
        f'--customize-hook=chroot "$1" sh -c {shlex.quote(inside)}',
    ]
    # INITRD=No: the kernel's package then makes no initramfs; initramfs.py makes a smaller one.
    words = ["env", "INITRD=No", "mmdebstrap", "--mode=root", "--format=directory", "--variant=minbase"]
    words += ["--include", ",".join([kernel.package, *guest_packages()])]
    words += [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
    return [*words, *hooks, SUITE, str(root)]


def make_disk(root: Path, disk: Path) -> list[str]:
    """mke2fs makes a disk with the files of a directory; owners are those that it sees. The disk needs no journal."""
    words = ["/sbin/mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0"]
    return [*words, "-d", str(root), str(disk), _DISK_SIZE]


def inputs(kernel: Kernel) -> Mapping[str, str]:
    """All inputs of an image, except the day on which Debian's packages are downloaded."""
    lock, wheels, root = Path(LOCK), Path("wheels"), Path("root")  # without the paths of this machine
    commands = [*download(lock, wheels), *bootstrap(kernel, lock, wheels, root), *make_disk(root, Path("disk"))]
    return {
        "format": str(IMAGE_FORMAT),
        "suite": SUITE,
        "kernel": kernel.package,
        "packages": " ".join(guest_packages()),
        "python": hashlib.sha256(lock_file()).hexdigest(),
        "commands": hashlib.sha256("\0".join(commands).encode()).hexdigest(),
        "code": hashlib.sha256(Path(initramfs.__file__).read_bytes()).hexdigest(),
    }


def image_name(kernel: Kernel) -> str:
    """The name of the image that this Heddle needs for a kernel: `backports-0123456789ab`."""
    digest = hashlib.sha256(json.dumps(inputs(kernel), sort_keys=True).encode()).hexdigest()
    return f"{kernel.name}-{digest[:12]}"
