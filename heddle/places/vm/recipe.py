"""The commands that make an image, as words: inputs of an image, so a change here gives it a new name (image.py)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from heddle.host.engine.images import SUITE
from heddle.places.vm import guestpackages, kernels
from heddle.places.vm.kernels import Kernel

_HOME: Final = "/opt/heddle"  # in the guest
_PLATFORMS: Final = ("manylinux_2_39", "manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
# A guest has no readers of these files.
_LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def download(lock: Path, wheels: Path) -> list[str]:
    """The words of pip: download the packages of a lock file for the guest's Python, and check their hashes."""
    machine = {"amd64": "x86_64"}[kernels.debian_machine()]
    words = ["download", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    words += ["--only-binary", ":all:", "--python-version", kernels.PYTHON, "--implementation", "cp", "--no-deps"]
    words += [word for each in _PLATFORMS for word in ("--platform", f"{each}_{machine}")]
    return [*words, "--dest", str(wheels), "--requirement", str(lock)]


def bootstrap(kernel: Kernel, lock: Path, wheels: Path, tar: Path) -> list[str]:
    """The words of mmdebstrap: the system of a guest, with these Python packages, as a tar."""
    python = f"{_HOME}/venv/bin/python"
    install = f"{python} -m pip install -q --no-index --no-deps --find-links {_HOME}/wheels {_HOME}/wheels/*.whl"
    stamp = f"sha256sum <{_HOME}/{lock.name} | cut -d ' ' -f 1 >{_HOME}/venv/heddle-stamp"
    inside = f"python3 -m venv {_HOME}/venv && {install} && {stamp} && rm -r {_HOME}/wheels {_HOME}/{lock.name}"
    hooks = []
    if kernel.pocket != SUITE:  # the same mirror has it
        change = f"s/ {SUITE} / {kernel.pocket} /p"
        hooks.append(
            f'--setup-hook=sed -n "{change}" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/pocket.list"'
        )
    hooks += [
        f'--customize-hook=mkdir -p "$1{_HOME}"',
        f"--customize-hook={shlex.join(['copy-in', str(wheels), str(lock), _HOME])}",
        f'--customize-hook=chroot "$1" sh -c {shlex.quote(inside)}',
    ]
    words = ["--variant=minbase", "--include", ",".join([kernel.package, *guestpackages.guest_packages()])]
    words += [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
    return [*words, *hooks, SUITE, str(tar)]
