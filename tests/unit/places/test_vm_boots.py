"""What QEMU is started with, and what is said when the VM cannot be."""

from __future__ import annotations

import gzip
import os
import stat
from itertools import pairwise
from pathlib import Path

import paramiko
import pytest

from heddle.base.problems import InputError, MachineError, Problem
from heddle.cli.console import Console
from heddle.host.packages import VM, VM_BUILD, VM_BUILD_USER
from heddle.places.choice import Call
from heddle_plugins.places.ssh import Target, known_keys
from heddle_plugins.places.verbs import needed_extras, needed_packages, vm
from heddle_plugins.places.vm import guest, place, qemu
from heddle_plugins.places.vm.guest import know_host, make_keys
from heddle_plugins.places.vm.image import INITRAMFS, VmImage
from heddle_plugins.places.vm.place import VmPlace
from heddle_plugins.places.vm.qemu import HOST, KVM, TCG, Hardware, kvm_problem, qemu_command
from heddle_plugins.places.vm.recipe import KERNELS, image_name
from tests.answers import Answers

USUAL = Hardware(2, 2048, 3600)


@pytest.fixture(autouse=True)
def directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))


def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accelerator: str) -> dict[str, list[str]]:
    """The command line of QEMU: the values of each flag."""
    monkeypatch.setattr(qemu, "find_qemu", lambda: "qemu")
    image = VmImage(tmp_path / "a,b", "stable", "6.12", 1.0)
    words = qemu_command(image, {"host-key": tmp_path / "host_key"}, USUAL, accelerator)
    return {flag: [value for name, value in pairwise(words) if name == flag] for flag in words if flag[0] == "-"}


def test_qemu_is_private_and_emulates_a_processor_without_avx2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = command(monkeypatch, tmp_path, TCG)
    assert words["-netdev"] == [f"user,id=net,restrict=on,hostfwd=tcp:{HOST}:0-10.0.2.15:22"]
    assert HOST == "127.0.0.1"
    assert {"-display", "-nodefaults", "-no-user-config", "-no-reboot"} <= set(words)
    assert not {"-vnc", "-spice", "-gdb", "-s"} & set(words)
    # A comma in a path is doubled, and the image is never written.
    assert words["-drive"] == [f"file={tmp_path}/a,,b/disk.img,if=virtio,format=raw,snapshot=on"]
    assert (words["-accel"], words["-smp"], words["-cpu"]) == (["tcg,thread=multi"], ["2"], ["max,avx2=off"])
    words = command(monkeypatch, tmp_path, KVM)
    assert (words["-accel"], words["-cpu"]) == (["kvm"], ["host"])


def test_without_a_device_kvm_is_not_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    monkeypatch.setattr(qemu, "DEVICE", device)
    assert kvm_problem() == f"{device} does not exist"
    device.touch()
    assert kvm_problem() == ""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert kvm_problem() == f"this user may not open {device} (group kvm)"


def test_without_qemu_the_line_that_installs_it_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError) as error:
        guest.ensure_guest(KERNELS["stable"], Console("text").observer)
    assert "qemu-system-x86 is not installed: it runs the VM of --on vm" in str(error.value)
    assert "apt-get install --no-install-recommends qemu-system-x86, or ./inv vm up --yes" in str(error.value)
    assert not (tmp_path / "cache").exists(), "an image is not made for nothing"


def test_keys_are_private_and_the_guest_is_known_at_its_port_only(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    know_host(keys, 40001)
    for file in (keys.host_key, keys.user_key, keys.known_hosts):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    host = paramiko.ECDSAKey.from_private_key_file(str(keys.host_key))
    user = paramiko.ECDSAKey.from_private_key_file(str(keys.user_key))
    at_port, elsewhere = (Target(HOST, HOST, n, "root", (), True, (keys.known_hosts,)) for n in (40001, 40002))
    assert [key for _, _, key in known_keys(at_port)] == [host]
    assert known_keys(elsewhere) == []
    assert keys.authorized.read_text() == f"{user.get_name()} {user.get_base64()} heddle\n"
    assert make_keys(tmp_path).user_key.read_text() != user.get_base64(), "each boot has new keys"


def test_the_end_of_a_console_is_shown_with_what_led_to_a_panic(tmp_path: Path) -> None:
    assert qemu.tail_of(tmp_path) == ""
    text = "".join(f"line {i}\r\n" for i in range(30)) + "\x1bc\x1b[2J\x1b[31mKernel Panic\x1b[0m\x07\n\n"
    (tmp_path / "console.log").write_text(text)
    (tmp_path / "qemu.log").write_text("qemu: ended\n")
    lines = qemu.tail_of(tmp_path).splitlines()
    assert lines[-2:] == ["Kernel Panic?", "qemu: ended"] and len(lines) == 13
    (tmp_path / "qemu.log").unlink()
    # A panic is shown from its first line on.
    lines = ["before", "Kernel panic - not syncing: no init", *(f"trace {i}" for i in range(40))]
    (tmp_path / "console.log").write_text("\n".join(lines))
    assert qemu.tail_of(tmp_path).splitlines() == lines[1:13]
    # What led to a panic is shown before it.
    cause = ["Oops: int3: 0000 [#1]", "CPU: 0", "Hardware name: QEMU", "RIP: 0010:schedule+0x609"]
    panic = ["Kernel panic - not syncing: Fatal exception in interrupt", "Shutting down cpus with NMI"]
    lines = ["before", *cause, *(f"R{i}: 0" for i in range(30)), *panic, *(f"after {i}" for i in range(30))]
    (tmp_path / "console.log").write_text("\n".join(lines))
    shown = qemu.tail_of(tmp_path).splitlines()
    assert shown[:6] == cause + panic and len(shown) == 12


def booted(monkeypatch: pytest.MonkeyPatch, place: Path, oops: str, panics: int, heard: list[str]) -> guest.Booted:
    """Boot a guest that panics so many times, and is ready then."""
    # Only chance makes a real guest meet this race: a program in the place of QEMU writes what one wrote that did.
    program, image = place / "qemu", VmImage(place / "image", "stable", "6.12", 1.0)
    program.write_text(
        f"""#!/bin/sh
echo >>starts
[ "$(wc -l <starts)" -gt {panics} ] && {{ echo 'heddle: ready' >console.log; exec sleep 60; }}
printf '%s\\n' '{oops}' 'Kernel panic - not syncing: Fatal exception' >console.log
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(qemu, "find_qemu", lambda: str(program))
    monkeypatch.setattr(qemu, "forwarded_port", lambda directory: 40001)
    image.path.mkdir()
    (image.path / INITRAMFS).write_bytes(gzip.compress(b""))
    (place / "guest").mkdir()
    return guest.boot(image, place / "guest", make_keys(place), USUAL, TCG, heard.append)


RACE = "Oops: int3: 0000 [#1]"  # a processor that ran old code


@pytest.mark.parametrize(("oops", "panics", "wanted"), [(RACE, 2, 3), (RACE, 99, 3), ("Oops: invalid opcode", 99, 1)])
def test_a_guest_that_ran_old_code_is_started_again_and_no_other(
    oops: str, panics: int, wanted: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard = list[str]()
    if panics < wanted:
        booted(monkeypatch, tmp_path, oops, panics, heard).process.end()
        assert heard.count("the guest met a race of QEMU and is started again") == panics
    else:
        with pytest.raises(guest.BootFailed) as failed:
            booted(monkeypatch, tmp_path, oops, panics, heard)
        assert failed.value.why.startswith("panicked after ") and oops in failed.value.tail
        assert qemu.process_in(tmp_path / "guest") is None
    assert len((tmp_path / "guest" / "starts").read_text().splitlines()) == wanted


def test_a_monitor_that_is_gone_answers_nothing(tmp_path: Path) -> None:
    assert qemu.status(tmp_path) is None and qemu.registers(tmp_path / "none") == ""
    assert qemu.forwarded_port(tmp_path) == 0


def test_a_guest_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stable = KERNELS["stable"]
    mine = guest.Guest("stable", "6.12", "stable-other", os.getpid(), 0, 1, TCG, 1, 1024, 0, 1.0, 0.0)
    monkeypatch.setattr(guest, "find_guest", lambda name: mine)
    with pytest.raises(InputError) as error:
        guest.ensure_guest(stable, Console("text").observer)
    assert f"VM stable runs image stable-other, and this version of Heddle needs {image_name(stable)}" in str(
        error.value
    )
    assert "./inv vm down --kernel stable" in str(error.value)


def test_a_record_of_a_process_that_ended_is_no_guest(tmp_path: Path) -> None:
    directory = guest.guest_dir("stable")
    directory.mkdir(parents=True)
    for text in ("", "{}", '{"pid": 1}', "[1]"):
        (directory / "guest.json").write_text(text)
        (directory / "qemu.json").write_text(text)
        assert guest.find_guest("stable") is None and qemu.process_in(directory) is None
    (directory / "qemu.json").write_text(f'{{"pid": {os.getpid()}, "started": 1}}')
    assert qemu.process_in(directory) is None, "another process has its pid now"
    assert guest.end_guest("stable") is None and not directory.exists()


def test_wrong_words_are_named_before_anything_is_started(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    monkeypatch.setattr("heddle.host.packages.missing", lambda names: [])
    answers(lambda typed: vm.run(on="here", **typed))


def test_each_action_asks_for_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def needed(action: str) -> set[str]:
        return set(needed_packages({"action": action, "kernel": "", "rebuild": False}))

    tools = VM_BUILD if os.geteuid() == 0 else VM_BUILD_USER
    assert needed("status") == needed("down") == set()
    assert needed("up") == needed("ssh") == {*VM, *tools} and needed("build") == set(tools)
    assert needed_extras({"action": "status"}) == () and needed_extras({"action": "up"}) == ("ssh",)
    monkeypatch.setattr(guest, "find_image", lambda kernel: object())
    assert needed("up") == set(VM) and needed("build") == set()


@pytest.mark.parametrize("how", ["CI", "yes", "nothing"])
def test_any_verb_with_place_vm_installs_qemu_after_consent(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for apt-get writes down what is asked of it, and brings a QEMU that fails."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    program = programs / "qemu-system-x86_64"
    texts = {
        "apt-get": f'case "$1" in -s) exit 1 ;; esac; echo "$*" >> {log}; printf "#!/bin/sh\\nexit 1" > {program}; '
        f"/bin/chmod +x {program}",
        "apt-cache": "exit 0",
        "sudo": 'exec "$@"',
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (programs / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(guest, "find_image", lambda _: VmImage(tmp_path, "backports", "6.12", 1.0))
    monkeypatch.setattr(place, "ensure_guest", guest_that_is_not_there)
    monkeypatch.setenv("CI", "true" if how == "CI" else "")
    with pytest.raises(MachineError) as caught:
        VmPlace(KERNELS["backports"]).run(Call(["status"], yes=how == "yes"), Console())
    said = capfd.readouterr().err
    assert "missing: qemu-system-x86 (runs the VM of --on vm)" in said
    if how == "nothing":
        assert caught.value.problems[0].what == "qemu-system-x86"
        assert "or let Heddle install it: run ./inv vm up --kernel backports --yes" in caught.value.problems[0].hint
        assert not log.exists()
    else:
        assert caught.value.problems[0].what == "the guest"
        assert log.read_text().split()[-1] == "qemu-system-x86"


def guest_that_is_not_there(*_: object) -> guest.Guest:
    raise MachineError(Problem("", "the guest", "is not started in this test"))
