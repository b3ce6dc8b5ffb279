"""The fronts of the command line take the same words and end alike, also by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.machine import child
from tests.marks import deep
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[2]


# Each is followed by words of Heddle. ./inv itself is in test_bootstrap.py; the last line of it runs tasks.py.
FRONTS = {
    "tasks.py": [sys.executable, str(ROOT / "tasks.py")],
    "invoke": [str(Path(sys.executable).with_name("invoke"))],
    "python -m invoke": [sys.executable, "-m", "invoke"],
}
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["./inv", "invoke", deep("tasks.py"), deep("python -m invoke")])
def typed_to(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a line by one of the programs that take Heddle's verbs, in the project's directory."""
    if request.param == "./inv":
        monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
        return typed
    argv = FRONTS[request.param]
    env = _env(HEDDLE_STATE_DIR=str(tmp_path))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    return run


def test_every_front_lists_and_explains_the_verbs(typed_to: Typed) -> None:
    listed = typed_to("--list")
    assert listed.returncode == 0
    assert {"demo", "up", "paths", "exec"} <= {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}
    for words in (("--help", "up"), ("up", "--help")):
        told = typed_to(*words)
        assert (told.returncode, told.stderr) == (0, "")
        assert "Bring up a fabric" in told.stdout
        assert "--runtime" in told.stdout
        assert "where nodes run" in told.stdout


def test_every_front_runs_a_verb_and_ends_alike(typed_to: Typed) -> None:
    done = typed_to("up", "tiny", "--dry-run", "--set", "ctsw=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ctsw3" in done.stdout
    wrong = typed_to("up", "tinny", "--dry-run")  # without that it would look for FRR first, and may install it
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "tinny is neither a preset nor a file\n  hint: did you mean tiny?\n"
    output = typed_to("up", "tinny", "--dry-rnu", "--format", "json")
    assert output.returncode == 2
    assert json.loads(output.stdout)["error"]["kind"] == "InputError"
    assert "did you mean --dry-run?" in output.stderr
    assert typed_to("upp").returncode == 2


def test_every_front_leaves_words_after_two_dashes_as_they_are(typed_to: Typed) -> None:
    done = typed_to("test", "nosuite", "--", "-k", "a b", "--x=y")
    assert done.returncode == 2
    assert "nosuite" in done.stderr


def test_invoke_hands_over_the_words_from_the_verb_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from invoke import Program

    from heddle.cli.program import typed_to_invoke

    assert typed_to_invoke() is None, "pytest is not invoke"
    program = Program()
    monkeypatch.setitem(sys.modules, "invoke.main", SimpleNamespace(program=program))
    assert typed_to_invoke() is None, "it has not begun"
    for argv, words in {
        "invoke --list": None,
        "invoke --help up": None,
        "invoke -r /srv up tiny": "up tiny",
        "invoke --search-root=/srv -e exec rtsw1 -- cat --a=b -- x": "exec rtsw1 -- cat --a=b -- x",
        "invoke test -- -k x": "test -- -k x",
        "invoke --lab zone status": "--lab zone status",
    }.items():
        program.normalize_argv(argv)
        program.parse_core_args()
        assert typed_to_invoke() == (words.split() if words else None), argv


def _env(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


PROGRAM = """
import sys, time
from heddle.cli.endings import ended

def work():
    try:
        print("begun", flush=True)
        for _ in range(600):  # a signal between Python's last look and the system call of sleep ends no sleep
            time.sleep(0.1)
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


EXHAUSTED = """
import resource, sys, threading
from heddle.cli.endings import ended

def files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    [open("/dev/null") for _ in range(17)]

def memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
    bytearray(1 << 33)

def threads():
    threading.stack_size(1 << 33)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
    threading.Thread(target=print).start()

sys.exit(ended(vars()[sys.argv[1]], ["work"], as_json=False))
"""


@pytest.mark.parametrize(
    ("what", "why", "hint"),
    [
        ("files", "/dev/null cannot be used: Too many open files", "ulimit -n"),
        ("memory", "this machine reports an error: Cannot allocate memory", "free some memory"),
        ("threads", "this machine reports an error: it cannot start another thread", "ulimit -u"),
    ],
)
def test_a_limit_of_the_machine_is_no_defect(what: str, why: str, hint: str) -> None:
    argv = [sys.executable, "-c", EXHAUSTED, what]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3 and done.stderr.startswith(why) and hint in done.stderr, done.stderr


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
    with child(argv, stdin=follower, stdout=follower, stderr=follower, start_new_session=True) as process:
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
