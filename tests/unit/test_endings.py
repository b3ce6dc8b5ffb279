"""How a process of the command line ends by a signal: what it has begun is undone, whatever else comes meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

PROGRAM = """
import sys, time
from heddle.cli.endings import ended

def work():
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("undoing", flush=True)
        sys.stdin.readline()
        print("undone", file=sys.stderr, flush=True)

sys.exit(ended(work, ["work"], as_json=False))
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    begun: list[subprocess.Popen[str]] = []

    def new(*before: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        argv = [*before, sys.executable, "-c", PROGRAM]
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        begun.append(process)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        return process

    yield new
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)])
def test_a_second_signal_does_not_break_off_what_the_first_one_undoes(
    start: Start, first: signal.Signals, second: signal.Signals
) -> None:
    process = start()
    assert process.stdout is not None
    process.send_signal(first)
    assert process.stdout.readline() == "undoing\n"
    process.send_signal(second)
    assert process.communicate("\n", timeout=30) == ("", "undone\n")
    assert process.returncode == 128 + first


IN_A_DESTRUCTOR = """
import os, signal, sys, time
from heddle.cli.endings import ended

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
        time.sleep(0.1)  # the exception comes here, and Python would print it and go on

def work():
    held = Held()
    del held
    time.sleep(60)

sys.exit(ended(work, ["work"], as_json=False))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_in_a_destructor_is_not_lost(number: signal.Signals) -> None:
    argv = [sys.executable, "-c", IN_A_DESTRUCTOR.format(number=number.name)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 128 + number and "Traceback" not in done.stderr, done.stderr


def test_nohup_keeps_a_verb_running(start: Start) -> None:
    process = start("nohup")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate("\n", timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_terminal_that_is_gone_is_not_written_to() -> None:
    leader, follower = os.openpty()
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(argv, stdin=follower, stdout=follower, stderr=follower, start_new_session=True) as process:
        try:
            os.close(follower)
            said = b""
            while b"begun" not in said:
                said += os.read(leader, 100)
            os.close(leader)
            process.send_signal(signal.SIGHUP)
            assert process.wait(timeout=30) == 128 + signal.SIGHUP
        finally:
            process.kill()
