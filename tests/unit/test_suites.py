"""`./inv test`: which tests a word chooses, how workers share them, and how it ends."""

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
from heddle.cli.test_verb import WORDS, _pytest_ended, _workers, needed_packages, suites_of
from heddle.host import packages
from tests.workers import BESIDE, CONTAINERS, LIVE, rank_of, unit_of

ROOT = Path(__file__).resolve().parents[2]
NOTE = (
    'import os, pathlib, pytest\ndef note(name):\n    with open("ran", "a") as f: f.write(f"{name} {os.getpid()}\\n")\n'
)
FILES = {
    "tests/unit/test_a.py": "from note import *\ndef test_1(): note('a1')\ndef test_2(): note('a2')\n",
    "tests/unit/test_b.py": "from note import *\n@pytest.mark.skip(reason='no b')\ndef test_1(): ...\n",
    "tests/netns/test_c.py": "from note import *\ndef test_1(): note('c1')\ndef test_2(): note('c2')\n",
    "tests/netns/test_d.py": "from note import *\ndef test_1(): note('d1')\ndef test_2(): assert not note('d2'), 'd2'\n"
    "def test_3(): note('d3'); raise ValueError('on purpose')\n",
}
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


def session(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest over FILES with the scheduler and the progress of these suites."""
    for name, text in {**FILES, "note.py": NOTE}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE"))}
    env = {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{place}", "COLUMNS": "60", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = [word for name in ("no:cacheprovider", "xdist", "tests.workers") for word in ("-p", name)]
    argv = [sys.executable, "-m", "pytest", *plugins, "--color=no", "-rs", *words]
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_live_modules_share_one_worker_in_order_and_each_module_has_its_line(tmp_path: Path) -> None:
    done = session(tmp_path, "-n", "2")
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    live = [(name, pid) for name, pid in ran if name[0] in "cd"]
    assert [name for name, _ in live] == ["c1", "c2", "d1", "d2", "d3"]
    assert len({pid for _, pid in live}) == 1
    lines = done.stdout.splitlines()
    for start in ("tests/unit/test_a.py ..  ", "tests/unit/test_b.py s  ", "tests/netns/test_c.py ..  "):
        assert len([line for line in lines if line.startswith(start)]) == 1, done.stdout
    assert any(line.startswith("tests/netns/test_d.py ..F  ") for line in lines), done.stdout
    assert any(line.endswith("[100%]") and len(line) == 60 for line in lines), done.stdout
    assert lines[-1].strip("= ").startswith("1 failed, 6 passed, 1 skipped in "), lines[-1]


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
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    two = [word for word in WORDS if _workers([word], [])]
    assert two == ["quick", "deep", "all", "unit", "golden", "netns"]
    assert _workers(["deep", "clab"], ["-x", "--durations=5"]) == ["-n", "2"]
    for words in (["tests/unit/test_load.py"], ["-k", "load"], ["-n0"], ["--pdb"], ["-s"], ["--dist=loadfile"]):
        assert _workers(["all"], words) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert _workers(["all"], []) == []


def test_packages_are_those_of_all_named_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing", lambda names: [])
    both = set(needed_packages({"suite": "deep,clab", "build": False}))
    assert both == {*packages.FABRIC, *packages.ENGINE, *packages.IMAGE}


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
