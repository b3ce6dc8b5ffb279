"""`./inv setup containerlab` and what it is made of, with the real Go, mmdebstrap, engine and containerlab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dockerd as daemon
import pytest

from heddle.base import mounts
from heddle.base.events import Silent
from heddle.host import doctor, packages
from heddle.host.engine import binary, docker, images
from heddle.host.engine.setup import setup_containerlab
from heddle.render import dialects
from tests.machine import child, until

pytestmark = pytest.mark.needs("procps")

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def engine_of_this_run() -> Iterator[daemon.DockerdRecord | None]:
    """What is known of the engine; `setup` makes one that a test run has started stay, and this takes that back."""
    before = daemon.record()
    yield before
    if before is not None:
        daemon._write(before)


def test_where_all_is_there_setup_changes_nothing(engine_of_this_run: daemon.DockerdRecord | None) -> None:
    before = binary.find()
    assert before is not None
    stamp = before.stat().st_mtime_ns
    setup_containerlab(Silent(), stays=False)
    assert daemon.record() == engine_of_this_run
    steps = _inv("setup", "containerlab")["steps"]
    assert [step["name"] for step in steps] == ["docker", "daemon", "containerlab", "images"]
    assert not any(step["done"] for step in steps)
    assert before.stat().st_mtime_ns == stamp
    now = daemon.record()
    assert now is None or not now.temporary, "an engine that the user has set up stays"
    found = _inv("image")["images"]
    assert {each["role"]: each["name"] for each in found} == dict(dialects.image_names())
    assert not any(each["built"] for each in found)


def test_doctor_sees_engine_containerlab_and_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("docker", "engine", "containerlab", "images")
    checks = {name: doctor.CHECKS[name]() for name in names}
    assert all(check.ok and not check.required for check in checks.values()), checks
    found = binary.find()
    assert found is not None
    assert binary.version_text(found) in checks["containerlab"].detail
    monkeypatch.setattr(dialects, "PUBLIC_BASE", "debian:none")
    check = doctor.CHECKS["images"]()
    assert not check.ok
    assert check.fix == "./inv image"
    monkeypatch.setattr(docker, "SOCKET", tmp_path / "docker.sock")
    monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(tmp_path))
    for name in ("engine", "containerlab", "images"):
        check = doctor.CHECKS[name]()
        assert not check.ok
        assert not check.required
        assert check.fix


@pytest.mark.long("10 seconds and more")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ending_the_making_of_a_base_ends_all_of_it(number: signal.Signals) -> None:
    if packages.missing(packages.IMAGE):
        pytest.skip("needs mmdebstrap (apt-get install mmdebstrap)")
    code = """
import signal
from heddle.host.engine import images
signal.signal(signal.SIGINT, signal.default_int_handler)
images.OWN_BASE = "heddle/base:trial"
images._bootstrap(images.Silent(), None)
"""

    def trees() -> set[Path]:
        return set(Path("/var/tmp").glob("heddle-base-*/mmdebstrap.*/usr"))

    before = trees()
    with child([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL) as proc:
        until(lambda: trees() - before)
        (made,) = trees() - before
        os.kill(proc.pid, number)
        proc.wait(60)
    assert proc.returncode != 0
    place = made.parent.parent
    if number is signal.SIGKILL:  # its directory goes when the next one is made
        until(lambda: place.name not in _commands())
        with mounts.scratch("heddle-base-"):
            pass
    assert not place.exists()
    assert str(place) not in Path("/proc/mounts").read_text()
    assert place.name not in _commands()
    assert not images.present("heddle/base:trial")


def _commands() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def _inv(*words: str) -> dict[str, list[dict[str, object]]]:
    argv = [sys.executable, str(ROOT / "tasks.py"), *words, "--format", "json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return found
