"""The other kernels of Debian boot, each from an image that is made here: that kernel, and few packages beside it.

An image with all packages takes five minutes to make. What differs by kernel are its package, its modules and the order
in which they are loaded; the system beside them is the same for all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle_plugins.places.vm import recipe
from heddle_plugins.places.vm.guest import end_guest, ensure_guest
from heddle_plugins.places.vm.qemu import Hardware
from heddle_plugins.places.vm.recipe import KERNELS, lock_file
from tests.vm.conftest import Machine

FEW = ("busybox-static", "ca-certificates", "iproute2", "kmod", "openssh-server", "python3", "python3-venv")
SEED = "/proc/sys/net/ipv4/fib_multipath_hash_seed"


def first_package() -> bytes:
    """The lock file up to its second package."""
    lines = lock_file().decode().splitlines(keepends=True)
    begins = [at for at, line in enumerate(lines) if "==" in line]
    return "".join(lines[: begins[1]]).encode()


@pytest.mark.deep
@pytest.mark.root
@pytest.mark.timeout(900)
@pytest.mark.needs("mmdebstrap", "e2fsprogs")
@pytest.mark.parametrize(("kernel", "release", "has_seed"), [("stable", "6.12.", True), ("oldstable", "6.1.", False)])
def test_another_kernel_boots_and_has_what_labs_can_use(
    kernel: str, release: str, has_seed: bool, alone: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = first_package()
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "a cache"))
    monkeypatch.setattr(recipe, "guest_packages", lambda: FEW)
    monkeypatch.setattr(recipe, "lock_file", lambda: lock)
    guest = ensure_guest(KERNELS[kernel], Silent(), Hardware(1, 1024, 600))
    try:
        assert guest.release.startswith(release)
        script = f"uname -r; modprobe -a sch_htb sch_red sch_ets sch_netem veth && echo loaded; test -e {SEED}; echo $?"
        done = replace(alone, kernel=kernel).ssh("sh", "-c", script)
        assert done.stdout.split() == [guest.release, "loaded", "0" if has_seed else "1"], done.stderr
    finally:
        end_guest(kernel)
