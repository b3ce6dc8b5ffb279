"""`./inv test`: which tests a word chooses, how it ends, and that a live test which fails runs once more."""

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

from heddle.base.problems import InputError
from heddle.cli.checkout_verbs import WORDS, _folders, _pytest_ended, _workers, needed_packages, suites_of
from heddle.host import packages
from tests.again import MOST
from tests.workers import BESIDE, CONTAINERS, LIVE, rank_of, unit_of

ROOT = Path(__file__).resolve().parents[2]
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


def test_units_start_in_the_order_of_their_ranks() -> None:
    assert [each for each in sorted(BESIDE) if not (ROOT / each).is_file()] == []
    assert unit_of("tests/netns/test_queues_seen.py::test_x[a::b]") == LIVE
    assert unit_of("tests/unit/test_load.py::test_x[a::b]") == "tests/unit/test_load.py"
    assert unit_of(f"{BESIDE[0]}::test_x[containerlab]") == unit_of("tests/clab/test_x.py::test_y") == CONTAINERS
    assert unit_of("tests/vm/test_x.py::test_y") == unit_of("tests/vm/test_z.py::test_y")
    units = [LIVE, "tests/vm/", CONTAINERS, "tests/unit/test_load.py", *BESIDE]
    by_name = sorted(units)
    assert sorted(by_name, key=rank_of) == units


def test_words_choose_suites_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert suites_of("deep,vm") == ["deep", "vm"]
    with pytest.raises(InputError, match="did you mean quick"):
        suites_of("unit,quik")
    both = set(needed_packages({"suite": "deep,clab", "build": False}))
    every = {*packages.FABRIC, *packages.ENGINE, *packages.IMAGE}
    assert every <= both <= every | set(packages.TEST_EXTRAS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    two = [word for word in WORDS if _workers([word], [])]
    assert two == ["quick", "deep", "long", "all", "unit", "golden", "netns", "fuzz"]
    assert _workers(["deep", "clab"], ["-x", "--durations=5"]) == ["-n", "3"]
    for words in (["tests/unit/test_load.py"], ["-k", "load"], ["-n0"], ["--pdb"], ["-s"], ["--dist=loadfile"]):
        assert _workers(["all"], words) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert _workers(["all"], []) == []


def test_of_folders_from_which_deep_alone_chooses_only_files_with_the_word_are_collected() -> None:
    assert _folders(ROOT, ["quick"], []) == ["tests/unit", "tests/golden", "tests/netns", "tests/fuzz"]
    assert _folders(ROOT, ["quick"], ["tests/unit/test_load.py::test_x"]) == []
    found = _folders(ROOT, ["deep", "vm"], [])
    assert {"tests/unit/test_fronts.py", "tests/netns/test_order.py", "tests/vm"} <= set(found)
    assert not {"tests/unit", "tests/unit/test_load.py"} & set(found)
    assert "tests/netns" in _folders(ROOT, ["deep", "clab"], []), "clab chooses by another mark"


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
def test_a_signal_waits_until_pytest_has_removed_its_labs(
    tmp_path: Path, number: signal.Signals, ending: type[BaseException]
) -> None:
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


TESTS = """
import pathlib, pytest

@pytest.fixture(scope="module")
def lab():
    made = pathlib.Path("made")
    made.write_text(made.read_text() + "x" if made.exists() else "x")
    return made

@pytest.mark.parametrize("n", range({flaky}))
def test_flaky(lab, n):
    mark = pathlib.Path(f"mark{{n}}")
    if not mark.exists():
        mark.touch()
        raise ValueError(f"pause {{n}}\\nof the machine")

def test_broken(lab):
    assert {broken} == 0

def test_good(lab): ...
"""


def session(place: Path, folder: str, flaky: int, broken: int, *words: str) -> subprocess.CompletedProcess[str]:
    (place / folder).mkdir(parents=True)
    (place / folder / "test_some.py").write_text(TESTS.format(flaky=flaky, broken=broken))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE"))}
    env = {**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HEDDLE_FLAKY": str(place / "flaky")}
    plugins = [word for name in ("no:cacheprovider", "xdist", "tests.again") for word in ("-p", name)]
    argv = [sys.executable, "-m", "pytest", *plugins, *words, folder]
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_test_that_passes_in_its_second_run_is_named_and_what_fails_twice_fails(tmp_path: Path) -> None:
    done = session(tmp_path, "netns", MOST, 1, "-n", "2")
    lines = [line for line in done.stdout.splitlines() if line.startswith("FLAKY")]
    assert sorted(lines) == [
        f"FLAKY netns/test_some.py::test_flaky[{n}]: ValueError: pause {n} of the machine" for n in range(MOST)
    ]
    assert done.returncode == 1 and f"1 failed, {MOST + 1} passed" in done.stdout, done.stdout
    assert 'raise ValueError(f"pause {n}' in done.stdout, "the first failure itself is shown"
    assert (tmp_path / "flaky").read_text().splitlines() == lines
    more = session(tmp_path / "more", "netns", MOST + 1, 0)
    assert more.returncode == 1 and f"more than {MOST} flaky tests: a failure" in more.stdout


ONCE = """
import pathlib, pytest, time

RUNS = []

def test_module():  # passes only where it ran before
    RUNS.append(1)
    assert len(RUNS) > 1

def test_skipped():
    mark = pathlib.Path("mark")
    if mark.exists():
        pytest.skip("what it needs has ended")
    mark.touch()
    raise ValueError("the first run")

def test_pause():
    mark = pathlib.Path("paused")
    if not mark.exists():
        mark.touch()
        raise ValueError("a pause")

@pytest.mark.timeout(1)
def test_hangs():  # it would pass alone
    runs = pathlib.Path("runs")
    count = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (count + 1))
    if count < 2:
        time.sleep(60)

@pytest.mark.timeout(1)
def test_hangs_once():
    mark = pathlib.Path("hung")
    if not mark.exists():
        mark.touch()
        time.sleep(60)
"""


def test_what_fails_fresh_is_skipped_then_or_hangs_twice_is_no_flaky_test(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_some.py").write_text(ONCE)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE"))}
    words = [word for name in ("no:cacheprovider", "tests.again") for word in ("-p", name)]
    argv = [sys.executable, "-m", "pytest", *words, "unit"]
    env |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    flaky = [line for line in done.stdout.splitlines() if line.startswith("FLAKY")]
    assert flaky == [
        "FLAKY unit/test_some.py::test_pause: ValueError: a pause",
        "FLAKY unit/test_some.py::test_hangs_once: Failed: Timeout (>1.0s) from pytest-timeout.",
    ]
    assert done.returncode == 1 and "3 failed, 2 passed" in done.stdout, done.stdout
    assert "ValueError: the first run" in done.stdout
