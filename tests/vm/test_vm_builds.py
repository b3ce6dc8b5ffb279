"""Builds of images that are interrupted: killed in the middle of mmdebstrap, and without space on a real disk."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.base.events import Observer, Silent
from heddle.base.problems import MachineError
from heddle.base.process import start_of
from heddle.places.vm import imagebuild, imagecache, leftovers
from heddle.places.vm.imagecache import ensure_image
from heddle.places.vm.initramfs import MODULES
from heddle.places.vm.kernels import KERNELS, Kernel
from tests.ordinary import ID, OrdinaryUser, ordinary_user, python_of_all
from tests.vm.conftest import ROOT
from tests.wheels import install

STABLE = KERNELS["stable"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.root, pytest.mark.needs("mount", "mmdebstrap", "e2fsprogs")]


def scratch_of(verb: subprocess.Popen[str], prefix: str) -> Path:
    """The scratch directory of a verb that runs."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for link in Path("/proc", str(verb.pid), "fd").iterdir():
            try:
                place = link.readlink()
            except FileNotFoundError:
                continue  # it was closed since
            if place.name.startswith(prefix):
                return place
        assert verb.poll() is None, verb.communicate()
        time.sleep(0.05)
    raise AssertionError(f"the verb has no directory {prefix}*")


def system_in(scratch: Path, verb: subprocess.Popen[str]) -> Path:
    """The root in which mmdebstrap makes the system, once it unpacks packages there."""
    while not (found := list(scratch.glob("mmdebstrap.*/usr/bin"))):
        assert verb.poll() is None, verb.communicate()
        time.sleep(0.05)
    return found[0]


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


@pytest.mark.deep
def test_a_killed_build_ends_mmdebstrap_and_down_removes_its_files(tmp_path: Path) -> None:
    cache, state = tmp_path / "a cache", tmp_path / "a state"
    env = {**os.environ, "HEDDLE_CACHE_DIR": str(cache), "HEDDLE_STATE_DIR": str(state)}
    words = [sys.executable, str(ROOT / "tasks.py"), "vm"]
    verb = started([*words, "build", "--kernel", "stable"], env=env)
    scratch = scratch_of(verb, imagebuild.SCRATCH)
    system = system_in(scratch, verb)
    leftovers.sweep()
    assert system.exists(), "a build that runs is not touched"
    kill(verb)
    part = cache / "vm" / ".making-stable"
    assert scratch.exists() and part.exists()
    down = subprocess.run([*words, "down"], env=env, capture_output=True, text=True, check=False)
    assert (down.returncode, scratch.exists(), part.exists()) == (0, False, False), down.stderr


@pytest.mark.deep
@pytest.mark.needs("fakeroot", "uidmap")
def test_a_killed_build_of_an_ordinary_user_ends_the_same_way(wheel: Path, user: OrdinaryUser) -> None:
    python = python_of_all()
    if python is None:
        pytest.skip(f"no Python 3.{sys.version_info.minor} that an ordinary user can start")
    heddle = str(install(wheel, user.spot / "an environment", python=python).program)
    verb = started(
        [*user.words(), heddle, "vm", "build", "--kernel", "stable"], cwd=user.home, env=user.environment({})
    )
    scratch = scratch_of(verb, imagebuild.SCRATCH)
    system = system_in(scratch, verb)
    assert scratch.stat().st_uid == system.stat().st_uid != 0, "its files are not those of root"
    kill(verb)
    part = user.home / ".cache/heddle/vm/.making-stable"
    assert scratch.exists() and part.exists()
    down = user.run([heddle, "vm", "down"], env={})
    assert (down.returncode, scratch.exists(), part.exists()) == (0, False, False), down.stderr


@pytest.mark.needs("fakeroot", "uidmap")
def test_a_kernel_that_refuses_user_namespaces_is_named(wheel: Path, user: OrdinaryUser) -> None:
    python = python_of_all()
    if python is None:
        pytest.skip(f"no Python 3.{sys.version_info.minor} that an ordinary user can start")
    heddle = str(install(wheel, user.spot / "an environment", python=python).program)
    # In a user namespace of the user, which has a limit of its own, and as another of its ids, which has a range, too.
    with (user.spot / "files of users/subuid").open("a") as ids:
        ids.write("daemon:3000000:65536\n")
    shutil.copyfile(user.spot / "files of users/subuid", user.spot / "files of users/subgid")
    user.home.chmod(0o777)
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --reuid=1 --regid=1 --clear-groups "$@"'
    argv = ["unshare", "--map-root-user", "--map-auto", "sh", "-c", script, "x", heddle, "vm", "build"]
    done = user.run(argv, env={})
    assert done.returncode == 3, done.stderr
    assert "user namespaces cannot be used to make an image without root: unshare: " in done.stderr
    assert "hint: make the image once as root: sudo " in done.stderr
    assert "vm build; or allow them: sysctl user.max_user_namespaces" in done.stderr
    assert not list(user.home.glob(".cache/heddle/vm/.making*")) and "Traceback" not in done.stderr


@pytest.mark.needs("fakeroot", "uidmap")
def test_files_have_their_owners_and_modes_on_a_disk_that_an_ordinary_user_makes(
    wheel: Path, user: OrdinaryUser
) -> None:
    python = python_of_all()
    if python is None:
        pytest.skip(f"no Python 3.{sys.version_info.minor} that an ordinary user can start")
    made, part = install(wheel, user.spot / "an environment", python=python), user.home / "part"
    part.mkdir()
    os.chown(part, ID, ID)
    system_tar(part / "root.tar", 1)
    code = "import sys; from pathlib import Path; from heddle.places.vm import imagebuild as made; "
    code += "print(made.make_files(Path(sys.argv[1])))"
    done = user.run([str(made.python), "-c", code, str(part)], env={})
    assert (done.returncode, done.stdout) == (0, "6.1\n"), done.stderr
    for name, owner, mode in (("usr/bin/busybox", 7, "0755"), ("usr/large", 0, "0640")):
        said = subprocess.run(
            ["/sbin/debugfs", "-R", f"stat /{name}", str(part / "disk.img")], capture_output=True, text=True, check=True
        ).stdout
        assert re.search(rf"Mode:\s+{mode}", said) and re.search(rf"User:\s+{owner}\b", said), said


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as found:
        yield found


@contextmanager
def disk_of(path: Path, size: str) -> Iterator[None]:
    """A file system of this size at a directory."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "heddle-test", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def system_tar(path: Path, megabytes: int) -> None:
    """A tar of a system that a disk can be made of, and a large file."""
    modules = "usr/lib/modules/6.1"
    files = {
        "boot/vmlinuz-6.1": b"kernel",
        "usr/bin/busybox": b"busybox",
        f"{modules}/modules.dep": b"",
        f"{modules}/modules.builtin": "".join(f"kernel/{name}.ko\n" for name in MODULES).encode(),
        "usr/large": os.urandom(megabytes << 20),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode, member.uid = (0o755, 7) if name == "usr/bin/busybox" else (0o640, 0)
            tar.addfile(member, io.BytesIO(content))


def from_tar(kernel: Kernel, part: Path, observer: Observer) -> str:
    """A builder without mmdebstrap: a system of 10 MB."""
    system_tar(part / "root.tar", 10)
    return imagebuild.make_files(part)


@pytest.mark.parametrize(
    ("size", "step"),
    [
        ("16m", "the files of the system are unpacked"),  # 10 MB of tar, 10 MB of files
        ("24m", "mke2fs writes them to the disk"),  # and 10 MB of disk
    ],
)
def test_a_disk_that_becomes_full_is_named_and_nothing_is_left(
    size: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "a cache"
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(cache))
    monkeypatch.setattr(imagecache, "_NEEDED", 1 << 20)
    with disk_of(cache, size):
        with pytest.raises(MachineError) as error:
            ensure_image(STABLE, Silent(), builder=from_tar)
        said = str(error.value)
        assert f"{cache}/vm/.making-stable is full: the image needs 4 GB while it is made" in said, (step, said)
        assert "free some space there" in said and "HEDDLE_CACHE_DIR=" in said
        assert [path.name for path in (cache / "vm").iterdir()] == [".lock"], step


def test_the_same_disk_is_large_enough_with_more_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "a cache"
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(cache))
    monkeypatch.setattr(imagecache, "_NEEDED", 1 << 20)
    with disk_of(cache, "64m"):
        assert ensure_image(STABLE, Silent(), builder=from_tar).release == "6.1"


@pytest.mark.deep
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
