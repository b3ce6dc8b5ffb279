"""Make an image: Debian packages by mmdebstrap, Python packages of the lock file, then disk, kernel and initramfs.

In:  a Kernel, and an empty directory.
Out: disk.img, vmlinuz and initramfs.gz in it, and the kernel's release.
No root is needed if mmdebstrap can use a user namespace; then fakeroot keeps the owners of files.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.mounts import scratch
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done, follow, run
from heddle.host import packages
from heddle.host.engine.images import SUITE
from heddle.places.vm import guestpackages, kernels
from heddle.places.vm.image import DISK, INITRAMFS, KERNEL_FILE, lock_file
from heddle.places.vm.kernels import Kernel

_HOME: Final = "/opt/heddle"  # in the guest
_DOWNLOAD_S: Final = 900.0
_BOOTSTRAP_S: Final = 1800.0
_PACK_S: Final = 300.0
_PLATFORMS: Final = ("manylinux_2_39", "manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
_SUBIDS: Final = ("/etc/subuid", "/etc/subgid")
# A guest has no readers of these files.
_LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def build(kernel: Kernel, part: Path, observer: Observer) -> str:
    """Make the files of an image in `part`; return the kernel's release. MachineError names the obstacle."""
    _check_tools()
    observer.say(f"making the image of the VM ({kernel.package}): a few minutes, only once")
    with scratch("heddle-vm-") as work:
        work.chmod(0o755)  # apt reads there as its own user
        wheels = work / "wheels"
        _fetch(wheels, observer)
        tar = part / "root.tar"
        _bootstrap(kernel, wheels, tar, observer)
        observer.begin("disk of the VM")
        said = _pack(part)
        observer.end("disk of the VM", f"Linux {said}")
    return said


def _check_tools() -> None:
    """MachineError with everything that is missing to make an image, if something is."""
    absent = packages.missing(packages.VM_BUILD if os.geteuid() == 0 else packages.VM_BUILD_USER)
    found = [packages.absence(part.name, "./inv vm build --yes") for part in absent]
    if os.geteuid() != 0:
        found += [_no_subids(path) for path in _SUBIDS if not _has_subids(Path(path))]
    if find_spec("pip") is None:
        found.append(Problem("", "pip", f"is missing in {sys.prefix}", f"run {sys.executable} -m ensurepip"))
    if found:
        raise MachineError(*found)


def _has_subids(path: Path) -> bool:
    me = (_user(), str(os.getuid()))
    try:
        return any(line.split(":")[0] in me for line in path.read_text(encoding="utf-8").splitlines())
    except OSError:
        return False


def _user() -> str:
    """The name of this user, as /etc/subuid has it; its number for a user without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _no_subids(path: str) -> Problem:
    why = f"has no range of ids for user {_user()}, and without root mmdebstrap needs one"
    ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
    return Problem(
        "", path, why, f"run sudo usermod {ranges} {_user()}, or make the image once as root: sudo ./inv vm build"
    )


def _fetch(wheels: Path, observer: Observer) -> None:
    """Download the packages of the lock file for the guest's Python. pip uses its own settings, and checks hashes."""
    observer.begin("Python packages of the VM")
    machine = {"amd64": "x86_64"}[kernels.debian_machine()]
    argv = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--python-version", kernels.PYTHON, "--implementation", "cp", "--no-deps"]
    argv += [word for each in _PLATFORMS for word in ("--platform", f"{each}_{machine}")]
    lock = wheels.parent / "requirements.lock"
    lock.write_bytes(lock_file())
    done = follow(
        [*argv, "--dest", str(wheels), "--requirement", str(lock)],
        _counter(observer, "Python packages of the VM"),
        timeout=_DOWNLOAD_S,
    )
    if done.code != 0:
        _raise_if_full(done, wheels)
        hint = "check the network connection, and the package index that pip is configured for"
        raise MachineError(Problem("", "pip", f"could not download the guest's packages: {_last(done)}", hint))
    observer.end("Python packages of the VM", f"{len(list(wheels.iterdir()))} files")


def _bootstrap(kernel: Kernel, wheels: Path, tar: Path, observer: Observer) -> None:
    step = "Debian packages of the VM"
    observer.begin(step)
    python = f"{_HOME}/venv/bin/python"
    install = f"{python} -m pip install -q --no-index --no-deps --find-links {_HOME}/wheels {_HOME}/wheels/*.whl"
    stamp = f"sha256sum <{_HOME}/requirements.lock | cut -d ' ' -f 1 >{_HOME}/venv/heddle-stamp"
    inside = f"python3 -m venv {_HOME}/venv && {install} && {stamp} && rm -r {_HOME}/wheels {_HOME}/requirements.lock"
    hooks = []
    if kernel.pocket != SUITE:  # the same mirror has it
        change = f"s/ {SUITE} / {kernel.pocket} /p"
        hooks.append(
            f'--setup-hook=sed -n "{change}" "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/pocket.list"'
        )
    hooks += [
        f'--customize-hook=mkdir -p "$1{_HOME}"',
        f"--customize-hook={shlex.join(['copy-in', str(wheels), str(wheels.parent / 'requirements.lock'), _HOME])}",
        f'--customize-hook=chroot "$1" sh -c {shlex.quote(inside)}',
    ]
    argv = [] if os.geteuid() else ["env", f"TMPDIR={wheels.parent}"]
    argv += [
        "mmdebstrap",
        "--variant=minbase",
        "--include",
        ",".join([kernel.package, *guestpackages.guest_packages()]),
    ]
    argv += [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
    with _own_mounts() as before:
        done = follow([*before, *argv, *hooks, SUITE, str(tar)], _counter(observer, step), timeout=_BOOTSTRAP_S)
    if done.code != 0:
        _raise_if_full(done, tar.parent)
        hint = "check the network connection: it downloads from a mirror of Debian"
        raise MachineError(Problem("", "mmdebstrap", f"could not make the VM's system: {_last(done)}", hint))
    observer.end(step, f"{tar.stat().st_size / 1e6:.0f} MB")


@contextmanager
def _own_mounts() -> Iterator[Sequence[str]]:
    """The words before mmdebstrap that keep its mounts and processes in namespaces, which end with this process."""
    if os.geteuid() != 0:
        yield ()  # mmdebstrap makes them itself, in a user namespace
        return
    before = ["setpriv", "--pdeathsig", "KILL"]
    yield [*before, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _pack(part: Path) -> str:
    """Disk, kernel and initramfs of the tar, in a process that is root, or under fakeroot; the kernel's release."""
    argv = [] if os.geteuid() == 0 else ["fakeroot"]
    path = os.pathsep.join([str(resources.HERE.python_path)])
    argv += ["env", f"PYTHONPATH={path}", sys.executable, "-m", "heddle.places.vm.pack", str(part)]
    done = run(argv, timeout=_PACK_S, check=False)
    if done.code != 0:
        _raise_if_full(done, part)
        raise MachineError(
            Problem("", str(part / DISK), f"could not be made: {_last(done)}", "run ./inv vm build again")
        )
    (part / "root.tar").unlink()
    for name in (DISK, KERNEL_FILE, INITRAMFS):
        if not (part / name).is_file():
            raise MachineError(Problem("", str(part / name), "was not made", "run ./inv vm build again"))
    shutil.rmtree(part / "root", ignore_errors=True)
    return done.out.strip().splitlines()[-1]


def _counter(observer: Observer, step: str) -> Callable[[str], None]:
    count = 0

    def line(text: str) -> None:
        nonlocal count
        count += 1
        observer.advance(step, count)

    return line


def _raise_if_full(done: Done, where: Path) -> None:
    if "no space left on device" in (done.err + done.out).lower():
        hint = "free some space there (df -h), or set another directory: HEDDLE_CACHE_DIR=/var/tmp/heddle"
        raise MachineError(Problem("", str(where), "is full: the image needs 4 GB while it is made", hint))


def _last(done: Done) -> str:
    """The last lines with errors, else the last lines."""
    lines: Sequence[str] = [text.strip() for text in (done.err or done.out).splitlines() if text.strip()]
    errors = [text for text in lines if re.match(r"(E:|error|ERROR)", text)]
    return "; ".join((errors or lines)[-2:]) or f"it ended with exit code {done.code} and printed nothing"
