"""What is decided about engine, images and containerlab before anything runs, or from what was said."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import platform
import re
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topologies import packages
from topologies.engine import binary, build, daemon, docker, images, release, setup
from topologies.events import Silent
from topologies.problems import InputError, MachineError, Problem
from topologies.process import Done

MODULE_CACHE = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod"))
REAL_SOURCE = MODULE_CACHE / "github.com/srl-labs/containerlab@v0.79.0/utils/kernel_module.go"
SAMPLE = """package utils

func isKernelModuleLoadable(name string) (bool, error) {
\tf, err := os.Open("/proc/modules")
\tif err != nil {
\t\treturn false, err
\t}
\tdefer f.Close()
}

func other() error {
\tf, err := os.Open("/proc/cpuinfo")
\tif err != nil {
\t\treturn err
\t}
}
"""


@pytest.fixture(autouse=True)
def a_known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "HEDDLE_CONTAINERLAB", "CI"):
        monkeypatch.delenv(name, raising=False)


# --- images


def test_names_are_the_hash_of_all_that_goes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("switch.Dockerfile", "host.Dockerfile", "node.sh"):
        (tmp_path / name).write_bytes((images.TEMPLATES / name).read_bytes())
    first = images.image_names()
    assert set(first) == {"switch", "host"}
    assert all(re.fullmatch(r"heddle/(switch|host):[0-9a-f]{12}", name) for name in first.values())
    monkeypatch.setattr(images, "TEMPLATES", tmp_path)
    assert images.image_names() == first, "where the files are does not matter"
    (tmp_path / "switch.Dockerfile").write_text("FROM x\n")
    assert images.image_names()["switch"] != first["switch"]
    assert images.image_names()["host"] == first["host"]
    (tmp_path / "node.sh").write_text("exec true\n")
    assert images.image_names()["host"] != first["host"]
    second = images.image_names()
    monkeypatch.setattr(images, "PUBLIC_BASE", "debian:sid-slim")
    assert not set(second.values()) & set(images.image_names().values())


@pytest.mark.parametrize(
    ("there", "pulls", "base", "asked"),
    [
        ({images.PUBLIC_BASE, images.OWN_BASE}, True, images.PUBLIC_BASE, []),
        ({images.OWN_BASE}, True, images.OWN_BASE, []),
        (set(), True, images.PUBLIC_BASE, ["pull"]),
        (set(), False, images.OWN_BASE, ["pull", "mmdebstrap"]),
    ],
)
def test_the_base_is_what_is_here_then_a_registrys_then_our_own(
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
    assert [p.what for p in caught.value.problems] == [images.PUBLIC_BASE, "mmdebstrap"]
    assert all(p.hint for p in caught.value.problems)


def test_a_full_disk_is_named_with_the_place_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_client_no_engine_and_no_daemon_are_three_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_permission_is_not_a_daemon_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(docker, "_knock", lambda: PermissionError(13, "Permission denied"))
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
def test_an_engine_elsewhere_is_seen_through_a_local_socket(
    said: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said.format(kernel=os.uname().release)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(docker, "_knock", lambda: None)
    monkeypatch.setattr(docker, "run", lambda argv, **_: Done(tuple(argv), 0, text, "", 0.0))
    wrong = docker.trouble()
    assert (wrong.why if wrong else "").startswith(why)
    assert (wrong is None) == (not why)


def test_the_machines_own_settings_hold_but_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "daemon.json"
    monkeypatch.setattr(daemon, "CONFIG", config)
    assert daemon._settings()["iptables"] is False
    config.write_text(
        '{"registry-mirrors": ["https://mirror"], "bridge": "br0", "bip": "10.0.0.1/8", "hosts": ["tcp://x"]}'
    )
    settings = daemon._settings()
    assert settings["registry-mirrors"] == ["https://mirror"]
    assert settings["bridge"] == "none"
    assert settings["hosts"] == [f"unix://{docker.SOCKET}"]
    assert "bip" not in settings
    for text in ("[]", "{"):
        config.write_text(text)
        with pytest.raises(MachineError, match=r"daemon\.json cannot be read"):
            daemon._settings()


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
def test_a_version_is_read_from_what_is_said(said: str, numbers: binary.Version | None, more: str) -> None:
    assert binary.parse(said) == (numbers, more)


def _program(path: Path, version: str, more: bytes = b"") -> Path:
    path.write_bytes(f"#!/bin/sh\necho '    version: {version}'\nexit 0\n".encode() + more)
    path.chmod(0o755)
    return path


def test_a_build_of_ones_own_is_known_by_its_module(tmp_path: Path) -> None:
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
        ("0.67.9", True, "0.68.0 is the least"),
        ("soup", True, "does not tell its version"),
        ("0.79.0", False, "cannot deploy on this kernel"),
        ("0.79.0+heddle", False, ""),
        ("0.80.0", False, ""),
    ],
)
def test_which_containerlab_will_do(
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


def test_a_containerlab_that_is_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(tmp_path))
    with pytest.raises(MachineError, match="is not a program"):
        binary.require()
    monkeypatch.delenv("HEDDLE_CONTAINERLAB")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary, "_PLACES", (str(tmp_path),))
    with pytest.raises(MachineError, match=r"is not installed(?s:.*)setup containerlab"):
        binary.require()


# --- building it


def test_the_correction_changes_one_condition_and_nothing_else() -> None:
    fixed = build.corrected(SAMPLE)
    assert fixed.replace("\t\tif os.IsNotExist(err) {\n\t\t\treturn false, nil\n\t\t}\n", "", 1) == SAMPLE
    assert fixed.index("IsNotExist") < fixed.index("return false, err")
    assert fixed.count("IsNotExist") == 1


@pytest.mark.parametrize("source", ["package utils\n", SAMPLE + SAMPLE, SAMPLE.replace("/proc/modules", "/proc/x")])
def test_a_source_that_is_not_the_known_one_is_not_touched(source: str) -> None:
    with pytest.raises(MachineError, match="is not the source that is known"):
        build.corrected(source)


@pytest.mark.skipif(not REAL_SOURCE.exists(), reason="containerlab's source is not in Go's module cache")
def test_the_correction_fits_the_real_source() -> None:
    source = REAL_SOURCE.read_text()
    fixed = build.corrected(source).splitlines()
    added = [line for line in fixed if line not in source.splitlines()]
    assert added == []  # every line of it is of a kind that the file has elsewhere ...
    assert len(fixed) == len(source.splitlines()) + 3  # ... and there are three more
    assert fixed.count("\t\tif os.IsNotExist(err) {") == 2


def test_the_module_is_pinned_to_the_release() -> None:
    text = (build.MODULE / "go.mod").read_text()
    assert f"require {build.PACKAGE} v{binary.text(build.RELEASE)}\n" in text
    assert "replace" not in text, "only a copy at build time has one"
    sums = (build.MODULE / "go.sum").read_text().splitlines()
    assert any(line.startswith(f"{build.PACKAGE} v{binary.text(build.RELEASE)} h1:") for line in sums)
    assert all(len(line.split()) == 3 and line.split()[2].startswith("h1:") for line in sums)


@pytest.mark.parametrize(
    ("said", "why"),
    [("go1.19.8", "is go1.19.8"), ("soup", "is soup"), ("", "of no known version"), (None, "is not inst")],
)
def test_a_go_that_will_not_do_is_named(
    said: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    if said is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\necho {said}\n")
        (tmp_path / "go").chmod(0o755)
    with pytest.raises(MachineError, match=why) as caught:
        build.find_go()
    assert "1.21" in str(caught.value)


# --- the release, from a server on loopback


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, its directory)."""
    root = tmp_path / "www"
    (root / "v0.79.0").mkdir(parents=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}", root / "v0.79.0"
        httpd.shutdown()
        thread.join()


def _publish(where: Path, files: dict[str, bytes], tamper: Callable[[str], str] = lambda s: s) -> None:
    kind = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    name = f"containerlab_0.79.0_linux_{kind}.tar.gz"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (where / name).write_bytes(data.getvalue())
    digest = tamper(hashlib.sha256(data.getvalue()).hexdigest())
    (where / "checksums.txt").write_text(f"{'0' * 64}  other.deb\n{digest}  {name}\n")


def test_the_release_is_unpacked_when_its_checksum_is_right(server: tuple[str, Path], tmp_path: Path) -> None:
    address, where = server
    _publish(where, {"LICENSE": b"text", "containerlab": b"#!/bin/sh\n", "../evil": b"x"})
    made = release.fetch((0, 79, 0), tmp_path, address)
    assert made.read_bytes() == b"#!/bin/sh\n"
    assert os.access(made, os.X_OK)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["containerlab", "www"]


def test_a_wrong_checksum_is_an_error_and_no_other_way_is_taken(server: tuple[str, Path], tmp_path: Path) -> None:
    address, where = server
    _publish(where, {"containerlab": b"x"}, tamper=lambda digest: digest[::-1])
    with pytest.raises(MachineError, match="damaged or forged"):
        release.fetch((0, 79, 0), tmp_path, address)
    assert not (tmp_path / "containerlab").exists()


def test_an_archive_without_the_program_is_an_error(server: tuple[str, Path], tmp_path: Path) -> None:
    address, where = server
    _publish(where, {"README": b"x"})
    with pytest.raises(MachineError, match="no program containerlab"):
        release.fetch((0, 79, 0), tmp_path, address)


def test_what_cannot_be_had_is_told_and_leaves_another_way(server: tuple[str, Path], tmp_path: Path) -> None:
    address, where = server
    with pytest.raises(release.Unreachable, match="404"):
        release.fetch((0, 79, 0), tmp_path, address)
    with pytest.raises(release.Unreachable, match="refused"):
        release.fetch((0, 79, 0), tmp_path, "http://127.0.0.1:9")
    (where / "checksums.txt").write_text("nothing\n")
    with pytest.raises(release.Unreachable, match="does not name"):
        release.fetch((0, 79, 0), tmp_path, address)


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
    monkeypatch.setattr(build, "PROC_MODULES", tmp_path)
    return place


def _obtains(version: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    got: list[str] = []

    def obtain(directory: Path, *_: object) -> tuple[Path, str]:
        got.append(version)
        return _program(directory / "containerlab", version), "from a test"

    monkeypatch.setattr(setup, "_obtain", obtain)
    return got


def test_setup_installs_once_and_then_leaves_it(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = _obtains("0.79.0", monkeypatch)
    first = setup._containerlab(Silent(), None)
    assert first.done
    assert "0.79.0, from a test" in first.detail
    second = setup._containerlab(Silent(), None)
    assert not second.done
    assert got == ["0.79.0"]
    assert setup.is_ours(target)
    assert sorted(p.name for p in target.parent.iterdir()) == ["containerlab"]


def test_setup_replaces_its_own_when_it_is_too_old(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(target, "0.50.0")
    setup._place(_program(target.parent.parent / "old", "0.50.0"))
    _obtains("0.79.0", monkeypatch)
    assert setup._containerlab(Silent(), None).done
    assert binary.version(target) == (0, 79, 0)


def test_setup_never_replaces_what_others_put_there(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(target, "0.50.0")
    got = _obtains("0.79.0", monkeypatch)
    with pytest.raises(MachineError, match=r"0\.50\.0(?s:.*)Heddle did not put it there(?s:.*)version upgrade"):
        setup._containerlab(Silent(), None)
    assert binary.version(target) == (0, 50, 0)
    assert got == []


def test_setup_stands_in_front_of_a_package_only_for_the_kernel(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    packaged = _program(tmp_path / "bin/containerlab", "0.50.0")
    _obtains("0.79.0+heddle", monkeypatch)
    with pytest.raises(MachineError, match="is the least"):
        setup._containerlab(Silent(), None)
    _program(packaged, "0.79.0")
    assert not setup._containerlab(Silent(), None).done
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path / "none")
    assert setup._containerlab(Silent(), None).done
    assert binary.find() == target
    assert binary.version(packaged) == (0, 79, 0)


def test_without_modules_no_release_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fetch(*_: object) -> Path:
        tried.append("release")
        raise release.Unreachable("not here")

    def make(directory: Path, *_: object) -> tuple[Path, str]:
        tried.append("build")
        return directory / "containerlab", "0.79.0"

    monkeypatch.setattr(release, "fetch", fetch)
    monkeypatch.setattr(build, "build", make)
    monkeypatch.setattr(build, "PROC_MODULES", tmp_path)
    setup._obtain(tmp_path, Silent(), None)
    assert tried == ["release", "build"]
    tried.clear()
    monkeypatch.setattr(build, "PROC_MODULES", tmp_path / "none")
    setup._obtain(tmp_path, Silent(), None)
    assert tried == ["build"]


def test_only_what_can_be_set_up_is_taken() -> None:
    with pytest.raises(InputError, match="did you mean containerlab"):
        setup.check_what("containerlap")


def test_packages_of_one_name_are_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [packages.PARTS[name] for name in packages.ENGINE]
    monkeypatch.setattr(packages, "_has", lambda name: name != "docker-cli")
    assert packages._known(parts) == ["docker.io"]
    monkeypatch.setattr(packages, "_has", lambda name: True)
    assert packages._known(parts) == ["docker.io", "docker-cli"]


def _why() -> tuple[str, str]:
    wrong = docker.trouble()
    assert wrong is not None
    return wrong.what, wrong.why
