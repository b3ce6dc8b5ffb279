"""Replays in real guests: equal bytes, a line that fails, and processes that are killed."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from heddle.base.process import start_of
from heddle.places.vm.booting import QemuProcess, process_in
from tests.vm.conftest import Machine

pytestmark = pytest.mark.timeout(900)
EVERYTHING = ["SHA256SUMS", "output.txt", "paths.json", "replay.json", "ring.pcapng", "run.json"]


def started(machine: Machine, *words: str) -> subprocess.Popen[str]:
    """A replay that runs in the background."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        machine.words("replay", *words, place="here"),
        stdout=pipe, stderr=pipe, text=True, env=machine.environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip


def qemu_of(verb: subprocess.Popen[str]) -> tuple[Path, QemuProcess]:
    """The scratch directory of a replay that was started, and the process of its guest once it boots."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for link in Path("/proc", str(verb.pid), "fd").iterdir():
            try:
                place = link.readlink()
            except FileNotFoundError:
                continue  # it was closed since
            if "heddle-replay-" in place.name and (found := process_in(place / "1")) is not None:
                return place, found
        assert verb.poll() is None, verb.communicate()
        time.sleep(0.05)
    raise AssertionError("no guest was started")


def differences(one: Path, other: Path) -> str:
    """Where the texts that two guests wrote differ first."""
    found = []
    for path in sorted(one.iterdir()):
        if path.suffix in {".json", ".txt"} and (other / path.name).exists():
            lines = difflib.unified_diff(
                path.read_text().splitlines(), (other / path.name).read_text().splitlines(), n=1
            )
            found.append(f"{path.name}:\n" + "\n".join([*lines][:12]))
    return "\n".join(found)


def test_two_guests_write_the_same_bytes(alone: Machine, tmp_path: Path) -> None:
    target = tmp_path / "out of two"
    done = alone.inv("replay", "tiny-ring", "--out", str(target), "--times", "2", place="here")
    other = target / "boot-2"
    assert done.returncode == 0, done.stdout + done.stderr + (differences(target, other) if other.is_dir() else "")
    assert "2 VMs wrote the same bytes" in done.stdout
    assert sorted(path.name for path in target.iterdir()) == EVERYTHING
    assert json.loads((target / "run.json").read_text())["results"][0]["wrong"] == 0
    assert json.loads((target / "paths.json").read_text())["agree"] is True
    for line in (target / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((target / name).read_bytes()).hexdigest() == digest
    report = json.loads((target / "replay.json").read_text())
    assert report["failed"] is None and [entry["code"] for entry in report["lines"]] == [0, 0, 0, 0]


@pytest.mark.deep
def test_another_seed_gives_other_bytes(alone: Machine, tmp_path: Path) -> None:
    script = tmp_path / "status.replay"
    script.write_text("./inv status > status.txt\n")
    sums = []
    for number, seed in enumerate((1, 1, 2)):
        target = tmp_path / f"out {number}"
        done = alone.inv("replay", str(script), "--out", str(target), "--seed", str(seed), place="here")
        assert done.returncode == 0, done.stdout + done.stderr
        sums.append((target / "SHA256SUMS").read_text())
    assert sums[0] == sums[1] != sums[2]


def test_a_line_that_fails_ends_the_script_and_its_files_come_back(alone: Machine, tmp_path: Path) -> None:
    script, target = tmp_path / "my.replay", tmp_path / "out"
    (tmp_path / "mine.yml").write_text("name: mine\n")
    script.write_text("./inv status > status.txt\n./inv run\n./inv up mine.yml\n")
    words = (str(script), "--input", str(tmp_path / "mine.yml"), "--out", str(target), "--format", "json")
    done = alone.inv("replay", *words, place="here")
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["report"]["failed"], shown["equal"]) == (2, 2, None), done.stderr
    assert sorted(each["name"] for each in shown["files"]) == ["output.txt", "replay.json", "status.txt"]
    said = (target / "output.txt").read_text()
    assert said.startswith("$ ./inv status > status.txt\n$ ./inv run\n") and "no lab" in said


def test_a_guest_that_is_killed_is_named_and_nothing_is_left(alone: Machine, tmp_path: Path) -> None:
    verb = started(alone, "tiny-ring", "--out", str(tmp_path / "out"))
    place, qemu = qemu_of(verb)
    os.kill(qemu.pid, signal.SIGKILL)
    _, said = verb.communicate(timeout=60)
    assert verb.returncode == 3 and "guest 1 of the replay ended after" in said, said
    assert "another process ended it" in said and "Traceback" not in said
    assert not place.exists() and not (tmp_path / "out").exists()


def test_ctrl_c_ends_the_guests(alone: Machine, tmp_path: Path) -> None:
    verb = started(alone, "tiny-ring", "--out", str(tmp_path / "out"), "--times", "2")
    place, qemu = qemu_of(verb)
    verb.send_signal(signal.SIGINT)
    verb.communicate(timeout=60)
    assert verb.returncode == 130 and not qemu.alive
    assert not place.exists() and not (tmp_path / "out").exists()


def test_the_guest_of_a_killed_replay_ends_and_down_removes_its_files(alone: Machine, tmp_path: Path) -> None:
    verb = started(alone, "tiny-ring", "--out", str(tmp_path / "out"))
    place, qemu = qemu_of(verb)
    verb.kill()
    verb.communicate(timeout=60)
    until = time.monotonic() + 30
    while start_of(qemu.pid) == qemu.started and time.monotonic() < until:
        time.sleep(0.05)
    assert not qemu.alive and place.exists()
    assert alone.inv("vm", "down", place="here").returncode == 0
    assert not place.exists()
