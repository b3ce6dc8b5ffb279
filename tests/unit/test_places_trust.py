"""What this machine takes from a lab server that lies: nothing of its files is sent, and nothing unasked is written."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from heddle.base.problems import InputError, MachineError
from heddle.cli.console import Console
from heddle.places import transfer
from heddle.places.address import Address
from heddle.places.call import Call
from heddle.places.server import HELLO, make_private
from heddle.places.session import SshPlace
from heddle.places.ssh import Target
from heddle.places.transfer import input_files

SESSION = "/srv/s1-00"
Content = bytes | int | list[str]  # of a file, its mode with no content, or the names in a directory
KEY = paramiko.ECDSAKey.generate()


class Liar(paramiko.ServerInterface):  # type: ignore[misc]  # paramiko has no types
    """A server that answers as it likes. files: path -> content; sent: what the client has copied to it."""

    def __init__(self) -> None:
        self.have: Any = {}
        self.files: dict[str, Content] = {}
        self.sent = b""
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.transports: list[paramiko.Transport] = []
        threading.Thread(target=self._accept, daemon=True).start()

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
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files, self)
            transport.start_server(server=self)

    def check_auth_none(self, username: str) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        control = not command.endswith(SESSION.encode())
        threading.Thread(target=self._control if control else self._verb, args=(channel,), daemon=True).start()
        return True

    def _control(self, channel: paramiko.Channel) -> None:
        file = channel.makefile("r")
        channel.sendall(b"welcome\n" + HELLO)
        wanted = json.loads(file.readline())["hash"]
        answers: list[Any] = [{"session": SESSION, "have": self.have}, {}, {"hash": wanted}]
        channel.sendall(json.dumps(answers.pop(0)).encode() + b"\n")
        while line := file.readline().strip():
            message = json.loads(line)
            channel.sendall(json.dumps({} if "size" in message else {"hash": wanted}).encode() + b"\n")
        channel.send_exit_status(0)
        channel.close()

    def _verb(self, channel: paramiko.Channel) -> None:
        assert channel.recv(1) == b""  # the client has heard that the command runs, and ends its input
        channel.sendall(b"noise" + HELLO + b"done\n")
        channel.sendall_stderr(HELLO)
        channel.send_exit_status(0)
        channel.close()


class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]  # paramiko has no types
    """The files of a Liar."""

    def __init__(self, server: Liar, *rest: Any) -> None:
        self.server = server

    def lstat(self, path: str) -> Any:
        if path not in self.server.files:
            return paramiko.SFTP_NO_SUCH_FILE
        content, found = self.server.files[path], paramiko.SFTPAttributes()
        found.st_size = len(content) if isinstance(content, bytes) else 0
        found.st_mode = stat.S_IFREG | 0o755 if isinstance(content, bytes) else stat.S_IFDIR
        found.st_mode = content if isinstance(content, int) else found.st_mode
        return found

    stat = lstat

    def list_folder(self, path: str) -> Any:
        found = []
        content = self.server.files.get(path, [])
        for name in content if isinstance(content, list) else []:
            entry = paramiko.SFTPAttributes()
            entry.filename = name
            found.append(entry)
        return found

    def open(self, path: str, flags: int, attr: Any) -> Any:
        handle = paramiko.SFTPHandle(flags)
        if flags & os.O_WRONLY:
            handle.writefile = io.BytesIO()
            handle.close = lambda: self._keep(path, handle.writefile.getvalue())
            return handle
        content = self.server.files[path]
        handle.readfile = io.BytesIO(content if isinstance(content, bytes) else b"")
        handle.stat = lambda: self.lstat(path)
        return handle

    def _keep(self, path: str, content: bytes) -> None:
        self.server.sent = self.server.files[path] = content


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Liar]:
    """A liar, with a project of three files here, and an empty working directory."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("inv", "tasks.py", "README.md"):
        (project / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr("heddle.places.sync.project", lambda: project)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    server = Liar()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {KEY.get_name()} {KEY.get_base64()}\n")
    yield server
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


@pytest.mark.parametrize("have", [["/etc/shadow"], 7, "x"])
def test_an_answer_of_another_kind_is_an_error(server: Liar, run: Callable[..., int], have: Any) -> None:
    server.have = have
    with pytest.raises(MachineError, match="lost the connection while the project was copied"):
        run()
    assert server.sent == b""


def test_outputs_are_written_to_the_names_typed_and_are_not_executable(server: Liar, run: Callable[..., int]) -> None:
    Path("old.svg").write_text("mine")
    out = f"{SESSION}/out"
    server.files = {f"{SESSION}/here": ["zone.svg", "two.svg", "inv", ".x.svg"], f"{SESSION}/here/zone.svg": b"z",
                    f"{out}/0/old.svg": b"new", f"{SESSION}/here/two.svg": b"t"}  # fmt: skip
    assert run(files_out=["old.svg", "sub/none.svg"], endings_here=[".svg"]) == 0
    assert {p.name: (p.read_bytes(), p.stat().st_mode & 0o777) for p in Path().iterdir()} == {
        "old.svg": (b"new", 0o644),
        "two.svg": (b"t", 0o644),  # one file of the server's choice, no more
    }


def test_a_directory_comes_back_with_its_content(server: Liar, run: Callable[..., int]) -> None:
    out = f"{SESSION}/out/0/all"
    server.files = {out: ["a", "sub"], f"{out}/a": b"a", f"{out}/sub": ["b"], f"{out}/sub/b": b"b"}
    assert run(files_out=["x/all"], directory_out=True) == 0
    assert (Path("x/all/a").read_bytes(), Path("x/all/sub/b").read_bytes()) == (b"a", b"b")


@pytest.mark.parametrize(
    ("call", "files", "why"),
    [
        ({"endings_here": [".svg"]}, {"here": ["mine.svg"], "here/mine.svg": b"x"}, "another file has this name here"),
        ({"endings_here": [".svg"]}, {"here": ["link.svg"], "here/link.svg": b"x"}, "another file has this name here"),
        ({"endings_here": [".svg"]}, {"here": ["../x.svg"]}, "whose name is '../x.svg'"),
        ({"endings_here": [".svg"]}, {"here": ["x.svg"], "here/x.svg": ["y"]}, "is not a regular file there"),
        ({"endings_here": [".svg"]}, {"here": ["x.svg"], "here/x.svg": stat.S_IFLNK}, "is not a regular file there"),
        ({"files_out": ["p.svg"]}, {"out/0/p.svg": ["hooks"]}, "is not a regular file there"),
        ({"files_out": ["p.svg"]}, {"out/0/p.svg": stat.S_IFLNK}, "is not a regular file there"),
        ({"files_out": ["link.svg"]}, {"out/0/link.svg": b"x"}, "is not a regular file here"),
        ({"files_out": ["p.svg"]}, {"out/0/p.svg": b"x" * 2000}, "is too large"),
        ({"files_out": ["d"], "directory_out": True}, {"out/0/d": b"x"}, "is not a directory there"),
        ({"files_out": ["d"], "directory_out": True}, {"out/0/d": [".git"], "out/0/d/.git": []}, "has a hidden name"),
        ({"files_out": ["d"], "directory_out": True}, {"out/0/d": ["/etc/x"]}, "whose name is '/etc/x'"),
        ({"files_out": ["d"], "directory_out": True}, {"out/0/d": [str(i) for i in range(30)]}, "has more than 20"),
        ({"files_out": ["d"], "directory_out": True}, {"out/0/d": ["way"], "out/0/d/way": ["x"]}, "is a link here"),
        ({"files_out": ["d"], "directory_out": True}, {"out/0/d": ["p"], "out/0/d/p": stat.S_IFIFO}, "regular file"),
    ],
)  # fmt: skip
def test_what_nobody_has_asked_for_is_refused(
    server: Liar, run: Callable[..., int], call: Any, files: dict[str, Content], why: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(transfer, "OUTPUT_BYTES", 1000)
    monkeypatch.setattr(transfer, "OUTPUT_FILES", 20)
    Path("mine.svg").write_text("mine")
    Path("link.svg").symlink_to(tmp_path / "secret")
    Path("d").mkdir()
    Path("d/way").symlink_to(tmp_path)
    before = sorted(map(str, tmp_path.rglob("*")))
    server.files = {f"{SESSION}/{path}": content for path, content in files.items()}
    with pytest.raises(MachineError) as error:
        run(**call)
    assert why in str(error.value)
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    assert (Path("mine.svg").read_text(), (tmp_path / "secret").read_text()) == ("mine", "secret")


def test_input_files_are_regular_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.yml")
    Path("a.yml").write_text("12345")
    Path("b.yml").write_text("12345")
    assert input_files(["tiny", "a.yml"]) == {"a.yml": tmp_path / "a.yml"}
    for names, why in ((["fifo.yml"], "is not a regular file"), (["/dev/zero"], "is not a regular file")):
        with pytest.raises(InputError, match=why):
            input_files(names)
    monkeypatch.setattr(transfer, "INPUT_BYTES", 8)
    with pytest.raises(InputError, match=r"b.yml.*larger than 0 MiB together"):
        input_files(["a.yml", "b.yml"])
    monkeypatch.setattr(transfer, "FILE_BYTES", 3)
    with pytest.raises(InputError, match=r"a.yml is larger than"):
        input_files(["a.yml"])


def test_files_copied_to_a_server_are_not_writable_by_others(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        make_private(tmp_path / "there")
    finally:
        os.umask(before)
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o700
    (tmp_path / "there").chmod(0o777)  # as a user may have left it
    make_private(tmp_path / "there")
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(PermissionError, match="another user's"):
        make_private(tmp_path / "link")
