"""Fixtures of suite vm: one guest for the whole suite, and small images whose guests end at once.

    def test_a_verb_runs_there(machine: Machine) -> None:
        done = machine.inv("status")                # ./inv status --on vm
        assert machine.inv("status", place="here").stdout != done.stdout

The image comes from the cache of the user ($HEDDLE_CACHE_DIR); it is made if it is not there, which takes minutes.
The state directory belongs to the session: a VM of the user is not used and not changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.cli.console import PlainObserver
from heddle.host import packages
from heddle_plugins.places.vm.guest import Guest, end_guest, ensure_guest, find_guest
from heddle_plugins.places.vm.image import VmImage, ensure_image
from heddle_plugins.places.vm.qemu import Hardware
from heddle_plugins.places.vm.recipe import DEFAULT, KERNELS
from heddle_plugins.testing.testsession import StopSignals

ROOT = Path(__file__).resolve().parents[2]
Done = subprocess.CompletedProcess[str]
WANTED = Hardware(min(len(os.sched_getaffinity(0)), 2), 2048, 600)  # it also ends if this session is killed


@dataclass(frozen=True)
class Machine:
    """The guest of one state directory, as a user has it."""

    state: Path
    kernel: str = DEFAULT
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env, "HEDDLE_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    def words(self, *typed: str, place: str = "vm") -> list[str]:
        return [sys.executable, str(ROOT / "tasks.py"), typed[0], f"--on={place}", *typed[1:]]

    def inv(self, *typed: str, place: str = "vm", timeout: float = 600, cwd: Path | None = None) -> Done:
        """Run a verb there."""
        return subprocess.run(
            self.words(*typed, place=place), capture_output=True, text=True, timeout=timeout, cwd=cwd,
            env=self.environment(), stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def ssh(self, *words: str) -> Done:
        """Run a command in the guest."""
        return self.inv("vm", "ssh", "--kernel", self.kernel, "--", *words, place="here")

    def start(self, *typed: str) -> subprocess.Popen[str]:
        """Start a verb there."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.words(*typed), stdout=pipe, stderr=pipe, text=True, env=self.environment(), stdin=subprocess.DEVNULL
        )

    @property
    def guest(self) -> Guest:
        found = find_guest(self.kernel)
        assert found is not None, "no VM runs"
        return found


@pytest.fixture(scope="session")
def image() -> VmImage:
    """The image of the default kernel; made if it is not in the cache."""
    if missing := packages.missing(packages.VM):
        names = " ".join(part.packages[0] for part in missing)
        pytest.skip(f"needs {names} (apt-get install {names}, or ./inv test vm)")
    return ensure_image(KERNELS[DEFAULT], PlainObserver(sys.stderr))


@pytest.fixture
def alone(image: VmImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A state directory for one test, in which no VM runs yet; a VM that the test starts ends with it."""
    state = tmp_path / "state of one test"
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(state))
    yield Machine(state)
    for kernel in KERNELS:
        end_guest(kernel)


@pytest.fixture(scope="package")
def booted(image: VmImage, state_home: Path) -> Iterator[Machine]:
    """The VM of the suite: an idle one would take half a processor from tests of other suites.

    It ends with a session that is stopped by a signal, too.
    """
    signals = StopSignals()
    signals.install()
    try:
        ensure_guest(KERNELS[DEFAULT], PlainObserver(sys.stderr), WANTED)
        yield Machine(state_home)
    finally:
        end_guest(DEFAULT)
        signals.restore()


@pytest.fixture
def machine(booted: Machine) -> Machine:
    """The VM of the suite; it is started again if a test has ended it."""
    ensure_guest(KERNELS[DEFAULT], Silent(), WANTED)
    return booted


@pytest.fixture
def small_image(image: VmImage, tmp_path: Path) -> Callable[..., VmImage]:
    """A function that makes an image with this kernel and other files: `initramfs=b"..."`."""

    def made(initramfs: bytes | None = None) -> VmImage:
        path = tmp_path / f"{image.kernel}-small"
        path.mkdir()
        for file in image.path.iterdir():
            if file.name != "disk.img":
                shutil.copyfile(file, path / file.name)
        with (path / "disk.img").open("wb") as disk:
            disk.truncate(1 << 20)
        if initramfs is not None:
            (path / "initramfs.gz").write_bytes(initramfs)
        return VmImage(path, image.kernel, image.release, 1.0)

    return made
