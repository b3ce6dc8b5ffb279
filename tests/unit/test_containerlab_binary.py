"""containerlab: which one will do, where it comes from, and what setup may replace."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import platform
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.base.process import find_program
from heddle.host.engine import binary, release, setup
from heddle.host.engine.byhand import compile as build
from heddle.host.engine.byhand import toolchain

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
    """What an empty word in PATH means to a shell: whoever may write there would be run as root."""
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


# --- building it


def test_the_correction_changes_one_condition_and_nothing_else() -> None:
    fixed = build.corrected(SAMPLE)
    assert fixed.replace("\t\tif os.IsNotExist(err) {\n\t\t\treturn false, nil\n\t\t}\n", "", 1) == SAMPLE
    assert fixed.index("IsNotExist") < fixed.index("return false, err")
    assert fixed.count("IsNotExist") == 1


@pytest.mark.parametrize("source", ["package utils\n", SAMPLE + SAMPLE, SAMPLE.replace("/proc/modules", "/proc/x")])
def test_an_unexpected_source_is_not_changed(source: str) -> None:
    with pytest.raises(MachineError, match="is not the expected source"):
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
    [("go1.17.8", "is go1.17.8"), ("soup", "is soup"), ("", "of no known version"), (None, "is not inst")],
)
def test_a_go_that_is_missing_or_too_old_is_named(
    said: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "_PLACES", ())
    (tmp_path / "env").symlink_to("/usr/bin/env")
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    if said is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\necho {said}\n")
        (tmp_path / "go").chmod(0o755)
    with pytest.raises(MachineError, match=why) as caught:
        toolchain.find_go()
    assert "1.18" in str(caught.value)


def fake_go(at: Path, version: str, answer: str) -> Path:
    """A Go that has one module in its cache, and writes down what it was asked."""
    go = at / "go"
    go.write_text(
        f'#!/bin/sh\necho "$GOTOOLCHAIN $PWD $*" >> {at}/asked\n'
        f'case "$2" in GOVERSION) echo {version};; GOARCH) echo amd64;; download) cat <<END\n{answer}\nEND\n;; esac\n'
    )
    go.chmod(0o755)
    return go


def test_a_go_that_is_new_enough_is_used(tmp_path: Path) -> None:
    go = fake_go(tmp_path, "go1.26.3", "")
    assert toolchain.go_for(build.MODULE / "go.mod", go, tmp_path) == go


def test_an_old_go_fetches_the_one_that_the_module_asks_for(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("bin/go", "pkg/tool/linux_amd64/compile", "src/fmt/print.go"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).touch(0o444)
    go = fake_go(tmp_path, "go1.19.8", json.dumps({"Dir": str(cache), "Sum": toolchain.SUMS["amd64"]}))
    assert toolchain.go_for(build.MODULE / "go.mod", go, tmp_path) == cache / "bin/go"
    asked = (tmp_path / "asked").read_text().splitlines()[-1]
    assert asked == f"local {tmp_path} mod download -json golang.org/toolchain@v0.0.1-go1.26.0.linux-amd64"
    modes = {str(p.relative_to(cache)): p.stat().st_mode & 0o777 for p in cache.rglob("*") if p.is_file()}
    assert modes == {"bin/go": 0o555, "pkg/tool/linux_amd64/compile": 0o555, "src/fmt/print.go": 0o444}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"Dir": "/x", "Sum": "h1:other="}', "checksum h1:other="),
        ('{"Error": "no such host"}', "Go 1.26.0 could not be downloaded"),
        ("", "Go 1.26.0 could not be downloaded"),
    ],
)
def test_a_toolchain_that_is_not_the_pinned_one_is_refused(answer: str, why: str, tmp_path: Path) -> None:
    go = fake_go(tmp_path, "go1.24.4", answer)
    with pytest.raises(MachineError, match=why):
        toolchain.go_for(build.MODULE / "go.mod", go, tmp_path)


def test_each_architecture_of_the_release_has_a_pinned_toolchain() -> None:
    assert toolchain.wanted_go(build.MODULE / "go.mod") == (1, 26, 0), "SUMS are of this version"
    assert set(toolchain.SUMS) == {"amd64", "arm64"}


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


def test_a_wrong_checksum_is_an_error_and_nothing_else_is_tried(server: tuple[str, Path], tmp_path: Path) -> None:
    address, where = server
    _publish(where, {"containerlab": b"x"}, tamper=lambda digest: digest[::-1])
    with pytest.raises(MachineError, match="damaged or forged"):
        release.fetch((0, 79, 0), tmp_path, address)
    assert not (tmp_path / "containerlab").exists()


def test_an_archive_without_the_program_is_an_error(server: tuple[str, Path], tmp_path: Path) -> None:
    address, where = server
    _publish(where, {"README": b"x"})
    with pytest.raises(MachineError, match="does not contain the program containerlab"):
        release.fetch((0, 79, 0), tmp_path, address)


def test_a_release_that_cannot_be_downloaded_is_reported_and_a_build_can_follow(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    address, where = server
    with pytest.raises(release.Unreachable, match="404"):
        release.fetch((0, 79, 0), tmp_path, address)
    with pytest.raises(release.Unreachable, match="refused"):
        release.fetch((0, 79, 0), tmp_path, "http://127.0.0.1:9")
    (where / "checksums.txt").write_text("nothing\n")
    with pytest.raises(release.Unreachable, match="does not name"):
        release.fetch((0, 79, 0), tmp_path, address)


@pytest.mark.parametrize("head", [b"what is this?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"])
def test_a_slow_server_or_one_without_http_is_not_waited_for(
    head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_WHOLE_S", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as door, suppress(OSError):
                door.sendall(head)
                while not over.wait(0.05):
                    door.sendall(b"x")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(release.Unreachable, match=r"too slow|what is this"):
                release.fetch((0, 79, 0), tmp_path, f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            over.set()
            thread.join()


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


def test_setup_installs_before_a_package_in_path_only_if_the_kernel_needs_it(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    packaged = _program(tmp_path / "bin/containerlab", "0.50.0")
    _obtains("0.79.0+heddle", monkeypatch)
    with pytest.raises(MachineError, match=r"Heddle needs 0\.68\.0"):
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


def test_setup_refuses_unknown_words() -> None:
    with pytest.raises(InputError, match="did you mean containerlab"):
        setup.check_what("containerlap")
