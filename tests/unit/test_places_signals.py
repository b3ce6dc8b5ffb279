"""Signals while a verb runs elsewhere, also while this process writes to stderr."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any

import pytest

from heddle.places.session import noted_signals

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_are_noted(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    with noted_signals("left") as signals:
        os.kill(os.getpid(), number)
    assert signals == [number]
    assert capsys.readouterr().err == ""
