"""containerlab's release: downloaded from a server on loopback, and checked."""

from __future__ import annotations

import hashlib
import http.server
import io
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
from heddle.host.engine import release


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
        release.fetch((0, 79, 0), tmp_path, address)
    assert not (tmp_path / "containerlab").exists()


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
