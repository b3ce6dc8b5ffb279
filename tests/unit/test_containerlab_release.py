"""containerlab's release, its errors (0.79) read into problems, and the folder `.engine/` for other machines."""

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

import clabbuild as build
import dockerd as daemon
import pytest

from heddle.base.problems import MachineError
from heddle.base.resources import HERE, Installation
from heddle.host.engine import binary, docker
from heddle.runtimes.clab_deploy import raise_failures
from tests.answers import Answers


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
    made = binary.fetch((0, 79, 0), tmp_path, address)
    assert made.read_bytes() == b"#!/bin/sh\n"
    assert os.access(made, os.X_OK)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["containerlab", "www"]


@pytest.mark.parametrize(
    ("files", "tamper", "why"),
    [
        ({"containerlab": b"x"}, lambda digest: digest[::-1], "damaged or forged"),
        ({"README": b"x"}, str, "does not contain the program containerlab"),
    ],
)
def test_a_wrong_checksum_or_archive_is_an_error_and_nothing_else_is_tried(
    files: dict[str, bytes], tamper: Callable[[str], str], why: str, server: tuple[str, Path], tmp_path: Path
) -> None:
    address, where = server
    _publish(where, files, tamper)
    with pytest.raises(MachineError, match=why):
        binary.fetch((0, 79, 0), tmp_path, address)
    assert not (tmp_path / "containerlab").exists()


def test_a_release_that_cannot_be_downloaded_is_reported_and_a_build_can_follow(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    address, where = server
    with pytest.raises(binary.Unreachable, match="404"):
        binary.fetch((0, 79, 0), tmp_path, address)
    with pytest.raises(binary.Unreachable, match="refused"):
        binary.fetch((0, 79, 0), tmp_path, "http://127.0.0.1:9")
    (where / "checksums.txt").write_text("nothing\n")
    with pytest.raises(binary.Unreachable, match="does not name"):
        binary.fetch((0, 79, 0), tmp_path, address)


@pytest.mark.parametrize("head", [b"what is this?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"])
def test_a_slow_server_or_one_without_http_is_not_waited_for(
    head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "_WHOLE_S", 0.5)
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
            with pytest.raises(binary.Unreachable, match=r"too slow|what is this"):
                binary.fetch((0, 79, 0), tmp_path, f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            over.set()
            thread.join()


BLOCKS = """\
08:51:20 INFO Creating container name=a
08:51:21 ERRO Failed to execute command command="sh -c echo no such \\"thing\\" >&2; echo out; exit 5" node=a rc=5
  stdout=
  │ out

  stderr=
  │ no such thing

08:51:21 ERRO Failed to execute command command="sh /etc/frr/start.sh" node=clab-zone-ctsw2 rc=6
  stdout=
  │ one

  stderr=
  │ two
  │ three

08:51:22 INFO Adding host entries path=/etc/hosts
"""
SILENT = '08:51:21 ERRO Failed to execute command command=false node=a rc=1 stdout="" stderr=""'
PULL = """\
08:51:20 ERRO Failed to pull image image=docker.io/x/y err="no such host"
Error: failed to pull image docker.io/x/y
"""


def failures_of(text: str, code: int) -> list[str]:
    with pytest.raises(MachineError) as caught:
        raise_failures("zone", Path("/x/zone.clab.yml"), code, text.splitlines())
    return [str(problem) for problem in caught.value.problems]


def test_commands_that_fail_are_named_although_containerlab_ends_well(answers: Answers) -> None:
    answers({"with output": "\n".join(failures_of(BLOCKS, 0)), "silent": "\n".join(failures_of(SILENT, 0))})


def test_messages_of_containerlab_are_read_or_passed_on(answers: Answers) -> None:
    boxed = "09:10:13 INFO Parsing\n\n   ERROR  \n\n  Deployment failed: some reason\n  or other.   \n"
    said = {"of the engine": (PULL, 1), "in a box": (boxed, 1), "unknown": ("something new", 3), "none": ("", 3)}
    answers({name: "\n".join(failures_of(text, code)) for name, (text, code) in said.items()})
    # A deployment without a complaint is none.
    raise_failures("zone", Path("/x"), 0, ["08:51:20 INFO Creating container name=a"])


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


def test_the_folder_is_for_checkouts_and_pins_the_release_of_setup(tmp_path: Path) -> None:
    folder = HERE.engine_by_hand
    assert folder is not None
    assert Installation(tmp_path / "heddle").engine_by_hand is None
    assert f"{binary.text(binary.RELEASE)}+{binary.MARK}" in (folder / "README.md").read_text()
    release_ = f"{build.PACKAGE} v{binary.text(binary.RELEASE)}"
    text = (build.MODULE / "go.mod").read_text()
    assert f"require {release_}\n" in text
    assert "replace" not in text, "only a copy at build time has one"
    sums = (build.MODULE / "go.sum").read_text().splitlines()
    assert any(line.startswith(f"{release_} h1:") for line in sums)
    assert all(len(line.split()) == 3 and line.split()[2].startswith("h1:") for line in sums)
    assert build.wanted_go(build.MODULE / "go.mod") == (1, 26, 0), "SUMS are of this version"
    assert set(build.SUMS) == {"amd64", "arm64"}


def test_settings_of_the_machine_apply_unless_heddle_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    config.write_text("{")
    with pytest.raises(MachineError, match=r"daemon\.json cannot be read"):
        daemon._settings()


def test_the_correction_changes_one_condition_of_an_expected_source() -> None:
    fixed = build.corrected(SAMPLE)
    assert fixed.replace("\t\tif os.IsNotExist(err) {\n\t\t\treturn false, nil\n\t\t}\n", "", 1) == SAMPLE
    assert fixed.index("IsNotExist") < fixed.index("return false, err")
    for source in ("package utils\n", SAMPLE + SAMPLE, SAMPLE.replace("/proc/modules", "/proc/x")):
        with pytest.raises(MachineError, match="is not the expected source"):
            build.corrected(source)


def fake_go(at: Path, version: str, answer: str) -> Path:
    """A Go that has one module in its cache."""
    go = at / "go"
    go.write_text(
        f'#!/bin/sh\ncase "$2" in GOVERSION) echo {version};; GOARCH) echo amd64;; download) cat <<END\n{answer}\nEND\n'
        ";; esac\n"
    )
    go.chmod(0o755)
    return go


def test_only_the_pinned_toolchain_is_fetched_for_an_old_go(tmp_path: Path) -> None:
    module, cache = build.MODULE / "go.mod", tmp_path / "cache"
    recent = fake_go(tmp_path, "go1.26.3", "")
    assert build.go_for(module, recent, tmp_path) == recent
    for name in ("bin/go", "pkg/tool/linux_amd64/compile", "src/fmt/print.go"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).touch(0o444)
    go = fake_go(tmp_path, "go1.19.8", json.dumps({"Dir": str(cache), "Sum": build.SUMS["amd64"]}))
    assert build.go_for(module, go, tmp_path) == cache / "bin/go"
    modes = {str(p.relative_to(cache)): p.stat().st_mode & 0o777 for p in cache.rglob("*") if p.is_file()}
    assert modes == {"bin/go": 0o555, "pkg/tool/linux_amd64/compile": 0o555, "src/fmt/print.go": 0o444}
    for answer, why in (
        ('{"Dir": "/x", "Sum": "h1:other="}', "checksum h1:other="),
        ('{"Error": "no such host"}', "Go 1.26.0 could not be downloaded"),
    ):
        with pytest.raises(MachineError, match=why):
            build.go_for(module, fake_go(tmp_path, "go1.24.4", answer), tmp_path)
