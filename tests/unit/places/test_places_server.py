"""Both ends of a call without SSH: the agent and its verb; and the signals to the process that called."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from heddle_plugins.places import server
from heddle_plugins.places.session import noted_signals

EMPTY = io.BytesIO()
tarfile.open(fileobj=EMPTY, mode="w:gz").close()


class Call:
    """A running agent whose verb is this shell script."""

    def __init__(self, cache: Path, script: str, **order: Any) -> None:
        env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        argv = [sys.executable, server.__file__]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self.process.stdout
        assert self.process.stdout.read(len(server.HELLO)) == server.HELLO
        self.frames, self.output = server.Frames(), b""
        self.send({"id": "x", "hash": ""})
        session = Path(self.answer("session")["session"])
        inv = session.parent / "project/inv"
        inv.write_text(f"#!/bin/sh\n{script}\n")
        inv.chmod(0o755)
        more = {"argv": ["inv"], "env": {}, "directories": [], "remove": [], "lasting": False, "terminal": None}
        self.send({**more, "input": True, **order}, EMPTY.getvalue())
        self.session = session

    def send(self, message: dict[str, Any], data: bytes = b"") -> None:
        assert self.process.stdin
        self.process.stdin.write(server.frame(message, data))
        self.process.stdin.flush()

    def answer(self, key: str) -> dict[str, Any]:
        """The next message with this key."""
        assert self.process.stdout
        while True:
            while self.frames.messages:
                message, data = self.frames.messages.pop(0)
                self.output += data
                if key in message:
                    return message
            assert select.select([self.process.stdout], [], [], 30)[0]
            self.frames.feed(os.read(self.process.stdout.fileno(), 1 << 16))

    def until(self, text: bytes) -> None:
        while text not in self.output:
            self.answer("stream")

    def go_away(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0
        self.process.stdout.close()
        assert not self.session.exists()


def test_a_verb_reads_pipes_writes_both_streams_and_ends_with_its_code(tmp_path: Path) -> None:
    call = Call(tmp_path, "cat; echo end >&2; exit 7")
    call.send({"typed": True}, b"one\n")
    assert call.answer("taken")["taken"] == 4
    call.send({"typed": True})
    assert call.answer("code")["code"] == 7
    assert call.output == b"one\nend\n"
    assert call.answer("end")
    call.go_away()


def test_a_terminal_has_the_callers_size_and_hangs_up_with_it(tmp_path: Path) -> None:
    call = Call(
        tmp_path, "stty size; trap 'stty size' WINCH; while :; do read x && echo got $x; done", terminal=[77, 33]
    )
    call.until(b"33 77\r\n")
    call.send({"typed": True}, b"abc\r")
    call.until(b"got abc\r\n")
    call.send({"terminal": [80, 25]})
    call.until(b"25 80\r\n")
    call.go_away()


def test_a_lasting_verb_goes_on_without_its_caller(tmp_path: Path) -> None:
    words = f"echo begun; read x; yes | head -c 300000; touch {tmp_path}/made"
    call = Call(tmp_path, words, lasting=True)
    call.until(b"begun")
    call.go_away()
    assert (tmp_path / "made").exists()


NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupting(io.RawIOBase):
    """A file during whose first write the process gets Ctrl-C."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.data:
            self.data = b"-"
            os.kill(os.getpid(), signal.SIGINT)
        self.data += bytes(data)
        return len(data)


def test_a_second_ctrl_c_in_the_middle_of_a_write_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Interrupting()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True))
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(KeyboardInterrupt), noted_signals("left") as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals == [signal.SIGINT]
        print("ending", file=sys.stderr)
    assert file.data.decode().endswith("left\n")
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_other_signals_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    with noted_signals("left") as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
    assert (signals, capsys.readouterr().err) == ([signal.SIGTERM, signal.SIGHUP], "")
