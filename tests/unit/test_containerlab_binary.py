"""containerlab and the engine: which will do, what setup may replace, what is decided before anything runs."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import clabbuild
import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.process import Done, find_program
from heddle.base.resources import Installation
from heddle.host import packages
from heddle.host.engine import binary, docker, images, setup
from heddle.host.engine.lockfile import locked
from heddle.render import dialects
from tests.answers import Answers


@pytest.fixture(autouse=True)
def a_known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "HEDDLE_CONTAINERLAB", "CI"):
        monkeypatch.delenv(name, raising=False)


# --- the binary


def test_a_version_is_read_from_the_output(answers: Answers) -> None:
    answers(binary.parse)


def _program(path: Path, version: str, more: bytes = b"") -> Path:
    path.write_bytes(f"#!/bin/sh\necho '    version: {version}'\nexit 0\n".encode() + more)
    path.chmod(0o755)
    return path


def test_a_build_from_source_is_recognised_by_its_module(tmp_path: Path) -> None:
    info = b"\npath\tgithub.com/srl-labs/containerlab\nmod\tgithub.com/srl-labs/containerlab\tv0.77.2\th1:x=\n"
    assert binary.version(_program(tmp_path / "a", "0.0.0", info)) == (0, 77, 2)
    assert binary.version(_program(tmp_path / "b", "0.0.0")) is None
    assert binary.version(_program(tmp_path / "c", "0.70.1", info)) == (0, 70, 1)
    assert binary.version(tmp_path / "none") is None


def test_which_containerlab_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    def required(version: str, modules: bool) -> Path:
        path = _program(tmp_path / "containerlab", version)
        monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(path))
        monkeypatch.setattr(binary, "PROC_MODULES", tmp_path if modules else tmp_path / "none")
        return binary.require()

    answers(required)


def test_no_program_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an empty word in PATH means to a shell: programs of any user who may write there would run as root."""
    for name in ("containerlab", "docker"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(binary, "_PLACES", ())
    for path in ("", ":", ".", "/none:"):
        monkeypatch.setenv("PATH", path)
        assert binary.find() is None
        assert find_program("docker") is None
    monkeypatch.delenv("PATH")
    assert find_program("docker") is None
    assert find_program("docker", str(tmp_path)) == str(tmp_path / "docker")


def test_a_missing_containerlab_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(tmp_path))
    with pytest.raises(MachineError, match="is not a program"):
        binary.require()
    monkeypatch.delenv("HEDDLE_CONTAINERLAB")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary, "_PLACES", (str(tmp_path),))
    with pytest.raises(MachineError, match=r"is not installed(?s:.*)setup containerlab"):
        binary.require()


# --- what setup may replace


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where setup puts containerlab, here a directory of the test's own."""
    place = tmp_path / "local/containerlab"
    place.parent.mkdir()
    monkeypatch.setattr(setup, "TARGET", place)
    monkeypatch.setattr(setup, "RECORD", tmp_path / "share/containerlab.json")
    monkeypatch.setattr(binary, "_PLACES", (str(place.parent),))
    monkeypatch.setenv("PATH", f"{place.parent}:{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path)
    return place


def test_setup_installs_once_replaces_its_own_and_never_a_binary_of_the_user(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obtained: list[Path] = []

    def obtain(directory: Path, *_: object) -> tuple[Path, str]:
        obtained.append(_program(directory / "containerlab", "0.79.0"))
        return obtained[-1], "from a test"

    monkeypatch.setattr(setup, "_obtain", obtain)
    _program(target, "0.50.0")
    with pytest.raises(MachineError, match=r"0\.50\.0(?s:.*)Heddle did not install it(?s:.*)version upgrade"):
        setup._containerlab(Silent(), None)
    assert binary.version(target) == (0, 50, 0)
    assert obtained == []
    target.unlink()
    first = setup._containerlab(Silent(), None)
    assert first.done
    assert "0.79.0, from a test" in first.detail
    assert not setup._containerlab(Silent(), None).done
    assert len(obtained) == 1
    assert setup.is_ours(target)
    assert sorted(p.name for p in target.parent.iterdir()) == ["containerlab"]
    setup._place(_program(target.parent.parent / "old", "0.50.0"))
    assert setup._containerlab(Silent(), None).done
    assert binary.version(target) == (0, 79, 0)


def test_a_setup_that_is_killed_leaves_a_file_that_heddle_recognises(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup._place(_program(target.parent.parent / "old", "0.50.0"))
    (target.parent / ".containerlab.99999999").touch()  # no process has that number
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda path, to: None if to == target else os.replace(path, to))  # noqa: PTH105
        setup._place(_program(target.parent.parent / "new", "0.79.0"))
    assert binary.version_text(target) == "0.50.0"
    assert setup.is_ours(target)
    assert setup.RECORD.stat().st_mode & 0o133 == 0
    assert sorted(p.name for p in target.parent.iterdir()) == ["containerlab"]


@pytest.mark.parametrize("checkout", [True, False])
def test_the_release_comes_first_where_it_can_run_and_only_a_checkout_builds(
    checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fetch(*_: object) -> Path:
        tried.append("release")
        raise binary.Unreachable("no route")

    def make(directory: Path, *_: object) -> tuple[Path, str]:
        tried.append("build")
        return directory / "containerlab", "0.79.0"

    monkeypatch.setattr(binary, "fetch", fetch)
    monkeypatch.setattr(clabbuild, "build", make)
    monkeypatch.setattr(packages, "missing", lambda _: [])
    for modules, tries, why in (
        (tmp_path, ["release"], r"release is not available: no route(?s:.*)containerlab\.dev/install"),
        (tmp_path / "none", [], r"cannot deploy on this kernel(?s:.*)with module support"),
    ):
        tried.clear()
        monkeypatch.setattr(binary, "PROC_MODULES", modules)
        if checkout:
            setup._obtain(tmp_path, Silent(), None, False, lambda _: False)
            assert tried == [*tries, "build"]
            continue
        for module in (setup, binary):
            monkeypatch.setattr(module, "HERE", Installation(tmp_path / "heddle"))
        with pytest.raises(MachineError, match=why):
            setup._obtain(tmp_path, Silent(), None, False, lambda _: False)
        assert tried == tries


def test_setup_refuses_unknown_words() -> None:
    with pytest.raises(InputError, match="did you mean containerlab"):
        setup.check_what("containerlap")


# --- images


def test_names_are_the_hash_of_all_that_goes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("switch.Dockerfile", "host.Dockerfile", "node.sh"):
        (tmp_path / name).write_bytes((dialects.TEMPLATES / name).read_bytes())
    first = dialects.image_names()
    assert set(first) == {"switch", "host"}
    assert all(re.fullmatch(r"heddle/(switch|host):[0-9a-f]{12}", name) for name in first.values())
    monkeypatch.setattr(dialects, "TEMPLATES", tmp_path)
    assert dialects.image_names() == first, "where the files are does not matter"
    (tmp_path / "switch.Dockerfile").write_text("FROM x\n")
    assert dialects.image_names()["switch"] != first["switch"]
    assert dialects.image_names()["host"] == first["host"]
    (tmp_path / "node.sh").write_text("exec true\n")
    assert dialects.image_names()["host"] != first["host"]
    second = dialects.image_names()
    monkeypatch.setattr(dialects, "PUBLIC_BASE", "debian:sid-slim")
    assert not set(second.values()) & set(dialects.image_names().values())


@pytest.mark.parametrize(
    ("there", "pulls", "base", "asked"),
    [
        ({dialects.PUBLIC_BASE, images.OWN_BASE}, True, dialects.PUBLIC_BASE, []),
        ({images.OWN_BASE}, True, images.OWN_BASE, []),
        (set(), True, dialects.PUBLIC_BASE, ["pull"]),
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

    def refuse(*_: object, **__: object) -> None:
        raise MachineError(Problem("", "mmdebstrap", "is missing", "apt-get install mmdebstrap"))

    monkeypatch.setattr(images, "present", lambda name: name in there)
    monkeypatch.setattr(images, "_pull", pull)
    monkeypatch.setattr(packages, "ensure", refuse)
    if "mmdebstrap" in asked:  # without it, both ways are named
        with pytest.raises(MachineError) as caught:
            images._base(Silent(), None, False, lambda _: False)
        assert [p.what for p in caught.value.problems] == [dialects.PUBLIC_BASE, "mmdebstrap"]
        assert all(p.hint for p in caught.value.problems)
        done.clear()
    monkeypatch.setattr(images, "_have_mmdebstrap", lambda *_: None)
    monkeypatch.setattr(images, "_bootstrap", lambda *_: done.append("mmdebstrap"))
    assert images._base(Silent(), None, False, lambda _: False) == base
    assert done == asked


def test_a_full_disk_is_named_with_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Done(("docker", "build"), 1, "", "E: write error: No space left on device", 1.0)
    with pytest.raises(MachineError, match=r"/var/tmp is full.*(?s:.*)image --prune"):
        images._raise_if_full(done, "/var/tmp")
    assert "df -h" in docker.failure(done).hint


# --- the engine


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The programs that are installed; no engine runs."""
    installed = ["docker", "dockerd"]
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}" if name in installed else None)
    monkeypatch.setattr(docker, "SOCKET", tmp_path / "docker.sock")
    monkeypatch.setattr(docker, "SYSTEMD", tmp_path / "systemd")
    return installed


def _trouble() -> Problem:
    wrong = docker.trouble()
    assert wrong is not None
    return wrong


def test_a_remote_engine_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://lab@server")
    assert "not on this machine" in _trouble().why
    assert not docker.down(), "starting one here would not help"
    with pytest.raises(MachineError, match="DOCKER_HOST=ssh"):
        docker.docker(["ps"])


def test_no_client_no_engine_no_daemon_and_no_permission_are_four_errors(
    programs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _trouble().why.startswith("is not running")
    assert docker.down()
    assert _trouble().hint == "./inv setup containerlab"
    with monkeypatch.context() as wheel:
        for module in (setup, docker):
            wheel.setattr(module, "HERE", Installation(tmp_path / "heddle"))
        with pytest.raises(MachineError, match=r"is not running(?s:.*)service docker start"):
            setup._daemon(Silent(), stays=True)
        assert not setup.stop_engine().done
    (tmp_path / "systemd").mkdir()
    assert _trouble().hint == "systemctl start docker"
    programs.remove("dockerd")
    assert _trouble().what == "the engine" and "only its client is" in _trouble().why
    programs.clear()
    assert (_trouble().what, _trouble().why) == ("docker", "is not installed")
    programs.append("docker")
    monkeypatch.setattr(docker, "_connect_error", lambda: PermissionError(13, "Permission denied"))
    assert "group docker" in _trouble().why and "sudo" in _trouble().hint
    assert not docker.down()


def test_a_remote_engine_behind_a_local_socket_is_detected(
    programs: list[str], monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    def trouble(said: str) -> object:
        text = said.format(kernel=os.uname().release)
        monkeypatch.setattr(docker, "run", lambda argv, **_: Done(tuple(argv), 0, text, "", 0.0))
        return wrong.why if (wrong := docker.trouble()) else None

    monkeypatch.setattr(docker, "_connect_error", lambda: None)
    answers(trouble)


def test_half_an_answer_is_no_engine(programs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that accepts connections but never answers is reported within a time limit."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as door:
        path = Path(name, "docker.sock")
        door.bind(str(path))
        door.listen()
        monkeypatch.setattr(docker, "SOCKET", path)
        monkeypatch.setattr(docker, "_ANSWER_S", 1.0)
        assert "did not answer" in _trouble().why
        assert not docker.down()


def test_locks_outlive_their_file_and_leave_none_open(tmp_path: Path) -> None:
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
    # A lock that another process holds leaves no file open.
    path, waited = tmp_path / "building", list[str]()
    with locked(path, fcntl.LOCK_EX, lambda: waited.append("waited")):
        before = sorted(Path("/proc/self/fd").iterdir())
        with pytest.raises(MachineError), locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, lambda: waited.append("now")):
            pass
        assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert waited == ["now"]
