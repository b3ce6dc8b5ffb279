"""What is decided about the engine and its images before anything runs, or from what was said."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Done
from heddle.host import packages
from heddle.host.engine import docker, images
from heddle.host.engine.lockfile import locked
from heddle.render import imagenames


@pytest.fixture(autouse=True)
def a_known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "HEDDLE_CONTAINERLAB", "CI"):
        monkeypatch.delenv(name, raising=False)


# --- images


def test_names_are_the_hash_of_all_that_goes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("switch.Dockerfile", "host.Dockerfile", "node.sh"):
        (tmp_path / name).write_bytes((imagenames.TEMPLATES / name).read_bytes())
    first = imagenames.image_names()
    assert set(first) == {"switch", "host"}
    assert all(re.fullmatch(r"heddle/(switch|host):[0-9a-f]{12}", name) for name in first.values())
    monkeypatch.setattr(imagenames, "TEMPLATES", tmp_path)
    assert imagenames.image_names() == first, "where the files are does not matter"
    (tmp_path / "switch.Dockerfile").write_text("FROM x\n")
    assert imagenames.image_names()["switch"] != first["switch"]
    assert imagenames.image_names()["host"] == first["host"]
    (tmp_path / "node.sh").write_text("exec true\n")
    assert imagenames.image_names()["host"] != first["host"]
    second = imagenames.image_names()
    monkeypatch.setattr(imagenames, "PUBLIC_BASE", "debian:sid-slim")
    assert not set(second.values()) & set(imagenames.image_names().values())


@pytest.mark.parametrize(
    ("there", "pulls", "base", "asked"),
    [
        ({imagenames.PUBLIC_BASE, images.OWN_BASE}, True, imagenames.PUBLIC_BASE, []),
        ({images.OWN_BASE}, True, images.OWN_BASE, []),
        (set(), True, imagenames.PUBLIC_BASE, ["pull"]),
        (set(), False, images.OWN_BASE, ["pull", "mmdebstrap"]),
    ],
)
def test_the_base_is_local_then_from_a_registry_then_built_here(
    there: set[str], pulls: bool, base: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def pull(journal: object) -> str:
        done.append("pull")
        return "" if pulls else "no such host"

    monkeypatch.setattr(images, "present", lambda name: name in there)
    monkeypatch.setattr(images, "_pull", pull)
    monkeypatch.setattr(images, "_have_mmdebstrap", lambda *_: None)
    monkeypatch.setattr(images, "_bootstrap", lambda *_: done.append("mmdebstrap"))
    assert images._base(Silent(), None, False, lambda _: False) == base
    assert done == asked


def test_no_registry_and_no_mmdebstrap_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MachineError(Problem("", "mmdebstrap", "is missing", "apt-get install mmdebstrap"))

    monkeypatch.setattr(images, "present", lambda name: False)
    monkeypatch.setattr(images, "_pull", lambda journal: "no such host")
    monkeypatch.setattr(packages, "ensure", refuse)
    with pytest.raises(MachineError) as caught:
        images._base(Silent(), None, False, lambda _: False)
    assert [p.what for p in caught.value.problems] == [imagenames.PUBLIC_BASE, "mmdebstrap"]
    assert all(p.hint for p in caught.value.problems)


def test_a_full_disk_is_named_with_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Done(("docker", "build"), 1, "", "E: write error: No space left on device", 1.0)
    with pytest.raises(MachineError, match=r"/var/tmp is full.*(?s:.*)image --prune"):
        images._raise_if_full(done, "/var/tmp")
    assert "df -h" in docker.failure(done).hint


# --- the engine


def test_a_remote_engine_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://lab@server")
    wrong = docker.trouble()
    assert wrong is not None
    assert "not on this machine" in wrong.why
    assert not docker.down(), "starting one here would not help"
    with pytest.raises(MachineError, match="DOCKER_HOST=ssh"):
        docker.docker(["ps"])


def test_no_client_no_engine_and_no_daemon_are_three_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "SOCKET", tmp_path / "docker.sock")
    monkeypatch.setattr(docker, "SYSTEMD", tmp_path / "systemd")
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    assert _why() == ("docker", "is not installed")
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}" if name == "docker" else None)
    assert _why() == ("the engine", "is not installed, only its client is")
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    assert _why()[1].startswith("is not running")
    assert docker.down()
    assert (docker.trouble() or Problem("", "", "")).hint == "./inv setup containerlab"
    (tmp_path / "systemd").mkdir()
    assert (docker.trouble() or Problem("", "", "")).hint == "systemctl start docker"


def test_a_missing_permission_is_not_reported_as_a_stopped_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(docker, "_connect_error", lambda: PermissionError(13, "Permission denied"))
    wrong = docker.trouble()
    assert wrong is not None
    assert "group docker" in wrong.why
    assert "sudo" in wrong.hint
    assert not docker.down()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("27.0\n{kernel}\n[name=seccomp]\n[]\n", ""),
        ("27.0\n5.15.0-linuxkit\n[]\n[]\n", "runs on another kernel"),
        ("27.0\n{kernel}\n[name=rootless]\n[]\n", "runs without root"),
        ("\n\n\n[boom]\n", "failed"),
    ],
)
def test_a_remote_engine_behind_a_local_socket_is_detected(
    said: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said.format(kernel=os.uname().release)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(docker, "_connect_error", lambda: None)
    monkeypatch.setattr(docker, "run", lambda argv, **_: Done(tuple(argv), 0, text, "", 0.0))
    wrong = docker.trouble()
    assert (wrong.why if wrong else "").startswith(why)
    assert (wrong is None) == (not why)


def test_half_an_answer_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that accepts connections but never answers is reported within a time limit."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as door:
        path = Path(name, "docker.sock")
        door.bind(str(path))
        door.listen()
        monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
        monkeypatch.setattr(docker, "SOCKET", path)
        monkeypatch.setattr(docker, "_ANSWER_S", 1.0)
        wrong = docker.trouble()
        assert wrong is not None
        assert "did not answer" in wrong.why
        assert not docker.down()


def test_one_process_holds_a_lock_even_if_its_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "building"
    entered = threading.Event()

    def second() -> None:
        with locked(path, fcntl.LOCK_EX) as fd:
            assert path.stat().st_ino == os.fstat(fd).st_ino
            entered.set()

    waiting = threading.Thread(target=second)
    with locked(path, fcntl.LOCK_EX):
        waiting.start()
        assert not entered.wait(0.1)
        shutil.rmtree(path.parent)  # as the end of an engine removes its directory
    waiting.join(5)
    assert entered.is_set()


def test_a_lock_that_another_process_holds_leaves_no_file_open(tmp_path: Path) -> None:
    path, waited = tmp_path / "building", list[str]()
    with locked(path, fcntl.LOCK_EX, lambda: waited.append("waited")):
        before = sorted(Path("/proc/self/fd").iterdir())
        with pytest.raises(MachineError), locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, lambda: waited.append("now")):
            pass
        assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert waited == ["now"]


def _why() -> tuple[str, str]:
    wrong = docker.trouble()
    assert wrong is not None
    return wrong.what, wrong.why
