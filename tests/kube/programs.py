"""Kubernetes itself, built from its Go modules: once, for all test runs of this user.

    CACHE/kube/0123456789ab/    kube.gz (one program, which its name makes apiserver, controller manager, scheduler or
                                kubelet), pause.gz (the first process of each pod)

`python -m tests.kube.programs` says on standard output why nothing can start now, with exit code 1.
The directory's name is a hash of all inputs: tests/kube/build and the command of the build. A first build takes about
13 minutes on 2 processors, 2.5 GB of memory, and 4 GB in Go's own caches, which later builds do not need.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import find_program, first_lines
from heddle.base.state import cache_dir
from heddle.base.userfiles import make_dir
from heddle.host import packages
from heddle.host.engine.lockfile import locked

SOURCE: Final = Path(__file__).with_name("build")
VERSION: Final = "v1.34.2"  # that of build/go.mod
PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PAUSE: Final = "pause"
_KUBE: Final = "kube"
_BUILD_S: Final = 3600.0
_VERSION: Final = "k8s.io/component-base/version"
_LINK: Final = (
    "-s", "-w", f"-X={_VERSION}.gitVersion={VERSION}", f"-X={_VERSION}.gitMajor=1", f"-X={_VERSION}.gitMinor=34",
)  # fmt: skip
_PACKAGES: Final = {_KUBE: ".", PAUSE: "./pause"}


def ensure_programs(into: Path, say: Callable[[str], None]) -> None:
    """The four programs of PROGRAMS and `pause` in the directory `into`; built if the cache does not have them."""
    place = _place()
    make_dir(place.parent)
    with locked(place.parent / ".lock", fcntl.LOCK_EX, lambda: say("another test run builds Kubernetes")):
        if not place.exists():
            say(f"building Kubernetes {VERSION}: 8 to 15 minutes, only once")
            _build(place)
    for name in _PACKAGES:
        with gzip.open(place / f"{name}.gz") as packed, (into / name).open("wb") as program:
            shutil.copyfileobj(packed, program, 1 << 20)
        (into / name).chmod(0o755)
    for name in PROGRAMS:
        (into / name).symlink_to(_KUBE)


def why_not_now() -> str:
    """Why a cluster cannot start without installing or building something; empty if it can."""
    if missing := packages.missing(packages.KUBE):
        return f"{', '.join(part.packages[0] for part in missing)} not installed"
    return "" if _place().exists() else f"Kubernetes {VERSION} is not built"


def _place() -> Path:
    return cache_dir() / "kube" / _inputs()


def _inputs() -> str:
    found = hashlib.sha256(" ".join([platform.machine(), *_LINK]).encode())
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(SOURCE)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def _build(place: Path) -> None:
    """Build in a directory beside `place`, which gets its name when it is complete."""
    go = find_program("go", "/usr/local/go/bin", "/usr/lib/go/bin")
    if go is None:
        raise MachineError(Problem("", "go", "is not installed", "run ./inv test kube: it installs it"))
    for old in place.parent.iterdir():
        if old.is_dir():  # of other inputs, or incomplete
            shutil.rmtree(old)
    part = Path(tempfile.mkdtemp(prefix=".making-", dir=place.parent))
    # Without C: one program for every machine of this architecture, and no compiler is needed.
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false"}
    for name, package in _PACKAGES.items():
        argv = ["nice", "-n", "19", go, "build", f"-ldflags={' '.join(_LINK)}", "-o", str(part / name), package]
        done = subprocess.run(
            argv, cwd=SOURCE, env=env, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )  # fmt: skip
        if done.returncode != 0:
            hint = "it needs Go 1.24 or newer, and Go's module proxy (GOPROXY)"
            raise MachineError(Problem("", f"Kubernetes {VERSION}", f"is not built: {first_lines(done.stderr)}", hint))
        with (part / name).open("rb") as program, gzip.open(part / f"{name}.gz", "wb", compresslevel=6) as packed:
            shutil.copyfileobj(program, packed, 1 << 20)
        (part / name).unlink()
    part.rename(place)


if __name__ == "__main__":
    print(why := why_not_now())
    sys.exit(bool(why))
