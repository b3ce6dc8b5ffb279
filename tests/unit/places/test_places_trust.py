"""What this machine takes from a lab server that lies: nothing of its files is sent, and nothing unasked is written."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import socket
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko
import pytest

from heddle.base.problems import InputError, MachineError
from heddle.cli.console import Console
from heddle.places.choice import Call
from heddle_plugins.places import sync
from heddle_plugins.places.address import Address
from heddle_plugins.places.server import HELLO, Frames, frame, make_private
from heddle_plugins.places.session import SshPlace
from heddle_plugins.places.ssh import Target
from heddle_plugins.places.sync import input_files

SESSION = "/srv/s1-00"
KEY = paramiko.ECDSAKey.generate()


class Liar(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """A server that answers as it likes. files: name -> content; changed: other values of what it says about each.

    sent: what the client has copied to it.
    """

    def __init__(self) -> None:
        self.have: Any = {}
        self.files: Mapping[str, bytes] = {}
        self.changed: Mapping[str, Any] = {}
        self.sent, self.output = b"", b"done\n"
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.transports: list[paramiko.Transport] = []
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.sock.getsockname()[1])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.sock.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            self.transports.append(transport)
            transport.add_server_key(KEY)
            transport.start_server(server=self)

    def check_auth_none(self, username: str) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._answer, args=(channel,), daemon=True).start()
        return True

    def _answer(self, channel: paramiko.Channel) -> None:
        frames = Frames()

        def say(data: bytes = b"", **message: Any) -> None:
            channel.sendall(frame(message, data))

        def ask() -> tuple[dict[str, Any], bytes]:
            while not frames.messages:
                data = channel.recv(1 << 16)
                if not data:
                    raise EOFError
                frames.feed(data)
            return frames.messages.pop(0)

        with contextlib.suppress(OSError, EOFError):  # the client may have gone
            channel.sendall(b"welcome\n" + HELLO)
            channel.sendall_stderr(b"noise")
            ask()
            say(session=SESSION, have=self.have)
            _, self.sent = ask()
            say(copied=True)
            for at in range(0, len(self.output), 7):
                say(self.output[at : at + 7], stream=1)
            say(code=0)
            for name, content in self.files.items():
                say(**{"file": name, "size": len(content), "readable": True, **self.changed})
                if ask()[0]["take"] and content:
                    say(content)
            say(end=True)
            channel.send_exit_status(0)
            channel.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Liar]:
    """A liar, with a project of three files here, and an empty working directory."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("inv", "tasks.py", "README.md"):
        (project / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr("heddle_plugins.places.sync.project", lambda: project)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    server = Liar()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {KEY.get_name()} {KEY.get_base64()}\n")
    yield server
    server.sock.shutdown(socket.SHUT_RDWR)  # ends accept(), which another socket of the same number would get
    server.thread.join()
    server.sock.close()
    for transport in server.transports:
        transport.close()


@pytest.fixture
def run(server: Liar, tmp_path: Path) -> Callable[..., int]:
    def run(**call: Any) -> int:
        target = Target("127.0.0.1", "127.0.0.1", server.port, "me", (), True, (tmp_path / "known",))
        return SshPlace(Address("127.0.0.1", "me", server.port), target).run(Call(["status"], **call), Console("text"))

    return run


def sent(server: Liar) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(server.sent)) as tar:
        return sorted(tar.getnames())


def test_only_files_of_the_manifest_are_sent_whatever_the_server_names(
    server: Liar, run: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["/etc/shadow", "../secret", "../../etc/passwd", ".", "", "tasks.py"]
    server.have = {name: ["f", "0"] for name in names}
    assert run() == 0
    assert sent(server) == ["project/README.md", "project/inv", "project/tasks.py"]
    assert capfd.readouterr().out == "done\n"


def test_a_server_does_not_steer_the_terminal(
    server: Liar, run: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    server.output = "\x1b]0;mine\x07\x1b[2Jd\u00f6ne\n".encode()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert run() == 0
        shown = b""
        while not shown.endswith(b"\n"):
            shown += os.read(master, 100)
    os.close(master)
    assert shown.decode() == "?]0;mine??[2Jd\u00f6ne\r\n"


@pytest.mark.parametrize("have", [["/etc/shadow"], 7, "x"])
def test_an_answer_of_another_kind_is_an_error(server: Liar, run: Callable[..., int], have: Any) -> None:
    server.have = have
    with pytest.raises(MachineError, match="lost the connection while the project was copied"):
        run()
    assert server.sent == b""


def test_outputs_are_written_to_the_names_typed_and_are_not_executable(server: Liar, run: Callable[..., int]) -> None:
    Path("old.svg").write_text("mine")
    server.files = {"out/0/old.svg": b"new", "here/.x.svg": b"x", "here/inv": b"x", "here/sub/x.svg": b"x",
                    "here/two.svg": b"t", "here/zone.svg": b"z", "else/y.svg": b"y", "out/2/z.svg": b"z"}  # fmt: skip
    assert run(files_out=["old.svg", "sub/none.svg"], endings_here=[".svg"]) == 0
    assert {p.name: (p.read_bytes(), p.stat().st_mode & 0o777) for p in Path().iterdir()} == {
        "old.svg": (b"new", 0o644),
        "two.svg": (b"t", 0o644),  # one file of the server's choice, no more
    }


def test_a_directory_comes_back_with_its_content(server: Liar, run: Callable[..., int]) -> None:
    server.files = {"out/0/all/a": b"a", "out/0/all/sub/b": b"b"}
    assert run(files_out=["x/all"], directory_out=True) == 0
    assert (Path("x/all/a").read_bytes(), Path("x/all/sub/b").read_bytes()) == (b"a", b"b")


ONE, ALL, CHOSEN = {"files_out": ["p.svg"]}, {"files_out": ["d"], "directory_out": True}, {"endings_here": [".svg"]}


@pytest.mark.parametrize(
    ("call", "name", "changed", "why"),
    [
        (CHOSEN, "here/mine.svg", {}, "another file has this name here"),
        (CHOSEN, "here/link.svg", {}, "another file has this name here"),
        (CHOSEN, "here/../x.svg", {}, "has the name 'here/../x.svg'"),
        (CHOSEN, "here/x.svg", {"readable": False}, "is not a regular file there, or cannot be read"),
        (ONE, "out/0/p.svg/hooks", {}, "is not a regular file there"),
        (ONE, "out/0/p.svg", {"readable": False}, "is not a regular file there"),
        (ONE, "out/0/p.svg", {"size": 2000}, "is too large"),
        (ONE, "out/0/p.svg", {"size": -1}, "and the size -1 there"),
        (ONE, "out/0/p.svg", {"size": "x"}, "and the size x there"),
        ({"files_out": ["link.svg"]}, "out/0/link.svg", {}, "is not a regular file here"),
        (ALL, "out/0/d", {}, "is not a directory there"),
        (ALL, "out/0/d/.git/x", {}, "has a hidden name"),
        (ALL, "out/0/d/.x", {}, "has a hidden name"),
        (ALL, "out/0/d//etc/x", {}, "has the name 'out/0/d//etc/x'"),
        (ALL, "out/0/d/way/x", {}, "is below a link here"),
        (ALL, "out/0/d/way", {}, "is not a regular file here"),
    ],
)
def test_what_nobody_has_asked_for_is_refused(
    server: Liar, run: Callable[..., int], call: Any, name: str, changed: Any, why: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sync, "OUTPUT_BYTES", 1000)
    Path("mine.svg").write_text("mine")
    Path("link.svg").symlink_to(tmp_path / "secret")
    Path("d").mkdir()
    Path("d/way").symlink_to(tmp_path)
    before = sorted(map(str, tmp_path.rglob("*")))
    server.files, server.changed = {name: b"x"}, changed
    with pytest.raises(MachineError) as error:
        run(**{**CHOSEN, **call})
    assert why in str(error.value)
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    assert (Path("mine.svg").read_text(), (tmp_path / "secret").read_text()) == ("mine", "secret")


def test_the_number_of_files_is_limited(server: Liar, run: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "OUTPUT_FILES", 20)
    server.files = {f"here/{number}": b"" for number in range(30)}
    with pytest.raises(MachineError, match="more than 20 files there"):
        run(**CHOSEN)


def test_input_files_are_regular_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.yml")
    Path("a.yml").write_text("12345")
    Path("b.yml").write_text("12345")
    assert input_files(["tiny", "a.yml"]) == {"a.yml": tmp_path / "a.yml"}
    for names, why in ((["fifo.yml"], "is not a regular file"), (["/dev/zero"], "is not a regular file")):
        with pytest.raises(InputError, match=why):
            input_files(names)
    monkeypatch.setattr(sync, "INPUT_BYTES", 8)
    with pytest.raises(InputError, match=r"b.yml is too large"):
        input_files(["a.yml", "b.yml"])
    monkeypatch.setattr(sync, "FILE_BYTES", 3)
    with pytest.raises(InputError, match=r"a.yml is too large"):
        input_files(["a.yml"])


def test_files_copied_to_a_server_are_not_writable_by_others(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o777)  # as a user may have left it
    for name in ("there", "new"):
        make_private(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(PermissionError, match="another user's"):
        make_private(tmp_path / "link")
