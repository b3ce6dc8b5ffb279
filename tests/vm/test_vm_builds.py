"""Builds of images from scratch: of an ordinary user, killed in the middle of mmdebstrap, and on a full disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.base.process import start_of
from heddle_plugins.places.vm.image import SCRATCH, sweep
from tests.ordinary import OrdinaryUser, ordinary_user, python_of_all
from tests.vm.conftest import ROOT
from tests.vm.test_vm_kernels import FEW, first_package
from tests.wheels import InstalledWheel, install

pytestmark = [
    pytest.mark.deep, pytest.mark.timeout(900), pytest.mark.root, pytest.mark.needs("mount", "mmdebstrap", "e2fsprogs")
]  # fmt: skip


def scratch_of(verb: subprocess.Popen[str]) -> Path:
    """The scratch directory of a build that runs."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for link in Path("/proc", str(verb.pid), "fd").iterdir():
            try:
                place = link.readlink()
            except FileNotFoundError:
                continue  # it was closed since
            if place.name.startswith(SCRATCH):
                return place
        assert verb.poll() is None, verb.communicate()
        time.sleep(0.05)
    raise AssertionError("the build has no directory")


def system_in(scratch: Path, verb: subprocess.Popen[str]) -> Path:
    """The root in which mmdebstrap makes the system, once it unpacks packages there."""
    while not (found := scratch / "root/usr/bin").exists():
        assert verb.poll() is None, verb.communicate()
        time.sleep(0.05)
    return found


def below(pid: int) -> dict[int, int]:
    """All processes that a process has started, and those that they have: their starts."""
    parents = dict[int, int]()
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(each.name)] = int(fields[1])
    found, more = set[int](), {pid}
    while more := {each for each, parent in parents.items() if parent in more} - found:
        found |= more
    return {each: start for each in found if (start := start_of(each)) is not None}


def kill(verb: subprocess.Popen[str]) -> None:
    """Kill a verb, and wait until nothing that it has started runs."""
    started = below(verb.pid)
    assert len(started) > 2, started
    verb.kill()
    verb.communicate(timeout=60)
    until = time.monotonic() + 30
    while left := {pid for pid, start in started.items() if start_of(pid) == start}:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def started(argv: list[str], **named: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL, **named)  # type: ignore[call-overload, no-any-return]


def test_a_killed_build_ends_mmdebstrap_and_down_removes_its_files(tmp_path: Path) -> None:
    cache, state = tmp_path / "a cache", tmp_path / "a state"
    env = {**os.environ, "HEDDLE_CACHE_DIR": str(cache), "HEDDLE_STATE_DIR": str(state)}
    words = [sys.executable, str(ROOT / "tasks.py"), "vm"]
    verb = started([*words, "build", "--kernel", "stable"], env=env)
    scratch = scratch_of(verb)
    system = system_in(scratch, verb)
    sweep()
    assert system.exists(), "a build that runs is not touched"
    kill(verb)
    part = cache / "vm" / ".making-stable"
    assert scratch.exists() and part.exists()
    down = subprocess.run([*words, "down"], env=env, capture_output=True, text=True, check=False)
    assert (down.returncode, scratch.exists(), part.exists()) == (0, False, False), down.stderr


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as found:
        yield found


@pytest.fixture
def theirs(wheel: Path, user: OrdinaryUser) -> InstalledWheel:
    """Heddle's wheel in an environment that the user can read."""
    python = python_of_all()
    if python is None:
        pytest.skip(f"no Python 3.{sys.version_info.minor} that an ordinary user can start")
    return install(wheel, user.spot / "an environment", python=python)


@pytest.mark.needs("uidmap")
def test_a_killed_build_of_an_ordinary_user_ends_the_same_way(user: OrdinaryUser, theirs: InstalledWheel) -> None:
    heddle = str(theirs.program)
    verb = started(
        [*user.words(), heddle, "vm", "build", "--kernel", "stable"], cwd=user.home, env=user.environment({})
    )
    scratch = scratch_of(verb)
    system = system_in(scratch, verb)
    assert scratch.stat().st_uid == system.stat().st_uid != 0, "its files are not those of root"
    kill(verb)
    part = user.home / ".cache/heddle/vm/.making-stable"
    assert scratch.exists() and part.exists()
    down = user.run([heddle, "vm", "down"], env={})
    assert (down.returncode, scratch.exists(), part.exists()) == (0, False, False), down.stderr


@pytest.mark.needs("uidmap")
def test_files_have_their_owners_and_modes_on_a_disk_that_an_ordinary_user_makes(
    user: OrdinaryUser, theirs: InstalledWheel
) -> None:
    code = (
        "from heddle.base.events import Silent\n"
        "from heddle_plugins.places.vm import image, kernels, recipe\n"
        f"recipe.guest_packages = lambda: {FEW}\n"
        f"recipe.lock_file = lambda: {first_package()!r}\n"
        "print(image.ensure_image(kernels.KERNELS['stable'], Silent()).path)"
    )
    done = user.run([str(theirs.python), "-c", code], env={})
    assert done.returncode == 0, done.stderr
    for name, owner, group, mode in (("bin/busybox", 0, 0, "0755"), ("etc/shadow", 0, 42, "0640")):
        argv = ["/sbin/debugfs", "-R", f"stat /{name}", f"{done.stdout.strip()}/disk.img"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert re.search(rf"Mode:\s+{mode}", shown) and re.search(rf"User:\s+{owner}\s+Group:\s+{group}\b", shown), (
            shown
        )
    assert not list(Path("/var/tmp").glob(f"{SCRATCH}*"))


@pytest.mark.needs("uidmap")
def test_a_kernel_that_refuses_user_namespaces_is_named(user: OrdinaryUser, theirs: InstalledWheel) -> None:
    # In a user namespace of the user, which has a limit of its own, and as another of its ids, which has a range, too.
    with (user.spot / "files of users/subuid").open("a") as ids:
        ids.write("daemon:3000000:65536\n")
    shutil.copyfile(user.spot / "files of users/subuid", user.spot / "files of users/subgid")
    user.home.chmod(0o777)
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --reuid=1 --regid=1 --clear-groups "$@"'
    argv = ["unshare", "--map-root-user", "--map-auto", "sh", "-c", script, "x", str(theirs.program), "vm", "build"]
    done = user.run(argv, env={})
    assert done.returncode == 3, done.stderr
    assert "user namespaces cannot be used to make an image without root: unshare: " in done.stderr
    assert "hint: make the image once as root: sudo " in done.stderr
    assert "vm build; or allow them: sysctl user.max_user_namespaces" in done.stderr
    assert not list(user.home.glob(".cache/heddle/vm/.making*")) and "Traceback" not in done.stderr


def test_mmdebstrap_on_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """Its directory has few inodes: tmpfs then says that no space is left, while megabytes are free."""
    cache = tmp_path / "a cache"
    env = {**os.environ, "HEDDLE_CACHE_DIR": str(cache), "HEDDLE_STATE_DIR": str(tmp_path / "a state")}
    mount = "mount -t tmpfs -o size=3g,nr_inodes=3000,mode=1777 heddle-test /var/tmp"
    script = f'{mount}; "$@"; code=$?; ls /var/tmp; exit $code'
    argv = ["unshare", "--mount", "sh", "-c", script, "x", sys.executable, str(ROOT / "tasks.py")]
    done = subprocess.run(
        [*argv, "vm", "build", "--kernel", "stable"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "/var/tmp is full: the image needs 4 GB while it is made" in done.stderr, done.stderr
    assert "free some space there (df -h, and df -i for inodes)" in done.stderr
    assert done.stdout == "", "what ls found"
    assert [path.name for path in (cache / "vm").iterdir()] == [".lock"]
