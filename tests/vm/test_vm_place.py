"""--on vm: verbs run in the guest as they do here."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import stat
from pathlib import Path

import pytest

from heddle_plugins.places.vm import qemu
from heddle_plugins.places.vm.qemu import KVM
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


@pytest.mark.long
def test_the_full_kernel_has_what_labs_can_use(machine: Machine) -> None:
    done = machine.inv("doctor", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for name in ("red", "ets", "netem", "rxe", "verbs", "hash seed", "bpf", "frr", "tcpdump", "tshark"):
        assert checks[name]["ok"], checks[name]


@pytest.mark.long
def test_a_lab_with_delays_runs_there_until_it_is_taken_down(machine: Machine) -> None:
    """netem delays its links, and soft-RoCE sends in it: this kernel has neither."""
    up = machine.inv("up", "tiny", "--name", "mine", "--set", "link.delay=100ns")
    assert up.returncode == 0, up.stderr
    run = machine.inv("run", "--size=64K", "--iters=1", "--warmup=0", "--transport=rxe", "--format=json")
    assert (run.returncode, json.loads(run.stdout)["results"][0]["wrong"]) == (0, 0), run.stderr
    assert "copied" not in run.stderr, "an unchanged project is not copied again"
    paths = machine.inv("paths", "--format", "json")
    assert (paths.returncode, json.loads(paths.stdout)["agree"]) == (0, True), paths.stderr
    assert json.loads(machine.inv("status", "--format=json", place="here").stdout)["labs"] == []
    assert machine.inv("down", "mine").returncode == 0


@pytest.mark.deep
def test_files_codes_and_errors_are_those_of_the_verb(machine: Machine, tmp_path: Path) -> None:
    done = machine.inv("render", "tiny", "--out", "here it is", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "here it is").rglob("*.clab.yml"))
    done = machine.inv("up", "nosuch")
    assert done.returncode == 2 and "nosuch" in done.stderr and "Traceback" not in done.stderr


def test_the_guest_is_private_and_reaches_no_network(machine: Machine) -> None:
    here = "".join(f"{byte:02X}" for byte in reversed(socket.inet_aton("127.0.0.1")))
    assert listening(machine.guest.pid) == {f"{here}:{machine.guest.port:04X}"}, "only the loopback address leads there"
    directory = machine.guest.keys.user_key.parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not {file.name for file in directory.iterdir()} & {"disk.qcow2", "disk.img"}, "its disk has no name"
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))  # at 10.0.2.2 a guest without a restriction reaches its machine
        listener.listen()
        script = f"ip -4 route; timeout 5 bash -c 'echo >/dev/tcp/10.0.2.2/{listener.getsockname()[1]}'"
        done = machine.ssh("sh", "-c", script)
        assert done.returncode != 0
        assert "default" not in done.stdout and "10.0.2.0/24" in done.stdout
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.needs("openssh-client")
def test_commands_by_ssh_have_their_words_and_code_and_numpy_sorts_there(machine: Machine) -> None:
    """With AVX2 of QEMU 7.2 numpy's order was wrong, or it crashed, as in the proof of sprayed paths (qemu.py)."""
    done = machine.ssh("sh", "-c", 'printf "%s|" "$@"; exit 7', "x", "a b", "$HOME")
    assert (done.stdout, done.returncode) == ("a b|$HOME|", 7), done.stderr
    code = (
        "import numpy as np\n"
        "for n in (2, 10, 17, 64, 300, 5000):\n"
        "    for kind in ('i4', 'i8', 'f8'):\n"
        "        for seed in range(20):\n"
        "            a = np.random.default_rng(seed).integers(0, 1 << 20, n).astype(kind)\n"
        "            assert a[a.argsort()].tolist() == np.sort(a).tolist() == sorted(a.tolist()), (n, kind, seed)\n"
    )
    done = machine.ssh("sh", "-c", '"$HEDDLE_VENV/bin/python" -c "$1"', "x", code)
    assert done.returncode == 0, done.stderr


def test_status_shows_the_guest_its_image_and_the_kernels(machine: Machine) -> None:
    shown = json.loads(machine.inv("vm", "status", "--format", "json", place="here").stdout)
    (guest,) = shown["guests"]
    assert guest["kernel"] == "backports" and "backports" in shown["kernels"]
    assert guest["image"] in [image["name"] for image in shown["images"]]
    # /dev/kvm as it is here: it boots a guest, or is absent, or hangs the guest, or ends QEMU.
    expected = qemu.kvm_problem() or "KVM failed: the guest "
    assert (guest["accelerator"] == KVM and not guest["slow_because"]) or guest["slow_because"].startswith(expected)
    again = machine.inv("vm", "up", place="here")
    assert again.returncode == 0 and "it ran already" in again.stdout
