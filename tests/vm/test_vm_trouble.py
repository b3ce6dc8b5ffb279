"""What can go wrong with a VM: each is named, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle_plugins.places.vm import guest, qemu
from heddle_plugins.places.vm.guest import PATIENCE_S, end_guest, ensure_guest, find_guest, guest_dir
from heddle_plugins.places.vm.image import VmImage
from heddle_plugins.places.vm.initramfs import ArchivedFile, archive
from heddle_plugins.places.vm.qemu import KVM, TCG, Hardware, find_qemu, process_in
from heddle_plugins.places.vm.recipe import DEFAULT, KERNELS
from tests.marks import deep
from tests.vm.conftest import ROOT, Machine

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("mount")]
SmallImage = Callable[..., VmImage]
ONE = Hardware(1, 1024, 600)


def start(wanted: Hardware = ONE) -> guest.Guest:
    return ensure_guest(KERNELS[DEFAULT], Silent(), wanted)


def no_kvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "DEVICE", Path("/dev/none"))


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[None]:
    """A file system of this size at a directory."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "heddle-test", str(path)], check=True)
    try:
        yield
    finally:
        for kernel in KERNELS:
            end_guest(kernel)
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.long("10 seconds and more")
def test_a_panic_is_shown_with_the_end_of_the_console(
    alone: Machine, small_image: SmallImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_kvm(monkeypatch)
    made = small_image(archive([ArchivedFile("bin", mode=0o40755), ArchivedFile("bin/none", b"")]))
    monkeypatch.setattr(guest, "ensure_image", lambda *words, **named: made)
    with pytest.raises(MachineError) as error:
        start()
    assert "the VM could not be started: the guest panicked after" in str(error.value)
    assert "Kernel panic - not syncing" in str(error.value)
    assert list((alone.state / "vm").iterdir()) == [alone.state / "vm" / f"{DEFAULT}.lock"]


@pytest.mark.long
def test_a_disk_that_cannot_be_mounted_ends_the_guest_with_its_message(
    alone: Machine, small_image: SmallImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_kvm(monkeypatch)
    made = small_image()
    monkeypatch.setattr(guest, "ensure_image", lambda *words, **named: made)
    with pytest.raises(MachineError, match=r"(?s)the guest ended .*heddle: the disk cannot be mounted"):
        start()
    assert not guest_dir(DEFAULT).exists()


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("exec sleep 600", r"was not ready within 1 s"),
        # As QEMU says it where the kernel's KVM has no MSR_IA32_ARCH_CAPABILITIES.
        deep(
            "echo 'error: failed to set MSR 0x10a to 0x0' >&2; exit 1",
            r"ended \(QEMU's exit code is 1\) after \d+\.\d s",
        ),
    ],
)
@pytest.mark.long
def test_a_guest_that_kvm_hangs_or_ends_is_started_again_without_it_and_down_removes_it(
    does: str, why: str, alone: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # KVM that hangs or ends a guest is a property of a machine: a program in the place of QEMU does so here.
    program, programs = find_qemu(), tmp_path / "programs"
    programs.mkdir()
    (programs / qemu.QEMU).write_text(f'#!/bin/sh\ncase "$*" in *"-accel kvm"*) {does} ;; esac\nexec {program} "$@"\n')
    (programs / qemu.QEMU).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(qemu, "kvm_problem", lambda: "")
    monkeypatch.setitem(PATIENCE_S, KVM, 1.0)
    found = start()
    assert found.accelerator == TCG and re.fullmatch(f"KVM failed: the guest {why}", found.slow_because)
    assert guest.kvm_failure() == found.slow_because, "it is not tried again"
    before = sorted(path.name for path in alone.state.rglob("*"))
    assert "guest.json" in before and "user_key" in before
    down = alone.inv("vm", "down", place="here")
    assert (down.returncode, down.stdout) == (0, f"VM {DEFAULT} is down; its labs and its files are removed\n")
    assert not found.alive
    assert {path.name for path in alone.state.rglob("*")} == {"vm", f"{DEFAULT}.lock", "kvm.json"}


def test_a_guest_that_is_never_ready_is_ended_and_its_registers_are_shown(
    alone: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_kvm(monkeypatch)
    monkeypatch.setitem(PATIENCE_S, TCG, 1.0)
    with pytest.raises(MachineError) as error:
        start()
    message = str(error.value)
    assert "the guest was not ready within 1 s" in message and "QEMU reports running" in message and "IP=" in message
    assert not guest_dir(DEFAULT).exists()


@pytest.mark.deep
def test_a_guest_that_no_verb_uses_ends_itself(alone: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    no_kvm(monkeypatch)
    found = start(Hardware(1, 1024, 10))
    console = guest_dir(DEFAULT) / qemu.CONSOLE
    while found.alive:
        time.sleep(0.2)
    assert "ends after 10 seconds without a verb" in console.read_text(errors="replace")
    assert find_guest(DEFAULT) is None


def test_a_killed_start_leaves_a_process_that_down_ends(alone: Machine) -> None:
    up = subprocess.Popen(
        [sys.executable, str(ROOT / "tasks.py"), "vm", "up"], env=alone.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while (process := process_in(guest_dir(DEFAULT))) is None:
            time.sleep(0.02)
            assert up.poll() is None
    finally:
        up.kill()
        up.wait()
    assert process.alive and find_guest(DEFAULT) is None
    down = alone.inv("vm", "down", place="here")
    assert (down.returncode, process.alive, guest_dir(DEFAULT).exists()) == (0, False, False), down.stderr


@pytest.mark.long
def test_a_guest_that_ends_during_a_verb_is_named(alone: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    no_kvm(monkeypatch)
    found = start()
    verb = alone.start("status")
    link = f"127.0.0.1:{found.port}"
    listed = ["ss", "-Hnt", "dst", link]
    try:
        while "ESTAB" not in subprocess.run(listed, capture_output=True, text=True, check=True).stdout:
            time.sleep(0.05)
            assert verb.poll() is None
        with (guest_dir(DEFAULT) / qemu.CONSOLE).open("a") as console:
            console.write("[   99.235662] Oops: int3: 0000 [#1] SMP NOPTI\n")  # what a guest leaves that met the race
        os.kill(found.pid, signal.SIGKILL)
        _, shown = verb.communicate(timeout=60)
    finally:
        verb.kill()
        verb.wait()
    assert verb.returncode == 3 and "vm ended while status ran there; its labs are gone" in shown, shown
    assert "hint: probably a race of QEMU between two processors" in shown and "Traceback" not in shown
    down = alone.inv("vm", "down", place="here")
    assert (down.returncode, down.stdout, guest_dir(DEFAULT).exists()) == (0, "no VM ran\n", False)


@pytest.mark.deep
@pytest.mark.root
def test_a_full_disk_pauses_the_guest_and_a_free_one_resumes_it(alone: Machine) -> None:
    with small_disk(alone.state, 320):
        start()
        filler = alone.state / "filler"
        with filler.open("wb") as file:
            file.write(bytes(300 << 20))
        fill = ("vm", "ssh", "--", "sh", "-c", "dd if=/dev/urandom of=/var/big bs=1M count=64 && sync")
        writing = subprocess.Popen(alone.words(*fill, place="here"), env=alone.environment(), stdin=subprocess.DEVNULL)
        while qemu.status(guest_dir(DEFAULT)) != qemu.IO_ERROR:
            time.sleep(0.2)
            assert writing.poll() is None
        again = alone.inv("status")
        assert again.returncode == 3 and "the disk of the VM needs at least" in again.stderr, again.stderr
        filler.unlink()
        assert alone.inv("status").returncode == 0
        assert writing.wait(120) == 0


@pytest.mark.root
def test_a_disk_that_is_almost_full_is_named_before_a_start(alone: Machine) -> None:
    with small_disk(alone.state, 100):
        with pytest.raises(MachineError, match=r"has .* MB free, and the disk of the VM needs at least"):
            start()
        assert not guest_dir(DEFAULT).exists()
