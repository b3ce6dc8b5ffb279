"""Images of the VM: their names, how one is made once, and what remains of an interrupted one."""

from __future__ import annotations

import gzip
import lzma
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from heddle.base import mounts
from heddle.base.events import Observer, Silent
from heddle.base.problems import MachineError
from heddle.base.process import Done
from heddle.host.packages import PARTS
from heddle_plugins.places.vm import image, recipe
from heddle_plugins.places.vm.image import (
    ABOUT,
    DISK,
    INITRAMFS,
    KERNEL_FILE,
    ensure_image,
    find_image,
    images,
    remove_images,
    sweep,
)
from heddle_plugins.places.vm.initramfs import MODULES, ArchivedFile, archive, boot_archive, image_archive
from heddle_plugins.places.vm.recipe import KERNELS, Kernel, guest_packages, image_name
from tests.answers import Answers
from tests.machine import until

STABLE = KERNELS["stable"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vm"


def small(kernel: Kernel, part: Path, observer: Observer) -> str:
    """A builder of an image that no guest can boot."""
    for name in (DISK, KERNEL_FILE, INITRAMFS):
        (part / name).write_bytes(name.encode())
    return "6.12.1-amd64"


def forbidden(kernel: Kernel, part: Path, observer: Observer) -> str:
    raise AssertionError("the image was in the cache")


def hangs(kernel: Kernel, part: Path, observer: Observer) -> str:
    small(kernel, part, observer)
    time.sleep(60)
    return ""


def slow(kernel: Kernel, part: Path, observer: Observer) -> str:
    time.sleep(0.3)
    return small(kernel, part, observer)


def in_process(builder: Callable[[Kernel, Path, Observer], str]) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(
        target=ensure_image, args=(STABLE, Silent()), kwargs={"builder": builder}
    )
    process.start()
    return process


def test_the_name_of_an_image_follows_its_inputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = image_name(STABLE)
    assert before == image_name(STABLE) and before.startswith("stable-")
    assert len({image_name(kernel).partition("-")[2] for kernel in KERNELS.values()}) == len(KERNELS)
    changes = {"lock_file": lambda: b"other", "IMAGE_FORMAT": 10**6, "_LEFT_OUT": (), "_RDMA": (), "_DISK_SIZE": "9G"}
    for name, value in changes.items():
        with monkeypatch.context() as changed:
            changed.setattr(recipe, name, value)
            assert image_name(STABLE) != before, name
    (tmp_path / "other.py").touch()
    monkeypatch.setattr("heddle_plugins.places.vm.initramfs.__file__", str(tmp_path / "other.py"))
    assert image_name(STABLE) != before


def test_the_guest_has_the_tools_of_labs_tests_and_verbs() -> None:
    found = set(guest_packages())
    assert {"frr", "iproute2", "libbpf1", "tcpdump", "tshark", "perftest", "python3-pyverbs", "openssh-server"} <= found
    assert len(found) == len(guest_packages())


def test_an_image_is_made_once_and_then_found(cache: Path) -> None:
    made = ensure_image(STABLE, Silent(), builder=small)
    assert made == ensure_image(STABLE, Silent(), builder=forbidden) == find_image(STABLE)
    assert (made.path, made.release) == (cache / image_name(STABLE), "6.12.1-amd64")
    assert find_image(KERNELS["backports"]) is None
    assert made.to_json()["bytes"] > 0
    assert (made.path / ABOUT).stat().st_mode & 0o777 == 0o644, "others may read it in a cache that they share"
    (made.path / "mark").touch()
    assert not (ensure_image(STABLE, Silent(), fresh=True, builder=small).path / "mark").exists()
    os.utime(made.path / ABOUT, (0, 0))
    made.mark_used()
    assert time.time() - made.used < 60, "a guest that starts keeps its image"


def test_a_guest_starts_only_from_files_as_they_were_made_by_this_user_or_root(cache: Path) -> None:
    made = ensure_image(STABLE, Silent(), builder=small)
    disk = made.path / DISK
    made.check()
    os.utime(disk, ns=(1, 1))
    made.check()  # the same bytes
    disk.write_bytes(b"x" * disk.stat().st_size)
    with pytest.raises(MachineError, match=rf"{DISK}  ?has changed since it was made\n.*--rebuild"):
        made.check()
    made.path.chmod(0o777)
    with pytest.raises(MachineError, match="is writable for every user"):
        made.check()


def test_a_wait_for_another_process_is_said_only_when_there_is_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(Silent, "waiting", lambda _, step, reason: reasons.append(reason))
    ensure_image(STABLE, Silent(), builder=small)
    assert reasons == []
    assert list(remove_images())
    process = in_process(slow)
    until((cache / f".making-{STABLE.name}").exists)
    ensure_image(STABLE, Silent(), builder=forbidden)
    process.join(30)
    assert reasons == ["another process makes an image of the VM"]


def test_a_killed_build_leaves_a_part_that_the_next_call_removes(cache: Path) -> None:
    process = in_process(hangs)
    part = cache / f".making-{STABLE.name}"
    until((part / INITRAMFS).exists)
    sweep()
    assert part.exists(), "another process is making it"
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    assert part.exists() and find_image(STABLE) is None and images() == []
    sweep()
    assert not part.exists(), "vm down removes it"
    part.mkdir()
    ensure_image(STABLE, Silent(), builder=small)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [image_name(STABLE)]


def test_scratch_of_dead_processes_is_removed_and_that_of_others_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "TEMPORARY", tmp_path)
    kept, dead = (tmp_path / "heddle-vmx", tmp_path / "mine-heddle-vm-1"), tmp_path / f"{image.SCRATCH}1"
    with monkeypatch.context() as other, mounts.scratch(image.SCRATCH) as running:
        for path in (*kept, dead):
            (path / "files").mkdir(parents=True)
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        sweep()
        assert dead.exists(), "it belongs to another user"
        other.undo()
        sweep()
        assert sorted(tmp_path.glob("*heddle-*")) == sorted([*kept, running])


def test_a_build_that_fails_leaves_nothing_and_a_damaged_image_is_made_again(cache: Path) -> None:
    def fails(kernel: Kernel, part: Path, observer: Observer) -> str:
        small(kernel, part, observer)
        raise OSError(28, "No space left on device", str(part / DISK))

    with pytest.raises(MachineError, match="No space left on device"):
        ensure_image(STABLE, Silent(), builder=fails)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    for damage in (DISK, KERNEL_FILE, ABOUT):
        (ensure_image(STABLE, Silent(), builder=small).path / damage).unlink()
        assert find_image(STABLE) is None
        assert (ensure_image(STABLE, Silent(), builder=small).path / damage).exists()


@pytest.mark.parametrize(("directory", "hint"), [("cache", "HEDDLE_CACHE_DIR="), ("temporary", "(df -h)")])
def test_a_disk_that_is_too_small_is_named_before_anything_is_made(
    directory: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.host.packages.missing", lambda names: [])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(mounts, "TEMPORARY", tmp_path / "temporary")
    usage = shutil.disk_usage(tmp_path)
    free = {tmp_path / directory: 10**9}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free.get(path, 10**12)))
    with pytest.raises(MachineError) as error:
        image.build(STABLE, tmp_path / "cache/.making", Silent())
    (problem,) = error.value.problems
    assert problem.what == str(tmp_path / directory) and hint in problem.hint
    assert problem.why.startswith("has 1.0 GB free, and an image of the VM needs 2.1 GB there")


def test_images_that_no_guest_uses_are_removed_after_two_weeks(cache: Path) -> None:
    for name, days in (("stable-old", 15), ("stable-used", 13), ("backports-old", 15)):
        other = cache / name
        shutil.copytree(ensure_image(STABLE, Silent(), builder=small).path, other)
        os.utime(other / ABOUT, (0, time.time() - days * 86400))
    ensure_image(STABLE, Silent(), fresh=True, builder=small)
    assert [found.name for found in images()] == sorted(["stable-used", image_name(STABLE)])
    find_image(STABLE)
    assert sorted(remove_images()) == sorted(["stable-used", image_name(STABLE)]) and images() == []


def test_a_missing_tool_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.host.packages.missing", lambda names: [PARTS["mmdebstrap"]])
    with pytest.raises(MachineError) as error:
        ensure_image(STABLE, Silent())
    assert "mmdebstrap is not installed" in str(error.value)
    assert "apt-get install --no-install-recommends mmdebstrap, or ./inv vm build --yes" in str(error.value)


def test_a_user_without_namespaces_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: Answers
) -> None:
    def build(output: str) -> object:
        def refused(argv: list[str], **named: object) -> Done:
            return Done(tuple(argv), int("--pid" in argv), "", output, 0.0)

        monkeypatch.setattr(image, "run", refused)
        return image.build(STABLE, tmp_path, Silent())

    monkeypatch.setattr("heddle.host.packages.missing", lambda names: [])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    answers(build)


@pytest.mark.parametrize("full", ["part", "work"])
def test_a_disk_that_becomes_full_is_named(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, work = tmp_path / "a cache", tmp_path / "work"
    for place in (part, work):
        place.mkdir()
    monkeypatch.setattr(image, "_is_full", lambda place: place == tmp_path / {"part": "a cache"}.get(full, full))
    argv = ["sh", "-c", "echo 'dpkg: No space left on device'; exit 1"]
    with pytest.raises(MachineError) as error:
        image._follow(argv, "a step", Silent(), 20, work, part)
    (problem,) = error.value.problems
    assert problem.what == str(part if full == "part" else mounts.TEMPORARY)
    assert problem.why == "is full: the image needs 4 GB while it is made"
    assert ("HEDDLE_CACHE_DIR=" in problem.hint) == (full == "part")


def unpacked(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Path -> mode and content of a cpio archive in the format newc; a later file replaces an earlier one."""
    found, at = {}, 0
    while data[at : at + 6] == b"070701":
        mode, size, name_size = (int(data[at + start : at + start + 8], 16) for start in (14, 54, 94))
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        at += 110 + name_size + (-(110 + name_size) % 4)
        if name != "TRAILER!!!":
            found[name] = (mode, data[at : at + size])
        at += size + (-size % 4)
    assert not data[at:].strip(b"\0")
    return found


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The files of a guest that its initramfs needs: ext4 needs jbd2, which needs crc; virtio_pci is built in."""
    modules = tmp_path / "usr/lib/modules/6.1"
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/busybox").write_bytes(b"busybox")
    (modules / "kernel").mkdir(parents=True)
    (modules / "modules.builtin").write_text("kernel/virtio-pci.ko\n")
    lines = ["kernel/ext4.ko.xz: kernel/jbd2.ko.xz kernel/crc.ko", "kernel/jbd2.ko.xz: kernel/crc.ko", "kernel/crc.ko:"]
    lines += [f"kernel/{name}.ko:" for name in ("virtio_blk", "virtio_net", "qemu_fw_cfg")]
    (modules / "modules.dep").write_text("\n".join(lines) + "\n")
    for line in lines:
        path = modules / line.partition(":")[0]
        content = path.name.partition(".")[0].encode()
        path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
    return tmp_path


def test_modules_are_loaded_after_those_that_they_need(system: Path) -> None:
    found = unpacked(gzip.decompress(image_archive(system, "6.1")))
    order = found["modules/order"][1].decode().split()
    assert order.index("crc.ko") < order.index("jbd2.ko") < order.index("ext4.ko")
    assert set(order) == {f"{name}.ko" for name in ("crc", "jbd2", *MODULES)} - {"virtio_pci.ko"}
    assert found["modules/ext4.ko"][1] == b"ext4" and "init" not in found
    # The checksum of the disk is loaded first where it is a module.
    modules = system / "usr/lib/modules/6.1"
    (modules / "kernel/crc32c_generic.ko").write_bytes(b"crc32c")
    with (modules / "modules.dep").open("a") as file:
        file.write("kernel/crc32c_generic.ko:\n")
    order = unpacked(gzip.decompress(image_archive(system, "6.1")))["modules/order"][1].decode().split()
    assert order.index("crc32c_generic.ko") < order.index("ext4.ko")


def test_a_boot_adds_its_scripts_and_needs_the_disks_module(system: Path) -> None:
    packed = image_archive(system, "6.1")
    data = archive([ArchivedFile("a", b"12345"), ArchivedFile("bc/d", b"", 0o120777)])
    assert unpacked(data) == {"a": (0o100644, b"12345"), "bc/d": (0o120777, b"")} and len(data) % 4 == 0
    both = boot_archive(packed, {"init": b"#!/bin/sh"})
    assert both.startswith(packed)
    assert unpacked(both[len(packed) + -len(packed) % 4 :]) == {"init": (0o100755, b"#!/bin/sh")}
    # A kernel without the disks module is named.
    dep = system / "usr/lib/modules/6.1/modules.dep"
    dep.write_text(dep.read_text().replace("kernel/virtio_blk.ko:", "kernel/other.ko:"))
    with pytest.raises(MachineError, match=r"virtio_blk is missing in kernel 6\.1"):
        image_archive(system, "6.1")
