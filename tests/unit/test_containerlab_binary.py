"""containerlab: which one will do, and what setup may replace."""

from __future__ import annotations

import os
from pathlib import Path

import clabbuild
import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.base.process import find_program
from heddle.host import packages
from heddle.host.engine import binary, release, setup


@pytest.fixture(autouse=True)
def a_known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "HEDDLE_CONTAINERLAB", "CI"):
        monkeypatch.delenv(name, raising=False)


# --- the binary


@pytest.mark.parametrize(
    ("said", "numbers", "more"),
    [
        ("  LOGO\n\n    version: 0.79.0\n     commit: 1a2b3c\n", (0, 79, 0), ""),
        ("    version: 0.79.0+heddle\n", (0, 79, 0), "+heddle"),
        ("version: v0.48.6\n", (0, 48, 6), ""),
        ("    version: 0.80.0-rc.1\n", (0, 80, 0), "-rc.1"),
        ("    version: 0.0.0\n", (0, 0, 0), ""),
        ("bash: cannot execute", None, ""),
        (" rel. notes: https://containerlab.dev/rn/0.79/\n", None, ""),
    ],
)
def test_a_version_is_read_from_the_output(said: str, numbers: binary.Version | None, more: str) -> None:
    assert binary.parse(said) == (numbers, more)


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


@pytest.mark.parametrize(
    ("version", "modules", "why"),
    [
        ("0.79.0", True, ""),
        ("0.68.0", True, ""),
        ("0.67.9", True, "Heddle needs 0.68.0 or newer"),
        ("soup", True, "does not print its version"),
        ("0.79.0", False, "cannot deploy on this kernel"),
        ("0.79.0+heddle", False, ""),
        ("0.80.0", False, ""),
    ],
)
def test_which_containerlab_can_be_used(
    version: str, modules: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _program(tmp_path / "containerlab", version)
    monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(path))
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path if modules else tmp_path / "none")
    if not why:
        assert binary.require() == path
        return
    with pytest.raises(MachineError, match=why) as caught:
        binary.require()
    assert caught.value.problems[0].hint


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


def _obtains(version: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    got: list[str] = []

    def obtain(directory: Path, *_: object) -> tuple[Path, str]:
        got.append(version)
        return _program(directory / "containerlab", version), "from a test"

    monkeypatch.setattr(setup, "_obtain", obtain)
    return got


def test_setup_installs_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = _obtains("0.79.0", monkeypatch)
    first = setup._containerlab(Silent(), None)
    assert first.done
    assert "0.79.0, from a test" in first.detail
    second = setup._containerlab(Silent(), None)
    assert not second.done
    assert got == ["0.79.0"]
    assert setup.is_ours(target)
    assert sorted(p.name for p in target.parent.iterdir()) == ["containerlab"]


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


def test_setup_replaces_its_own_when_it_is_too_old(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(target, "0.50.0")
    setup._place(_program(target.parent.parent / "old", "0.50.0"))
    _obtains("0.79.0", monkeypatch)
    assert setup._containerlab(Silent(), None).done
    assert binary.version(target) == (0, 79, 0)


def test_setup_never_replaces_a_binary_of_the_user(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(target, "0.50.0")
    got = _obtains("0.79.0", monkeypatch)
    with pytest.raises(MachineError, match=r"0\.50\.0(?s:.*)Heddle did not install it(?s:.*)version upgrade"):
        setup._containerlab(Silent(), None)
    assert binary.version(target) == (0, 50, 0)
    assert got == []


def test_without_modules_no_release_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fetch(*_: object) -> Path:
        tried.append("release")
        raise release.Unreachable("not here")

    def make(directory: Path, *_: object) -> tuple[Path, str]:
        tried.append("build")
        return directory / "containerlab", "0.79.0"

    monkeypatch.setattr(release, "fetch", fetch)
    monkeypatch.setattr(clabbuild, "build", make)
    monkeypatch.setattr(packages, "missing", lambda _: [])
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path)
    setup._obtain(tmp_path, Silent(), None, False, lambda _: False)
    assert tried == ["release", "build"]
    tried.clear()
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path / "none")
    setup._obtain(tmp_path, Silent(), None, False, lambda _: False)
    assert tried == ["build"]


def test_setup_refuses_unknown_words() -> None:
    with pytest.raises(InputError, match="did you mean containerlab"):
        setup.check_what("containerlap")
