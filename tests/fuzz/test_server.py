"""A lab server that lies: mutated messages. The verb ends with an exit code or an error, and writes what was typed."""

from __future__ import annotations

import contextlib
import io
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import paramiko
import pytest

from heddle.base.problems import HeddleError
from heddle.cli.console import Console
from heddle.places.choice import Call
from heddle_plugins.places import sync
from heddle_plugins.places.address import Address
from heddle_plugins.places.server import HELLO, frame
from heddle_plugins.places.session import Broken, Session
from heddle_plugins.places.ssh import Target, connection
from tests.fuzz.cases import Fuzz
from tests.fuzz.mutate import damaged, odd_json
from tests.marks import deep
from tests.unit.places.test_places_trust import KEY, SESSION, Liar

MESSAGES: Final[list[tuple[dict[str, Any], bytes]]] = [
    ({"session": SESSION, "have": {"inv": ["f", "0"], "README.md": ["f", "1"]}}, b""),
    ({"copied": True}, b""),
    ({"stream": 1}, b"one line\n"),
    ({"stream": 2}, b"\x1b[2Jprogress"),
    ({"taken": 5}, b""),
    ({"stream": 1}, b'{"a": 1}\n'),
    ({"code": 0}, b""),
    ({"file": "out/0/x.svg", "size": 3, "readable": True}, b""),
    ({}, b"abc"),
    ({"file": "here/y.svg", "size": 2, "readable": True}, b""),
    ({}, b"yz"),
    ({"end": True}, b""),
]
ADDRESS: Final = Address("127.0.0.1", "me", 22)


class Scripted(Liar):
    """Sends the bytes of `script` on each channel, whatever the client says, and then nothing."""

    script = b""
    before: paramiko.Channel | None = None  # of the case before, whose client has gone

    def _answer(self, channel: paramiko.Channel) -> None:
        if self.before is not None:
            self.before.close()
        self.before = channel
        with contextlib.suppress(OSError, EOFError):
            channel.sendall(self.script)
            channel.send_exit_status(0)
            channel.shutdown_write()
            while channel.recv(1 << 16):  # until the client has read all and gone
                pass
        channel.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("inv", "README.md"):
        (project / name).write_text(name)
    monkeypatch.setattr("heddle_plugins.places.sync.project", lambda: project)
    server = Scripted()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {KEY.get_name()} {KEY.get_base64()}\n")
    yield server
    server.sock.shutdown(socket.SHUT_RDWR)
    server.thread.join()
    server.sock.close()
    for transport in server.transports:
        transport.close()


def script(dice: random.Random) -> bytes:
    """What the server sends: messages that are wrong, missing, repeated or in another order, or damaged bytes."""
    messages = list(MESSAGES)
    for _ in range(dice.choice((0, 1, 1, 2))):
        at = dice.randrange(len(messages))
        choice = dice.randrange(4)
        if choice == 0:
            del messages[at]
        elif choice == 1:
            messages.insert(dice.randrange(len(messages)), messages[at])
        elif choice == 2:
            messages[at], messages[at - 1] = messages[at - 1], messages[at]
        else:
            messages[at] = (messages[at][0], dice.randbytes(dice.choice((0, 1, 5000))))
    parts = [frame(*each) for each in messages]
    if dice.random() < 0.7:
        at = dice.randrange(len(parts))
        line, newline, data = parts[at].partition(b"\n")
        parts[at] = odd_json(dice, json.loads(line)) + newline + data
    whole = HELLO + b"".join(parts)
    return damaged(dice, whole) if dice.random() < 0.3 else whole


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [100, deep(10_000)])
def test_server(fuzz: Fuzz, count: int, server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("127.0.0.1", "127.0.0.1", server.port, "me", (), True, (tmp_path / "known",))
    monkeypatch.setattr(sync, "OUTPUT_BYTES", 1 << 20)
    ended: list[int] = []
    with connection(ADDRESS, target) as transport:

        def one(dice: random.Random, place: Path) -> None:
            server.script = script(dice)
            (place / "script").write_bytes(server.script)
            here = place / "here"
            here.mkdir()
            format = dice.choice(("text", "json"))
            call = Call(["graph"], files_out=["x.svg"], endings_here=[".svg"])
            stdout, stderr = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
            with contextlib.chdir(here), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                try:
                    session = Session(ADDRESS, call, Console(format), transport)
                    session.copy(sync.manifest_of(sync.project()), {})
                    code = session.run()
                    ended.append(code)
                    assert isinstance(code, int) and 0 <= code <= 255, f"exit code {code}"
                except (HeddleError, Broken) as error:
                    assert len(str(error)) < 5000
            written = [path.name for path in here.iterdir()]
            assert len(written) <= 2 and all(name.endswith(".svg") for name in written), written
            assert {path.name for path in place.iterdir()} == {"script", "here"}

        fuzz.run(count, one)
    assert fuzz.only is not None or len(ended) > count // 20, "hardly any script is read to its end"
