"""--place vm: verbs run in the guest as they do here."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import stat
from pathlib import Path

import pytest

from tests.vm.conftest import Machine

pytestmark = pytest.mark.timeout(900)


def listening(pid: int) -> set[str]:
    """The local addresses at which a process listens for TCP or receives UDP, as `0100007F:D431`."""
    inodes = set()
    for link in Path("/proc", str(pid), "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the process closed it since: such a socket does not listen now
            if match := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(match[1])
    found = set()
    for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in Path("/proc", str(pid), "net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == state:
                found.add(fields[1])
    return found


def test_the_full_kernel_has_what_labs_can_use(machine: Machine) -> None:
    done = machine.inv("doctor", "--format", "json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stderr
    for name in ("red", "ets", "netem", "rxe", "verbs", "hash seed", "bpf", "frr", "tcpdump", "tshark"):
        assert checks[name]["ok"], checks[name]


def test_a_lab_runs_there_until_it_is_taken_down(machine: Machine) -> None:
    up = machine.inv("up", "tiny", "--name", "mine")
    assert up.returncode == 0, up.stderr
    assert [lab["lab"] for lab in json.loads(machine.inv("status", "--format=json").stdout)["labs"]] == ["mine"]
    assert json.loads(machine.inv("status", "--format=json", place="here").stdout)["labs"] == []
    run = machine.inv("run", "--size", "64K", "--format", "json")
    assert (run.returncode, json.loads(run.stdout)["results"][0]["wrong"]) == (0, 0), run.stderr
    paths = machine.inv("paths", "--format", "json")
    assert (paths.returncode, json.loads(paths.stdout)["agree"]) == (0, True), paths.stderr
    assert machine.inv("down", "mine").returncode == 0
    assert json.loads(machine.inv("status", "--format=json").stdout)["labs"] == []


def test_an_unchanged_project_is_not_copied_again(machine: Machine) -> None:
    machine.inv("status")
    again = machine.inv("status")
    assert again.returncode == 0 and "copied" not in again.stderr


def test_a_file_that_a_verb_writes_comes_back(machine: Machine, tmp_path: Path) -> None:
    done = machine.inv("render", "tiny", "--out", "here it is", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "here it is").rglob("*.clab.yml"))


def test_codes_and_errors_of_the_guest_are_those_of_the_verb(machine: Machine) -> None:
    done = machine.inv("up", "nosuch")
    assert done.returncode == 2 and "nosuch" in done.stderr and "Traceback" not in done.stderr


def test_nothing_listens_beyond_the_loopback_address(machine: Machine) -> None:
    here = "".join(f"{byte:02X}" for byte in reversed(socket.inet_aton("127.0.0.1")))
    assert listening(machine.guest.pid) == {f"{here}:{machine.guest.port:04X}"}


def test_the_guest_reaches_no_network(machine: Machine) -> None:
    with socket.socket() as here:
        here.bind(("0.0.0.0", 0))  # at 10.0.2.2 a guest without a restriction reaches its machine
        here.listen()
        script = f"timeout 5 bash -c 'echo >/dev/tcp/10.0.2.2/{here.getsockname()[1]}'"
        assert machine.inv("vm", "ssh", "--", "sh", "-c", script, place="here").returncode != 0
        here.settimeout(0)
        with pytest.raises(BlockingIOError):
            here.accept()
    routes = machine.inv("vm", "ssh", "--", "ip", "-4", "route", place="here").stdout
    assert "default" not in routes and "10.0.2.0/24" in routes


def test_files_of_the_guest_are_private(machine: Machine) -> None:
    directory = machine.guest.keys.user_key.parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not {file.name for file in directory.iterdir()} & {"disk.qcow2", "disk.img"}, "its disk has no name"


@pytest.mark.needs("openssh-client")
def test_numpy_sorts_there(machine: Machine) -> None:
    """With AVX2 of QEMU 7.2 its order was wrong, or it crashed, as in the proof of sprayed paths (hardware.py)."""
    sizes, kinds = (2, 10, 17, 64, 300, 5000), ("i4", "i8", "f8")
    code = (
        "import numpy as np\n"
        f"for n in {sizes}:\n"
        f"    for kind in {kinds}:\n"
        "        for seed in range(20):\n"
        "            a = np.random.default_rng(seed).integers(0, 1 << 20, n).astype(kind)\n"
        "            assert a[a.argsort()].tolist() == np.sort(a).tolist() == sorted(a.tolist()), (n, kind, seed)\n"
    )
    done = machine.inv("vm", "ssh", "--", "sh", "-c", '"$HEDDLE_VENV/bin/python" -c "$1"', "x", code, place="here")
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("openssh-client")
def test_a_command_by_ssh_has_its_words_and_its_code(machine: Machine) -> None:
    done = machine.inv("vm", "ssh", "--", "sh", "-c", 'printf "%s|" "$@"; exit 7', "x", "a b", "$HOME", place="here")
    assert (done.stdout, done.returncode) == ("a b|$HOME|", 7), done.stderr


def test_status_shows_the_guest_its_image_and_the_kernels(machine: Machine) -> None:
    shown = json.loads(machine.inv("vm", "status", "--format", "json", place="here").stdout)
    (guest,) = shown["guests"]
    assert (guest["kernel"], guest["accelerator"] in ("kvm", "tcg")) == ("backports", True)
    assert guest["image"] in [image["name"] for image in shown["images"]]
    assert "backports" in shown["kernels"]
    again = machine.inv("vm", "up", place="here")
    assert again.returncode == 0 and "it ran already" in again.stdout
