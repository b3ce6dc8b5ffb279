"""With pytest-xdist, tests that measure live fabrics run on one worker in order, and each module has one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.cli.test_verb import _workers
from tests.workers import BESIDE, LIVE, rank_of, unit_of

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


def session(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest over FILES with the scheduler and the progress of these suites."""
    for name, text in {**FILES, "note.py": NOTE}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    mine = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE"))}
    # Plugins that happen to be installed are none of this test's, and take most of the time of such a session.
    env = {**mine, "PYTHONPATH": f"{ROOT}{os.pathsep}{place}", "COLUMNS": "60", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    loaded = ["-p", "no:cacheprovider", "-p", "xdist", "-p", "tests.workers"]
    argv = [sys.executable, "-m", "pytest", *loaded, "--color=no", "-rs", *words]
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
    assert "ValueError: on purpose" in done.stdout
    assert "SKIPPED [1] tests/unit/test_b.py:2: no b" in lines
    assert "FAILED" not in done.stdout, "only -rf lists it"
    assert lines[-1].strip("= ").startswith("1 failed, 6 passed, 1 skipped in "), lines[-1]


def test_the_first_failure_ends_all_workers(tmp_path: Path) -> None:
    done = session(tmp_path, "-n", "2", "-x", "--durations=3")
    assert done.returncode == 2
    assert "slowest 3 durations" in done.stdout
    assert "stopping after 1 failures" in done.stdout


def test_units_start_in_the_order_of_their_ranks() -> None:
    assert [each for each in sorted(BESIDE) if not (ROOT / each).is_file()] == []
    assert unit_of("tests/netns/test_queues_seen.py::test_x[a::b]") == LIVE
    assert unit_of("tests/unit/test_load.py::test_x[a::b]") == "tests/unit/test_load.py"
    first, second, *_ = BESIDE
    assert unit_of(f"{first}::test_x") == first
    units = [LIVE, "tests/unit/test_load.py", first, second]
    shuffled = [units[2], units[0], units[3], units[1]]
    assert sorted(shuffled, key=rank_of) == units


def test_whole_suites_have_two_workers_and_a_selection_stays_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for suite in ("quick", "unit", "golden", "all"):
        for words in ([], ["-x"], ["--durations=5"], ["--junit-xml=x.xml"], ["--color", "yes"]):
            assert _workers(suite, words) == ["-n", "2"]
    for typed in ("tests/unit/test_load.py", "mine.py", "mine.py::test_x", "-k load", "-kload", "-n 4", "-n0", "--pdb",
                  "-s", "--capture=no", "--lf", "--collect-only", "-p no:xdist", "--dist=loadfile"):  # fmt: skip
        assert _workers("all", typed.split()) == [], typed
    assert [_workers(suite, []) for suite in ("netns", "clab", "browser")] == [[], [], []]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert _workers("all", []) == []
