"""`./inv test` ends after its pytest: a signal must not end pytest before its labs are down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

from heddle.cli.test_verb import _pytest_ended

# As pytest with labs: it removes them on its way out.
SLOW = """
import pathlib, signal, sys, time
def end(number, frame):
    time.sleep(1)
    pathlib.Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(2)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


def _ends(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # as heddle/cli/endings.py does


@pytest.fixture
def as_a_verb() -> Iterator[None]:
    """Signals as a verb has them."""
    before = signal.signal(signal.SIGTERM, _ends)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("as_a_verb")
@pytest.mark.parametrize(("number", "ending"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_waits_for_pytest(tmp_path: Path, number: signal.Signals, ending: type[BaseException]) -> None:
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / "ended")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"

    def send() -> None:
        if number is signal.SIGINT:  # Ctrl-C reaches the whole process group
            child.send_signal(number)
        os.kill(os.getpid(), number)

    threading.Timer(0.3, send).start()
    with pytest.raises(ending):
        _pytest_ended(child)
    assert (tmp_path / "ended").read_text() == number.name
    assert child.returncode == 2


def test_the_exit_code_is_pytests() -> None:
    assert _pytest_ended(subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])) == 5
