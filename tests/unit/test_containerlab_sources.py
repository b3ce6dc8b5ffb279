"""Where setup gets containerlab from: the release, or a build with one correction by a pinned toolchain."""

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

from heddle.base.problems import MachineError
from heddle.host.engine import binary, release
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
